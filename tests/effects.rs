//! What a hit tells others on the same server: WATCH, client-side caches, listeners, save points;
//! and that it works inside transactions, scripts and functions.

use std::sync::mpsc;
use std::time::Duration;

use redis::{PushKind, Value};

use crate::common::{built, events, verdict, wait_until, Conn, Server};

#[test]
fn a_hit_and_a_repair_break_a_watch_and_a_refusal_does_not() {
    let server = Server::start();
    let (mut watcher, mut c) = (server.connect(), server.connect());
    for (setup, call, breaks) in [
        ("DEL k", "k 3 60", true),
        ("SET k 1 PX 60000", "k 3 60", true),
        ("SET k 3 PX 60000", "k 3 60", false),
        ("SET k 3", "k 3 60", true),
        ("DEL k", "k 3 60 COST 4", false),
        ("DEL k", "k 0 60", false),
    ] {
        c.run(setup);
        watcher.run("WATCH k");
        c.hit(call);
        watcher.run("MULTI");
        watcher.run("PING");
        let broken = watcher.run("EXEC") == Value::Nil;
        assert_eq!(broken, breaks, "{setup}: {call}");
    }
    // An error changes nothing either.
    c.run("SET k hello PX 60000");
    watcher.run("WATCH k");
    c.error("RL.HIT k 3 60");
    watcher.run("MULTI");
    watcher.run("PING");
    assert_ne!(watcher.run("EXEC"), Value::Nil);
}

#[test]
fn other_calls_break_a_watch_only_if_they_change_the_key() {
    let server = Server::start();
    let (mut watcher, mut c) = (server.connect(), server.connect());
    for (setup, call, breaks) in [
        ("SET k 1 PX 60000", "RL.MHIT 2 j k 9 60 3 60", true),
        ("SET k 1", "RL.MHIT 2 j k 0 60 3 60", true),
        ("SET k 1 PX 60000", "RL.MHIT 2 j k 0 60 3 60", false),
        ("SET k 3 PX 60000", "RL.MHIT 2 j k 9 60 3 60", false),
        ("DEL k", "RL.MHIT 2 j k 0 60 3 60", false),
        ("SET k 1 PX 60000", "RL.REFUND k 3 60", true),
        ("SET k 0", "RL.REFUND k 3 60", true),
        ("SET k 0 PX 60000", "RL.REFUND k 3 60", false),
        ("DEL k", "RL.REFUND k 3 60", false),
        ("SET k 1", "RL.PEEK k 3 60", false),
        ("SET k 3", "RL.PEEK k 3 60", false),
        ("DEL k", "RL.HIT k 3 60 BUCKET 3", true),
        ("PING", "RL.HIT k 3 60 BUCKET 3 COST 3", false),
        ("PING", "RL.REFUND k 3 60 BUCKET 3 COST 3", true),
        ("PING", "RL.HIT k 3 60 SLIDING", true),
        ("PING", "RL.HIT k 3 60 SLIDING COST 3", false),
        ("PING", "RL.REFUND k 3 60 SLIDING", true),
    ] {
        c.run(setup);
        watcher.run("WATCH k");
        let reply = c.run(call);
        assert!(matches!(reply, Value::Array(_)), "{call}: {reply:?}");
        watcher.run("MULTI");
        watcher.run("PING");
        let broken = watcher.run("EXEC") == Value::Nil;
        assert_eq!(broken, breaks, "{setup}: {call}");
    }
}

#[test]
fn a_client_side_cache_hears_of_hits_and_repairs_and_not_of_refusals() {
    let server = Server::start();
    let mut cache = server.connect_resp3();
    let (sender, pushes) = mpsc::channel();
    cache.0.set_push_sender(sender);
    cache.run("CLIENT TRACKING ON");
    let mut c = server.connect();

    // Each round ends with a change of `mark`, so that silence can be told from delay.
    let mut invalidated = |setup: &str, call: &str| -> bool {
        c.run(setup);
        cache.run("GET k");
        cache.run("GET mark");
        while pushes.try_recv().is_ok() {}
        c.hit(call);
        c.run("INCR mark");
        let mut keys = Vec::new();
        wait_until("the cache hears of the mark", || {
            cache.run("PING");
            while let Ok(push) = pushes.try_recv() {
                assert_eq!(push.kind, PushKind::Invalidate);
                keys.push(format!("{:?}", push.data));
            }
            keys.iter().any(|key| key.contains("mark"))
        });
        keys.len() == 2
    };
    assert!(invalidated("SET k 1 PX 60000", "k 3 60"));
    assert!(!invalidated("SET k 3 PX 60000", "k 3 60"));
    assert!(invalidated("SET k 3", "k 3 60"));
    assert!(invalidated("DEL k", "k 3 60"));
    assert!(!invalidated("DEL k", "k 3 60 COST 9"));
}

#[test]
fn listeners_hear_incrby_and_expire_when_those_happened() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut c = server.connect();
    for (setup, call, want) in [
        ("DEL k", "k 3 60", &["incrby k", "expire k"][..]),
        ("SET k 1 PX 60000", "k 3 60", &["incrby k"]),
        (
            "SET k 1",
            "k 3 60",
            &["incrby k", "expire k", "rl.repaired k"],
        ),
        ("SET k 3", "k 3 60", &["expire k", "rl.repaired k"]),
        ("SET k 3 PX 60000", "k 3 60", &[]),
        ("DEL k", "k 0 60", &[]),
        ("DEL k", "k 3 60 COST 4", &[]),
    ] {
        c.run(setup);
        let heard = events(&server, &["k"], || {
            c.hit(call);
        });
        assert_eq!(heard, want, "{setup}: {call}");
    }
}

#[test]
fn each_event_is_of_the_class_that_listeners_ask_for() {
    for (classes, want) in [
        ("K$", &["incrby k"][..]),
        ("Kg", &["expire k"]),
        ("K$d", &["incrby k", "rl.repaired k"]),
    ] {
        let server = Server::start_with(&["--notify-keyspace-events", classes]);
        let mut c = server.connect();
        c.run("SET k 1");
        let heard = events(&server, &["k"], || {
            c.hit("k 3 60");
        });
        assert_eq!(heard, want, "{classes}");
    }
}

#[test]
fn a_change_counts_once_for_save_points_and_a_refusal_does_not_count() {
    let server = Server::start();
    let mut c = server.connect();
    let count = |c: &mut Conn| -> i64 {
        let count = c.info_field("persistence", "rdb_changes_since_last_save");
        count.unwrap().parse().unwrap()
    };
    let mut changes = |setup: &str, call: &str| -> i64 {
        c.run(setup);
        let before = count(&mut c);
        c.hit(call);
        count(&mut c) - before
    };
    assert_eq!(changes("DEL k", "k 3 60"), 1);
    assert_eq!(changes("SET k 1 PX 60000", "k 3 60"), 1);
    assert_eq!(changes("SET k 3", "k 3 60"), 1);
    assert_eq!(changes("SET k 1", "k 3 60"), 1);
    assert_eq!(changes("SET k 3 PX 60000", "k 3 60"), 0);
    assert_eq!(changes("DEL k", "k 0 60"), 0);
    assert_eq!(changes("DEL k", "k 3 60 COST 4"), 0);
}

#[test]
fn a_hit_works_inside_a_transaction() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("MULTI");
    for call in ["k 2 60", "k 2 60", "k 2 60", "k x 60"] {
        c.run(&format!("RL.HIT {call}"));
    }
    c.run("TTL k");
    let Value::Array(replies) = c.run("EXEC") else {
        panic!("no replies");
    };
    assert_eq!(verdict(&replies[0]), Some([1, 2, 1, 0, 60]));
    assert_eq!(verdict(&replies[1]), Some([1, 2, 0, 0, 60]));
    assert_eq!(verdict(&replies[2]), Some([0, 2, 0, 60, 60]));
    assert!(crate::common::error(&replies[3]).is_some());
    assert_eq!(replies[4], Value::Int(60));
}

#[test]
fn a_hit_works_inside_scripts_and_functions() {
    let server = Server::start();
    let mut c = server.connect();
    let script = "return redis.call('RL.HIT', KEYS[1], ARGV[1], ARGV[2])";
    for want in [[1, 2, 1, 0, 60], [1, 2, 0, 0, 60], [0, 2, 0, 60, 60]] {
        let reply = c.run_words(&["EVAL", script, "1", "k", "2", "60"]);
        assert_eq!(verdict(&reply), Some(want));
    }
    // Numbers of Lua reach the module as their digits.
    let script = "return redis.call('RL.HIT', KEYS[1], 9007199254740991, 60, 'COST', 2)";
    let reply = c.run_words(&["EVAL", script, "1", "n"]);
    assert_eq!(
        verdict(&reply),
        Some([1, 9_007_199_254_740_991, 9_007_199_254_740_989, 0, 60])
    );
    // An error is the script's to catch.
    let script = "return redis.pcall('RL.HIT', KEYS[1], 'x', 60).err";
    assert_eq!(
        c.run_words(&["EVAL", script, "1", "k"]),
        Value::BulkString(b"ERR value is not an integer or out of range".into())
    );

    let library = "#!lua name=limits\n\
        redis.register_function('hit', function(keys, args)\n\
            return redis.call('RL.HIT', keys[1], args[1], args[2])\n\
        end)";
    c.run_words(&["FUNCTION", "LOAD", library]);
    for want in [[1, 1, 0, 0, 60], [0, 1, 0, 60, 60]] {
        let reply = c.run("FCALL hit 1 f 1 60");
        assert_eq!(verdict(&reply), Some(want));
    }
}

/// By the server's own time for expiry, where it tells it (7.2 and later): what began in one window goes on in it.
#[test]
fn time_stands_still_inside_a_transaction_and_a_script_where_the_server_has_such_a_time() {
    let server = Server::start();
    let mut c = server.connect();
    let stands_still = c.version() >= [7, 2, 0];
    let second = if stands_still { 3 } else { 4 };

    for line in [
        "MULTI",
        "RL.HIT k 5 100 MS",
        "DEBUG SLEEP 0.15",
        "RL.HIT k 5 100 MS",
        "EXEC",
    ] {
        let reply = c.run(line);
        if line == "EXEC" {
            let Value::Array(replies) = reply else {
                panic!("{reply:?}");
            };
            assert_eq!(verdict(&replies[0]), Some([1, 5, 4, 0, 100]));
            assert_eq!(verdict(&replies[2]).unwrap()[..3], [1, 5, second]);
        }
    }

    let script = "local hit = function() return redis.call('RL.HIT', KEYS[1], 5, 10, 'MS') end \
                  local first = hit() \
                  for _ = 1, 20000000 do end \
                  return {first, hit()}";
    let Value::Array(replies) = c.run_words(&["EVAL", script, "1", "s"]) else {
        panic!("no replies");
    };
    assert_eq!(verdict(&replies[0]), Some([1, 5, 4, 0, 10]));
    assert_eq!(verdict(&replies[1]).unwrap()[..3], [1, 5, second]);
}

/// Other modules run inside the events of a key, and may do to other keys what they like.
#[test]
fn another_module_that_writes_in_its_event_handlers_does_no_harm() {
    let meddler = built("examples/libmeddler.so");
    let mut server = Server::start_with(&[
        "--loadmodule",
        meddler.to_str().unwrap(),
        "--notify-keyspace-events",
        "KEAn",
    ]);
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let mut c = server.connect();
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");

    // One key: made, counted up, repaired, refunded, deleted.
    for call in [
        "RL.HIT trigger 9 600",
        "RL.HIT trigger 9 600",
        "RL.REFUND trigger 9 600",
        "RL.HIT trigger2 9 600 BUCKET 9",
        "RL.REFUND trigger2 9 600 BUCKET 9",
    ] {
        c.run("SET victim 3 PX 600000");
        assert!(verdict(&c.run(call)).is_some(), "{call}");
        assert_eq!(c.integer("EXISTS victim"), 0, "{call}");
    }

    // Several keys: one of them is found expired, or added, while the others are looked at.
    for keys in ["victim trigger", "trigger victim"] {
        for setup in [
            "SET trigger 1 PX 1",
            "DEL trigger",
            "SET trigger 4 PX 600000",
            "SET trigger 9",
        ] {
            c.run(setup);
            std::thread::sleep(Duration::from_millis(5));
            // Last, for it is deleted by each event at the other.
            c.run("SET victim 3 PX 600000");
            let reply = c.run(&format!("RL.MHIT 2 {keys} 9 600 9 600"));
            assert!(
                matches!(reply, Value::Array(_)),
                "{keys}, {setup}: {reply:?}"
            );
            let count: i64 = c.get("trigger").unwrap().parse().unwrap();
            let want = match setup {
                "SET trigger 4 PX 600000" => 5,
                "SET trigger 9" => 9,
                _ => 1,
            };
            assert_eq!(count, want, "{keys}, {setup}");
            assert!(c.pttl("trigger") > 0, "{keys}, {setup}");
            // All was written before anybody was told.
            assert_eq!(c.integer("EXISTS victim"), 0, "{keys}, {setup}");
        }
    }

    // A walk that repairs: the other module hears of it when the step is over.
    for n in 0..20 {
        c.run(&format!("SET trigger-{n} 5"));
    }
    c.run("SET victim 3");
    let Value::Array(step) = c.run("RL.REPAIR 0 * 600 COUNT 100") else {
        panic!("no reply");
    };
    assert_eq!(step[1], Value::Int(21));
    assert_eq!(c.integer("EXISTS victim"), 0);
    server.assert_alive();

    server.wait_for(&replica);
    let mut there = replica.connect();
    for key in ["trigger", "trigger2", "victim"] {
        assert_eq!(there.get(key), c.get(key), "{key}");
        let end = format!("PEXPIRETIME {key}");
        assert_eq!(there.integer(&end), c.integer(&end), "{key}");
    }
}
