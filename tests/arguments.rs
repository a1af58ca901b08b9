//! Every argument error is a clear error, and changes nothing.

use crate::common::{error, Server};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";
const ARITY: &str = "ERR wrong number of arguments for 'rl.hit' command";
const LIMIT: &str = "ERR invalid limit in 'rl.hit' command";
const WINDOW: &str = "ERR invalid window in 'rl.hit' command";
const COST: &str = "ERR invalid cost in 'rl.hit' command";

/// Words that INCR would not take for a number.
const NO_INTEGERS: &[&[u8]] = &[
    b"x",
    b"",
    b" ",
    b"1.5",
    b"60.0",
    b"1e3",
    b" 5",
    b"5 ",
    b"+5",
    b"05",
    b"-0",
    b"-05",
    b"00",
    b"0x10",
    b"\"5\"",
    b"5\0",
    b"\x005",
    b"5\n",
    b"nan",
    b"inf",
    b"-",
    b"--1",
    b"1_000",
    b"1,000",
    "५".as_bytes(),
    "٥".as_bytes(),
    b"9223372036854775808",
    b"-9223372036854775809",
    b"99999999999999999999999999999999999999",
    b"\xff\xfe",
];

/// Runs the call on a missing key, on a limiter and on a counter without expiry: each time the
/// answer is `want`, and nothing has changed.
fn assert_error(server: &Server, words: &[&[u8]], want: &str) {
    let mut c = server.connect();
    for setup in ["DEL k", "SET k 3 PX 600000", "SET k 3"] {
        c.run(setup);
        let before = c.picture("k");
        let reply = c.run_words(words);
        let shown = words.join(&b' ').escape_ascii().to_string();
        assert_eq!(error(&reply).as_deref(), Some(want), "{shown}: {reply:?}");
        assert_eq!(c.picture("k"), before, "{shown}");
    }
}

#[test]
fn a_number_that_is_none_is_not_an_integer() {
    let mut server = Server::start();
    for word in NO_INTEGERS {
        assert_error(&server, &[b"RL.HIT", b"k", word, b"60"], NOT_AN_INTEGER);
        assert_error(&server, &[b"RL.HIT", b"k", b"5", word], NOT_AN_INTEGER);
        let cost: &[&[u8]] = &[b"RL.HIT", b"k", b"5", b"60", b"COST", word];
        assert_error(&server, cost, NOT_AN_INTEGER);
    }
    server.assert_alive();
}

#[test]
fn every_argument_error_has_its_text() {
    let mut server = Server::start();
    for (call, want) in [
        // Numbers that are integers, but not possible.
        ("k -1 60", LIMIT),
        ("k -9223372036854775808 60", LIMIT),
        ("k 5 0", WINDOW),
        ("k 5 -1", WINDOW),
        ("k 5 -9223372036854775808", WINDOW),
        ("k 5 0 MS", WINDOW),
        ("k 5 60 COST 0", COST),
        ("k 5 60 COST -1", COST),
        ("k 5 60 COST -9223372036854775808", COST),
        // Windows whose end does not fit.
        ("k 5 9223372036854775807", WINDOW),
        ("k 5 9223372036854775807 MS", WINDOW),
        ("k 5 9223372036854775", WINDOW),
        ("k 5 9223372036854776", WINDOW),
        ("k 5 9223372036854775000 MS", WINDOW),
        ("k 5 9223372036854775808", NOT_AN_INTEGER),
        // Words.
        ("k 5 60 SLOW", SYNTAX),
        ("k 5 60 FIXED FIXED", SYNTAX),
        ("k 5 60 MS MS", SYNTAX),
        ("k 5 60 COST 1 COST 1", SYNTAX),
        ("k 5 60 COST 1 cost 2", SYNTAX),
        ("k 5 60 COST", SYNTAX),
        ("k 5 60 MS COST", SYNTAX),
        ("k 5 60 7", SYNTAX),
        ("k 5 60 FIXE", SYNTAX),
        ("k 5 60 FIXEDD", SYNTAX),
        ("k 5 60 COST 1 7", SYNTAX),
        ("k 5 60 M", SYNTAX),
        ("k 5 60 EX", SYNTAX),
        // An option's value is whatever follows it.
        ("k 5 60 COST MS", NOT_AN_INTEGER),
        ("k 5 60 COST COST", NOT_AN_INTEGER),
        // Words before numbers, as the server's own commands check; numbers from left to right.
        ("k x 60 SLOW", SYNTAX),
        ("k -1 0 COST", SYNTAX),
        ("k x y", NOT_AN_INTEGER),
        ("k -1 y", LIMIT),
        ("k 5 0 COST y", WINDOW),
        ("k -1 0 COST 0", LIMIT),
    ] {
        let line = format!("RL.HIT {call}");
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        assert_error(&server, &words, want);
    }
    server.assert_alive();
}

#[test]
fn option_words_of_any_bytes_are_syntax_errors() {
    let mut server = Server::start();
    for word in [
        &b""[..],
        b"\0",
        b"MS\0",
        b" MS",
        b"\xff",
        b"cost=1",
        &[b'M'; 100_000],
    ] {
        assert_error(&server, &[b"RL.HIT", b"k", b"5", b"60", word], SYNTAX);
    }
    server.assert_alive();
}

#[test]
fn every_number_of_arguments_is_answered() {
    let mut server = Server::start();
    let mut c = server.connect();
    for words in 0..=12 {
        let line = format!("RL.HIT {}", vec!["5"; words].join(" "));
        let reply = c.run(&line);
        match words {
            0..=2 => assert_eq!(error(&reply).as_deref(), Some(ARITY), "{words}"),
            3 => assert_eq!(error(&reply), None, "{words}"),
            _ => assert_eq!(error(&reply).as_deref(), Some(SYNTAX), "{words}"),
        }
    }
    server.assert_alive();
}

#[test]
fn the_shortest_windows_and_the_smallest_limits_work() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.hit("a 1 1"), [1, 1, 0, 0, 1]);
    assert_eq!(c.hit("b 1 1 MS"), [1, 1, 0, 0, 1]);
    assert_eq!(c.hit("c 0 1"), [0, 0, 0, -1, 0]);
}
