//! The contract of RL.HIT FIXED, line by line.

use crate::common::{verdict, wait_until, Server};

const MAX: i64 = i64::MAX;

#[test]
fn each_hit_takes_one_until_the_limit_and_the_next_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.hit("k 3 60"), [1, 3, 2, 0, 60]);
    assert_eq!(c.hit("k 3 60"), [1, 3, 1, 0, 60]);
    assert_eq!(c.hit("k 3 60"), [1, 3, 0, 0, 60]);
    assert_eq!(c.hit("k 3 60"), [0, 3, 0, 60, 60]);
}

#[test]
fn a_hit_is_allowed_exactly_while_count_and_cost_fit_the_limit() {
    let server = Server::start();
    let mut c = server.connect();
    for count in 0..=6 {
        for cost in 1..=6 {
            c.run(&format!("SET k {count} PX 60000"));
            let [allowed, _, remaining, _, _] = c.hit(&format!("k 5 60 COST {cost}"));
            let fits = count + cost <= 5;
            assert_eq!(allowed, i64::from(fits), "{count} + {cost}");
            let after = if fits { count + cost } else { count };
            assert_eq!(remaining, (5 - after).max(0), "{count} + {cost}");
            assert_eq!(c.get("k"), Some(after.to_string()), "{count} + {cost}");
        }
    }
}

#[test]
fn a_refused_hit_does_not_count() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("SET k 8 PX 60000");
    let before = c.picture("k");
    for _ in 0..3 {
        assert_eq!(c.hit("k 10 60 COST 3"), [0, 10, 2, 60, 60]);
    }
    assert_eq!(c.get("k").as_deref(), Some("8"));
    assert_eq!(c.picture("k"), before);
}

#[test]
fn a_cost_that_can_never_fit_is_refused_for_ever_and_makes_no_key() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.hit("k 10 60 COST 11"), [0, 10, 10, -1, 0]);
    assert_eq!(c.hit("k 0 60"), [0, 0, 0, -1, 0]);
    assert_eq!(c.integer("EXISTS k"), 0);
    c.run("SET k 4 PX 60000");
    assert_eq!(c.hit("k 10 60 COST 11"), [0, 10, 6, -1, 60]);
    assert_eq!(c.hit("k 0 60"), [0, 0, 0, -1, 60]);
}

#[test]
fn a_missing_key_is_made_with_its_expiry() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("k 3 60");
    assert!((59_000..=60_000).contains(&c.pttl("k")));
    c.hit("m 3 60000 MS");
    assert!((59_000..=60_000).contains(&c.pttl("m")));
    assert_eq!(c.string("TYPE k").as_deref(), Some("string"));
}

#[test]
fn a_running_window_is_never_moved() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("k 3 60");
    let end_ms = c.integer("PEXPIRETIME k");
    for call in [
        "k 3 60",
        "k 3 1",
        "k 3 999999",
        "k 3 60",
        "k 0 5",
        "k 9 5 MS",
        "k 3 7 COST 9",
    ] {
        c.hit(call);
        assert_eq!(c.integer("PEXPIRETIME k"), end_ms, "{call}");
    }
}

#[test]
fn a_changed_window_takes_effect_with_the_next_window() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("k 1 50 MS");
    assert!(c.hit("k 1 60000 MS")[3] <= 50);
    wait_until("the window is over", || c.hit("k 1 60000 MS")[0] == 1);
    assert!(c.pttl("k") > 59_000);
}

/// Value without expiry, the call, the verdict, and the value afterwards.
#[test]
fn a_counter_without_expiry_is_repaired_on_both_paths_and_keeps_its_count() {
    let server = Server::start();
    let mut c = server.connect();
    for (value, call, want, after) in [
        ("5", "k 10 60", [1, 10, 4, 0, 60], "6"),
        ("9", "k 10 60", [1, 10, 0, 0, 60], "10"),
        ("10", "k 10 60", [0, 10, 0, 60, 60], "10"),
        ("2550", "k 10 60", [0, 10, 0, 60, 60], "2550"),
        ("5", "k 0 60", [0, 0, 0, -1, 60], "5"),
        ("5", "k 10 60 COST 11", [0, 10, 5, -1, 60], "5"),
        ("0", "k 10 60 COST 11", [0, 10, 10, -1, 0], "0"),
        ("0", "k 0 60", [0, 0, 0, -1, 0], "0"),
        ("-3", "k 10 60", [1, 10, 9, 0, 60], "1"),
        ("-3", "k 10 60 COST 11", [0, 10, 10, -1, 0], "-3"),
        (
            "-9223372036854775808",
            "k 0 60",
            [0, 0, 0, -1, 0],
            "-9223372036854775808",
        ),
        (
            "9223372036854775807",
            "k 10 60",
            [0, 10, 0, 60, 60],
            "9223372036854775807",
        ),
        (
            "9223372036854775807",
            "k 9223372036854775807 60 COST 9223372036854775807",
            [0, MAX, 0, 60, 60],
            "9223372036854775807",
        ),
    ] {
        c.run(&format!("SET k {value}"));
        assert_eq!(c.hit(call), want, "{value}: {call}");
        assert_eq!(c.get("k").as_deref(), Some(after), "{value}: {call}");
        assert!((59_000..=60_000).contains(&c.pttl("k")), "{value}: {call}");
    }
}

#[test]
fn times_are_in_the_unit_of_the_call_and_rounded_up() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("SET k 5 PX 1950");
    let [_, _, _, retry_after, reset_after] = c.hit("k 5 60");
    assert_eq!((retry_after, reset_after), (2, 2));
    let [_, _, _, retry_after, reset_after] = c.hit("k 5 60 MS");
    assert!((1_000..=1_950).contains(&retry_after));
    assert_eq!(retry_after, reset_after);
    c.run("SET k 5 PX 900");
    assert_eq!(c.hit("k 5 60")[3], 1);
}

#[test]
fn a_caller_that_waits_exactly_as_told_is_allowed() {
    let server = Server::start();
    let mut c = server.connect();
    for window_ms in [1, 2, 3, 7, 40] {
        let call = format!("k{window_ms} 1 {window_ms} MS");
        let mut refused = 0;
        for _ in 0..60 {
            let [allowed, _, _, retry_after_ms, _] = c.hit(&call);
            assert_eq!(allowed == 1, retry_after_ms == 0);
            if allowed == 0 {
                refused += 1;
                assert!((1..=window_ms).contains(&retry_after_ms));
                let wait = std::time::Duration::from_millis(retry_after_ms as u64);
                std::thread::sleep(wait);
                assert_eq!(c.hit(&call)[0], 1, "after {wait:?}");
            }
        }
        assert!(refused > 0 || window_ms < 7, "{window_ms}");
    }
}

#[test]
fn numbers_up_to_the_last_one_work_or_refuse() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.hit("a 9223372036854775807 60"), [1, MAX, MAX - 1, 0, 60]);
    let all_but_one = "a 9223372036854775807 60 COST 9223372036854775806";
    assert_eq!(c.hit(all_but_one), [1, MAX, 0, 0, 60]);
    assert_eq!(c.hit("a 9223372036854775807 60"), [0, MAX, 0, 60, 60]);
    assert_eq!(c.get("a").as_deref(), Some("9223372036854775807"));
    assert_eq!(c.hit("b 1 60 COST 9223372036854775807"), [0, 1, 1, -1, 0]);

    // A window that ends in the last second that there is.
    let now_ms = c.now_ms();
    let longest_s = (MAX - now_ms) / 1_000 - 10;
    assert_eq!(c.hit(&format!("w 1 {longest_s}")), [1, 1, 0, 0, longest_s]);
    assert_eq!(c.hit(&format!("w 1 {longest_s}"))[0], 0);
    assert!(c.integer("PEXPIRETIME w") > MAX - 20_000);
    assert!(c.integer("TTL w") > longest_s - 10);
}

#[test]
fn option_words_may_stand_in_any_order_and_case() {
    let server = Server::start();
    let mut c = server.connect();
    for options in ["", "FIXED", "fixed cost 1", "Cost 1 FiXeD", "COST 1"] {
        c.run("DEL k");
        assert_eq!(
            c.hit(&format!("k 5 60 {options}")),
            [1, 5, 4, 0, 60],
            "{options}"
        );
    }
    for options in [
        "MS",
        "ms fixed",
        "FIXED MS",
        "cost 1 Ms",
        "MS COST 1 FIXED",
        "mS Fixed Cost 1",
        "COST 1 MS FIXED",
        "SLIDING ms",
        "ms sliding Cost 1",
        "bucket 5 MS",
        "MS COST 1 Bucket 5",
        "cost 1 BUCKET 5 ms",
    ] {
        c.run("DEL k");
        let [allowed, limit, remaining, retry, reset_ms] = c.hit(&format!("k 5 60000 {options}"));
        assert_eq!(
            (allowed, limit, remaining, retry),
            (1, 5, 4, 0),
            "{options}"
        );
        let most = if options.to_lowercase().contains("sliding") {
            // What one hit weighs is gone when the next window has begun.
            60_001
        } else if options.to_lowercase().contains("bucket") {
            12_000
        } else {
            60_000
        };
        assert!((most - 1_000..=most).contains(&reset_ms), "{options}");
    }
}

#[test]
fn counters_of_an_incr_based_limiter_are_taken_over_and_stay_usable() {
    let server = Server::start();
    let mut c = server.connect();
    for _ in 0..3 {
        c.run("INCR k");
    }
    c.run("PEXPIRE k 30000");
    let end_ms = c.integer("PEXPIRETIME k");
    assert_eq!(c.hit("k 5 60"), [1, 5, 1, 0, 30]);
    assert_eq!(c.integer("PEXPIRETIME k"), end_ms);

    assert_eq!(c.integer("INCR k"), 5);
    assert_eq!(c.hit("k 5 60"), [0, 5, 0, 30, 30]);
    assert_eq!(c.integer("DECRBY k 2"), 3);
    assert_eq!(c.hit("k 5 60"), [1, 5, 1, 0, 30]);
    assert_eq!(c.get("k").as_deref(), Some("4"));
    assert!((20_000..=30_000).contains(&c.pttl("k")));

    assert_eq!(c.integer("COPY k copy"), 1);
    assert_eq!(c.hit("copy 5 60"), [1, 5, 0, 0, 30]);
    assert_eq!(c.hit("k 5 60"), [1, 5, 0, 0, 30]);
    c.run("RENAME k moved");
    assert_eq!(c.hit("moved 5 60"), [0, 5, 0, 30, 30]);
    assert_eq!(c.integer("DEL moved"), 1);
    assert_eq!(c.hit("moved 5 60"), [1, 5, 4, 0, 60]);
    c.run("APPEND moved 0");
    assert_eq!(c.hit("moved 50 60"), [1, 50, 39, 0, 60]);
}

#[test]
fn the_verdict_is_the_same_in_resp2_and_resp3() {
    let server = Server::start();
    let (mut resp2, mut resp3) = (server.connect(), server.connect_resp3());
    for call in ["k 2 60", "k 2 60 COST 5", "k 2 60", "k 2 60"] {
        let at = |c: &mut crate::common::Conn, key: &str| {
            verdict(&c.run(&format!("RL.HIT {key}{call}"))).expect("five integers")
        };
        assert_eq!(at(&mut resp2, "two"), at(&mut resp3, "three"), "{call}");
    }
}

#[test]
fn limiters_of_different_keys_and_databases_know_nothing_of_each_other() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.hit("a 1 60")[0], 1);
    assert_eq!(c.hit("b 1 60")[0], 1);
    c.run("SELECT 1");
    assert_eq!(c.hit("a 1 60")[0], 1);
    assert_eq!(c.hit("a 1 60")[0], 0);
    c.run("SELECT 0");
    assert_eq!(c.hit("a 1 60")[0], 0);
}
