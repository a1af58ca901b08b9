//! RL.PEEK: what a hit would be answered, and no trace of having asked.

use crate::common::{verdict, Conn, Server};

fn peek(c: &mut Conn, call: &str) -> [i64; 5] {
    let reply = c.run(&format!("RL.PEEK {call}"));
    verdict(&reply).unwrap_or_else(|| panic!("{call}: {reply:?}"))
}

#[test]
fn it_tells_what_a_hit_would_be_answered_with_what_remains_as_it_stands() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(peek(&mut c, "k 5 60"), [1, 5, 5, 0, 0]);
    assert_eq!(peek(&mut c, "k 5 60 COST 6"), [0, 5, 5, -1, 0]);
    assert_eq!(peek(&mut c, "k 0 60"), [0, 0, 0, -1, 0]);
    c.hit("k 5 60 COST 3");
    assert_eq!(peek(&mut c, "k 5 60"), [1, 5, 2, 0, 60]);
    assert_eq!(peek(&mut c, "k 5 60 COST 2"), [1, 5, 2, 0, 60]);
    assert_eq!(peek(&mut c, "k 5 60 COST 3"), [0, 5, 2, 60, 60]);
    let [_, _, _, retry_after_ms, reset_after_ms] = peek(&mut c, "k 5 60000 COST 3 MS");
    assert!((50_000..=60_000).contains(&retry_after_ms));
    assert_eq!(reset_after_ms, retry_after_ms);
    c.hit("s 5 60 SLIDING COST 3");
    assert_eq!(peek(&mut c, "s 5 60 SLIDING COST 2")[..4], [1, 5, 2, 0]);
    assert_eq!(peek(&mut c, "s 5 60 SLIDING COST 3")[..3], [0, 5, 2]);
    c.hit("b 5 60 BUCKET 3 COST 3");
    assert_eq!(peek(&mut c, "b 5 60 BUCKET 3"), [0, 3, 0, 12, 36]);
}

#[test]
fn it_leaves_no_trace() {
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let (mut c, mut watcher) = (server.connect(), server.connect());
    for setup in ["DEL k", "SET k 3 PX 60000", "SET k 3", "SET k 9"] {
        c.run(setup);
        watcher.run("WATCH k");
        let state = |c: &mut Conn| {
            (
                c.picture("k"),
                c.info_field("persistence", "rdb_changes_since_last_save"),
                c.info_field("replication", "master_repl_offset"),
            )
        };
        let before = state(&mut c);
        for call in ["k 5 60", "k 5 60 COST 9", "k 0 60"] {
            peek(&mut c, call);
        }
        assert_eq!(state(&mut c), before, "{setup}");
        watcher.run("MULTI");
        watcher.run("PING");
        assert_ne!(watcher.run("EXEC"), redis::Value::Nil, "{setup}");
    }
    // A counter without expiry: what the repair would give, and it is left to the next hit.
    assert_eq!(peek(&mut c, "k 5 60"), [0, 5, 0, 60, 60]);
    assert_eq!(c.pttl("k"), -1);
}

#[test]
fn a_replica_serves_it_and_an_expired_window_there_is_full_quota() {
    let server = Server::start();
    let replica = Server::start();
    replica.replicate(&server);
    // Nothing is expired by the primary, so that the replica has to see it for itself.
    server.connect().run("DEBUG SET-ACTIVE-EXPIRE 0");
    let mut c = server.connect();
    c.hit("long 5 600 COST 5");
    c.hit("short 5 100 MS COST 5");
    c.hit("s 5 600 SLIDING COST 5");
    c.hit("b 5 600 BUCKET 5 COST 5");
    server.wait_for(&replica);
    let mut there = replica.connect();
    assert_eq!(peek(&mut there, "long 5 600")[..3], [0, 5, 0]);
    assert_eq!(peek(&mut there, "s 5 600 SLIDING")[..3], [0, 5, 0]);
    assert_eq!(peek(&mut there, "b 5 600 BUCKET 5")[..3], [0, 5, 0]);
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(peek(&mut there, "short 5 100 MS"), [1, 5, 5, 0, 0]);
    assert_eq!(
        there.error("RL.REFUND long 5 600"),
        "READONLY You can't write against a read only replica."
    );
}

#[test]
fn it_works_where_only_reading_is_allowed() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("a1 5 60");
    let script = "return redis.call('RL.PEEK', KEYS[1], 5, 60)";
    let reply = c.run_words(&["EVAL_RO", script, "1", "a1"]);
    assert_eq!(verdict(&reply), Some([1, 5, 4, 0, 60]));
    c.run("ACL SETUSER ann on nopass -@all +rl.peek %R~a*");
    let mut ann = server.connect();
    ann.run("AUTH ann any");
    assert_eq!(peek(&mut ann, "a1 5 60"), [1, 5, 4, 0, 60]);
    assert!(ann.error("RL.PEEK b1 5 60").starts_with("NOPERM"));
    // Out of memory: reading goes on.
    c.run("CONFIG SET maxmemory 1");
    assert_eq!(peek(&mut c, "a1 5 60")[..3], [1, 5, 4]);
}
