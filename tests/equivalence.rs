//! At cost 1 the verdicts are those of MULTI, INCR, EXPIRE NX, EXEC.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use redis::Value;

use crate::common::{wait_until, Conn, Server};

#[derive(Clone, Debug)]
enum Step {
    Hit(usize),
    /// Somebody deletes the limiter.
    Delete(usize),
    /// The window ends.
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..LIMITS.len();
    prop_oneof![
        20 => key.clone().prop_map(Step::Hit),
        1 => key.clone().prop_map(Step::Delete),
        1 => key.prop_map(Step::End),
    ]
}

const LIMITS: [i64; 4] = [0, 1, 3, 10];

/// Allowed, remaining, and the milliseconds until the window ends.
fn by_transaction(c: &mut Conn, key: &str, limit: i64) -> (bool, i64, i64) {
    let (count, _, end_ms): (i64, i64, i64) = redis::pipe()
        .atomic()
        .cmd("INCR")
        .arg(key)
        .cmd("EXPIRE")
        .arg(key)
        .arg(600)
        .arg("NX")
        .cmd("PTTL")
        .arg(key)
        .query(&mut c.0)
        .unwrap();
    (count <= limit, (limit - count).max(0), end_ms)
}

#[test]
fn random_traffic_gets_the_verdicts_of_multi_incr_expire_exec() {
    let server = Server::start();
    let mut c = server.connect();
    let mut runner = TestRunner::new(Config {
        cases: 60,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    });
    let traffic = prop::collection::vec(step(), 1..120);
    let c = std::cell::RefCell::new(&mut c);
    let outcome = runner.run(&traffic, |steps| {
        let c = &mut **c.borrow_mut();
        c.run("FLUSHALL");
        for step in steps {
            match step {
                Step::Hit(n) => {
                    let limit = LIMITS[n];
                    let want = by_transaction(c, &format!("incr{n}"), limit);
                    let [allowed, _, remaining, retry_ms, reset_ms] =
                        c.hit(&format!("hit{n} {limit} 600000 MS"));
                    prop_assert_eq!((allowed == 1, remaining), (want.0, want.1));
                    if limit > 0 {
                        // Both windows began with the same step, a moment apart.
                        prop_assert!((reset_ms - want.2).abs() < 1_000);
                        prop_assert_eq!(retry_ms, if want.0 { 0 } else { reset_ms });
                    }
                }
                Step::Delete(n) => {
                    c.run(&format!("DEL incr{n} hit{n}"));
                }
                Step::End(n) => {
                    for key in [format!("incr{n}"), format!("hit{n}")] {
                        c.run(&format!("PEXPIRE {key} 1"));
                        wait_until("the window is over", || {
                            c.integer(&format!("EXISTS {key}")) == 0
                        });
                    }
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_script_and_a_function_get_the_verdicts_of_a_client() {
    let server = Server::start();
    let mut c = server.connect();
    c.run_words(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=limits\n\
         redis.register_function('call', function(keys, args) return redis.call(unpack(args)) end)",
    ]);
    let mut refused = 0;
    for algorithm in ["FIXED", "SLIDING", "BUCKET 7"] {
        for (command, cost) in [
            ("RL.PEEK", 1),
            ("RL.HIT", 3),
            ("RL.HIT", 2),
            ("RL.PEEK", 3),
            ("RL.HIT", 3),
            ("RL.REFUND", 1),
            ("RL.HIT", 3),
            ("RL.HIT", 1),
            ("RL.PEEK", 1),
            ("RL.REFUND", 100),
            ("RL.PEEK", 7),
            ("RL.HIT", 8),
            ("RL.MHIT", 2),
            ("RL.MHIT", 4),
            ("RL.MHIT", 4),
        ] {
            let line = |key: &str| {
                let rule = format!("7 36000 {algorithm} COST {cost}");
                match command {
                    "RL.MHIT" => format!("RL.MHIT 2 {key} other-{key} {rule} {rule}"),
                    _ => format!("{command} {key} {rule}"),
                }
            };
            let want = integers(&c.run(&line("direct")));
            let script = "return redis.call(unpack(ARGV))";
            for (key, call) in [
                ("script", &["EVAL", script, "0"][..]),
                ("function", &["FCALL", "call", "0"]),
            ] {
                let line = line(key);
                let words = line.split(' ').collect::<Vec<_>>();
                let got = integers(&c.run_words(&[call, &words[..]].concat()));
                assert_eq!(got.len(), want.len(), "{line}");
                for (got, want) in got.iter().zip(&want) {
                    // A moment later, a time of hours may have one second less, or have more.
                    let slack = i64::from(*want > 1_000);
                    assert!((got - want).abs() <= slack, "{line}: {got}, {want}");
                }
            }
            refused += usize::from(want[0] == 0);
        }
        c.run("FLUSHALL");
    }
    assert!(refused >= 9, "{refused} refused");
}

/// The integers of a reply, also of one with arrays in it, in their order.
fn integers(reply: &Value) -> Vec<i64> {
    match reply {
        Value::Int(integer) => vec![*integer],
        Value::Array(replies) => replies.iter().flat_map(integers).collect(),
        other => panic!("{other:?}"),
    }
}
