//! INFO rl, and the module's own keyspace events.

use std::collections::BTreeMap;

use crate::common::{events, Conn, Server};

fn figures(c: &mut Conn) -> BTreeMap<String, u64> {
    let info = c.info("rl");
    assert!(info.starts_with("# rl\r\n"), "{info}");
    info.lines()
        .skip(1)
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_string(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn each_call_counts_once() {
    let server = Server::start();
    let mut c = server.connect();
    let zeros = figures(&mut c);
    assert!(zeros.values().all(|value| *value == 0), "{zeros:?}");

    c.hit("k 2 600");
    c.hit("k 2 600");
    c.hit("k 2 600");
    c.error("RL.HIT k x 600");
    c.run("RL.PEEK k 2 600");
    c.run("RL.PEEK missing 2 600");
    c.run("RL.REFUND k 2 600");
    c.run("RL.MHIT 2 k j 2 600 2 600");
    c.run("RL.MHIT 2 k j 2 600 2 600");
    c.run("EVAL return(redis.call('RL.HIT','j',2,600)) 0");
    c.run("MULTI");
    c.run("RL.HIT j 2 600");
    c.run("EXEC");
    let mut want = zeros;
    want.insert("rl_hits_allowed".into(), 4);
    want.insert("rl_hits_refused".into(), 3);
    want.insert("rl_peeks".into(), 2);
    want.insert("rl_refunds".into(), 1);
    want.insert("rl_mhits".into(), 2);
    assert_eq!(figures(&mut c), want);
    // An error is neither, wherever it comes from.
    c.run("RPUSH list 5");
    for call in [
        "RL.HIT list 2 600",
        "RL.PEEK list 2 600",
        "RL.PEEK k 2 600 SLIDING",
        "RL.REFUND list 2 600",
        "RL.MHIT 2 k list 2 600 2 600",
        "RL.MHIT 2 k j 2 600",
    ] {
        c.error(call);
    }
    assert_eq!(figures(&mut c), want);

    // They are also in the whole of it, and survive a reset of the server's own.
    c.run("CONFIG RESETSTAT");
    for section in ["everything", "modules"] {
        let info = c.info(section);
        assert!(info.contains("\nrl_hits_allowed:4\r"), "{section}");
    }
    assert_eq!(figures(&mut c), want);
}

#[test]
fn every_kind_of_repair_counts_and_is_an_event() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut c = server.connect();
    let ahead_ms = c.now_ms() + 1_000_000;
    let mut repaired = 0;
    for (setup, call, events_of_k) in [
        (
            "SET k 1",
            "RL.HIT k 5 60",
            &["incrby k", "expire k", "rl.repaired k"][..],
        ),
        ("SET k 9", "RL.HIT k 5 60", &["expire k", "rl.repaired k"]),
        (
            "SET k 9",
            "RL.REFUND k 5 60",
            &["decrby k", "expire k", "rl.repaired k"],
        ),
        (
            "SET k 9",
            "RL.MHIT 2 k j 5 60 5 60",
            &["expire k", "rl.repaired k"],
        ),
        (
            "SET k s:0:1:1",
            "RL.HIT k 5 60 SLIDING",
            &["set k", "expire k", "rl.repaired k"],
        ),
        ("SET k 9", "RL.PEEK k 5 60", &[]),
        ("SET k 9 EX 60", "RL.HIT k 5 60", &[]),
        ("SET k 1 EX 60", "RL.HIT k 5 60", &["incrby k"]),
    ] {
        c.run(setup);
        let seen = events(&server, &["k"], || {
            c.run(call);
        });
        assert_eq!(seen, events_of_k, "{setup}; {call}");
        repaired += u64::from(seen.iter().any(|event| event.starts_with("rl.repaired")));
        assert_eq!(figures(&mut c)["rl_limiters_repaired"], repaired, "{call}");
    }
    // A state dated after now is anchored anew, also by a hit that is refused.
    for (state, call) in [
        (
            format!("b:300000:{ahead_ms}:60000"),
            "RL.HIT k 5 60 BUCKET 5",
        ),
        (format!("s:0:5:{ahead_ms}"), "RL.HIT k 5 60 SLIDING"),
        (format!("s:0:3:{ahead_ms}"), "RL.HIT k 5 60 SLIDING"),
    ] {
        c.run(&format!("SET k {state} EX 600"));
        let seen = events(&server, &["k"], || {
            c.run(call);
        });
        assert_eq!(seen, ["set k", "expire k", "rl.repaired k"], "{state}");
        repaired += 1;
        assert_eq!(figures(&mut c)["rl_limiters_repaired"], repaired, "{state}");
    }
    assert_eq!(figures(&mut c)["rl_limiters_repaired_by_repair"], 0);
}

#[test]
fn a_refusal_is_an_event_where_it_is_asked_for() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut c = server.connect();
    let calls = |c: &mut Conn| {
        c.run("RL.HIT k 1 600");
        c.run("RL.HIT k 0 600");
        c.run("RL.PEEK k 0 600");
        c.run("RL.MHIT 3 a k b 0 600 5 600 1 600 COST 2");
    };
    let refused = |events: Vec<String>| -> Vec<String> {
        let refused = |event: &String| event.starts_with("rl.");
        events.into_iter().filter(refused).collect()
    };
    let all = &["k", "a", "b"];
    c.run("DEL k");
    assert_eq!(
        refused(events(&server, all, || calls(&mut c))),
        Vec::<String>::new()
    );
    c.run("CONFIG SET rl.notify-refused yes");
    c.run("DEL k");
    assert_eq!(
        refused(events(&server, all, || calls(&mut c))),
        ["rl.refused k", "rl.refused a", "rl.refused b"]
    );
    c.run("CONFIG SET rl.notify-refused no");
    assert_eq!(
        refused(events(&server, all, || {
            c.run("RL.HIT k 0 600");
        })),
        Vec::<String>::new()
    );
}
