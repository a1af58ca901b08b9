//! The two flaws that this module exists for, made with plain commands, and RL.HIT beside them.

use crate::common::{wait_until, Conn, Server};

/// The limiter that many have written: ask, compare, count.
fn asks(c: &mut Conn) -> bool {
    let count: i64 = c.get("k").map_or(0, |count| count.parse().unwrap());
    count < 10
}

#[test]
fn get_then_compare_then_incr_lets_concurrent_clients_through_together() {
    let server = Server::start();
    let mut clients: Vec<Conn> = (0..5).map(|_| server.connect()).collect();
    let mut c = server.connect();

    // Nine of ten are taken. Five clients ask before the first of them has counted.
    c.run("SET k 9 PX 600000");
    let allowed: Vec<bool> = clients.iter_mut().map(asks).collect();
    for (client, allowed) in clients.iter_mut().zip(&allowed) {
        if *allowed {
            client.run("INCR k");
        }
    }
    assert_eq!(allowed, [true; 5]);
    assert_eq!(c.get("k").as_deref(), Some("14"));

    // With RL.HIT there is nothing between asking and counting.
    c.run("SET k 9 PX 600000");
    let allowed: Vec<i64> = clients
        .iter_mut()
        .map(|client| client.hit("k 10 600")[0])
        .collect();
    assert_eq!(allowed, [1, 0, 0, 0, 0]);
    assert_eq!(c.get("k").as_deref(), Some("10"));
}

#[test]
fn an_incr_that_lands_on_an_expired_key_leaves_a_counter_that_never_ends() {
    let server = Server::start();
    let mut c = server.connect();

    // The limiter looks whether the window runs, so that it need not set the expiry again ...
    c.run("SET k 3 PX 20");
    assert_eq!(c.integer("EXISTS k"), 1);
    // ... and in between the window ends.
    wait_until("the window is over", || c.integer("EXISTS k") == 0);
    assert_eq!(c.integer("INCR k"), 1);
    assert_eq!(c.integer("TTL k"), -1);
    // From here on each request counts, and none is ever forgotten.
    for _ in 0..20 {
        c.run("INCR k");
    }
    assert_eq!(c.get("k").as_deref(), Some("21"));
    assert_eq!(c.integer("TTL k"), -1);

    // RL.HIT repairs what it finds, also while it refuses ...
    assert_eq!(c.hit("k 10 600"), [0, 10, 0, 600, 600]);
    assert_eq!(c.get("k").as_deref(), Some("21"));
    assert!((590_000..=600_000).contains(&c.pttl("k")));
    // ... so that the user is let in again when the window is over.
    c.run("PEXPIRE k 20");
    wait_until("the user is let in again", || c.hit("k 10 600")[0] == 1);
    assert_eq!(c.get("k").as_deref(), Some("1"));

    // And where its own window has ended, the next hit starts one, expiry and all.
    c.run("DEL k");
    c.hit("k 10 20 MS");
    wait_until("the window is over", || c.integer("EXISTS k") == 0);
    assert_eq!(c.hit("k 10 600"), [1, 10, 9, 0, 600]);
    assert!((590_000..=600_000).contains(&c.pttl("k")));
}
