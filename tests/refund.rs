//! RL.REFUND: gives back, as far as empty.

use std::time::Duration;

use crate::common::{events, verdict, Conn, Server};

fn refund(c: &mut Conn, call: &str) -> [i64; 5] {
    let reply = c.run(&format!("RL.REFUND {call}"));
    verdict(&reply).unwrap_or_else(|| panic!("{call}: {reply:?}"))
}

#[test]
fn it_gives_back_as_far_as_empty_and_never_moves_the_end() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("k 5 60 COST 5");
    let end_ms = c.integer("PEXPIRETIME k");
    assert_eq!(refund(&mut c, "k 5 60"), [1, 5, 1, 0, 60]);
    let [_, _, remaining, _, reset_after_ms] = refund(&mut c, "k 5 60000 MS");
    assert_eq!(remaining, 2);
    assert!((50_000..=60_000).contains(&reset_after_ms));
    assert_eq!(c.hit("k 5 60 COST 2")[..3], [1, 5, 0]);
    assert_eq!(refund(&mut c, "k 5 60 COST 100"), [1, 5, 5, 0, 0]);
    assert_eq!(c.get("k").as_deref(), Some("0"));
    assert_eq!(refund(&mut c, "k 5 9999"), [1, 5, 5, 0, 0]);
    // Emptied and hit again: still the same window.
    c.hit("k 5 9999");
    assert_eq!(c.integer("PEXPIRETIME k"), end_ms);

    c.hit("s 5 60 SLIDING COST 5");
    let end_ms = c.integer("PEXPIRETIME s");
    assert_eq!(refund(&mut c, "s 5 60 SLIDING COST 2")[..3], [1, 5, 2]);
    assert_eq!(refund(&mut c, "s 5 60 SLIDING COST 9"), [1, 5, 5, 0, 0]);
    assert_eq!(c.integer("PEXPIRETIME s"), end_ms);

    c.hit("b 5 60 BUCKET 5 COST 5");
    assert_eq!(refund(&mut c, "b 5 60 BUCKET 5 COST 2"), [1, 5, 2, 0, 36]);
    assert_eq!(refund(&mut c, "b 5 60 BUCKET 5 COST 9"), [1, 5, 5, 0, 0]);
    assert_eq!(c.integer("EXISTS b"), 0);
}

#[test]
fn a_missing_limiter_stays_missing() {
    let server = Server::start();
    let mut c = server.connect();
    for algorithm in ["FIXED", "SLIDING", "BUCKET 5"] {
        assert_eq!(
            refund(&mut c, &format!("k 5 60 {algorithm}")),
            [1, 5, 5, 0, 0]
        );
        c.hit(&format!("k 5 20 MS {algorithm}"));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(
            refund(&mut c, &format!("k 5 20 MS {algorithm}")),
            [1, 5, 5, 0, 0]
        );
        assert_eq!(c.integer("EXISTS k"), 0, "{algorithm}");
    }
}

#[test]
fn a_limiter_without_expiry_gets_one() {
    let server = Server::start();
    let mut c = server.connect();
    for (value, cost, after) in [("8", 3, "5"), ("8", 9, "0"), ("0", 1, "0"), ("-4", 1, "-4")] {
        c.run(&format!("SET k {value}"));
        refund(&mut c, &format!("k 10 60 COST {cost}"));
        assert_eq!(c.get("k").as_deref(), Some(after));
        assert!((50_000..=60_000).contains(&c.pttl("k")), "{value}");
    }
}

#[test]
fn listeners_hear_decrby_set_expire_and_del_when_those_happened() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut c = server.connect();
    for (setup, call, want) in [
        ("SET k 3 PX 60000", "REFUND k 5 60", &["decrby k"][..]),
        (
            "SET k 3",
            "REFUND k 5 60",
            &["decrby k", "expire k", "rl.repaired k"],
        ),
        ("SET k 0 PX 60000", "REFUND k 5 60", &[]),
        ("SET k 0", "REFUND k 5 60", &["expire k", "rl.repaired k"]),
        ("DEL k", "REFUND k 5 60", &[]),
        ("DEL k", "HIT k 5 60 SLIDING", &["set k", "expire k"]),
        ("PING", "REFUND k 5 60 SLIDING", &["set k"]),
        ("PING", "REFUND k 5 60 SLIDING", &[]),
        (
            "DEL k",
            "HIT k 5 60 BUCKET 5 COST 2",
            &["set k", "expire k"],
        ),
        ("PING", "REFUND k 5 60 BUCKET 5", &["set k", "expire k"]),
        ("PING", "REFUND k 5 60 BUCKET 5", &["del k"]),
        ("PING", "REFUND k 5 60 BUCKET 5", &[]),
    ] {
        c.run(setup);
        let heard = events(&server, &["k"], || {
            let reply = c.run(&format!("RL.{call}"));
            assert!(verdict(&reply).is_some(), "{call}: {reply:?}");
        });
        assert_eq!(heard, want, "{setup}: {call}");
    }
}
