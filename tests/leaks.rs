//! RL.AUDIT and RL.REPAIR: finding limiters that lost their expiry, and giving it back.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::common::stream::Stream;
use crate::common::{built, text, wait_until, Conn, Server};

/// One step: the cursor to go on with, and what was found.
fn audit(c: &mut Conn, call: &str) -> (String, BTreeMap<String, String>) {
    let reply = c.run(&format!("RL.AUDIT {call}"));
    let Value::Array(parts) = &reply else {
        panic!("{call}: {reply:?}");
    };
    let [cursor, Value::Array(found)] = &parts[..] else {
        panic!("{call}: {reply:?}");
    };
    let pairs = found.chunks(2);
    let found = pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
    (text(cursor), found)
}

/// A full walk.
fn audit_all(c: &mut Conn, options: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut cursor = "0".to_string();
    loop {
        let (next, found) = audit(c, &format!("{cursor} {options}"));
        all.extend(found);
        cursor = next;
        if cursor == "0" {
            return all;
        }
    }
}

fn repair(c: &mut Conn, call: &str) -> (String, i64) {
    let reply = c.run(&format!("RL.REPAIR {call}"));
    let Value::Array(parts) = &reply else {
        panic!("{call}: {reply:?}");
    };
    let [cursor, Value::Int(repaired)] = &parts[..] else {
        panic!("{call}: {reply:?}");
    };
    (text(cursor), *repaired)
}

fn repair_all(c: &mut Conn, arguments: &str) -> i64 {
    let mut all = 0;
    let mut cursor = "0".to_string();
    loop {
        let (next, repaired) = repair(c, &format!("{cursor} {arguments}"));
        all += repaired;
        cursor = next;
        if cursor == "0" {
            return all;
        }
    }
}

/// Limiters and counters without expiry, and much that is none.
fn fill(c: &mut Conn) {
    for line in [
        "SET counter 5",
        "SET negative -3",
        "SET sequence 9223372036854775807",
        "SET sliding s:3:5:1796000000000",
        "SET bucket b:120000:1796000000000:60000",
        "SET ends 5 EX 600",
        "SET greeting hello",
        "SET fraction 3.14",
        "SET padded 05",
        "SET large 9223372036854775808",
        "SET mangled s:3:5",
        "RPUSH list 5",
        "SADD set 5",
        "HSET hash 5 5",
        "ZADD zset 5 5",
        "XADD stream * 5 5",
    ] {
        c.run(line);
    }
    c.run_words(&["SET", "empty", ""]);
    c.run_words(&["SET", "long", &"1".repeat(100_000)]);
}

fn leaks() -> BTreeMap<String, String> {
    [
        ("counter", "5"),
        ("negative", "-3"),
        ("sequence", "9223372036854775807"),
        ("sliding", "s:3:5:1796000000000"),
        ("bucket", "b:120000:1796000000000:60000"),
    ]
    .map(|(key, value)| (key.into(), value.into()))
    .into()
}

#[test]
fn an_audit_lists_limiters_and_counters_without_expiry_and_leaves_them_as_they_are() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut stream = Stream::of(&server);
    let mut c = server.connect();
    fill(&mut c);
    c.run("SET mark 0 EX 600");
    stream.until("mark");

    let state = |c: &mut Conn| {
        let mut keys = c.keys();
        keys.sort();
        let mut pictures = Vec::new();
        for key in &keys {
            let key = String::from_utf8_lossy(key);
            pictures.push((c.run(&format!("OBJECT ENCODING {key}")), c.picture(&key)));
        }
        let changes = c.info_field("persistence", "rdb_changes_since_last_save");
        (keys, pictures, changes)
    };
    let before = state(&mut c);
    assert_eq!(audit_all(&mut c, ""), leaks());
    assert_eq!(audit_all(&mut c, "COUNT 1"), leaks());
    assert_eq!(audit_all(&mut c, "COUNT 9223372036854775807"), leaks());
    assert_eq!(
        audit_all(&mut c, "count 3 match *e*").len(),
        4,
        "counter, negative, sequence, bucket"
    );
    assert_eq!(audit_all(&mut c, "MATCH nothing*"), BTreeMap::new());
    assert!(state(&mut c) == before);

    // Another database is another walk.
    c.run("SELECT 1");
    assert_eq!(audit_all(&mut c, ""), BTreeMap::new());
    c.run("SELECT 0");

    // Nothing went out.
    c.run("SET mark 1 EX 600");
    assert_eq!(stream.until("mark"), Vec::<String>::new());
}

#[test]
fn an_audit_reads_no_long_value() {
    let server = Server::start();
    let mut c = server.connect();
    c.run_words(&["SET", "long", &"1".repeat(81)]);
    c.run("SET short 5");
    c.run("CONFIG RESETSTAT");
    assert_eq!(audit_all(&mut c, "").len(), 1);
    let stats = c.info_field("commandstats", "cmdstat_get").unwrap();
    assert!(stats.starts_with("calls=1,"), "{stats}");
}

#[test]
fn an_audit_counts_as_no_use_of_keys_that_have_an_expiry_or_are_long() {
    // With a limit on memory, since without one keys with the same small integer share their value.
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lfu", "--maxmemory", "1gb"]);
    let mut c = server.connect();
    fill(&mut c);
    // What was never used since it was made is counted up by the first use.
    let uses = |c: &mut Conn, key: &str| c.integer(&format!("OBJECT FREQ {key}"));
    let before = uses(&mut c, "ends");
    audit_all(&mut c, "");
    for key in ["ends", "long"] {
        assert_eq!(uses(&mut c, key), before, "{key}");
    }
    c.run("GET ends");
    assert_eq!(uses(&mut c, "ends"), before + 1);
}

#[test]
fn a_full_walk_returns_all_that_is_there_throughout() {
    let server = Server::start();
    let (mut c, mut other) = (server.connect(), server.connect());
    let mut pipeline = redis::pipe();
    for n in 0..2_000 {
        pipeline.cmd("SET").arg(format!("stays{n}")).arg(n).ignore();
    }
    pipeline.query::<()>(&mut c.0).unwrap();

    // Meanwhile so many come and go that the server's table grows and shrinks.
    let mut found = BTreeSet::new();
    let (mut cursor, mut step) = ("0".to_string(), 0);
    loop {
        let (next, keys) = audit(&mut c, &format!("{cursor} COUNT 20"));
        found.extend(keys.into_keys().filter(|key| key.starts_with("stays")));
        cursor = next;
        if cursor == "0" {
            break;
        }
        let mut pipeline = redis::pipe();
        for n in 0..200 {
            let key = format!("goes{}", n + 200 * (step % 40));
            if step < 40 {
                pipeline.cmd("SET").arg(key).arg(n).ignore();
            } else {
                pipeline.cmd("DEL").arg(key).ignore();
            }
        }
        pipeline.query::<()>(&mut other.0).unwrap();
        step += 1;
    }
    assert!(step > 40, "{step} steps");
    assert_eq!(found.len(), 2_000);
}

#[test]
fn the_cursor_is_that_of_the_servers_scan() {
    let server = Server::start();
    let mut c = server.connect();
    for n in 0..300 {
        c.run(&format!("SET k{n} {n}"));
    }
    // Until the server has done with moving its table, two steps at a cursor needn't end at the same.
    wait_until("all three agree throughout a walk", || {
        let (mut cursor, mut steps) = ("0".to_string(), 0);
        loop {
            let Value::Array(scanned) = c.run(&format!("SCAN {cursor} COUNT 30")) else {
                panic!("no reply");
            };
            let (audited, _) = audit(&mut c, &format!("{cursor} COUNT 30"));
            let (repaired, _) = repair(&mut c, &format!("{cursor} none 60 COUNT 30"));
            if audited != text(&scanned[0]) || repaired != audited {
                return false;
            }
            cursor = audited;
            steps += 1;
            if cursor == "0" {
                return steps >= 5;
            }
        }
    });
}

#[test]
fn arguments_that_are_none_are_errors_and_nothing_is_repaired() {
    const SYNTAX: &str = "ERR syntax error";
    const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
    const CURSOR: &str = "ERR invalid cursor";
    let server = Server::start();
    let mut c = server.connect();
    fill(&mut c);
    for (call, want) in [
        (
            "RL.AUDIT",
            "ERR wrong number of arguments for 'rl.audit' command",
        ),
        ("RL.AUDIT x", CURSOR),
        ("RL.AUDIT -1", CURSOR),
        ("RL.AUDIT 1.5", CURSOR),
        ("RL.AUDIT 18446744073709551616", CURSOR),
        ("RL.AUDIT 0 MATCH", SYNTAX),
        ("RL.AUDIT 0 COUNT", SYNTAX),
        ("RL.AUDIT 0 SLOW", SYNTAX),
        ("RL.AUDIT 0 TYPE string", SYNTAX),
        ("RL.AUDIT 0 MATCH a MATCH a", SYNTAX),
        ("RL.AUDIT 0 COUNT 5 COUNT 5", SYNTAX),
        ("RL.AUDIT 0 COUNT 0", SYNTAX),
        ("RL.AUDIT 0 COUNT -5", SYNTAX),
        ("RL.AUDIT 0 COUNT x", NOT_AN_INTEGER),
        ("RL.AUDIT 0 COUNT 9223372036854775808", NOT_AN_INTEGER),
        (
            "RL.REPAIR 0 *",
            "ERR wrong number of arguments for 'rl.repair' command",
        ),
        ("RL.REPAIR x * 60", CURSOR),
        (
            "RL.REPAIR 0 * 0",
            "ERR invalid window in 'rl.repair' command",
        ),
        (
            "RL.REPAIR 0 * -1",
            "ERR invalid window in 'rl.repair' command",
        ),
        (
            "RL.REPAIR 0 * 9223372036854775807",
            "ERR invalid window in 'rl.repair' command",
        ),
        (
            "RL.REPAIR 0 * 9223372036854775807 MS",
            "ERR invalid window in 'rl.repair' command",
        ),
        ("RL.REPAIR 0 * x", NOT_AN_INTEGER),
        ("RL.REPAIR 0 * 60 MATCH a", SYNTAX),
        ("RL.REPAIR 0 * 60 MS MS", SYNTAX),
        ("RL.REPAIR 0 * 60 COUNT", SYNTAX),
        ("RL.REPAIR 0 * 60 COUNT 0", SYNTAX),
        ("RL.REPAIR 0 * 60 COUNT 1 COUNT 1", SYNTAX),
        ("RL.REPAIR 0 * 60 COUNT x", NOT_AN_INTEGER),
        // In the server's order: the syntax, then the numbers from left to right.
        ("RL.AUDIT x COUNT y", CURSOR),
        ("RL.REPAIR x * 0 COUNT y", CURSOR),
        (
            "RL.REPAIR 0 * 0 COUNT y",
            "ERR invalid window in 'rl.repair' command",
        ),
        ("RL.REPAIR x * y SLOW", SYNTAX),
    ] {
        assert_eq!(c.error(call), want, "{call}");
    }
    let reply = c.run_words(&["RL.AUDIT", ""]);
    assert_eq!(crate::common::error(&reply).as_deref(), Some(CURSOR));
    assert_eq!(audit_all(&mut c, ""), leaks());
}

#[test]
fn a_repair_gives_what_matches_an_expiry_and_touches_nothing_else() {
    let server = Server::start();
    let mut stream = Stream::of(&server);
    let mut c = server.connect();
    fill(&mut c);
    c.run("SET mark 0 EX 600");
    stream.until("mark");
    let end_ms = c.integer("PEXPIRETIME ends");

    assert_eq!(repair(&mut c, "0 count* 60 COUNT 1000"), ("0".into(), 1));
    assert_eq!(c.integer("TTL counter"), 60);
    assert_eq!(
        c.string("OBJECT ENCODING counter").as_deref(),
        Some("int"),
        "it is kept as it was"
    );
    let counter = c.effect("counter");
    c.run("SET mark 1 EX 600");
    assert_eq!(stream.until("mark"), [counter]);

    // The rest, in one step: a transaction of effects.
    assert_eq!(repair(&mut c, "0 * 90000 MS COUNT 1000"), ("0".into(), 4));
    let mut want = vec!["MULTI".to_string(), "EXEC".to_string()];
    for (key, value) in leaks() {
        assert_eq!(c.get(&key), Some(value));
        if key != "counter" {
            assert_eq!(c.integer(&format!("TTL {key}")), 90, "{key}");
            want.push(c.effect(&key));
        }
    }
    c.run("SET mark 2 EX 600");
    let mut sent = stream.until("mark");
    sent.sort();
    want.sort();
    assert_eq!(sent, want);

    assert_eq!(repair(&mut c, "0 * 60 COUNT 1000"), ("0".into(), 0));
    assert_eq!(audit_all(&mut c, ""), BTreeMap::new());
    assert_eq!(c.integer("PEXPIRETIME ends"), end_ms);
    for key in ["greeting", "fraction", "padded", "large", "mangled", "list"] {
        assert_eq!(c.pttl(key), -1, "{key}");
    }
}

#[test]
fn a_repair_is_seen_by_watch_by_listeners_and_in_the_figures() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let (mut c, mut watcher) = (server.connect(), server.connect());
    c.run("SET leaked 7");
    watcher.run("WATCH leaked");
    let events = crate::common::events(&server, &["leaked"], || {
        repair(&mut c, "0 leak* 60");
    });
    assert_eq!(events, ["expire leaked", "rl.repaired leaked"]);
    watcher.run("MULTI");
    watcher.run("PING");
    assert_eq!(watcher.run("EXEC"), Value::Nil);
    // Made, repaired, and the mark of the end.
    assert_eq!(
        c.info_field("persistence", "rdb_changes_since_last_save"),
        Some("3".into())
    );
    for (figure, want) in [
        ("limiters_repaired", "1"),
        ("limiters_repaired_by_repair", "1"),
        ("limiters_repaired_by_sweeper", "0"),
    ] {
        let figure = c.info_field("rl", &format!("rl_{figure}"));
        assert_eq!(figure.as_deref(), Some(want));
    }
}

#[test]
fn a_walk_over_many_repairs_each_once_and_the_replica_has_the_same() {
    let server = Server::start();
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let mut c = server.connect();
    let mut pipeline = redis::pipe();
    for n in 0..3_000 {
        pipeline.cmd("SET").arg(format!("leak{n}")).arg(n).ignore();
        pipeline
            .cmd("SET")
            .arg(format!("word{n}"))
            .arg("x")
            .ignore();
    }
    pipeline.query::<()>(&mut c.0).unwrap();
    assert_eq!(repair_all(&mut c, "leak* 600 COUNT 100"), 3_000);
    assert_eq!(audit_all(&mut c, "COUNT 1000"), BTreeMap::new());
    server.wait_for(&replica);
    let mut there = replica.connect();
    for n in (0..3_000).step_by(97) {
        for (key, value) in [
            (format!("leak{n}"), n.to_string()),
            (format!("word{n}"), "x".into()),
        ] {
            assert_eq!(there.get(&key), Some(value));
            let end = format!("PEXPIRETIME {key}");
            assert_eq!(there.integer(&end), c.integer(&end), "{key}");
        }
    }
}

#[test]
fn a_step_looks_at_a_thousand_keys_at_the_most() {
    let server = Server::start();
    let mut c = server.connect();
    let mut pipeline = redis::pipe();
    for n in 0..5_000 {
        pipeline.cmd("SET").arg(format!("leak{n}")).arg(n).ignore();
    }
    pipeline.query::<()>(&mut c.0).unwrap();
    let (cursor, found) = audit(&mut c, "0 COUNT 1000000");
    assert_ne!(cursor, "0");
    // The server's SCAN ends a step with the bucket of its table that it is at.
    assert!((1_000..1_100).contains(&found.len()), "{}", found.len());
    let (_, repaired) = repair(&mut c, "0 * 60 COUNT 1000000");
    assert!((1_000..1_100).contains(&repaired), "{repaired}");

    // And at about ten, where it isn't told how many.
    c.run("FLUSHALL");
    for n in 0..500 {
        c.run(&format!("SET leak{n} {n}"));
    }
    let (cursor, found) = audit(&mut c, "0");
    assert_ne!(cursor, "0");
    assert!((10..100).contains(&found.len()), "{}", found.len());
    let (_, repaired) = repair(&mut c, "0 * 60");
    assert!((10..100).contains(&repaired), "{repaired}");
}

#[test]
fn a_caller_sees_and_repairs_what_its_keys_are() {
    let server = Server::start();
    let mut c = server.connect();
    for (rules, seen, repaired) in [
        ("~*", &["a1", "b1", "c1"][..], 3),
        ("~a*", &["a1"], 1),
        ("~a* ~b*", &["a1", "b1"], 2),
        ("%R~a*", &["a1"], 0),
        ("%W~a* %R~b*", &["b1"], 1),
        ("", &[], 0),
    ] {
        for key in ["a1", "b1", "c1"] {
            c.run(&format!("SET {key} 5"));
        }
        c.run("ACL DELUSER ann");
        c.run(&format!(
            "ACL SETUSER ann on nopass -@all +rl.audit +rl.repair +eval {rules}"
        ));
        let mut ann = server.connect();
        ann.run("AUTH ann any");
        let found: Vec<String> = audit_all(&mut ann, "").into_keys().collect();
        assert_eq!(found, seen, "{rules}");
        let script = "return redis.call('RL.AUDIT', 0)[2]";
        let Value::Array(scripted) = ann.run_words(&["EVAL", script, "0"]) else {
            panic!("no reply");
        };
        assert_eq!(scripted.len(), 2 * seen.len(), "{rules}");
        assert_eq!(repair_all(&mut ann, "* 60"), repaired, "{rules}");
    }
    // And nobody without the commands.
    c.run("ACL SETUSER bob on nopass -@all +rl.hit ~*");
    let mut bob = server.connect();
    bob.run("AUTH bob any");
    assert!(bob.error("RL.AUDIT 0").starts_with("NOPERM"));
    assert!(bob.error("RL.REPAIR 0 * 60").starts_with("NOPERM"));
}

/// The server has no user for such a call, and crashes if it is asked for the user's name.
#[test]
fn a_call_by_another_module_is_held_to_no_user() {
    let meddler = built("examples/libmeddler.so");
    let mut server = Server::start_with(&["--loadmodule", meddler.to_str().unwrap()]);
    let mut c = server.connect();
    let ann = "ACL SETUSER ann on nopass -@all +eval +meddler.call +rl.audit ~a*";
    assert_eq!(c.run(ann), Value::Okay);
    c.run("SET b1 5");
    let mut user = server.connect();
    user.run("AUTH ann any");
    assert_eq!(audit_all(&mut user, ""), BTreeMap::new());
    for client in [&mut c, &mut user] {
        let reply = client.run("MEDDLER.CALL RL.AUDIT 0 COUNT 100");
        let Value::Array(step) = &reply else {
            panic!("{reply:?}");
        };
        let Value::Array(pair) = &step[1] else {
            panic!("{reply:?}");
        };
        let pair: Vec<String> = pair.iter().map(text).collect();
        assert_eq!(pair, ["b1", "5"]);
    }
    // A script that the module runs has no user either.
    let script = "return redis.call('RL.AUDIT',0)[1]";
    let reply = c.run_words(&["MEDDLER.CALL", "EVAL", script, "0"]);
    assert_eq!(text(&reply), "0");
    let reply = c.run("MEDDLER.CALL RL.REPAIR 0 b* 60 COUNT 100");
    let Value::Array(step) = &reply else {
        panic!("{reply:?}");
    };
    assert_eq!(step[1], Value::Int(1));
    assert_eq!(c.integer("TTL b1"), 60);
    server.assert_alive();
}

#[test]
fn a_replica_audits_and_does_not_repair() {
    let server = Server::start();
    let replica = Server::start();
    replica.replicate(&server);
    let mut c = server.connect();
    c.run("SET leaked 7");
    server.wait_for(&replica);
    let mut there = replica.connect();
    assert_eq!(audit_all(&mut there, "").len(), 1);
    assert!(there.error("RL.REPAIR 0 * 60").starts_with("READONLY"));
    assert_eq!(c.pttl("leaked"), -1);
    assert_eq!(there.pttl("leaked"), -1);
}

#[test]
fn both_work_in_transactions_and_scripts() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("SET leaked 7");
    let want = Value::Array(vec![
        Value::BulkString(b"0".into()),
        Value::Array(vec![
            Value::BulkString(b"leaked".into()),
            Value::BulkString(b"7".into()),
        ]),
    ]);
    let script = "return redis.call('RL.AUDIT', ARGV[1])";
    assert_eq!(c.run_words(&["EVAL", script, "0", "0"]), want);
    assert_eq!(c.run_words(&["EVAL_RO", script, "0", "0"]), want);
    c.run("MULTI");
    c.run("RL.AUDIT 0");
    c.run("RL.REPAIR 0 * 60");
    let repaired = Value::Array(vec![Value::BulkString(b"0".into()), Value::Int(1)]);
    assert_eq!(c.run("EXEC"), Value::Array(vec![want, repaired]));
    assert_eq!(c.integer("TTL leaked"), 60);
    c.run("PERSIST leaked");
    let script = "return redis.call('RL.REPAIR', 0, '*', 60)[2]";
    assert_eq!(c.run_words(&["EVAL", script, "0"]), Value::Int(1));
    assert_eq!(c.integer("TTL leaked"), 60);
    assert!(crate::common::error(&c.run_words(&["EVAL_RO", script, "0"])).is_some());
}

#[test]
fn a_server_on_which_scan_or_get_has_another_name_says_so() {
    for name in ["SCAN", "GET"] {
        let server = Server::start_with(&["--rename-command", name, "OTHER"]);
        let mut c = server.connect();
        c.run("SET leaked 7");
        for call in ["RL.AUDIT 0", "RL.REPAIR 0 * 60"] {
            assert_eq!(c.error(call), "ERR this server doesn't run SCAN or GET");
        }
        assert_eq!(c.hit("k 5 60"), [1, 5, 4, 0, 60]);
        c.run("CONFIG SET rl.sweep-pattern leak* rl.sweep-window-seconds 60");
        wait_until("the sweeper has complained, once", || {
            server.log().matches("rl: the sweeper doesn't run").count() == 1
        });
        let running = c.info_field("rl", "rl_sweeper_running");
        assert_eq!(running.as_deref(), Some("0"), "{name}");
    }
}
