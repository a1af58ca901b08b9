//! RL.MHIT: all or nothing over several limiters.

use redis::Value;

use crate::common::stream::Stream;
use crate::common::{events, verdict, Conn, Server};

/// Allowed, retry_after, and each rule's verdict.
fn mhit(c: &mut Conn, call: &str) -> (i64, i64, Vec<[i64; 5]>) {
    let reply = c.run(&format!("RL.MHIT {call}"));
    match &reply {
        Value::Array(fields) => match fields.as_slice() {
            [Value::Int(allowed), Value::Int(retry_after), Value::Array(verdicts)] => {
                let verdicts = verdicts.iter().map(verdict).collect::<Option<_>>();
                (*allowed, *retry_after, verdicts.expect("verdicts"))
            }
            _ => panic!("{call}: {reply:?}"),
        },
        _ => panic!("{call}: {reply:?}"),
    }
}

#[test]
fn if_one_rule_refuses_nobody_takes() {
    let server = Server::start();
    let mut c = server.connect();
    let call = "2 a b 1 1000 100 3600";
    assert_eq!(
        mhit(&mut c, call),
        (1, 0, vec![[1, 1, 0, 0, 1000], [1, 100, 99, 0, 3600]])
    );
    assert_eq!(
        mhit(&mut c, call),
        (0, 1000, vec![[0, 1, 0, 1000, 1000], [1, 100, 99, 0, 3600]])
    );
    assert_eq!(c.get("a").as_deref(), Some("1"));
    assert_eq!(c.get("b").as_deref(), Some("1"));
}

#[test]
fn every_rule_has_its_own_algorithm_and_cost() {
    let server = Server::start();
    let mut c = server.connect();
    // 60 requests and 100,000 tokens a minute, in bursts of at most 10.
    let call = "3 requests tokens burst 60 60 100000 60 SLIDING COST 5000 60 60 BUCKET 10";
    let (allowed, retry_after, verdicts) = mhit(&mut c, call);
    assert_eq!((allowed, retry_after), (1, 0));
    assert_eq!(verdicts[0], [1, 60, 59, 0, 60]);
    assert_eq!(verdicts[1][..3], [1, 100_000, 95_000]);
    assert_eq!(verdicts[2], [1, 10, 9, 0, 1]);
    assert_eq!(c.get("requests").as_deref(), Some("1"));
    assert!(c.get("tokens").unwrap().starts_with("s:0:5000:"));
    assert!(c.get("burst").unwrap().starts_with("b:60000:"));

    let refused = "2 requests tokens 60 60 100000 60 SLIDING COST 96000";
    let (allowed, retry_after, verdicts) = mhit(&mut c, refused);
    assert_eq!(allowed, 0);
    assert!(retry_after >= 60, "{retry_after}");
    assert_eq!(verdicts[0][..4], [1, 60, 59, 0]);
    assert_eq!(verdicts[1][..3], [0, 100_000, 95_000]);
}

#[test]
fn retry_after_is_the_longest_of_those_that_refuse_and_never_if_one_never_can() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("SET a 5 PX 30000");
    c.run("SET b 5 PX 500000");
    c.run("SET free 1 PX 900000");
    let (allowed, retry_after, _) = mhit(&mut c, "3 a b free 5 60 5 600 9 900");
    assert_eq!((allowed, retry_after), (0, 500));
    let (allowed, retry_after, _) = mhit(&mut c, "3 free b a 9 900 5 600 5 60");
    assert_eq!((allowed, retry_after), (0, 500));
    let (allowed, retry_after, verdicts) = mhit(&mut c, "3 a b free 5 60 5 600 9 900 COST 10");
    assert_eq!((allowed, retry_after), (0, -1));
    assert_eq!(verdicts[2][3], -1);
    let (_, retry_after_ms, _) = mhit(&mut c, "2 a b 5 60000 5 600000 MS");
    assert!((490_000..=500_000).contains(&retry_after_ms));
}

#[test]
fn a_refused_call_repairs_each_limiter_that_lost_its_expiry() {
    let server = Server::start();
    let mut c = server.connect();
    for line in ["SET a 3", "SET b 9", "SET kept 4 PX 500000"] {
        c.run(line);
    }
    let (allowed, _, verdicts) = mhit(&mut c, "4 a b kept new 5 60 5 600 5 60 5 60");
    assert_eq!(allowed, 0);
    assert_eq!(
        verdicts,
        [
            [1, 5, 2, 0, 60],
            [0, 5, 0, 600, 600],
            [1, 5, 1, 0, 500],
            [1, 5, 5, 0, 0]
        ]
    );
    for (key, value, left_s) in [("a", "3", 60), ("b", "9", 600), ("kept", "4", 500)] {
        assert_eq!(c.get(key).as_deref(), Some(value));
        let left_ms = c.pttl(key);
        assert!(
            (left_s * 1_000 - 10_000..=left_s * 1_000).contains(&left_ms),
            "{key}"
        );
    }
    assert_eq!(c.integer("EXISTS new"), 0);
}

#[test]
fn as_many_as_128_rules() {
    let server = Server::start();
    let mut c = server.connect();
    let keys: Vec<String> = (0..128).map(|n| format!("k{n}")).collect();
    let call = format!("128 {} {}", keys.join(" "), vec!["2 600"; 128].join(" "));
    for left in [1, 0] {
        let (allowed, _, verdicts) = mhit(&mut c, &call);
        assert_eq!(allowed, 1);
        assert_eq!(verdicts.len(), 128);
        assert!(verdicts.iter().all(|verdict| verdict[..3] == [1, 2, left]));
    }
    c.run("DEL k7");
    let (allowed, _, verdicts) = mhit(&mut c, &call);
    assert_eq!(allowed, 0);
    assert_eq!(verdicts[7], [1, 2, 2, 0, 0]);
    assert_eq!(c.integer("DBSIZE"), 127);
}

#[test]
fn it_goes_out_as_one_and_not_at_all_when_refused() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut c = server.connect();
    let mut stream = Stream::of(&server);
    mhit(&mut c, "2 a b 1 600 1 600 BUCKET 5");
    let want = ["MULTI".into(), c.effect("a"), c.effect("b"), "EXEC".into()];
    for _ in 0..3 {
        assert_eq!(mhit(&mut c, "2 a b 1 600 1 600 BUCKET 5").0, 0);
    }
    c.run("SET mark 1");
    assert_eq!(stream.until("mark"), want);
}

#[test]
fn listeners_hear_what_happened_to_each_key() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut c = server.connect();
    for (setup, call, want) in [
        (
            "DEL a b",
            "2 a b 5 60 5 60 SLIDING",
            &["incrby a", "expire a", "set b", "expire b"][..],
        ),
        (
            "SET b 1 PX 60000",
            "2 a b 5 60 5 60",
            &["incrby a", "incrby b"],
        ),
        ("SET b 5 PX 60000", "2 a b 5 60 5 60", &[]),
        ("SET b 5", "2 a b 5 60 5 60", &["expire b", "rl.repaired b"]),
        (
            "PERSIST a",
            "2 a b 5 60 5 60",
            &["expire a", "rl.repaired a"],
        ),
    ] {
        c.run(setup);
        let heard = events(&server, &["a", "b"], || {
            mhit(&mut c, call);
        });
        assert_eq!(heard, want, "{setup}: {call}");
    }
}

#[test]
fn sixteen_connections_take_both_or_none() {
    let server = Server::start();
    let allowed: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let mut c = server.connect();
                    let call = "2 a b 500 600 777 600 SLIDING";
                    (0..100).filter(|_| mhit(&mut c, call).0 == 1).count()
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(allowed, 500);
    let mut c = server.connect();
    assert_eq!(c.get("a").as_deref(), Some("500"));
    assert!(c.get("b").unwrap().starts_with("s:0:500:"));
}

#[test]
fn its_keys_are_found_by_the_server() {
    let server = Server::start();
    let mut c = server.connect();
    let keys = |c: &mut Conn, call: &str| match c.run(&format!("COMMAND GETKEYS RL.MHIT {call}")) {
        Value::Array(keys) => keys
            .into_iter()
            .map(|key| match key {
                Value::BulkString(key) => String::from_utf8(key).unwrap(),
                other => panic!("{other:?}"),
            })
            .collect(),
        _ => Vec::new(),
    };
    assert_eq!(keys(&mut c, "2 a b 1 1 2 2"), ["a", "b"]);
    assert_eq!(keys(&mut c, "3 a b c 1 1 2 2 3 3 MS"), ["a", "b", "c"]);
    for bad in [
        "0 a 5 60",
        "-1 a 5 60",
        "x a 5 60",
        "9 a 5 60",
        "129 a 5 60",
    ] {
        assert_eq!(keys(&mut c, bad), [""; 0], "{bad}");
    }

    c.run("ACL SETUSER ann on nopass -@all +rl.mhit ~a*");
    let mut ann = server.connect();
    ann.run("AUTH ann any");
    assert_eq!(mhit(&mut ann, "2 a1 a2 1 60 1 60").0, 1);
    for call in ["2 a1 b1 1 60 1 60", "2 b1 a1 1 60 1 60"] {
        let text = ann.error(&format!("RL.MHIT {call}"));
        assert!(text.starts_with("NOPERM"), "{text}");
    }
    assert_eq!(c.integer("EXISTS b1"), 0);
}
