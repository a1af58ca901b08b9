//! Two nodes: the slot check, and a limiter whose slot moves to the other node.

use redis::Value;

use crate::common::{error, free_port, wait_until, Conn, Server};

/// The slot of the tag {x}.
const SLOT: &str = "16287";

fn node() -> Server {
    let bus = free_port().to_string();
    Server::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus])
}

/// A node with all slots, and one that has joined it.
fn two_nodes() -> (Server, Server) {
    let (first, second) = (node(), node());
    let (mut a, mut b) = (first.connect(), second.connect());
    a.run("CLUSTER ADDSLOTSRANGE 0 16383");
    let bus = second_bus(&mut b);
    a.run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", second.port()));
    for c in [&mut a, &mut b] {
        wait_until("the cluster is whole", || {
            let info = c.string("CLUSTER INFO").unwrap();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        });
    }
    (first, second)
}

fn second_bus(c: &mut Conn) -> String {
    let Value::Array(config) = c.run("CONFIG GET cluster-port") else {
        panic!("no cluster-port");
    };
    match &config[1] {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn id(c: &mut Conn) -> String {
    c.string("CLUSTER MYID").unwrap()
}

#[test]
fn a_hit_at_the_wrong_node_is_moved_and_counts_nothing() {
    let (first, second) = two_nodes();
    let (mut a, mut b) = (first.connect(), second.connect());
    assert_eq!(a.integer("CLUSTER KEYSLOT {x}k").to_string(), SLOT);
    assert_eq!(
        b.error("RL.HIT {x}k 5 600"),
        format!("MOVED {SLOT} 127.0.0.1:{}", first.port())
    );
    assert_eq!(a.hit("{x}k 5 600"), [1, 5, 4, 0, 600]);
}

#[test]
fn several_limiters_have_to_share_a_slot() {
    let (first, second) = two_nodes();
    let (mut a, mut b) = (first.connect(), second.connect());
    for call in [
        "RL.MHIT 2 {x}a {y}b 5 600 5 600",
        "RL.MHIT 3 {x}a {x}b {y}c 5 600 5 600 5 600",
    ] {
        assert_eq!(
            a.error(call),
            "CROSSSLOT Keys in request don't hash to the same slot"
        );
    }
    assert_eq!(a.integer("DBSIZE"), 0);
    let call = "RL.MHIT 2 {x}a {x}b 5 600 5 600";
    assert!(matches!(a.run(call), Value::Array(_)));
    assert_eq!(a.integer("DBSIZE"), 2);
    assert_eq!(
        b.error(call),
        format!("MOVED {SLOT} 127.0.0.1:{}", first.port())
    );
    // With a bad number of keys there is nothing to look at, and nothing is done.
    for call in [
        "RL.MHIT 0 {x}a 5 600",
        "RL.MHIT x {x}a 5 600",
        "RL.MHIT 9 {x}a 5 600",
    ] {
        let text = a.error(call);
        assert!(text.starts_with("ERR "), "{call}: {text}");
    }
    assert_eq!(a.integer("DBSIZE"), 2);
}

#[test]
fn a_limiter_moves_with_its_slot() {
    let (first, second) = two_nodes();
    let (mut a, mut b) = (first.connect(), second.connect());
    for _ in 0..3 {
        a.hit("{x}k 5 600");
    }
    let end_ms = a.integer("PEXPIRETIME {x}k");
    let there = id(&mut b);

    let moved = a.run(&format!(
        "CLUSTER MIGRATESLOTS SLOTSRANGE {SLOT} {SLOT} NODE {there}"
    ));
    // Where the server moves slots whole (Valkey 9), it must not refuse because of this module.
    if moved == Value::Okay {
        wait_until("the slot is there", || {
            error(&b.run("EXISTS {x}k")).is_none() && b.integer("EXISTS {x}k") == 1
        });
        assert_eq!(b.integer("PEXPIRETIME {x}k"), end_ms);
    } else {
        assert!(!error(&moved).unwrap().contains("module"), "{moved:?}");
        let here = id(&mut a);
        b.run(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {here}"));
        a.run(&format!("CLUSTER SETSLOT {SLOT} MIGRATING {there}"));
        // In between: a limiter that is here is served here, one that isn't is asked for there.
        assert_eq!(a.hit("{x}k 5 600")[2], 1);
        assert!(a.error("RL.HIT {x}new 5 600").starts_with("ASK "));
        let moved = a.run(&format!(
            "MIGRATE 127.0.0.1 {} {{x}}k 0 5000",
            second.port()
        ));
        assert_eq!(moved, Value::Okay);
        for c in [&mut b, &mut a] {
            c.run(&format!("CLUSTER SETSLOT {SLOT} NODE {there}"));
        }
        b.run("DECRBY {x}k 1");
        // MIGRATE carries the time that is left, not the end.
        assert!((b.integer("PEXPIRETIME {x}k") - end_ms).abs() < 1_000);
    }
    assert_eq!(b.hit("{x}k 5 600")[..3], [1, 5, 1]);
    assert_eq!(b.hit("{x}k 5 600")[..3], [1, 5, 0]);
    assert_eq!(b.hit("{x}k 5 600")[..3], [0, 5, 0]);
    wait_until("the first node knows", || {
        error(&a.run("RL.HIT {x}k 5 600")).is_some_and(|text| text.starts_with("MOVED "))
    });
}
