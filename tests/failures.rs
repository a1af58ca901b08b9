//! What is left of the promises when something breaks: files cut off, servers killed, links lost.
//!
//! The longer form is `make soak`, which sets SOAK to the number of rounds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use redis::Value;
use tempfile::TempDir;

use crate::common::{
    free_port, server_program, soak, verdict, wait_until, Conn, RaiseAtEnd, Running, Server,
};

/// A number from a seed, as good as random.
fn scrambled(seed: u64) -> u64 {
    let mut number = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The first key that has no expiry, if there is one.
fn without_expiry(c: &mut Conn) -> Option<String> {
    let script = "for _, key in ipairs(redis.call('KEYS', '*')) do \
                  if redis.call('PTTL', key) == -1 then return key end end";
    match c.run_words(&["EVAL", script, "0"]) {
        Value::Nil => None,
        Value::BulkString(key) => Some(String::from_utf8_lossy(&key).into_owned()),
        other => panic!("{other:?}"),
    }
}

/// A call of every kind, over some keys of each algorithm.
fn call(n: u64) -> String {
    let chance = scrambled(n);
    let algorithm = ["FIXED", "SLIDING", "BUCKET 9"][(chance % 3) as usize];
    let key = format!("{}{}", &algorithm[..1], chance / 3 % 7);
    let window_ms = if (chance / 21).is_multiple_of(4) {
        30
    } else {
        600_000
    };
    let rule = format!("9 {window_ms} {algorithm} COST {}", 1 + chance / 84 % 3);
    match chance / 252 % 8 {
        0 => format!("RL.REFUND {key} {rule} MS"),
        1 => format!("RL.MHIT 2 {key} {key}-day {rule} {rule} MS"),
        2 => format!("RL.PEEK {key} {rule} MS"),
        3 => format!("PERSIST {key}"),
        _ => format!("RL.HIT {key} {rule} MS"),
    }
}

#[test]
fn an_aof_cut_off_at_any_byte_loads_and_has_no_limiter_without_expiry() {
    let mut server = Server::start_with(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--auto-aof-rewrite-percentage",
        "0",
    ]);
    let mut c = server.connect();
    // Of the module's own effects; what others do to a key's expiry is theirs.
    for n in 0..400 {
        let call = call(n);
        if !call.starts_with("PERSIST") {
            c.run(&call);
        }
    }
    assert_eq!(without_expiry(&mut c), None);
    let files = fs::read_dir(server.directory().join("appendonlydir")).unwrap();
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    let is_appended = |file: &&PathBuf| file.to_string_lossy().contains(".incr.");
    let file = files.iter().find(is_appended).unwrap();
    let whole = fs::read(file).unwrap();
    assert!(whole.len() > 8_192, "{} bytes", whole.len());

    // All of the last 4 KiB in the long form; else each place where a command ends, and one within.
    let ends = |cut: &usize| {
        let before = &whole[..*cut];
        before.ends_with(b"\r\n") && whole[*cut..].first().is_none_or(|byte| *byte == b'*')
    };
    let every_byte = soak().is_some();
    let cuts = (whole.len() - 4_096..=whole.len())
        .filter(|cut| every_byte || ends(cut) || ends(&(cut - 7)));
    let mut transactions = 0;
    for cut in cuts {
        server.kill();
        fs::write(file, &whole[..cut]).unwrap();
        server.kill_and_restart();
        let mut c = server.connect();
        assert!(c.integer("DBSIZE") > 3, "{cut}");
        assert_eq!(without_expiry(&mut c), None, "{cut}");
        transactions += u32::from(whole[..cut].ends_with(b"MULTI\r\n"));
    }
    assert!(transactions > 1, "{transactions} transactions");
}

/// With an AOF that is written before each reply, what was replied is there after a crash.
#[test]
fn after_kill_9_every_hit_that_was_answered_is_there_and_no_limiter_lacks_its_expiry() {
    for round in 0..soak().unwrap_or(4) {
        let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let answered = AtomicI64::new(0);
        let sent = AtomicI64::new(0);
        thread::scope(|scope| {
            let mut counting = server.connect();
            let (sent, answered) = (&sent, &answered);
            scope.spawn(move || loop {
                sent.fetch_add(1, Ordering::SeqCst);
                match verdict(&counting.run("RL.HIT counted 1000000 600")) {
                    Some([1, ..]) => answered.fetch_add(1, Ordering::SeqCst),
                    _ => return,
                };
            });
            let mut mixed = server.connect();
            scope.spawn(move || {
                for n in 0.. {
                    let call = call(round * 1_000_000 + n);
                    if !call.starts_with("PERSIST")
                        && crate::common::error(&mixed.run(&call)).is_some()
                    {
                        return;
                    }
                }
            });
            thread::sleep(Duration::from_millis(50 + scrambled(round) % 300));
            wait_until("some are answered", || answered.load(Ordering::SeqCst) > 20);
            server.kill();
        });
        server.kill_and_restart();
        let mut c = server.connect();
        let count: i64 = c.get("counted").unwrap().parse().unwrap();
        let (answered, sent) = (answered.into_inner(), sent.into_inner());
        assert!(answered > 20, "round {round}: {answered} answered");
        assert!(
            (answered..=sent).contains(&count),
            "round {round}: {answered} answered, {sent} sent, {count} there"
        );
        assert_eq!(without_expiry(&mut c), None, "round {round}");
    }
}

#[test]
fn a_rewrite_and_a_reload_under_load_keep_every_limiter() {
    for preamble in ["yes", "no"] {
        let mut server = Server::start_with(&[
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--aof-use-rdb-preamble",
            preamble,
        ]);
        let mut c = server.connect();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let working = RaiseAtEnd(&done);
            let mut load = server.connect();
            let done = &done;
            scope.spawn(move || {
                for n in 0.. {
                    if done.load(Ordering::SeqCst) {
                        return;
                    }
                    let call = call(n);
                    if !call.starts_with("PERSIST") {
                        load.run(&call);
                    }
                }
            });
            for _ in 0..3 {
                c.run("BGREWRITEAOF");
                wait_until("it is rewritten", || {
                    c.info_field("persistence", "aof_rewrite_in_progress")
                        .as_deref()
                        == Some("0")
                        && c.info_field("persistence", "aof_rewrite_scheduled")
                            .as_deref()
                            == Some("0")
                });
                assert_eq!(c.run("DEBUG RELOAD"), Value::Okay);
                assert_eq!(without_expiry(&mut c), None);
            }
            drop(working);
        });
        // What is about to end may end on the way.
        let later_ms = c.now_ms() + 30_000;
        let before = c.data(later_ms);
        assert!(before.len() >= 8, "{before:?}");
        wait_until("the AOF is written", || {
            c.info_field("persistence", "aof_pending_bio_fsync")
                .as_deref()
                == Some("0")
                && c.info_field("persistence", "aof_buffer_length").as_deref() == Some("0")
        });
        server.kill_and_restart();
        let mut c = server.connect();
        assert_eq!(c.data(later_ms), before, "preamble {preamble}");
        assert_eq!(without_expiry(&mut c), None);
    }
}

#[test]
fn a_chain_of_replicas_that_loses_its_links_ends_with_the_same() {
    let primary = Server::start();
    let (middle, last) = (Server::start(), Server::start_bare(&[]));
    middle.replicate(&primary);
    last.replicate(&middle);
    let mut c = primary.connect();
    let done = AtomicBool::new(false);
    let mut late = None;
    thread::scope(|scope| {
        let working = RaiseAtEnd(&done);
        let mut load = primary.connect();
        let done = &done;
        scope.spawn(move || {
            for n in 0.. {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                load.run(&call(n));
                // Slower than a link needs to come back.
                if n % 50 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        for _ in 0..3 {
            let links = |c: &mut Conn| {
                let partial = c.info_field("stats", "sync_partial_ok").unwrap();
                partial.parse::<u32>().unwrap()
            };
            let before = links(&mut c);
            c.run("CLIENT KILL TYPE replica");
            wait_until("the link is back", || links(&mut c) > before);
        }
        // One more, which loads a data set while it changes.
        let replica = Server::start_bare(&[]);
        replica.replicate(&primary);
        late = Some(replica);
        drop(working);
    });
    // No limiter stays without an expiry that somebody took away.
    for n in 0..7 {
        for (letter, algorithm) in [("F", "FIXED"), ("S", "SLIDING"), ("B", "BUCKET 9")] {
            c.run(&format!("RL.HIT {letter}{n} 0 600 {algorithm}"));
        }
    }
    assert_eq!(without_expiry(&mut c), None);
    let later_ms = c.now_ms() + 30_000;
    let here = c.data(later_ms);
    assert!(here.len() >= 8, "{here:?}");
    let late = late.unwrap();
    primary.wait_for(&middle);
    middle.wait_for(&last);
    primary.wait_for(&late);
    for (name, server) in [("middle", &middle), ("last", &last), ("late", &late)] {
        let mut there = server.connect();
        assert_eq!(there.data(later_ms), here, "{name}");
        assert_eq!(without_expiry(&mut there), None, "{name}");
    }
}

#[test]
fn a_replica_that_may_be_written_to_limits_too() {
    let primary = Server::start();
    let mut replica = Server::start_with(&["--replica-read-only", "no"]);
    replica.replicate(&primary);
    let (mut c, mut there) = (primary.connect(), replica.connect());
    c.hit("shared 5 600");
    primary.wait_for(&replica);
    for n in 0..200 {
        there.run(&call(n));
    }
    assert_eq!(there.hit("shared 5 600")[..3], [1, 5, 3]);
    assert_eq!(there.hit("own 1 600"), [1, 1, 0, 0, 600]);
    assert_eq!(there.hit("own 1 600")[..3], [0, 1, 0]);
    assert!(there.pttl("own") > 0);
    assert_eq!(c.integer("EXISTS own"), 0);
    // What the primary sends wins.
    c.hit("shared 5 600 COST 3");
    primary.wait_for(&replica);
    assert_eq!(there.get("shared").as_deref(), Some("4"));
    replica.assert_alive();
}

/// Hits of a client until one is refused or fails; counts those that were allowed.
fn hit_until_refused(c: &mut Conn, key: &str, allowed: &AtomicI64) {
    while let Some([1, ..]) = verdict(&c.run(&format!("RL.HIT {key} 3000 600"))) {
        allowed.fetch_add(1, Ordering::SeqCst);
    }
}

/// Replication is asynchronous: what the old primary had not sent yet is lost with it, and nothing
/// else. So no more pass than the limit and that.
#[test]
fn after_a_failover_no_more_pass_than_the_limit_and_what_was_not_yet_replicated() {
    for round in 0..soak().unwrap_or(3) {
        let (mut primary, replica) = (Server::start(), Server::start());
        replica.replicate(&primary);
        primary.connect().hit("k 3000 600");
        primary.wait_for(&replica);
        let (before, after) = (AtomicI64::new(0), AtomicI64::new(0));
        thread::scope(|scope| {
            let (mut client, before) = (primary.connect(), &before);
            scope.spawn(move || hit_until_refused(&mut client, "k", before));
            thread::sleep(Duration::from_millis(scrambled(round) % 40));
            wait_until("some are allowed", || before.load(Ordering::SeqCst) > 10);
            primary.kill();
        });
        let before = before.into_inner();
        let mut c = replica.connect();
        c.run("REPLICAOF NO ONE");
        let counted: i64 = c.get("k").unwrap().parse().unwrap();
        assert!(c.pttl("k") > 0);
        // The one at the start was counted as well; one may have counted without its answer.
        let lost = before + 1 - counted;
        assert!((-1..=before).contains(&lost), "round {round}: {lost} lost");
        hit_until_refused(&mut c, "k", &after);
        let after = after.into_inner();
        assert_eq!(before + 1 + after, 3_000 + lost, "round {round}");
        assert_eq!(c.hit("k 3000 600")[..3], [0, 3_000, 0]);
        assert_eq!(without_expiry(&mut c), None);
    }
}

struct Sentinel {
    _program: Running,
    _directory: TempDir,
}

fn start_sentinel(primary: u16) -> (Sentinel, u16) {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let file = directory.path().join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds limits 500\nsentinel failover-timeout limits 1500\n"
    );
    fs::write(&file, text).unwrap();
    let mut program = Command::new(server_program());
    let program = program.arg(&file).arg("--sentinel");
    let sentinel = Sentinel {
        _program: Running::start(program.current_dir(directory.path())),
        _directory: directory,
    };
    (sentinel, port)
}

#[test]
fn sentinels_promote_a_replica_that_goes_on_with_the_count() {
    let (mut primary, replica) = (Server::start(), Server::start());
    replica.replicate(&primary);
    let mut c = primary.connect();
    for _ in 0..3 {
        c.hit("k 5 600");
    }
    c.hit("s 5 600 SLIDING COST 5");
    primary.wait_for(&replica);
    let sentinels: Vec<_> = (0..3).map(|_| start_sentinel(primary.port())).collect();
    for (_, port) in &sentinels {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        wait_until("the sentinel knows the others and the replica", || {
            let Ok(mut connection) = client.get_connection() else {
                return false;
            };
            let info: redis::RedisResult<String> =
                redis::cmd("INFO").arg("sentinel").query(&mut connection);
            info.is_ok_and(|info| info.contains("slaves=1,sentinels=3"))
        });
    }
    primary.kill();
    // They close the connections of its clients when they promote it, so only they are asked.
    for (_, port) in &sentinels {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut connection = client.get_connection().unwrap();
        wait_until("the replica is promoted", || {
            let address: Vec<String> = redis::cmd("SENTINEL")
                .arg(&["GET-MASTER-ADDR-BY-NAME", "limits"])
                .query(&mut connection)
                .unwrap();
            address[1] == replica.port().to_string()
        });
    }
    let mut there = replica.connect();
    assert_eq!(there.hit("k 5 600")[..3], [1, 5, 1]);
    assert_eq!(there.hit("k 5 600")[..3], [1, 5, 0]);
    assert_eq!(there.hit("k 5 600")[..3], [0, 5, 0]);
    assert_eq!(there.hit("s 5 600 SLIDING")[..3], [0, 5, 0]);
    assert_eq!(without_expiry(&mut there), None);
}
