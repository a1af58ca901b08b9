//! Whatever is sent and whatever is stored: an answer, a server that lives, memory that stays.

use std::time::{Duration, Instant};

use redis::Value;

use crate::common::{error, soak, Server};

/// Random numbers from a fixed seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn one_of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.roll(list.len())]
    }

    /// A word that a command could have, or one that none has.
    fn word(&mut self) -> Vec<u8> {
        const WORDS: &[&str] = &[
            "k1",
            "k2",
            "k3",
            "k4",
            "0",
            "1",
            "2",
            "5",
            "60",
            "128",
            "129",
            "-1",
            "-0",
            "05",
            "+5",
            " 5",
            "1.5",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "4611686018427387904",
            "18446744073709551616",
            "1e3",
            "nan",
            "",
            "MS",
            "ms",
            "COST",
            "cost",
            "FIXED",
            "SLIDING",
            "BUCKET",
            "MATCH",
            "COUNT",
            "*",
            "k*",
            "[",
            "[^",
            "\\",
            "s:0:5:1",
            "b:5:1:1",
            "x",
            "%s%n",
        ];
        match self.roll(12) {
            0 => (0..self.roll(40)).map(|_| self.roll(256) as u8).collect(),
            1 => self.roll(1_000_000).to_string().into_bytes(),
            _ => self.one_of(WORDS).as_bytes().to_vec(),
        }
    }

    /// A call that is about right.
    fn call(&mut self) -> Vec<Vec<u8>> {
        const NAMES: &[&str] = &[
            "RL.HIT",
            "RL.PEEK",
            "RL.REFUND",
            "RL.MHIT",
            "RL.AUDIT",
            "RL.REPAIR",
            "CL.THROTTLE",
        ];
        let name = *self.one_of(NAMES);
        let mut words: Vec<Vec<u8>> = vec![name.into()];
        let mut add =
            |text: String| words.extend(text.split(' ').map(|word| word.as_bytes().to_vec()));
        let algorithm = *self.one_of(&["", " FIXED", " SLIDING", " BUCKET 9", " BUCKET 1"]);
        let number = |dice: &mut Self| *dice.one_of(&["0", "1", "5", "60", "9223372036854775"]);
        let rule = format!("{} {}{algorithm}", number(self), number(self));
        let key = *self.one_of(&["k1", "k2", "k3", "k4"]);
        match name {
            "RL.MHIT" => add(format!("2 {key} other {rule} {rule}")),
            "RL.AUDIT" => add("0 MATCH k* COUNT 100".into()),
            "RL.REPAIR" => add(format!("0 {key} 60 COUNT 100")),
            "CL.THROTTLE" => {
                let (burst, quantity) = (number(self), number(self));
                add(format!(
                    "{key} {burst} {} {} {quantity}",
                    number(self),
                    number(self)
                ));
            }
            _ => add(format!("{key} {rule}")),
        }
        // And then some words other than they should be.
        for _ in 0..self.roll(3) {
            let place = 1 + self.roll(words.len());
            match self.roll(3) {
                0 if place < words.len() => drop(words.remove(place)),
                1 if place < words.len() => words[place] = self.word(),
                _ => words.insert(place.min(words.len()), self.word()),
            }
        }
        words
    }

    /// A value that is a limiter, or nearly.
    fn value(&mut self) -> Vec<u8> {
        let number = |dice: &mut Self| match dice.roll(4) {
            0 => "9223372036854775807".to_string(),
            1 => "340282366920938463463374607431768211455".to_string(),
            2 => dice.roll(10).to_string(),
            _ => format!("17960000{:05}", dice.roll(100_000)),
        };
        let mut text = match self.roll(5) {
            0 => number(self),
            1 => format!("s:{}:{}:{}", number(self), number(self), number(self)),
            2 => format!("b:{}:{}:{}", number(self), number(self), number(self)),
            3 => format!("17960000{:011}", self.roll(100_000_000_000)),
            _ => return self.word(),
        }
        .into_bytes();
        if self.roll(4) == 0 {
            let place = self.roll(text.len());
            text[place] = self.roll(256) as u8;
        }
        text
    }
}

#[test]
fn random_calls_on_random_values_are_answered_and_leave_no_trace() {
    let mut server = Server::start_with(&["cl-throttle", "yes"]);
    let mut c = server.connect();
    let mut dice = Dice(88_172_645_463_325_252);
    let time = Duration::from_secs(if soak().is_some() { 600 } else { 3 });
    let used = |c: &mut crate::common::Conn| -> i64 {
        c.run("FLUSHALL");
        c.info_field("memory", "used_memory")
            .unwrap()
            .parse()
            .unwrap()
    };

    let started = Instant::now();
    let (mut calls, mut errors, mut verdicts) = (0, 0, 0);
    let mut before = None;
    while started.elapsed() < time || calls < 4_000 {
        for _ in 0..200 {
            for key in ["k1", "k2", "k3", "k4"] {
                if dice.roll(3) == 0 {
                    c.run_words(&[&b"SET"[..], key.as_bytes(), &dice.value()]);
                    if dice.roll(2) == 0 {
                        c.run(&format!("PEXPIRE {key} {}", 1 + dice.roll(100_000)));
                    }
                }
            }
            let words = dice.call();
            let reply = c.run_words(&words);
            let shown = || -> Vec<_> {
                words
                    .iter()
                    .map(|word| word.escape_ascii().to_string())
                    .collect()
            };
            match error(&reply) {
                Some(text) => {
                    assert!(!text.contains("internal"), "{:?}: {text}", shown());
                    errors += 1;
                }
                None => {
                    assert!(matches!(reply, Value::Array(_)), "{:?}: {reply:?}", shown());
                    verdicts += 1;
                }
            }
            calls += 1;
        }
        // What the first calls need is the server's; after them nothing grows.
        if calls == 1_000 {
            before = Some(used(&mut c));
        }
    }
    server.assert_alive();
    assert!(
        errors > 500 && verdicts > 500,
        "{errors} errors, {verdicts} verdicts"
    );
    let grown = used(&mut c) - before.expect("more than a thousand calls");
    assert!(grown < 300_000, "{grown} bytes after {calls} calls");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
