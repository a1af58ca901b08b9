//! What replicas are sent, read from the stream itself.

use redis::Value;

use crate::common::stream::Stream;
use crate::common::{verdict, wait_until, Server};

#[test]
fn the_stream_is_one_set_with_the_absolute_end_for_each_change_and_silence_for_each_refusal() {
    let server = Server::start();
    let mut c = server.connect();
    for line in [
        "SET leaked 7",
        "SET blocked 2550",
        "SET running 4 PX 60000",
        "SET negative -5",
    ] {
        c.run(line);
    }
    let mut stream = Stream::of(&server);
    let mut want = Vec::new();
    for (key, call, changes) in [
        ("fresh", "fresh 2 60", true),
        ("fresh", "fresh 2 60000 MS", true),
        ("fresh", "fresh 2 60", false),
        ("fresh", "fresh 0 60", false),
        ("leaked", "leaked 10 60", true),
        ("leaked", "leaked 10 60 COST 3", false),
        ("blocked", "blocked 10 60", true),
        ("blocked", "blocked 10 60", false),
        ("running", "running 10 60 COST 5", true),
        ("running", "running 10 60 COST 2", false),
        ("negative", "negative 0 60", true),
        ("negative", "negative 0 60", false),
        ("negative", "negative 9 60", true),
        ("never", "never 0 60", false),
        ("never", "never 5 60 COST 6", false),
    ] {
        c.hit(call);
        if changes {
            want.push(c.effect(key));
        }
    }
    for call in ["never x 60", "fresh 1 60 SLOW", "fresh 1 0"] {
        c.error(&format!("RL.HIT {call}"));
    }
    c.run("SET mark 1");
    assert_eq!(stream.until("mark"), want);
}

#[test]
fn a_transaction_sends_its_changes_as_one() {
    let server = Server::start();
    let mut c = server.connect();
    let mut stream = Stream::of(&server);
    for line in [
        "MULTI",
        "RL.HIT a 2 60",
        "RL.HIT b 2 60 COST 2",
        "RL.HIT b 2 60",
        "RL.HIT never 0 60",
        "EXEC",
    ] {
        c.run(line);
    }
    let (a, b) = (c.effect("a"), c.effect("b"));
    c.run("SET mark 1");
    assert_eq!(stream.until("mark"), ["MULTI", &a, &b, "EXEC"]);
}

#[test]
fn a_script_sends_its_effects_and_not_itself() {
    let server = Server::start();
    let mut c = server.connect();
    let mut stream = Stream::of(&server);
    let once = "return redis.call('RL.HIT', KEYS[1], 3, 60)";
    c.run_words(&["EVAL", once, "1", "a"]);
    let first = c.effect("a");
    let twice = "redis.call('RL.HIT', KEYS[1], 3, 60) return redis.call('RL.HIT', KEYS[2], 3, 60)";
    c.run_words(&["EVAL", twice, "2", "a", "b"]);
    let (a, b) = (c.effect("a"), c.effect("b"));
    let refused = "for _ = 1, 9 do redis.call('RL.HIT', KEYS[1], 2, 60) end return 1";
    c.run_words(&["EVAL", refused, "1", "a"]);
    c.run("SET mark 1");
    assert_eq!(stream.until("mark"), [&first, "MULTI", &a, &b, "EXEC"]);
}

#[test]
fn keys_of_any_bytes_reach_the_replica() {
    let server = Server::start();
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let mut c = server.connect();
    let keys: &[&[u8]] = &[b"a b", b"a\r\nb", b"a\0b", b"\xff\xfe", b"", b"%s%n"];
    for key in keys {
        c.run_words(&[&b"RL.HIT"[..], key, b"3", b"60"]);
    }
    server.wait_for(&replica);
    let mut there = replica.connect();
    for key in keys {
        for question in [&b"GET"[..], b"PEXPIRETIME"] {
            let words = [question, key];
            assert_eq!(there.run_words(&words), c.run_words(&words));
        }
    }
}

#[test]
fn a_replica_without_the_module_holds_the_same_values_and_ends() {
    let server = Server::start();
    let replica = Server::start_bare(&[]);
    let mut c = server.connect();
    // Some before it joins, the others after.
    for n in 0..20 {
        c.hit(&format!("k{n} 9 600"));
    }
    replica.replicate(&server);
    for n in 0..60 {
        if n % 7 == 0 {
            c.run(&format!("PERSIST k{n}"));
        }
        for cost in 1..4 {
            c.run(&format!("RL.HIT k{n} 9 {} COST {cost}", 600 + n));
        }
    }
    server.wait_for(&replica);
    let mut there = replica.connect();
    assert_eq!(there.integer("DBSIZE"), 60);
    for n in 0..60 {
        let key = format!("k{n}");
        assert_eq!(there.get(&key), c.get(&key), "{key}");
        let end = format!("PEXPIRETIME {key}");
        assert_eq!(there.integer(&end), c.integer(&end), "{key}");
        assert!(there.pttl(&key) > 0, "{key}");
    }
}

#[test]
fn a_replica_refuses_hits_and_goes_on_with_the_count_when_it_is_promoted() {
    let server = Server::start();
    let replica = Server::start();
    replica.replicate(&server);
    let mut c = server.connect();
    c.hit("k 3 600");
    c.hit("k 3 600");
    let end_ms = c.integer("PEXPIRETIME k");
    server.wait_for(&replica);

    let mut there = replica.connect();
    assert_eq!(
        there.error("RL.HIT k 3 600"),
        "READONLY You can't write against a read only replica."
    );
    there.run("REPLICAOF NO ONE");
    assert_eq!(there.hit("k 3 600")[..3], [1, 3, 0]);
    assert_eq!(there.hit("k 3 600")[..3], [0, 3, 0]);
    assert_eq!(there.integer("PEXPIRETIME k"), end_ms);
}

#[test]
fn a_window_that_ended_ends_on_the_replica_too() {
    let server = Server::start();
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let (mut c, mut there) = (server.connect(), replica.connect());
    c.hit("k 1 30 MS");
    wait_until("the next window", || c.hit("k 1 60000 MS")[0] == 1);
    server.wait_for(&replica);
    assert_eq!(there.get("k").as_deref(), Some("1"));
    assert_eq!(there.integer("PEXPIRETIME k"), c.integer("PEXPIRETIME k"));
}

/// `repl-diskless-load swapdb`: the server goes on serving with the old data only if each module allows it.
#[test]
fn a_replica_that_loads_a_new_data_set_goes_on_to_serve_the_old_one() {
    let server = Server::start_with(&["--repl-backlog-size", "16kb"]);
    let replica = Server::start_with(&[
        "--repl-diskless-load",
        "swapdb",
        // It answers between pieces of so many bytes.
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let mut c = server.connect();
    c.hit("k 5 600 COST 3");
    replica.replicate(&server);
    server.wait_for(&replica);
    let mut there = replica.connect();

    // The link breaks, and what is missing then is more than the primary keeps: all has to be sent anew. Each
    // key takes the replica a while.
    for n in 0..1_000 {
        c.run(&format!("SET filler{n} x"));
    }
    there.run("CONFIG SET key-load-delay 2000");
    c.run("MULTI");
    c.run("CLIENT KILL TYPE replica");
    c.run_words(&["SET", "long", &"x".repeat(1_000_000)]);
    assert_ne!(c.run("EXEC"), Value::Nil);
    c.hit("k 5 600");
    wait_until("it loads", || {
        let info = there.info("persistence");
        info.contains("\nloading:1\r") || info.contains("\nasync_loading:1\r")
    });
    let peek = there.run("RL.PEEK k 5 600");
    assert_eq!(verdict(&peek).unwrap()[..3], [1, 5, 2], "{peek:?}");
    wait_until("it has loaded", || {
        there.info_field("persistence", "async_loading").as_deref() == Some("0")
    });
    server.wait_for(&replica);
    let peek = there.run("RL.PEEK k 5 600");
    assert_eq!(verdict(&peek).unwrap()[..3], [1, 5, 1], "{peek:?}");
}
