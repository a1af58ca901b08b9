//! CL.THROTTLE: the command of redis-cell, where it is asked for.

use redis::Value;

use crate::common::stream::Stream;
use crate::common::{events, module, text, verdict, wait_until, Conn, Server};

fn server() -> Server {
    Server::start_with(&["cl-throttle", "yes", "--notify-keyspace-events", "KEA"])
}

/// Limited, limit, remaining, retry_after, reset_after.
fn throttle(c: &mut Conn, arguments: &str) -> [i64; 5] {
    let reply = c.run(&format!("CL.THROTTLE {arguments}"));
    verdict(&reply).unwrap_or_else(|| panic!("CL.THROTTLE {arguments} answers {reply:?}"))
}

#[test]
fn it_is_there_where_it_is_asked_for_and_nowhere_else() {
    let mut server = Server::start_bare(&[]);
    let mut c = server.connect();
    let load = format!("MODULE LOAD {}", module().display());
    for (arguments, is_on) in [
        ("", false),
        (" cl-throttle no", false),
        (" cl-throttle yes", true),
        (" rl.cl-throttle YES", true),
    ] {
        assert_eq!(c.run(&format!("{load}{arguments}")), Value::Okay);
        assert_eq!(c.has("cl.throttle"), is_on, "{arguments}");
        assert!(c.has("rl.hit"));
        let text = c.error("CONFIG SET rl.cl-throttle yes");
        assert!(text.contains("can't set immutable config"), "{text}");
        // An ACL rule for a command that isn't the module's is no hindrance.
        if is_on {
            c.run("ACL SETUSER ann on nopass ~* +cl.throttle");
            c.error("MODULE UNLOAD rl");
            c.run("ACL DELUSER ann");
        }
        assert_eq!(c.run("MODULE UNLOAD rl"), Value::Okay);
    }
    server.assert_alive();

    // Or by the configuration file.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    let text = format!("loadmodule {}\nrl.cl-throttle yes\n", module().display());
    std::fs::write(&file, text).unwrap();
    let server = Server::start_from(&file);
    assert!(server.connect().has("cl.throttle"));
}

#[test]
fn the_reply_is_that_of_redis_cell() {
    let server = server();
    let mut c = server.connect();
    assert_eq!(throttle(&mut c, "k 15 30 60 1"), [0, 16, 15, -1, 2]);
    assert_eq!(throttle(&mut c, "k 15 30 60"), [0, 16, 14, -1, 4]);
    assert_eq!(throttle(&mut c, "k 15 30 60 14"), [0, 16, 0, -1, 32]);
    assert_eq!(throttle(&mut c, "k 15 30 60"), [1, 16, 0, 2, 32]);
    assert_eq!(throttle(&mut c, "k 15 30 60 17"), [1, 16, 0, -1, 32]);
    assert_eq!(throttle(&mut c, "new 15 30 60 17"), [1, 16, 16, -1, 0]);
    assert_eq!(c.integer("EXISTS new"), 0);
    // Rates that redis-cell overflows at, or lets nothing through at.
    assert_eq!(
        throttle(&mut c, "year 300 1 31536000"),
        [0, 301, 300, -1, 31_536_000]
    );
    assert_eq!(throttle(&mut c, "fast 1 2000 1"), [0, 2, 1, -1, 1]);
    // Gone, or about to be: at its end a key is still there.
    let ttl_ms = c.pttl("fast");
    assert!(ttl_ms == -2 || (0..=2).contains(&ttl_ms), "{ttl_ms}");
}

#[test]
fn what_is_stored_is_the_arrival_time_with_its_expiry() {
    let server = server();
    let mut c = server.connect();
    let before_ns = c.now_ms() * 1_000_000;
    throttle(&mut c, "k 4 1 10 3");
    let tat_ns: i64 = c.get("k").unwrap().parse().unwrap();
    let after_ns = (c.now_ms() + 1) * 1_000_000;
    let thirty_seconds_ns = 30_000_000_000;
    assert!((before_ns + thirty_seconds_ns..=after_ns + thirty_seconds_ns).contains(&tat_ns));
    let end_ms = c.integer("PEXPIRETIME k");
    assert_eq!(
        end_ms,
        tat_ns / 1_000_000 + i64::from(tat_ns % 1_000_000 > 0)
    );
    assert_eq!(throttle(&mut c, "k 4 1 10"), [0, 5, 1, -1, 40]);
    let next_ns: i64 = c.get("k").unwrap().parse().unwrap();
    assert_eq!(next_ns, tat_ns + 10_000_000_000);
}

/// Of redis-cell: whole milliseconds, up to one before the arrival time.
#[test]
fn a_key_of_redis_cell_goes_on() {
    let server = server();
    let mut c = server.connect();
    let tat_ms = c.now_ms() + 35_500;
    c.run(&format!("SET k {tat_ms}500000 PXAT {tat_ms}"));
    // Thirty-six seconds are owed, nearly, of fifty.
    assert_eq!(throttle(&mut c, "k 4 1 10 0"), [0, 5, 1, -1, 36]);
    assert_eq!(throttle(&mut c, "k 4 1 10"), [0, 5, 0, -1, 46]);
    assert_eq!(c.get("k"), Some(format!("{}500000", tat_ms + 10_000)));
    let refused = throttle(&mut c, "k 4 1 10");
    assert_eq!(refused, [1, 5, 0, 6, 46]);
}

#[test]
fn waiting_exactly_retry_after_is_enough() {
    let server = server();
    let mut c = server.connect();
    for _ in 0..5 {
        while throttle(&mut c, "k 0 1 1")[0] == 0 {}
        let [limited, _, _, retry_after, reset_after] = throttle(&mut c, "k 0 1 1");
        if limited == 1 {
            assert_eq!((retry_after, reset_after), (1, 1));
        }
        wait_until("a second has passed", || {
            throttle(&mut c, "k 0 1 1")[0] == 0
        });
    }
}

#[test]
fn a_quantity_of_zero_and_a_refusal_write_nothing() {
    let server = server();
    let mut c = server.connect();
    let mut stream = Stream::of(&server);
    let mut watcher = server.connect();
    let mut want = Vec::new();
    for (arguments, writes) in [
        ("k 1 1 60", true),
        ("k 1 1 60 0", false),
        ("k 1 1 60", true),
        ("k 1 1 60", false),
        ("k 1 1 60 3", false),
        ("k 1 1 60 0", false),
        ("never 1 1 60 3", false),
        ("never 1 1 60 0", false),
    ] {
        watcher.run("WATCH k never");
        let changes = |c: &mut Conn| c.info_field("persistence", "rdb_changes_since_last_save");
        let before = changes(&mut c);
        throttle(&mut c, arguments);
        assert_eq!(changes(&mut c) != before, writes, "{arguments}");
        watcher.run("MULTI");
        watcher.run("PING");
        let broken = watcher.run("EXEC") == Value::Nil;
        assert_eq!(broken, writes, "{arguments}");
        if writes {
            want.push(c.effect("k"));
        }
    }
    c.run("SET mark 1");
    assert_eq!(stream.until("mark"), want);
    assert_eq!(c.integer("EXISTS never"), 0);
}

#[test]
fn a_state_that_lost_its_expiry_is_repaired_also_by_a_refusal() {
    let server = server();
    let mut c = server.connect();
    throttle(&mut c, "k 1 1 60 2");
    let end_ms = c.integer("PEXPIRETIME k");
    c.run("PERSIST k");
    let repaired = c.figure("limiters_repaired");
    let heard = events(&server, &["k"], || {
        assert_eq!(throttle(&mut c, "k 1 1 60")[0], 1);
    });
    assert_eq!(heard, ["expire k", "rl.repaired k"]);
    assert_eq!(c.integer("PEXPIRETIME k"), end_ms);
    assert_eq!(c.figure("limiters_repaired"), repaired + 1);
    let heard = events(&server, &["k", "j"], || {
        throttle(&mut c, "k 1 1 60");
        throttle(&mut c, "j 1 1 60");
        throttle(&mut c, "j 1 1 60 0");
    });
    assert_eq!(heard, ["set j", "expire j"]);
}

#[test]
fn no_key_no_value_and_no_arguments_do_harm() {
    let mut server = server();
    let mut c = server.connect();
    let invalid = |name: &str| format!("ERR invalid {name} in 'cl.throttle' command");
    let not_an_integer = "ERR value is not an integer or out of range";
    for (arguments, text) in [
        ("k -1 1 1", invalid("max_burst")),
        ("k 9223372036854775807 1 1", invalid("max_burst")),
        ("k 1000000000000 1 60", invalid("max_burst")),
        ("k 1 0 1", invalid("count")),
        ("k 1 -1 1", invalid("count")),
        ("k 1 2000000000 1", invalid("count")),
        ("k 1 1 0", invalid("period")),
        ("k 1 1 -5", invalid("period")),
        ("k 1 1 9223372036854775807", invalid("period")),
        ("k 1 1 1 -1", invalid("quantity")),
        ("k x 1 1", not_an_integer.into()),
        ("k 1 1.5 1", not_an_integer.into()),
        ("k 1 1 05", not_an_integer.into()),
        ("k 1 1 1 9223372036854775808", not_an_integer.into()),
        (
            "k 1 1",
            "ERR wrong number of arguments for 'cl.throttle' command".into(),
        ),
        (
            "k 1 1 1 1 1",
            "ERR wrong number of arguments for 'cl.throttle' command".into(),
        ),
    ] {
        assert_eq!(
            c.error(&format!("CL.THROTTLE {arguments}")),
            text,
            "{arguments}"
        );
    }
    assert_eq!(c.integer("DBSIZE"), 0);
    assert_eq!(
        throttle(&mut c, "k 1 1 1 9223372036854775807"),
        [1, 2, 2, -1, 0]
    );

    for value in [
        "hello",
        "",
        " 5",
        "3.14",
        "nan",
        "+1800000000000000000",
        "18446744073709551616",
    ] {
        c.run_words(&["SET", "k", value]);
        let before = c.picture("k");
        assert_eq!(c.error("CL.THROTTLE k 1 1 1"), not_an_integer, "{value}");
        assert_eq!(c.picture("k"), before, "{value}");
    }
    c.run("DEL k");
    for (setup, text) in [
        ("RL.HIT k 5 60", "ERR key holds a FIXED limiter"),
        ("RL.HIT k 5 60 SLIDING", "ERR key holds a SLIDING limiter"),
        ("RL.HIT k 5 60 BUCKET 5", "ERR key holds a BUCKET limiter"),
        (
            "RPUSH k 1",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ] {
        c.run(setup);
        let before = c.picture("k");
        assert_eq!(c.error("CL.THROTTLE k 1 1 1"), text);
        assert_eq!(c.error("CL.THROTTLE k 1 1 1 0"), text);
        assert_eq!(c.picture("k"), before, "{setup}");
        c.run("DEL k");
    }
    for key in [&b"\xff\xfe"[..], b"a\0b", b"", b"a b"] {
        let words = [b"CL.THROTTLE", key, b"1", b"1", b"60"];
        assert_eq!(verdict(&c.run_words(&words)), Some([0, 2, 1, -1, 60]));
        let words = [b"RL.HIT", key, b"5", b"60"];
        assert_eq!(verdict(&c.run_words(&words)).unwrap()[0], 0);
    }
    server.assert_alive();
}

#[test]
fn it_counts_in_the_figures_and_follows_the_policy_out_of_memory() {
    let server = server();
    let mut c = server.connect();
    throttle(&mut c, "k 0 1 60");
    throttle(&mut c, "k 0 1 60");
    throttle(&mut c, "k 0 1 60 0");
    for (figure, count) in [("hits_allowed", 1), ("hits_refused", 1), ("peeks", 1)] {
        assert_eq!(c.figure(figure), count, "{figure}");
    }
    c.run("CONFIG SET maxmemory 1");
    assert!(c.error("CL.THROTTLE new 4 1 10").starts_with("OOM "));
    c.run("CONFIG SET rl.oom-policy allow");
    assert_eq!(throttle(&mut c, "new 4 1 10 2"), [0, 5, 3, -1, 0]);
    c.run("CONFIG SET rl.oom-policy refuse");
    assert_eq!(throttle(&mut c, "new 4 1 10"), [1, 5, 0, 10, 10]);
    // One that is there goes on.
    assert_eq!(throttle(&mut c, "k 4 1 60"), [0, 5, 3, -1, 120]);
    assert_eq!(c.integer("EXISTS new"), 0);
}

#[test]
fn a_replica_and_a_restarted_server_hold_the_same() {
    let mut server = Server::start_with(&[
        "cl-throttle",
        "yes",
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ]);
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let mut c = server.connect();
    for n in 0..5 {
        throttle(&mut c, &format!("k{n} 20 1 60 {}", n + 1));
    }
    c.run_words(&[
        "EVAL",
        "return redis.call('CL.THROTTLE', KEYS[1], 4, 1, 60)",
        "1",
        "k0",
    ]);
    server.wait_for(&replica);
    let here = c.data(i64::MIN);
    assert_eq!(here.len(), 5);
    assert_eq!(replica.connect().data(i64::MIN), here);
    server.kill_and_restart();
    assert_eq!(server.connect().data(i64::MIN), here);
}

/// redis-cell has its calls appended as they came, and they are made again when the file is read.
#[test]
fn an_aof_of_redis_cell_is_read() {
    let mut server = Server::start_with(&["cl-throttle", "yes", "--appendonly", "yes"]);
    server.kill();
    let directory = server.directory().join("appendonlydir");
    let files = std::fs::read_dir(directory).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let appended = files.find(|file| file.to_string_lossy().contains(".incr."));
    let call = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n1\r\n$1\r\n1\r\n$2\r\n60\r\n";
    std::fs::write(appended.unwrap(), [&call[..], call].concat()).unwrap();
    server.kill_and_restart();
    let mut c = server.connect();
    assert_eq!(throttle(&mut c, "k 1 1 60")[..3], [1, 2, 0]);
    // The end is one of microseconds, rounded up: within the same millisecond it is that much further away.
    assert!((100_000..=120_001).contains(&c.pttl("k")));
}

/// The line of the page on coming from redis-cell.
#[test]
fn rl_hit_with_a_bucket_of_one_more_gives_the_same_verdicts() {
    let server = server();
    let mut c = server.connect();
    for (max_burst, count, period) in [
        (0, 1, 600),
        (4, 1, 600),
        (15, 30, 86_400),
        (99, 7, 31_536_000),
    ] {
        c.run("FLUSHALL");
        let mut refused = 0;
        for n in 0..40 {
            let quantity = [1, 3, 1, 7, 200][n % 5];
            let old = throttle(
                &mut c,
                &format!("old {max_burst} {count} {period} {quantity}"),
            );
            let holds = max_burst + 1;
            let new = c.hit(&format!(
                "new {count} {period} BUCKET {holds} COST {quantity}"
            ));
            assert_eq!(old[0], 1 - new[0], "limited, and allowed");
            assert_eq!(old[1..3], new[1..3], "limit and remaining");
            let retry_after = if new[0] == 1 { -1 } else { new[3] };
            // The two are asked one after the other, in whole seconds.
            assert!((old[3] - retry_after).abs() <= 1, "{old:?} {new:?}");
            assert!((old[4] - new[4]).abs() <= 1, "{old:?} {new:?}");
            refused += old[0];
        }
        assert!((1..40).contains(&refused), "{refused}");
    }
}

/// redis-cell leaves such a key behind when a time of centuries overflows in it.
#[test]
fn a_state_too_large_for_a_counter_is_seen_by_audit_and_repair() {
    let server = server();
    let mut c = server.connect();
    c.run("SET leaked 9460800000000000000");
    c.run("SET text 99999999999999999999999");
    let Value::Array(reply) = c.run("RL.AUDIT 0 COUNT 1000") else {
        panic!("no reply");
    };
    let Value::Array(found) = &reply[1] else {
        panic!("no list");
    };
    let found: Vec<String> = found.iter().map(text).collect();
    assert_eq!(found, ["leaked", "9460800000000000000"]);
    c.run("RL.REPAIR 0 * 60 COUNT 1000");
    assert!((1..=60_000).contains(&c.pttl("leaked")));
    assert_eq!(c.pttl("text"), -1);
    assert_eq!(
        c.error("RL.HIT leaked 5 60"),
        "ERR value is not an integer or out of range"
    );
}
