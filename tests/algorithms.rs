//! SLIDING and BUCKET on a server: the same verb, their states, and what they leave.

use crate::common::stream::Stream;
use crate::common::{verdict, wait_until, Server};

#[test]
fn a_sliding_window_weighs_the_previous_one() {
    let server = Server::start();
    let mut c = server.connect();
    for left in (0..10).rev() {
        assert_eq!(c.hit("k 10 600 SLIDING")[..3], [1, 10, left]);
    }
    assert_eq!(c.hit("k 10 600 SLIDING")[..3], [0, 10, 0]);

    // Some half a window into the next one: five of ten still count.
    let now_ms: i64 = c
        .get("k")
        .unwrap()
        .split(':')
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    let start_ms = now_ms - 890_000;
    c.run(&format!("SET k s:0:10:{start_ms} PX 310000"));
    let [allowed, _, remaining, _, _] = c.hit("k 10 600 SLIDING COST 4");
    assert_eq!((allowed, remaining), (1, 1));
    let state = c.get("k").unwrap();
    assert!(state.starts_with("s:10:4:"), "{state}");
}

#[test]
fn a_bucket_refills_at_its_rate() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.hit("k 10 600 BUCKET 3 COST 2"), [1, 3, 1, 0, 120]);
    assert_eq!(c.hit("k 10 600 BUCKET 3 COST 2"), [0, 3, 1, 60, 120]);
    assert_eq!(c.hit("k 10 600 BUCKET 3"), [1, 3, 0, 0, 180]);
    let fast = "f 1000000 1 BUCKET 1000000";
    assert_eq!(
        c.hit(&format!("{fast} COST 1000000"))[..3],
        [1, 1_000_000, 0]
    );
    wait_until("it is full", || {
        c.hit(&format!("{fast} COST 1000000"))[0] == 1
    });
}

#[test]
fn a_limiter_always_has_an_expiry_and_is_gone_once_it_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    for call in [
        "s 5 30 MS SLIDING",
        "b 100 1000 MS BUCKET 5",
        "t 3 1000 MS BUCKET 1",
    ] {
        let key = &call[..1];
        let [_, _, _, _, reset_ms] = c.hit(call);
        let left_ms = c.pttl(key);
        assert!(
            left_ms >= -2 && left_ms != -1 && left_ms <= reset_ms,
            "{call}"
        );
        wait_until("it is gone", || c.integer(&format!("EXISTS {key}")) == 0);
    }
}

#[test]
fn a_state_that_lost_its_expiry_ends_when_it_says_itself() {
    let server = Server::start();
    let mut c = server.connect();
    for (call, refused) in [
        ("k 5 600 SLIDING COST 5", "k 5 600 SLIDING"),
        ("k 5 600 BUCKET 5 COST 5", "k 5 600 BUCKET 5"),
    ] {
        c.run("DEL k");
        c.hit(call);
        let (state, end_ms) = (c.get("k"), c.integer("PEXPIRETIME k"));
        c.run("PERSIST k");
        assert_eq!(c.hit(refused)[0], 0);
        assert_eq!(c.get("k"), state);
        assert_eq!(c.integer("PEXPIRETIME k"), end_ms, "{call}");
    }
}

#[test]
fn a_state_dated_after_now_is_anchored_at_now_by_a_refusal_too() {
    let server = Server::start();
    let mut c = server.connect();
    let far = 9_000_000_000_000_i64;
    for (state, call) in [
        (format!("s:0:5:{far}"), "k 5 600 SLIDING"),
        (format!("b:3000000:{far}:600000"), "k 5 600 BUCKET 5"),
    ] {
        c.run(&format!("SET k {state} PXAT {far}"));
        let [allowed, _, _, retry_after, reset_after] = c.hit(call);
        assert_eq!(allowed, 0, "{state}");
        assert!((1..=1_200).contains(&retry_after), "{state}: {retry_after}");
        assert!((1..=1_200).contains(&reset_after), "{state}: {reset_after}");
        assert_ne!(c.get("k"), Some(state));
        assert!(c.pttl("k") <= 1_200_000);
    }
}

#[test]
fn their_effects_are_the_state_and_its_end() {
    let server = Server::start();
    let mut c = server.connect();
    let mut stream = Stream::of(&server);
    let mut want = Vec::new();
    for (call, changes) in [
        ("HIT s 2 600 SLIDING", true),
        ("HIT s 2 600 SLIDING", true),
        ("HIT s 2 600 SLIDING", false),
        ("PEEK s 2 600 SLIDING", false),
        ("REFUND s 2 600 SLIDING", true),
        ("HIT b 2 600 BUCKET 2", true),
        ("HIT b 2 600 BUCKET 2 COST 2", false),
        ("HIT never 2 600 BUCKET 2 COST 3", false),
        ("REFUND never 2 600 BUCKET 2", false),
        ("REFUND never 2 600 SLIDING", false),
        ("REFUND never 2 600", false),
    ] {
        let reply = c.run(&format!("RL.{call}"));
        assert!(verdict(&reply).is_some(), "{call}: {reply:?}");
        if changes {
            let key = call.split(' ').nth(1).unwrap();
            want.push(c.effect(key));
        }
    }
    c.run("RL.REFUND b 2 600 BUCKET 2");
    assert_eq!(c.integer("EXISTS b"), 0);
    want.push("DEL b".into());
    c.run("SET mark 1");
    assert_eq!(stream.until("mark"), want);
}

#[test]
fn sixteen_connections_admit_exactly_the_capacity() {
    let server = Server::start();
    for call in ["k 777 86400 SLIDING", "b 1 86400 BUCKET 777"] {
        let allowed: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        let mut c = server.connect();
                        (0..100).filter(|_| c.hit(call)[0] == 1).count()
                    })
                })
                .collect();
            clients
                .into_iter()
                .map(|client| client.join().unwrap())
                .sum()
        });
        assert_eq!(allowed, 777, "{call}");
    }
}
