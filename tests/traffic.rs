//! A long random run of all commands and algorithms, with leaks planted and keys taken away by
//! others: at the end primary, replica without the module and restarted copy hold the same, and no
//! limiter is without an expiry.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use redis::Value;

use crate::common::{wait_until, Server};

const KEYS: usize = 12;
const ALGORITHMS: [&str; 3] = ["FIXED", "SLIDING", "BUCKET 7"];

/// A line to run; each key keeps to one algorithm.
fn line() -> impl Strategy<Value = String> {
    let rule = |key: usize, limit: i64, window_ms: i64, cost: i64| {
        let algorithm = ALGORITHMS[key % ALGORITHMS.len()];
        format!("{limit} {window_ms} {algorithm} COST {cost}")
    };
    let window_ms = prop_oneof![3 => Just(600_000_i64), 1 => 1..40_i64];
    let numbers = (0..KEYS, 0..12_i64, window_ms, 1..5_i64);
    let one = (
        prop::sample::select(vec!["HIT", "HIT", "HIT", "PEEK", "REFUND"]),
        numbers.clone(),
    )
        .prop_map(move |(command, (key, limit, window_ms, cost))| {
            format!(
                "RL.{command} k{key} {} MS",
                rule(key, limit, window_ms, cost)
            )
        });
    let many = (numbers.clone(), numbers).prop_map(move |(a, b)| {
        // Two keys, never the same.
        let other = (a.0 + 1 + b.0 % (KEYS - 1)) % KEYS;
        format!(
            "RL.MHIT 2 k{} k{other} {} {} MS",
            a.0,
            rule(a.0, a.1, a.2, a.3),
            rule(other, b.1, b.2, b.3)
        )
    });
    let meddling = (0..KEYS, 0..6_usize).prop_map(|(key, what)| match what {
        0 => format!("DEL k{key}"),
        1 => format!("PEXPIRE k{key} 20"),
        2 => format!("COPY k{key} copy{key} REPLACE"),
        3 => format!("RL.REPAIR 0 k{key} 600 COUNT 100"),
        4 => "RL.AUDIT 0 COUNT 100".into(),
        _ => format!("PERSIST k{key}"),
    });
    prop_oneof![12 => one, 4 => many, 1 => meddling]
}

#[test]
fn a_long_random_run_leaves_all_copies_equal_and_no_limiter_without_expiry() {
    let mut primary = Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let replica = Server::start_bare(&[]);
    replica.replicate(&primary);
    let mut c = primary.connect();
    let mut runner = TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..Config::default()
    });

    let line = line();
    for n in 0..12_000 {
        let line = line.new_tree(&mut runner).unwrap().current();
        // Some of them by a script, and some in a transaction.
        let reply = match n % 17 {
            3 => {
                let words: Vec<&str> = line.split(' ').collect();
                let script = "return redis.call(unpack(ARGV))";
                c.run_words(&[&["EVAL", script, "0"][..], &words].concat())
            }
            9 => {
                c.run("MULTI");
                c.run(&line);
                match c.run("EXEC") {
                    Value::Array(mut replies) => replies.remove(0),
                    other => panic!("{line}: {other:?}"),
                }
            }
            _ => c.run(&line),
        };
        assert!(
            matches!(reply, Value::Array(_) | Value::Int(_)),
            "{line}: {reply:?}"
        );
        // Whatever it was, after a hit or a refund the limiter has an end, or is gone.
        if let Some(rest) = line
            .strip_prefix("RL.HIT ")
            .or(line.strip_prefix("RL.REFUND "))
        {
            let key = rest.split(' ').next().unwrap();
            assert_ne!(c.pttl(key), -1, "{line}");
        }
    }

    // Leaks that are still there are repaired by the next hit, also by one that is refused.
    for key in 0..KEYS {
        let algorithm = ALGORITHMS[key % ALGORITHMS.len()];
        c.run(&format!("RL.HIT k{key} 0 600 {algorithm}"));
        assert_ne!(c.pttl(&format!("k{key}")), -1, "k{key}");
        c.run(&format!("DEL copy{key}"));
    }
    // What is about to end may end on the way.
    let later_ms = c.now_ms() + 60_000;
    let here = c.data(later_ms);
    assert!(here.len() >= 3, "{here:?}");
    primary.wait_for(&replica);
    assert_eq!(replica.connect().data(later_ms), here, "the replica");
    wait_until("the AOF is written", || {
        c.info_field("persistence", "aof_pending_bio_fsync")
            .as_deref()
            == Some("0")
            && c.info_field("persistence", "aof_buffer_length").as_deref() == Some("0")
    });
    primary.kill_and_restart();
    assert_eq!(primary.connect().data(later_ms), here, "after a restart");
}
