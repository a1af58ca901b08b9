//! What a replica is sent, read from the stream itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use redis::{Parser, Value};

use super::Server;

/// A replica that keeps nothing and only listens.
pub struct Stream {
    reader: BufReader<TcpStream>,
    parser: Parser,
}

impl Stream {
    /// Joins as a replica, and skips the data set; the stream starts with the next effect.
    pub fn of(primary: &Server) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", primary.port())).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        socket.write_all(b"PSYNC ? -1\r\n").unwrap();
        let mut reader = BufReader::new(socket);

        let mut line = String::new();
        while !line.starts_with('$') {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "no data set");
        }
        let header = line.trim_end().trim_start_matches('$');
        if let Some(mark) = header.strip_prefix("EOF:") {
            let mut seen = Vec::new();
            while !seen.ends_with(mark.as_bytes()) {
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
                seen.push(byte[0]);
            }
        } else {
            let mut data_set = vec![0; header.parse().unwrap()];
            reader.read_exact(&mut data_set).unwrap();
        }
        // The primary takes a replica as online only when it has said something.
        reader.get_mut().write_all(b"REPLCONF ACK 0\r\n").unwrap();
        Self {
            reader,
            parser: Parser::new(),
        }
    }

    /// All effects up to the one of `SET mark ...`, that one left out, and without what is no
    /// effect: the choice of the database, and the primary's own pings.
    pub fn until(&mut self, mark: &str) -> Vec<String> {
        let mut effects = Vec::new();
        loop {
            let effect = self.next();
            let (name, rest) = effect.split_once(' ').unwrap_or((&effect, ""));
            match name.to_uppercase().as_str() {
                "SET" if rest.starts_with(&format!("{mark} ")) => return effects,
                "PING" | "SELECT" | "REPLCONF" => {}
                _ => effects.push(effect),
            }
        }
    }

    fn next(&mut self) -> String {
        words(&self.parser.parse_value(&mut self.reader).unwrap())
    }
}

/// A command as one types it.
pub fn words(command: &Value) -> String {
    let Value::Array(words) = command else {
        panic!("no command: {command:?}");
    };
    let words: Vec<_> = words
        .iter()
        .map(|word| match word {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
            other => panic!("no word: {other:?}"),
        })
        .collect();
    words.join(" ")
}
