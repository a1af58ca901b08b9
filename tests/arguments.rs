//! Every argument error is a clear error, and changes nothing.

use crate::common::{error, Server};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";
const ARITY: &str = "ERR wrong number of arguments for 'NAME' command";
const LIMIT: &str = "ERR invalid limit in 'NAME' command";
const WINDOW: &str = "ERR invalid window in 'NAME' command";
const CAPACITY: &str = "ERR invalid capacity in 'NAME' command";
const COST: &str = "ERR invalid cost in 'NAME' command";

/// The commands about one limiter; an error names the one that was called.
const COMMANDS: [&str; 3] = ["rl.hit", "rl.peek", "rl.refund"];

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

/// Runs the call, without its command, by each command and on a missing key, a limiter of each
/// algorithm and a counter without expiry: each time the answer is `want`, and nothing has changed.
fn assert_error(server: &Server, words: &[&[u8]], want: &str) {
    let mut c = server.connect();
    for setup in [
        "DEL k",
        "SET k 3 PX 600000",
        "SET k 3",
        "SET k s:1:2:1700000000000 PX 600000",
        "SET k b:1:1700000000000:60000 PX 600000",
    ] {
        c.run(setup);
        let before = c.picture("k");
        for command in COMMANDS {
            let words = [&[command.as_bytes()], words].concat();
            let reply = c.run_words(&words);
            let shown = words.join(&b' ').escape_ascii().to_string();
            let want = want.replace("NAME", command);
            assert_eq!(error(&reply), Some(want), "{shown}: {reply:?}");
        }
        assert_eq!(c.picture("k"), before);
    }
}

#[test]
fn a_number_that_is_none_is_not_an_integer() {
    let mut server = Server::start();
    for word in NO_INTEGERS {
        assert_error(&server, &[b"k", word, b"60"], NOT_AN_INTEGER);
        assert_error(&server, &[b"k", b"5", word], NOT_AN_INTEGER);
        let cost: &[&[u8]] = &[b"k", b"5", b"60", b"COST", word];
        assert_error(&server, cost, NOT_AN_INTEGER);
        let capacity: &[&[u8]] = &[b"k", b"5", b"60", b"BUCKET", word];
        assert_error(&server, capacity, NOT_AN_INTEGER);
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
        ("k 5 4611686018427387904 MS SLIDING", WINDOW),
        ("k 5 9223372036854775807 BUCKET 5 MS", WINDOW),
        // Capacities.
        ("k 5 60 BUCKET 0", CAPACITY),
        ("k 5 60 BUCKET -1", CAPACITY),
        ("k 1 60 BUCKET 9223372036854775807", CAPACITY),
        ("k 1 31536000 BUCKET 292471209", CAPACITY),
        // Words.
        ("k 5 60 SLOW", SYNTAX),
        ("k 5 60 FIXED FIXED", SYNTAX),
        ("k 5 9223372036854776 COST 0", COST),
        ("k 5 9223372036854776 COST 1", WINDOW),
        ("k 5 60 MS MS", SYNTAX),
        ("k 5 60 COST 1 COST 1", SYNTAX),
        ("k 5 60 COST 1 cost 2", SYNTAX),
        ("k 5 60 FIXED SLIDING", SYNTAX),
        ("k 5 60 SLIDING SLIDING", SYNTAX),
        ("k 5 60 SLIDING BUCKET 5", SYNTAX),
        ("k 5 60 BUCKET 5 BUCKET 5", SYNTAX),
        ("k 5 60 BUCKET 5 FIXED", SYNTAX),
        ("k 5 60 BUCKET", SYNTAX),
        ("k 5 60 COST 1 BUCKET", SYNTAX),
        ("k 5 60 SLIDING 5", SYNTAX),
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
        ("k 5 60 BUCKET COST 5", SYNTAX),
        ("k 5 60 BUCKET COST", NOT_AN_INTEGER),
        // Words before numbers, as the server's own commands check; numbers from left to right.
        ("k x 60 SLOW", SYNTAX),
        ("k -1 0 COST", SYNTAX),
        ("k x y", NOT_AN_INTEGER),
        ("k -1 y", LIMIT),
        ("k 5 0 COST y", WINDOW),
        ("k -1 0 COST 0", LIMIT),
        ("k 5 60 COST 0 BUCKET 0", CAPACITY),
        ("k 5 60 COST 0 BUCKET 9223372036854775807", COST),
    ] {
        let words: Vec<&[u8]> = call.split(' ').map(str::as_bytes).collect();
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
        assert_error(&server, &[b"k", b"5", b"60", word], SYNTAX);
    }
    server.assert_alive();
}

#[test]
fn every_number_of_arguments_is_answered() {
    let mut server = Server::start();
    let mut c = server.connect();
    for command in COMMANDS {
        for words in 0..=12 {
            let line = format!("{command} {}", vec!["5"; words].join(" "));
            let text = error(&c.run(&line));
            match words {
                0..=2 => assert_eq!(text, Some(ARITY.replace("NAME", command)), "{words}"),
                3 => assert_eq!(text, None, "{words}"),
                _ => assert_eq!(text.as_deref(), Some(SYNTAX), "{words}"),
            }
        }
    }
    for words in 0..=12 {
        let reply = c.run(&format!("RL.MHIT {}", vec!["1"; words].join(" ")));
        match (words, error(&reply)) {
            (0..=3, Some(text)) => assert_eq!(text, ARITY.replace("NAME", "rl.mhit"), "{words}"),
            (4, None) => {}
            (5.., Some(text)) => assert_eq!(text, SYNTAX, "{words}"),
            (_, text) => panic!("{words}: {text:?}"),
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
    assert_eq!(c.hit("d 1 1 MS SLIDING"), [1, 1, 0, 0, 2]);
    assert_eq!(c.hit("e 1 1 MS BUCKET 1"), [1, 1, 0, 0, 1]);
}

/// What is wrong with a call for several limiters; the keys a and b hold limiters before.
#[test]
fn every_error_of_several_rules_has_its_text_and_takes_nothing() {
    let mut server = Server::start();
    let mut c = server.connect();
    let keys: Vec<String> = (0..129).map(|n| format!("k{n}")).collect();
    let too_many = format!("129 {} {}", keys.join(" "), ["1 1"; 129].join(" "));
    for (call, want) in [
        ("x a 5 60", NOT_AN_INTEGER),
        ("1.0 a 5 60", NOT_AN_INTEGER),
        ("9223372036854775808 a 5 60", NOT_AN_INTEGER),
        ("0 a 5 60", "ERR numkeys should be greater than 0"),
        ("-1 a 5 60", "ERR numkeys should be greater than 0"),
        (
            "9223372036854775807 a 5 60",
            "ERR too many keys in 'rl.mhit' command",
        ),
        ("129 a 5 60", "ERR too many keys in 'rl.mhit' command"),
        (&too_many, "ERR too many keys in 'rl.mhit' command"),
        // More or fewer rules than keys.
        ("4 a b 5 60", SYNTAX),
        ("2 a b 5 60", SYNTAX),
        ("2 a b 5 60 5", SYNTAX),
        ("2 a b 5 60 5 60 5 60", SYNTAX),
        ("2 a b 5 60 5 60 5", SYNTAX),
        ("3 a b 5 60 5 60", SYNTAX),
        ("1 a 5 60 5 60", SYNTAX),
        // Words.
        ("2 a b 5 60 SLOW 5 60", SYNTAX),
        ("2 a b 5 60 5 60 SLOW", SYNTAX),
        ("2 a b 5 60 5 60 MS MS", SYNTAX),
        ("2 a b 5 60 MS 5 60", SYNTAX),
        ("2 a b MS 5 60 5 60", SYNTAX),
        ("2 a b 5 60 5 60 COST", SYNTAX),
        ("2 a b 5 60 FIXED FIXED 5 60", SYNTAX),
        ("2 a b 5 60 COST 1 COST 1 5 60", SYNTAX),
        ("2 a b 5 60 SLIDING BUCKET 5 5 60", SYNTAX),
        // Numbers, of the first rule first.
        ("2 a b x 60 5 60", NOT_AN_INTEGER),
        ("2 a b 5 60 5 x", NOT_AN_INTEGER),
        ("2 a b 5 60 5 60 COST MS", NOT_AN_INTEGER),
        ("2 a b 5 60 -1 60", "ERR invalid limit in 'rl.mhit' command"),
        ("2 a b 5 60 5 0", "ERR invalid window in 'rl.mhit' command"),
        (
            "2 a b 5 60 COST 0 5 x",
            "ERR invalid cost in 'rl.mhit' command",
        ),
        (
            "2 a b 5 60 5 60 BUCKET 0",
            "ERR invalid capacity in 'rl.mhit' command",
        ),
        // The same key twice.
        ("2 a a 5 60 5 60", "ERR duplicate key in 'rl.mhit' command"),
        (
            "3 a b a 5 60 5 60 5 60",
            "ERR duplicate key in 'rl.mhit' command",
        ),
        // It is looked for after the numbers.
        ("2 a a 5 60 x 60", NOT_AN_INTEGER),
        // What a later key holds.
        (
            "2 a list 5 60 5 60",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        ("2 a text 5 60 5 60", NOT_AN_INTEGER),
        ("2 a mangled 5 60 5 60 SLIDING", NOT_AN_INTEGER),
        // Of two, the last one's.
        (
            "2 text list 5 60 5 60",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        ("2 list text 5 60 5 60", NOT_AN_INTEGER),
        ("2 a b 5 60 5 60 SLIDING", "ERR key holds a FIXED limiter"),
        ("2 a s 5 60 5 60", "ERR key holds a SLIDING limiter"),
    ] {
        for line in [
            "FLUSHALL",
            "SET a 1",
            "SET b 1 PX 600000",
            "RPUSH list 1",
            "SET text hello",
            "SET mangled s:1:2",
            "SET s s:0:1:1700000000000 PX 600000",
        ] {
            c.run(line);
        }
        let mut pictures = || ["a", "b", "list", "text", "mangled", "s"].map(|key| c.picture(key));
        let before = pictures();
        let line = format!("RL.MHIT {call}");
        let words: Vec<&str> = line.split(' ').collect();
        let reply = server.connect().run_words(&words);
        assert_eq!(error(&reply).as_deref(), Some(want), "{call}: {reply:?}");
        assert_eq!(pictures(), before, "{call}");
    }
    server.assert_alive();
}
