//! Hostile keys and stored values: a right answer, nothing changed, and the server lives.

use redis::Value;

use crate::common::{error, verdict, wait_until, Server};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn a_key_may_be_any_bytes() {
    let mut server = Server::start();
    let mut c = server.connect();
    let long = vec![b'k'; 1024 * 1024];
    let keys: &[&[u8]] = &[
        b"a b",
        b"a\r\nb",
        b"a\0b",
        b"\0",
        b"\xff\xfe",
        b"",
        b"{tag}x",
        b"%s%n%d",
        b"k*?[a]",
        "ключ🔑".as_bytes(),
        &long,
    ];
    for key in keys {
        c.run("FLUSHALL");
        for want in [[1, 2, 1, 0, 60], [1, 2, 0, 0, 60], [0, 2, 0, 60, 60]] {
            let reply = c.run_words(&[&b"RL.HIT"[..], key, b"2", b"60"]);
            assert_eq!(verdict(&reply), Some(want));
        }
        let all = Value::Array(vec![Value::BulkString(key.to_vec())]);
        assert_eq!(c.run("KEYS *"), all);
        assert_eq!(
            c.run_words(&[&b"GET"[..], key]),
            Value::BulkString(b"2".into())
        );
    }
    server.assert_alive();
}

#[test]
fn a_string_that_is_no_counter_is_an_error_and_stays_as_it_is() {
    let mut server = Server::start();
    let mut c = server.connect();
    let long = vec![0xff; 512];
    let megabyte = vec![b'7'; 1024 * 1024];
    let values: &[&[u8]] = &[
        b"hello",
        b"",
        b" ",
        b" 5",
        b"5 ",
        b"+5",
        b"05",
        b"-0",
        b"3.14",
        b"1e3",
        b"0x10",
        b"nan",
        b"inf",
        b"-",
        b"5\0",
        b"\0",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"99999999999999999999",
        b"18446744073709551615",
        b"s:1:2",
        b"s:1:2:3:4",
        b"s:01:2:3",
        b"s:-1:2:3",
        b"s:1:2:9223372036854775808",
        b"s:1:2:3\n",
        b"S:1:2:3",
        b"b:1:2:0",
        b"b:1:2",
        b"b:1:2:3:4",
        b"b:340282366920938463463374607431768211456:2:3",
        b"x:1:2:3",
        // The longest limiter that there is, and one digit more.
        b"b:12345678901234567890123456789012345678:1000000000000000000:90000000000000000000",
        "५".as_bytes(),
        &long,
        &megabyte,
    ];
    for value in values {
        for expiry in [&["PX", "600000"][..], &[]] {
            let mut set: Vec<&[u8]> = vec![b"SET", b"k", value];
            set.extend(expiry.iter().map(|word| word.as_bytes()));
            c.run_words(&set);
            let before = c.picture("k");
            for options in ["", "COST 1000", "FIXED MS", "SLIDING", "BUCKET 5"] {
                for command in ["RL.HIT k", "RL.PEEK k", "RL.REFUND k", "RL.MHIT 1 k"] {
                    let text = c.error(&format!("{command} 10 60 {options}"));
                    assert_eq!(text, NOT_AN_INTEGER, "{}", value.escape_ascii());
                }
            }
            assert_eq!(c.picture("k"), before, "{}", value.escape_ascii());
            assert_eq!(c.run("GET k"), Value::BulkString(value.to_vec()));
        }
    }
    server.assert_alive();
}

/// What a counter may hold, the server's own INCR decides: both take the same values.
#[test]
fn a_counter_is_what_incr_takes_for_one() {
    let server = Server::start();
    let mut c = server.connect();
    for value in [
        "0",
        "1",
        "-1",
        "5",
        "05",
        "-0",
        "00",
        "+1",
        "1.0",
        "",
        " 1",
        "1 ",
        "10",
        "9",
        "99",
        "9223372036854775806",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "-9223372036854775809",
        "1\n",
        "\t1",
        "1e1",
        "0x1",
        "-",
    ] {
        c.run_words(&["SET", "k", value]);
        let refused_by_hit = error(&c.run("RL.HIT k 1 60 COST 9")).is_some();
        // INCRBY 0 leaves the value alone, also at the edges.
        let refused_by_incr = error(&c.run("INCRBY k 0")).is_some();
        assert_eq!(refused_by_hit, refused_by_incr, "{value:?}");
    }
}

#[test]
fn a_counter_may_be_stored_in_any_encoding() {
    let mut server = Server::start();
    let mut c = server.connect();
    for (encoding, setup) in [
        // A small integer, of which the server keeps one for all keys, and one that it doesn't.
        ("int", &["SET k 7 PX 60000"][..]),
        ("int", &["SET k 700000 PX 60000"]),
        ("raw", &["SET k 7", "APPEND k 5", "PEXPIRE k 60000"]),
        ("raw", &["SET k 7", "SETRANGE k 1 55", "PEXPIRE k 60000"]),
    ] {
        for line in setup {
            c.run(line);
        }
        let stored_as = c.string("OBJECT ENCODING k");
        assert_eq!(stored_as.as_deref(), Some(encoding), "{setup:?}");
        let count: i64 = c.get("k").unwrap().parse().unwrap();
        let left = 9_000_000 - count - 1;
        assert_eq!(c.hit("k 9000000 60"), [1, 9_000_000, left, 0, 60]);
        assert_eq!(c.get("k"), Some((count + 1).to_string()), "{setup:?}");
    }
    // A shared value is not written to.
    c.run("MSET a 9 b 9");
    c.hit("a 100 60");
    assert_eq!(c.get("a").as_deref(), Some("10"));
    assert_eq!(c.get("b").as_deref(), Some("9"));
    server.assert_alive();
}

#[test]
fn a_count_may_grow_and_shrink_in_place() {
    let server = Server::start();
    let mut c = server.connect();
    let mut count = 0;
    for cost in [1, 8, 1, 89, 1, 899, 1, 8_999, 1, 999_999_999, 1] {
        count += cost;
        assert_eq!(c.hit(&format!("k 9999999999 60 COST {cost}"))[0], 1);
        assert_eq!(c.get("k"), Some(count.to_string()));
        assert_eq!(c.integer("STRLEN k"), count.to_string().len() as i64);
    }
    c.run("SET k -123456");
    c.hit("k 5 60");
    assert_eq!(c.get("k").as_deref(), Some("1"));
    assert_eq!(c.integer("STRLEN k"), 1);
}

#[test]
fn a_key_of_another_type_is_an_error_and_stays_as_it_is() {
    let mut server = Server::start();
    let mut c = server.connect();
    for setup in [
        "RPUSH k 5",
        "HSET k f 5",
        "SADD k 5",
        "SADD k five",
        "ZADD k 5 five",
        "XADD k 1-1 f 5",
        "GEOADD k 13 38 five",
    ] {
        for expiry in ["PERSIST k", "PEXPIRE k 600000"] {
            c.run("DEL k");
            c.run(setup);
            c.run(expiry);
            let before = c.picture("k");
            for options in ["", "COST 1000", "MS", "SLIDING", "BUCKET 5"] {
                for command in ["RL.HIT k", "RL.PEEK k", "RL.REFUND k", "RL.MHIT 1 k"] {
                    let text = c.error(&format!("{command} 10 60 {options}"));
                    assert_eq!(text, WRONG_TYPE, "{setup}");
                }
            }
            assert_eq!(c.picture("k"), before, "{setup}");
        }
    }
    // These are strings, of bytes that are no number.
    c.run("DEL k");
    c.run("PFADD k five");
    assert_eq!(c.error("RL.HIT k 10 60"), NOT_AN_INTEGER);
    c.run("DEL k");
    c.run("SETBIT k 100 1");
    assert_eq!(c.error("RL.HIT k 10 60"), NOT_AN_INTEGER);
    server.assert_alive();
}

#[test]
fn a_limiter_of_another_algorithm_is_named_and_stays_as_it_is() {
    let mut server = Server::start();
    let mut c = server.connect();
    for (made_by, name) in [
        ("FIXED", "FIXED"),
        ("SLIDING", "SLIDING"),
        ("BUCKET 5", "BUCKET"),
    ] {
        c.run("DEL k");
        c.hit(&format!("k 10 600 {made_by}"));
        for expiry in ["PEXPIRE k 600000", "PERSIST k"] {
            c.run(expiry);
            let before = c.picture("k");
            for met_by in ["FIXED", "SLIDING", "BUCKET 5", ""] {
                if met_by.starts_with(name) || (met_by.is_empty() && name == "FIXED") {
                    continue;
                }
                for command in ["RL.HIT k", "RL.PEEK k", "RL.REFUND k", "RL.MHIT 1 k"] {
                    let text = c.error(&format!("{command} 10 60 {met_by}"));
                    assert_eq!(text, format!("ERR key holds a {name} limiter"));
                }
            }
            assert_eq!(c.picture("k"), before, "{name}");
        }
    }
    server.assert_alive();
}

#[test]
fn arguments_are_checked_before_the_key_is() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("RPUSH k 5");
    assert_eq!(c.error("RL.HIT k x 60"), NOT_AN_INTEGER);
    assert_eq!(c.error("RL.HIT k 5 60 SLOW"), "ERR syntax error");
}

/// redis-cell keeps an arrival time in nanoseconds, which reads as a count.
#[test]
fn a_key_of_redis_cell_is_above_any_usual_limit_until_it_ends() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("SET cell 1796000000000000000 PX 30000");
    assert_eq!(c.hit("cell 1000000 60"), [0, 1_000_000, 0, 30, 30]);
    assert_eq!(c.get("cell").as_deref(), Some("1796000000000000000"));
    for algorithm in ["SLIDING", "BUCKET 5"] {
        assert_eq!(
            c.error(&format!("RL.HIT cell 5 60 {algorithm}")),
            "ERR key holds a FIXED limiter"
        );
    }
    c.run("PEXPIRE cell 1");
    wait_until("it has ended", || c.integer("EXISTS cell") == 0);
    assert_eq!(c.hit("cell 5 60"), [1, 5, 4, 0, 60]);
}
