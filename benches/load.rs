//! A load generator that costs less than what it measures: requests are built beforehand, sent as
//! whole pipelines, and of the replies only the lines are counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A server that takes longer than this for one pipeline hangs, or replies what was not expected.
const PATIENCE: Duration = Duration::from_secs(20);

/// In a request, the place of a number of seven digits that each request draws anew.
pub const RANDOM: &str = "#######";
/// How many numbers there are, unless somebody says another.
pub const NUMBERS: u32 = 1_000_000;

/// Connections to a server, each with one pipeline in flight at a time.
pub struct Load {
    connections: Vec<TcpStream>,
    pipeline: usize,
    random: u64,
    pub numbers: u32,
}

impl Load {
    pub fn new(port: u16, connections: usize, pipeline: usize) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
            stream.set_nodelay(true).expect("an option of TCP");
            let limit = stream.set_read_timeout(Some(PATIENCE));
            limit.expect("a time limit");
            stream
        };
        Self {
            connections: (0..connections).map(connect).collect(),
            pipeline,
            random: 0x9e37_79b9_7f4a_7c15,
            numbers: NUMBERS,
        }
    }

    /// Sends the request, which may be of several commands, again and again for so long; how often a
    /// second it was answered.
    pub fn run(&mut self, commands: &[&str], time: Duration) -> f64 {
        let request: Vec<u8> = commands.iter().flat_map(|line| encode(line)).collect();
        let lines = self.pipeline * self.lines_of_a_reply(&request);
        let mut pipeline = request.repeat(self.pipeline);
        let places = places(&pipeline);

        let start = Instant::now();
        for n in 0..self.connections.len() {
            self.send(n, &mut pipeline, &places);
        }
        // While one is read and filled again, the server has the pipelines of all others to work at.
        let (mut answered, mut ends) = (0, false);
        while !ends {
            ends = start.elapsed() >= time;
            for n in 0..self.connections.len() {
                read_lines(&mut self.connections[n], lines);
                answered += self.pipeline;
                if !ends {
                    self.send(n, &mut pipeline, &places);
                }
            }
        }
        answered as f64 / start.elapsed().as_secs_f64()
    }

    /// Sends the request so many pipelines long, one after the other.
    pub fn repeat(&mut self, command: &str, pipelines: usize) {
        let request = encode(command);
        let lines = self.pipeline * self.lines_of_a_reply(&request);
        let pipeline = request.repeat(self.pipeline);
        for _ in 0..pipelines {
            let sent = self.connections[0].write_all(&pipeline);
            sent.expect("it is sent");
            read_lines(&mut self.connections[0], lines);
        }
    }

    fn send(&mut self, connection: usize, pipeline: &mut [u8], places: &[usize]) {
        for place in places {
            // An xorshift generator.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let mut number = self.random % u64::from(self.numbers);
            for digit in pipeline[*place..place + RANDOM.len()].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        let sent = self.connections[connection].write_all(pipeline);
        sent.expect("it is sent");
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
        let request = String::from_utf8_lossy(request);
        assert!(!text.starts_with('-'), "{request}: {text}");
        text.matches('\n').count() - 1
    }
}

/// The command, words separated by blanks, as RESP.
fn encode(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request.into_bytes()
}

/// Where the random numbers stand.
fn places(pipeline: &[u8]) -> Vec<usize> {
    let windows = pipeline.windows(RANDOM.len()).enumerate();
    let random = windows.filter(|(_, bytes)| *bytes == RANDOM.as_bytes());
    random.map(|(place, _)| place).collect()
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
