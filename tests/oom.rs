//! rl.oom-policy: what a hit is answered for which the server has no memory.

use redis::Value;

use crate::common::{error, events, verdict, Conn, Server};

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// A server that is out of memory and evicts nothing, with a limiter that has two of five taken, and
/// one that lost its expiry.
fn full_server() -> (Server, Conn) {
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]);
    let mut c = server.connect();
    c.hit("old 5 600 COST 2");
    c.run("SET leaked 2");
    c.run("CONFIG SET maxmemory 1");
    (server, c)
}

#[test]
fn by_default_a_new_limiter_is_the_servers_own_error() {
    let (_server, mut c) = full_server();
    assert_eq!(c.error("SET new 5"), OOM);
    for call in ["new 5 600", "new 5 600 SLIDING", "new 5 600 BUCKET 5"] {
        assert_eq!(c.error(&format!("RL.HIT {call}")), OOM);
    }
    assert_eq!(c.integer("EXISTS new"), 0);
}

#[test]
fn each_policy_has_its_answer_and_stores_nothing() {
    let (_server, mut c) = full_server();
    for (policy, fixed, bucket) in [
        ("error", None, None),
        ("allow", Some([1, 5, 3, 0, 0]), Some([1, 9, 7, 0, 0])),
        (
            "refuse",
            Some([0, 5, 0, 600, 600]),
            Some([0, 9, 0, 600, 600]),
        ),
    ] {
        c.run(&format!("CONFIG SET rl.oom-policy {policy}"));
        for (call, want) in [
            ("RL.HIT new 5 600 COST 2", fixed),
            ("RL.HIT new 5 600 SLIDING COST 2", fixed),
            ("RL.HIT new 5 600 BUCKET 9 COST 2", bucket),
            ("RL.HIT new 5 600000 COST 2 MS", fixed.map(in_ms)),
        ] {
            let reply = c.run(call);
            match want {
                Some(want) => assert_eq!(verdict(&reply), Some(want), "{policy}: {call}"),
                None => assert_eq!(error(&reply).as_deref(), Some(OOM), "{policy}: {call}"),
            }
            let script = "return redis.call(unpack(ARGV))";
            let words: Vec<&str> = call.split(' ').collect();
            let scripted = c.run_words(&[&["EVAL", script, "0"][..], &words].concat());
            match want {
                Some(want) => assert_eq!(verdict(&scripted), Some(want), "{policy}: {call}"),
                None => assert!(error(&scripted).unwrap().starts_with("OOM "), "{call}"),
            }
        }
        assert_eq!(c.integer("EXISTS new"), 0);

        // What can never fit is refused for that, and there is no limiter to be made.
        assert_eq!(c.hit("new 0 600"), [0, 0, 0, -1, 0], "{policy}");
        assert_eq!(c.hit("new 5 600 COST 6"), [0, 5, 5, -1, 0], "{policy}");
        assert_eq!(
            c.hit("new 5 600 BUCKET 3 COST 4"),
            [0, 3, 3, -1, 0],
            "{policy}"
        );
    }
    for (name, want) in [("oom_errors", 8), ("oom_allowed", 8), ("oom_refused", 8)] {
        assert_eq!(c.figure(name), want, "{name}");
    }
    // Verdicts count as verdicts; errors are none.
    assert_eq!(c.figure("hits_allowed"), 1 + 8);
    assert_eq!(c.figure("hits_refused"), 8 + 9);
}

fn in_ms([allowed, limit, remaining, retry, reset]: [i64; 5]) -> [i64; 5] {
    [allowed, limit, remaining, retry * 1_000, reset * 1_000]
}

#[test]
fn limiters_that_are_there_go_on_under_each_policy() {
    for policy in ["error", "allow", "refuse"] {
        let (_server, mut c) = full_server();
        c.run(&format!("CONFIG SET rl.oom-policy {policy}"));
        assert_eq!(c.hit("old 5 600")[..3], [1, 5, 2], "{policy}");
        assert_eq!(c.hit("old 5 600 COST 2")[..3], [1, 5, 0]);
        assert_eq!(c.hit("old 5 600")[..3], [0, 5, 0]);
        assert_eq!(
            verdict(&c.run("RL.REFUND old 5 600")).unwrap()[..3],
            [1, 5, 1]
        );
        assert_eq!(
            verdict(&c.run("RL.PEEK old 5 600")).unwrap()[..3],
            [1, 5, 1]
        );
        assert_eq!(
            verdict(&c.run("RL.PEEK new 5 600")).unwrap(),
            [1, 5, 5, 0, 0]
        );
        assert_eq!(
            verdict(&c.run("RL.REFUND new 5 600")).unwrap(),
            [1, 5, 5, 0, 0]
        );
        // It grows by a digit.
        assert_eq!(c.hit("old 50 600 COST 8")[..3], [1, 50, 38]);
        assert_eq!(c.get("old").as_deref(), Some("12"));
        // Repairs, too.
        assert_eq!(c.hit("leaked 1 600"), [0, 1, 0, 600, 600]);
        c.run("PERSIST leaked");
        let Value::Array(step) = c.run("RL.REPAIR 0 leaked 60 COUNT 100") else {
            panic!("no reply");
        };
        assert_eq!(step[1], Value::Int(1));
        assert_eq!(c.integer("TTL leaked"), 60);
    }
}

#[test]
fn one_that_is_missing_decides_for_all() {
    let (_server, mut c) = full_server();
    let call = "RL.MHIT 3 old new other 5 600 7 60 9 60 COST 2";
    assert_eq!(c.error(call), OOM);
    let verdicts = |reply: Value| -> (Value, Value, Vec<[i64; 5]>) {
        let Value::Array(mut parts) = reply else {
            panic!("{reply:?}");
        };
        let Some(Value::Array(verdicts)) = parts.pop() else {
            panic!("no verdicts");
        };
        let verdicts = verdicts.iter().map(|each| verdict(each).unwrap());
        (parts.remove(0), parts.remove(0), verdicts.collect())
    };

    c.run("CONFIG SET rl.oom-policy refuse");
    let (allowed, retry_after, each) = verdicts(c.run(call));
    assert_eq!((allowed, retry_after), (Value::Int(0), Value::Int(60)));
    assert_eq!(each[0][..4], [1, 5, 3, 0], "only looked at");
    assert_eq!(each[1..], [[0, 7, 0, 60, 60], [0, 9, 0, 60, 60]]);

    c.run("CONFIG SET rl.oom-policy allow");
    let (allowed, retry_after, each) = verdicts(c.run(call));
    assert_eq!((allowed, retry_after), (Value::Int(1), Value::Int(0)));
    assert_eq!(each[0][..4], [1, 5, 2, 0], "taken from");
    assert_eq!(each[1..], [[1, 7, 6, 0, 0], [1, 9, 7, 0, 0]]);
    assert_eq!(c.get("old").as_deref(), Some("3"));
    assert_eq!(c.integer("EXISTS new other"), 0);

    // A rule that refuses comes first: then nothing would be made, whatever the policy.
    c.run("CONFIG SET rl.oom-policy error");
    let (allowed, retry_after, each) = verdicts(c.run("RL.MHIT 2 old new 3 600 7 60"));
    assert_eq!(allowed, Value::Int(0));
    assert!(
        matches!(retry_after, Value::Int(1..=600)),
        "{retry_after:?}"
    );
    assert_eq!(each[1], [1, 7, 7, 0, 0]);
    for (name, want) in [
        ("oom_errors", 1),
        ("oom_refused", 1),
        ("oom_allowed", 1),
        ("mhits", 3),
        ("hits_allowed", 2),
        ("hits_refused", 2),
    ] {
        assert_eq!(c.figure(name), want, "{name}");
    }
}

#[test]
fn a_refusal_by_the_policy_is_an_event_as_any_other() {
    let server = Server::start_with(&[
        "--maxmemory-policy",
        "noeviction",
        "--notify-keyspace-events",
        "KEA",
    ]);
    let mut c = server.connect();
    c.run("CONFIG SET rl.oom-policy refuse rl.notify-refused yes");
    let heard = events(&server, &["new", "other"], || {
        c.run("CONFIG SET maxmemory 1");
        assert_eq!(c.hit("new 5 600")[0], 0);
        c.run("RL.MHIT 2 new other 5 600 5 600");
        // There has to be room for the mark of the end.
        c.run("CONFIG SET maxmemory 0");
    });
    assert_eq!(
        heard,
        ["rl.refused new", "rl.refused new", "rl.refused other"]
    );
}

#[test]
fn a_server_that_evicts_is_not_out_of_memory() {
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let mut c = server.connect();
    let used: u64 = c
        .info_field("memory", "used_memory")
        .unwrap()
        .parse()
        .unwrap();
    c.run(&format!("CONFIG SET maxmemory {}", used + 3_000_000));
    c.run("CONFIG SET rl.oom-policy refuse");
    let value = "x".repeat(10_000);
    for n in 0..1_000 {
        c.run_words(&["SET", &format!("filler{n}"), &value]);
        assert_eq!(c.hit(&format!("new{n} 5 600"))[..3], [1, 5, 4], "{n}");
    }
    let evicted = c.info_field("stats", "evicted_keys").unwrap();
    assert_ne!(evicted, "0");
    assert_eq!(c.figure("oom_refused"), 0);
}

/// It is over maxmemory for as long as it takes to evict what is too much, and lets writes pass meanwhile.
#[test]
fn a_server_that_is_still_evicting_is_not_out_of_memory() {
    let server = Server::start_with(&[
        "--maxmemory-policy",
        "allkeys-random",
        "--maxmemory-eviction-tenacity",
        "0",
    ]);
    let mut c = server.connect();
    let mut pipeline = redis::pipe();
    let value = "x".repeat(1_000);
    for n in 0..20_000 {
        let key = format!("filler{n}");
        pipeline.cmd("SET").arg(key).arg(&value).ignore();
    }
    pipeline.query::<()>(&mut c.0).unwrap();
    let used = |c: &mut Conn| -> u64 {
        let used = c.info_field("memory", "used_memory").unwrap();
        used.parse().unwrap()
    };
    let most = used(&mut c) - 15_000_000;
    c.run("CONFIG SET rl.oom-policy refuse");
    c.run(&format!("CONFIG SET maxmemory {most}"));
    let mut over = 0;
    for n in 0..50 {
        assert_eq!(c.hit(&format!("new{n} 5 600"))[..3], [1, 5, 4], "{n}");
        over += u64::from(used(&mut c) > most);
    }
    assert!(over > 0);
    assert_eq!(c.figure("oom_refused"), 0);
}

/// A server that fills up for real, with each way to evict that finds nothing to evict here.
#[test]
fn a_server_that_has_nothing_left_to_evict_is_out_of_memory() {
    for eviction in [
        "noeviction",
        "volatile-lru",
        "volatile-ttl",
        "volatile-random",
    ] {
        let server = Server::start_with(&["--maxmemory-policy", eviction]);
        let mut c = server.connect();
        let used = c.info_field("memory", "used_memory").unwrap();
        let used: u64 = used.parse().unwrap();
        c.run(&format!("CONFIG SET maxmemory {}", used + 2_000_000));
        c.run("CONFIG SET rl.oom-policy refuse");
        assert_eq!(c.hit("before 5 600")[..3], [1, 5, 4]);
        let value = "x".repeat(10_000);
        let mut filler = 0;
        while c.run_words(&["SET", &format!("filler{filler}"), &value]) == Value::Okay {
            filler += 1;
        }
        assert!(filler > 120, "{eviction}: {filler}");
        // At the very edge the next call may find some bytes.
        c.run(&format!("CONFIG SET maxmemory {}", used + 1_500_000));
        for n in 0..20 {
            assert_eq!(c.hit(&format!("new{n} 5 600")), [0, 5, 0, 600, 600]);
            assert_eq!(c.integer(&format!("EXISTS new{n}")), 0);
        }
        // Limiters are what a volatile policy evicts first.
        let left = if eviction == "noeviction" { 1 } else { 0 };
        assert_eq!(c.integer("EXISTS before"), left, "{eviction}");
        // As soon as there is room again they are made.
        for n in 0..120 {
            c.run(&format!("DEL filler{n}"));
        }
        assert_eq!(c.hit("new0 5 600"), [1, 5, 4, 0, 600]);
    }
}

#[test]
fn a_script_or_function_that_may_not_run_out_of_memory_is_refused_by_the_server() {
    let (_server, mut c) = full_server();
    c.run("CONFIG SET rl.oom-policy allow");
    let hit = "return redis.call('RL.HIT', KEYS[1], 5, 600)";
    let declared = format!("#!lua\n{hit}");
    let reply = c.run_words(&["EVAL", &declared, "1", "new"]);
    assert!(error(&reply).unwrap().starts_with("OOM "), "{reply:?}");
    let allowed = format!("#!lua flags=allow-oom\n{hit}");
    for script in [hit, &allowed] {
        let reply = c.run_words(&["EVAL", script, "1", "new"]);
        assert_eq!(verdict(&reply), Some([1, 5, 4, 0, 0]), "{script}");
    }
}

#[test]
fn a_server_on_which_setrange_has_another_name_says_that_there_is_no_policy() {
    let server = Server::start_with(&["--rename-command", "SETRANGE", "OTHER"]);
    assert!(server.log().contains("rl: rl.oom-policy has no effect"));
    let mut c = server.connect();
    c.run("CONFIG SET maxmemory 1");
    assert_eq!(c.hit("new 5 600"), [1, 5, 4, 0, 600]);
}

#[test]
fn there_is_memory_again_as_soon_as_the_server_says_so() {
    let (_server, mut c) = full_server();
    assert_eq!(c.error("RL.HIT new 5 600"), OOM);
    c.run("CONFIG SET maxmemory 0");
    assert_eq!(c.hit("new 5 600"), [1, 5, 4, 0, 600]);
}

#[test]
fn in_a_transaction_the_policy_answers_or_the_server_before_it() {
    let (_server, mut c) = full_server();
    c.run("CONFIG SET rl.oom-policy refuse");
    c.run("MULTI");
    let queued = c.run("RL.HIT new 5 600");
    let reply = c.run("EXEC");
    match error(&queued).or_else(|| error(&reply)) {
        // Redis 7.0 refuses to queue or to run it.
        Some(text) => assert!(
            text.starts_with("OOM ") || text.starts_with("EXECABORT"),
            "{text}"
        ),
        None => assert_eq!(
            reply,
            Value::Array(vec![Value::Array(
                [0, 5, 0, 600, 600].map(Value::Int).to_vec()
            )])
        ),
    }
    assert_eq!(c.integer("EXISTS new"), 0);
}
