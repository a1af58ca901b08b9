//! A load generator that costs less than what it measures: requests are built beforehand, sent as
//! whole pipelines, and of the replies only the lines are counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A server that takes longer than this for one pipeline hangs, or replies what was not expected.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connections to a server, each with one pipeline in flight at a time.
pub struct Load {
    connections: Vec<TcpStream>,
    pipeline: usize,
}

impl Load {
    pub fn new(port: u16, connections: usize, pipeline: usize) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
            stream.set_nodelay(true).expect("an option of TCP");
            stream
                .set_read_timeout(Some(PATIENCE))
                .expect("a time limit");
            stream
        };
        Self {
            connections: (0..connections).map(connect).collect(),
            pipeline,
        }
    }

    /// Sends the command until there are at least so many replies; how many a second there were.
    pub fn run(&mut self, command: &[String], requests: usize) -> f64 {
        let request = encode(command);
        let pipeline = request.repeat(self.pipeline);
        let lines = self.pipeline * self.lines_of_a_reply(&request);
        let each = requests.div_ceil(self.pipeline * self.connections.len());

        let start = Instant::now();
        for connection in &mut self.connections {
            connection.write_all(&pipeline).expect("it is sent");
        }
        // While one is read and filled again, the server has the pipelines of all others to work at.
        for round in 1..=each {
            for connection in &mut self.connections {
                read_lines(connection, lines);
                if round < each {
                    connection.write_all(&pipeline).expect("it is sent");
                }
            }
        }
        let replies = each * self.pipeline * self.connections.len();
        replies as f64 / start.elapsed().as_secs_f64()
    }

    /// How many lines the reply to a request has, which all replies to it have.
    fn lines_of_a_reply(&mut self, request: &[u8]) -> usize {
        let connection = &mut self.connections[0];
        connection.write_all(request).expect("it is sent");
        connection.write_all(b"PING\r\n").expect("it is sent");
        let mut reply = Vec::new();
        while !reply.ends_with(b"+PONG\r\n") {
            let mut block = [0; 4096];
            let length = connection.read(&mut block).expect("there is a reply");
            assert_ne!(length, 0, "the server closed the connection");
            reply.extend_from_slice(&block[..length]);
        }
        let text = String::from_utf8_lossy(&reply);
        assert!(
            !text.starts_with('-'),
            "{}: {text}",
            String::from_utf8_lossy(request)
        );
        text.matches('\n').count() - 1
    }
}

/// The request as RESP.
fn encode(command: &[String]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request.into_bytes()
}

fn read_lines(connection: &mut TcpStream, lines: usize) {
    let mut block = [0; 64 * 1024];
    let mut seen = 0;
    while seen < lines {
        let length = connection.read(&mut block).expect("there are replies");
        assert_ne!(length, 0, "the server closed the connection");
        seen += block[..length]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
    }
    assert_eq!(seen, lines, "lines of replies");
}
