//! The sweeper: limiters that lost their expiry get one in the background.

use std::time::{Duration, Instant};

use redis::Value;

use crate::common::stream::Stream;
use crate::common::{module, wait_until, Conn, Server};

fn fill(c: &mut Conn, prefix: &str, keys: u32) {
    let mut pipeline = redis::pipe();
    for n in 0..keys {
        pipeline
            .cmd("SET")
            .arg(format!("{prefix}{n}"))
            .arg(n)
            .ignore();
    }
    pipeline.query::<()>(&mut c.0).unwrap();
}

fn sweep(c: &mut Conn, pattern: &str, window_seconds: u32) {
    let set =
        format!("CONFIG SET rl.sweep-pattern {pattern} rl.sweep-window-seconds {window_seconds}");
    assert_eq!(c.run(&set), Value::Okay);
}

/// Waits until two whole walks began and ended after this.
fn after_a_walk(c: &mut Conn, keys: u64) {
    let walked = c.figure("sweeper_keys_walked");
    wait_until("the sweeper has been everywhere", || {
        c.figure("sweeper_keys_walked") >= walked + 2 * keys + 20
    });
}

#[test]
fn it_is_off_until_both_settings_are_there() {
    let server = Server::start();
    let mut c = server.connect();
    c.run("SET leaked 7");
    for set in [
        "CONFIG SET rl.sweep-keys-per-second 1000000",
        "CONFIG SET rl.sweep-window-seconds 60",
        "CONFIG SET rl.sweep-window-seconds 0 rl.sweep-pattern *",
        "CONFIG SET rl.sweep-pattern x rl.sweep-window-seconds 0",
    ] {
        c.run(set);
        let cron = c.info_field("server", "uptime_in_seconds");
        wait_until("the server's cron ran", || {
            c.info_field("server", "uptime_in_seconds") != cron
        });
        assert_eq!(c.figure("sweeper_running"), 0, "{set}");
        assert_eq!(c.figure("sweeper_keys_walked"), 0, "{set}");
    }
    assert_eq!(c.pttl("leaked"), -1);
    sweep(&mut c, "leak*", 60);
    wait_until("it is repaired", || c.pttl("leaked") > 0);
    assert_eq!(c.figure("sweeper_running"), 1);
}

#[test]
fn it_repairs_what_matches_in_every_database_and_touches_nothing_else() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let mut stream = Stream::of(&server);
    let mut c = server.connect();
    let lines = [
        "SET user:1 5",
        "SET user:2 s:3:5:1796000000000",
        "SET user:3 b:120000:1796000000000:60000",
        "SET user:4 hello",
        "SET user:5 5 EX 5000",
        "SET sequence 5",
        "RPUSH user:6 5",
    ];
    for db in [0, 3, 15] {
        c.run(&format!("SELECT {db}"));
        for line in lines {
            c.run(line);
        }
    }
    c.run("SET mark 0 EX 600");
    stream.until("mark");
    sweep(&mut c, "user:*", 600);
    wait_until("nine are repaired", || {
        c.figure("limiters_repaired_by_sweeper") >= 9
    });
    after_a_walk(&mut c, 21);
    assert_eq!(c.figure("limiters_repaired_by_sweeper"), 9);
    assert_eq!(c.figure("limiters_repaired"), 9);
    let mut want = Vec::new();
    for db in [0, 3, 15] {
        c.run(&format!("SELECT {db}"));
        for key in ["user:1", "user:2", "user:3"] {
            let left_ms = c.pttl(key);
            assert!((500_000..=600_000).contains(&left_ms), "{key} {left_ms}");
            want.push(c.effect(key));
        }
        assert_eq!(c.string("OBJECT ENCODING user:1").as_deref(), Some("int"));
        assert!(c.pttl("user:5") > 4_000_000);
        for key in ["user:4", "sequence", "user:6"] {
            assert_eq!(c.pttl(key), -1, "{key}");
        }
    }
    c.run("SET mark 1 EX 600");
    let mut sent = stream.until("mark");
    sent.retain(|effect| effect != "MULTI" && effect != "EXEC");
    sent.sort();
    want.sort();
    assert_eq!(sent, want);
}

#[test]
fn its_repairs_are_seen_by_watch_and_listeners() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let (mut c, mut watcher) = (server.connect(), server.connect());
    c.run("SET leaked 7");
    watcher.run("WATCH leaked");
    let events = crate::common::events(&server, &["leaked"], || {
        sweep(&mut c, "leaked", 60);
        wait_until("it is repaired", || c.pttl("leaked") > 0);
    });
    assert_eq!(events, ["expire leaked", "rl.repaired leaked"]);
    watcher.run("MULTI");
    watcher.run("PING");
    assert_eq!(watcher.run("EXEC"), Value::Nil);
}

#[test]
fn it_walks_no_more_keys_a_second_than_it_may() {
    let server = Server::start();
    let mut c = server.connect();
    fill(&mut c, "leak", 3_000);
    c.run("CONFIG SET rl.sweep-keys-per-second 200");
    let started = Instant::now();
    sweep(&mut c, "leak*", 600);
    wait_until("it has walked a while", || {
        c.figure("sweeper_keys_walked") >= 300
    });
    let walked = c.figure("sweeper_keys_walked");
    let most = 200.0 * started.elapsed().as_secs_f64() + 20.0;
    assert!(walked as f64 <= most, "{walked} keys, at most {most}");
}

#[test]
fn it_does_not_catch_up_on_what_it_could_have_walked_while_it_waited() {
    let server = Server::start_with(&["--hz", "100"]);
    let mut c = server.connect();
    fill(&mut c, "leak", 3_000);
    c.run("CONFIG SET rl.sweep-keys-per-second 200");
    sweep(&mut c, "leak*", 600);
    wait_until("it walks", || c.figure("sweeper_keys_walked") > 0);
    c.run("CLIENT PAUSE 60000 WRITE");
    wait_until("it waits", || c.figure("sweeper_running") == 0);
    let before = c.figure("sweeper_keys_walked");
    std::thread::sleep(Duration::from_millis(1_200));
    let unpaused = Instant::now();
    c.run("CLIENT UNPAUSE");
    wait_until("it has walked a while", || {
        c.figure("sweeper_keys_walked") >= before + 150
    });
    let walked = c.figure("sweeper_keys_walked") - before;
    let most = 200.0 * unpaused.elapsed().as_secs_f64() + 20.0;
    assert!(walked as f64 <= most, "{walked} keys, at most {most}");
}

#[test]
fn a_step_is_short_however_many_keys_it_may_walk() {
    let server = Server::start();
    let mut c = server.connect();
    fill(&mut c, "leak", 20_000);
    c.run("CONFIG SET rl.sweep-keys-per-second 1000000");
    let started = Instant::now();
    sweep(&mut c, "leak*", 600);
    wait_until("it has walked a while", || {
        c.figure("sweeper_keys_walked") >= 2_000
    });
    let walked = c.figure("sweeper_keys_walked");
    // Ten steps a second, in each of which there is time for some forty.
    let most = 300.0 * (10.0 * started.elapsed().as_secs_f64() + 2.0);
    assert!(walked as f64 <= most, "{walked} keys, at most {most}");
}

#[test]
fn a_walk_over_few_keys_begins_no_more_than_once_a_second() {
    let server = Server::start();
    let mut c = server.connect();
    fill(&mut c, "leak", 10);
    sweep(&mut c, "leak*", 600);
    wait_until("it has begun", || c.figure("sweeper_keys_walked") > 0);
    let begun = Instant::now();
    // Each time it counts ten, or twenty where the server names them in two steps.
    wait_until("it has walked three times or more", || {
        c.figure("sweeper_keys_walked") >= 60
    });
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1_500), "{took:?}");
}

#[test]
fn it_follows_the_settings_at_once() {
    let server = Server::start();
    let mut c = server.connect();
    fill(&mut c, "a", 50);
    fill(&mut c, "b", 50);
    sweep(&mut c, "a*", 600);
    after_a_walk(&mut c, 100);
    assert_eq!(c.figure("limiters_repaired_by_sweeper"), 50);
    assert_eq!(c.pttl("b7"), -1);
    sweep(&mut c, "b*", 900);
    after_a_walk(&mut c, 100);
    assert_eq!(c.figure("limiters_repaired_by_sweeper"), 100);
    assert!(c.pttl("a7") <= 600_000);
    assert!(c.pttl("b7") > 800_000);

    c.run("CONFIG SET rl.sweep-window-seconds 0");
    wait_until("it stands still", || c.figure("sweeper_running") == 0);
    let walked = c.figure("sweeper_keys_walked");
    c.run("SET b-late 5");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(c.figure("sweeper_keys_walked"), walked);
    assert_eq!(c.pttl("b-late"), -1);
}

/// A background write while writes are paused aborts the server.
#[test]
fn it_waits_while_writes_are_paused() {
    let mut server = Server::start();
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let mut c = server.connect();
    fill(&mut c, "leak", 500);
    c.run("CLIENT PAUSE 1500 WRITE");
    sweep(&mut c, "leak*", 600);
    let paused = Instant::now();
    while paused.elapsed() < Duration::from_millis(1_000) {
        assert_eq!(c.figure("limiters_repaired_by_sweeper"), 0);
        assert_eq!(c.figure("sweeper_running"), 0);
        std::thread::sleep(Duration::from_millis(50));
    }
    c.run("CLIENT UNPAUSE");
    wait_until("it has repaired all", || {
        c.figure("limiters_repaired_by_sweeper") == 500
    });
    server.assert_alive();
    // In the middle of it, again and again.
    fill(&mut c, "leak", 500);
    for _ in 0..20 {
        c.run("CLIENT PAUSE 100 WRITE");
        std::thread::sleep(Duration::from_millis(30));
        c.run("CLIENT UNPAUSE");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.assert_alive();
    wait_until("it has repaired all", || {
        c.figure("limiters_repaired_by_sweeper") == 1_000
    });
    server.wait_for(&replica);
    assert_eq!(
        replica.connect().integer("PEXPIRETIME leak7"),
        c.integer("PEXPIRETIME leak7")
    );
}

#[test]
fn it_survives_a_failover() {
    let mut server = Server::start();
    let mut replica = Server::start();
    replica.replicate(&server);
    let (mut c, mut there) = (server.connect(), replica.connect());
    fill(&mut c, "leak", 2_000);
    sweep(&mut c, "leak*", 600);
    sweep(&mut there, "leak*", 600);
    wait_until("it runs", || c.figure("limiters_repaired_by_sweeper") > 100);
    assert_eq!(there.figure("sweeper_running"), 0, "on a replica");
    server.wait_for(&replica);
    let failover = format!("FAILOVER TO 127.0.0.1 {}", replica.port());
    assert_eq!(c.run(&failover), Value::Okay);
    wait_until("the replica is the primary", || {
        there.info_field("replication", "role").as_deref() == Some("master")
    });
    wait_until("it goes on there", || {
        let here = c.figure("limiters_repaired_by_sweeper");
        here + there.figure("limiters_repaired_by_sweeper") >= 2_000
    });
    server.assert_alive();
    replica.assert_alive();
    wait_until("it has stopped here", || c.figure("sweeper_running") == 0);
    for n in (0..2_000).step_by(53) {
        assert!(there.pttl(&format!("leak{n}")) > 0);
    }
}

#[test]
fn it_goes_on_after_a_promotion() {
    let server = Server::start();
    let replica = Server::start();
    let mut c = server.connect();
    fill(&mut c, "leak", 300);
    replica.replicate(&server);
    server.wait_for(&replica);
    let mut there = replica.connect();
    sweep(&mut there, "leak*", 600);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(there.figure("sweeper_keys_walked"), 0);
    assert_eq!(there.pttl("leak7"), -1);
    there.run("REPLICAOF NO ONE");
    wait_until("it has repaired all", || {
        there.figure("limiters_repaired_by_sweeper") == 300
    });
    assert_eq!(c.pttl("leak7"), -1, "the other one is on its own");
}

#[test]
fn the_module_unloads_while_it_runs() {
    let path = module();
    let server = Server::start_bare(&[
        "--loadmodule",
        path.to_str().unwrap(),
        "sweep-pattern",
        "leak*",
        "sweep-window-seconds",
        "600",
    ]);
    let mut c = server.connect();
    for _ in 0..5 {
        fill(&mut c, "leak", 2_000);
        wait_until("it runs", || c.figure("limiters_repaired_by_sweeper") > 20);
        assert_eq!(c.run("MODULE UNLOAD rl"), Value::Okay);
        assert!(!c.has("rl.hit"));
        let load = format!(
            "MODULE LOAD {} sweep-pattern leak* sweep-window-seconds 600",
            path.display()
        );
        assert_eq!(c.run(&load), Value::Okay);
    }
}
