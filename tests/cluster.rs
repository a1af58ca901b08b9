//! Two nodes: the slot check, and a limiter whose slot moves to the other node. Six: a whole cluster.

use std::thread;

use redis::cluster::{ClusterClient, ClusterConnection};
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
    let bus = b.setting("cluster-port");
    a.run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", second.port()));
    for c in [&mut a, &mut b] {
        wait_until("the cluster is whole", || {
            let info = c.string("CLUSTER INFO").unwrap();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        });
    }
    (first, second)
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

/// Three primaries, each with a replica.
struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    fn start() -> Self {
        let nodes: Vec<Server> = (0..6).map(|_| node()).collect();
        let mut connections: Vec<Conn> = nodes.iter().map(Server::connect).collect();
        for (n, slots) in ["0 5460", "5461 10922", "10923 16383"].iter().enumerate() {
            connections[n].run("CONFIG SET cluster-node-timeout 1500");
            connections[n].run(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        }
        for (n, node) in nodes.iter().enumerate().skip(1) {
            connections[n].run("CONFIG SET cluster-node-timeout 1500");
            let bus = connections[n].setting("cluster-port");
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port());
            connections[0].run(&meet);
        }
        for c in &mut connections {
            wait_until("all know each other", || {
                let info = c.string("CLUSTER INFO").unwrap();
                info.contains("cluster_known_nodes:6") && info.contains("cluster_state:ok")
            });
        }
        for n in 0..3 {
            let primary = id(&mut connections[n]);
            let replica = &mut connections[n + 3];
            wait_until("the replica knows its primary", || {
                replica.run(&format!("CLUSTER REPLICATE {primary}")) == Value::Okay
            });
            wait_until("the replica is in step", || {
                let link = replica.info_field("replication", "master_link_status");
                link.as_deref() == Some("up")
            });
        }
        Self { nodes }
    }

    /// A client that follows redirections.
    fn client(&self) -> ClusterConnection {
        let nodes = self
            .nodes
            .iter()
            .map(|node| format!("redis://127.0.0.1:{}/", node.port()));
        let client = ClusterClient::builder(nodes)
            .retries(200)
            .min_retry_wait(5)
            .max_retry_wait(100);
        client.build().unwrap().get_connection().unwrap()
    }
}

fn hit(client: &mut ClusterConnection, key: &str, limit: i64) -> redis::RedisResult<Vec<i64>> {
    redis::cmd("RL.HIT")
        .arg(key)
        .arg(limit)
        .arg(6_000)
        .query(client)
}

#[test]
fn three_primaries_count_exactly_while_slots_move_and_one_of_them_fails() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();

    // Keys all over the slots.
    for n in 0..60 {
        let key = format!("user:{n}");
        for want in [[1, 2, 1], [1, 2, 0], [0, 2, 0]] {
            assert_eq!(hit(&mut client, &key, 2).unwrap()[..3], want, "{key}");
        }
    }
    let counts = cluster.nodes[..3]
        .iter()
        .map(|node| node.connect().integer("DBSIZE"));
    let counts: Vec<i64> = counts.collect();
    assert_eq!(counts.iter().sum::<i64>(), 60);
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");

    // A slot moves to another primary, and back, while a client hits a key in it.
    const LIMIT: i64 = 3_000;
    let allowed = thread::scope(|scope| {
        let hits = scope.spawn(|| {
            let mut client = cluster.client();
            let mut allowed = 0;
            loop {
                match hit(&mut client, "{x}k", LIMIT).unwrap()[0] {
                    1 => allowed += 1,
                    _ => return allowed,
                }
            }
        });
        for (from, to) in [(2, 0), (0, 1), (1, 2)] {
            move_slot(&cluster.nodes[from], &cluster.nodes[to]);
        }
        hits.join().unwrap()
    });
    assert_eq!(allowed, LIMIT);
    let mut home = cluster.nodes[2].connect();
    assert_eq!(home.get("{x}k").as_deref(), Some("3000"));
    assert!(home.pttl("{x}k") > 0);

    // Several limiters in one slot are one step there, and in two slots an error.
    let mhit = |client: &mut ClusterConnection, other: &str| -> redis::RedisResult<Value> {
        let mut command = redis::cmd("RL.MHIT");
        command.arg(2).arg("{x}a").arg(other).arg(&[5, 600, 9, 600]);
        command.query(client)
    };
    assert!(matches!(mhit(&mut client, "{x}b"), Ok(Value::Array(_))));
    let across = mhit(&mut client, "{y}b").unwrap_err();
    assert_eq!(across.code(), Some("CROSSSLOT"), "{across}");
    assert_eq!(home.get("{x}a").as_deref(), Some("1"));

    // A primary fails, and its replica goes on.
    for _ in 0..4 {
        hit(&mut client, "{x}last", 5).unwrap();
    }
    cluster.nodes[2].wait_for(&cluster.nodes[5]);
    cluster.nodes[2].kill();
    let mut there = cluster.nodes[5].connect();
    wait_until("the replica is the primary", || {
        there.info_field("replication", "role").as_deref() == Some("master")
    });
    let mut last = Vec::new();
    wait_until("the others know", || {
        // A client asks one of them where the slots are when it connects.
        match hit(&mut cluster.client(), "{x}last", 5) {
            Ok(verdict) => last.push(verdict[0]),
            Err(_) => return false,
        }
        last.len() == 2
    });
    assert_eq!(last, [1, 0], "one was left");
    assert_eq!(there.get("{x}k").as_deref(), Some("3000"));
    for key in there.keys() {
        let key = String::from_utf8(key).unwrap();
        assert_ne!(there.pttl(&key), -1, "{key}");
    }
}

/// Moves the slot of the tag {x}, with its keys.
fn move_slot(from: &Server, to: &Server) {
    let (mut a, mut b) = (from.connect(), to.connect());
    let there = id(&mut b);
    let whole = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {SLOT} {SLOT} NODE {there}");
    if a.run(&whole) == Value::Okay {
        wait_until("the slot is there", || {
            error(&b.run("EXISTS {x}k")).is_none() && b.integer("EXISTS {x}k") == 1
        });
        return;
    }
    let here = id(&mut a);
    b.run(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {here}"));
    a.run(&format!("CLUSTER SETSLOT {SLOT} MIGRATING {there}"));
    wait_until("all its keys have moved", || {
        let Value::Array(keys) = a.run(&format!("CLUSTER GETKEYSINSLOT {SLOT} 10")) else {
            panic!("no keys");
        };
        for key in &keys {
            let Value::BulkString(key) = key else {
                panic!("{key:?}");
            };
            let (port, key) = (to.port(), String::from_utf8_lossy(key));
            a.run(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
        }
        keys.is_empty()
    });
    for c in [&mut b, &mut a] {
        c.run(&format!("CLUSTER SETSLOT {SLOT} NODE {there}"));
    }
}
