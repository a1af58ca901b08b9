//! Many clients at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{mpsc, Barrier};
use std::thread;
use std::time::Duration;

use redis::{PushKind, Value};

use crate::common::{text, verdict, wait_until, Conn, RaiseAtEnd, Server};

#[test]
fn sixteen_connections_admit_exactly_the_limit() {
    let server = Server::start();
    let start = Barrier::new(16);
    let allowed: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let mut c = server.connect();
                    start.wait();
                    (0..200).filter(|_| c.hit("k 777 600")[0] == 1).count()
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(allowed, 777);
    assert_eq!(server.connect().get("k").as_deref(), Some("777"));
}

#[test]
fn pipelined_hits_of_many_connections_each_take_another_one() {
    let server = Server::start();
    let remaining: Vec<i64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let mut c = server.connect();
                    let mut pipeline = redis::pipe();
                    for _ in 0..500 {
                        pipeline.cmd("RL.HIT").arg("k").arg(1_000_000).arg(600);
                    }
                    let replies: Vec<Value> = pipeline.query(&mut c.0).unwrap();
                    assert!(c.pttl("k") > 0);
                    replies
                        .iter()
                        .map(|reply| verdict(reply).expect("a verdict")[2])
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let distinct: BTreeSet<i64> = remaining.iter().copied().collect();
    assert_eq!(remaining.len(), 10_000);
    assert_eq!(distinct, (990_000..1_000_000).collect());
    assert_eq!(server.connect().get("k").as_deref(), Some("10000"));
}

/// Both protocols, a server that reads and writes on several threads, and keys of each algorithm.
#[test]
fn two_hundred_connections_over_a_thousand_keys_admit_exactly_the_limits() {
    const KEYS: usize = 1_000;
    const THREADS: usize = 8;
    const CONNECTIONS: usize = 25;
    const LIMIT: i64 = 20;
    let server = Server::start_with(&["--io-threads", "3"]);
    let start = Barrier::new(THREADS);
    let allowed: Vec<i64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (server, start) = (&server, &start);
                scope.spawn(move || {
                    let mut connections: Vec<_> = (0..CONNECTIONS)
                        .map(|n| match n % 2 {
                            0 => server.connect(),
                            _ => server.connect_resp3(),
                        })
                        .collect();
                    let mut allowed = vec![0; KEYS];
                    start.wait();
                    // Each key is asked for 40 times, by connections of all threads.
                    for (n, c) in connections.iter_mut().enumerate() {
                        let keys = (0..KEYS).filter(|key| (key + n + thread) % 5 == 0);
                        let keys: Vec<usize> = keys.collect();
                        let mut pipeline = redis::pipe();
                        for key in &keys {
                            // The window is so long that next to nothing comes back meanwhile.
                            let hit = pipeline.cmd("RL.HIT").arg(format!("k{key}"));
                            hit.arg(LIMIT).arg(360_000);
                            match key % 3 {
                                0 => {}
                                1 => {
                                    hit.arg("SLIDING");
                                }
                                _ => {
                                    hit.arg("BUCKET").arg(LIMIT);
                                }
                            }
                        }
                        let replies: Vec<Value> = pipeline.query(&mut c.0).unwrap();
                        for (key, reply) in keys.iter().zip(&replies) {
                            allowed[*key] += verdict(reply).expect("a verdict")[0];
                        }
                    }
                    allowed
                })
            })
            .collect();
        let mut sums = vec![0; KEYS];
        for thread in threads {
            for (sum, allowed) in sums.iter_mut().zip(thread.join().unwrap()) {
                *sum += allowed;
            }
        }
        sums
    });
    assert_eq!(allowed, vec![LIMIT; KEYS]);
    let mut c = server.connect();
    assert_eq!(
        c.info_field("rl", "rl_hits_allowed").as_deref(),
        Some("20000")
    );
    assert_eq!(
        c.info_field("rl", "rl_hits_refused").as_deref(),
        Some("20000")
    );
}

/// WATCH, a look, and a hit in a transaction: if it goes through, nobody hit in between.
#[test]
fn transactions_that_watch_a_limiter_lose_to_every_hit_in_between() {
    const HITS: i64 = 150;
    let server = Server::start();
    let (lost, start) = (AtomicI64::new(0), Barrier::new(6));
    thread::scope(|scope| {
        for n in 0..6 {
            let (server, start, lost) = (&server, &start, &lost);
            scope.spawn(move || {
                let mut c = server.connect();
                start.wait();
                for _ in 0..HITS {
                    if n % 2 == 0 {
                        c.hit("k 1000000 600");
                        continue;
                    }
                    loop {
                        c.run("WATCH k");
                        let seen = verdict(&c.run("RL.PEEK k 1000000 600")).unwrap();
                        c.run("MULTI");
                        c.run("RL.HIT k 1000000 600");
                        match c.run("EXEC") {
                            Value::Array(replies) => {
                                let got = verdict(&replies[0]).unwrap();
                                assert_eq!(got[2], seen[2] - 1, "somebody hit in between");
                                break;
                            }
                            _ => lost.fetch_add(1, Ordering::SeqCst),
                        };
                    }
                }
            });
        }
    });
    assert_eq!(server.connect().get("k"), Some((6 * HITS).to_string()));
    assert!(lost.into_inner() > 0, "none was ever disturbed");
}

/// A cache that drops what it is told to is never left with an old value.
#[test]
fn a_client_side_cache_ends_with_what_the_server_holds() {
    const KEYS: usize = 8;
    let server = Server::start();
    let mut c = server.connect();
    let mut caching = server.connect_resp3();
    let (sender, pushes) = mpsc::channel();
    caching.0.set_push_sender(sender);
    caching.run("CLIENT TRACKING ON");

    let mut cache: HashMap<String, Option<String>> = HashMap::new();
    let mut dropped = 0;
    let done = AtomicBool::new(false);
    // The keys that are dropped, as the server tells that they have changed.
    let hear = |caching: &mut Conn, cache: &mut HashMap<_, _>| -> Vec<String> {
        caching.run("PING");
        let mut gone = Vec::new();
        while let Ok(push) = pushes.try_recv() {
            assert_eq!(push.kind, PushKind::Invalidate);
            let Some(Value::Array(keys)) = push.data.first() else {
                panic!("{:?}", push.data);
            };
            let keys = keys.iter().map(text);
            gone.extend(keys.filter(|key| cache.remove(key).is_some()));
        }
        gone
    };
    thread::scope(|scope| {
        let working = RaiseAtEnd(&done);
        for n in 0..3 {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut c = server.connect();
                let mut key = n;
                while !done.load(Ordering::SeqCst) {
                    key = (key + 1) % KEYS;
                    let rule = ["1000000 600", "9 600 SLIDING", "50 1 BUCKET 9"][key % 3];
                    let command = if n == 2 { "RL.REFUND" } else { "RL.HIT" };
                    c.run(&format!("{command} k{key} {rule}"));
                }
            });
        }
        wait_until("it has dropped more than a hundred", || {
            for n in 0..2_000 {
                let key = format!("k{}", n % KEYS);
                if !cache.contains_key(&key) {
                    cache.insert(key.clone(), caching.get(&key));
                }
                dropped += hear(&mut caching, &mut cache).len();
            }
            dropped > 100
        });
        drop(working);
    });
    cache.insert("mark".into(), caching.get("mark"));
    c.run("INCR mark");
    wait_until("it hears of the last change", || {
        hear(&mut caching, &mut cache).contains(&"mark".into())
    });
    for (key, cached) in &cache {
        // A bucket that has refilled ends by itself, of which it is told, or will be.
        if let Some(value) = c.get(key) {
            assert_eq!(cached.as_ref(), Some(&value), "{key}");
        }
    }
}

#[test]
fn a_pause_holds_hits_back_and_loses_none() {
    const LIMIT: i64 = 5_000;
    let server = Server::start();
    let mut c = server.connect();
    let (answered, done) = (AtomicI64::new(0), AtomicBool::new(false));
    let allowed: i64 = thread::scope(|scope| {
        let working = RaiseAtEnd(&done);
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let (server, answered, done) = (&server, &answered, &done);
                scope.spawn(move || {
                    let mut c = server.connect();
                    let mut allowed = 0;
                    loop {
                        let hit = c.hit("k 5000 600")[0];
                        allowed += hit;
                        answered.fetch_add(1, Ordering::SeqCst);
                        if hit == 0 && done.load(Ordering::SeqCst) {
                            return allowed;
                        }
                    }
                })
            })
            .collect();
        for kind in ["WRITE", "ALL", "WRITE", "ALL", "WRITE"] {
            let before = answered.load(Ordering::SeqCst);
            wait_until("hits are answered", || {
                answered.load(Ordering::SeqCst) > before + 100
            });
            if kind == "ALL" {
                // It holds back this connection as well, so it has to end by itself.
                c.run("CLIENT PAUSE 50 ALL");
                c.run("PING");
                continue;
            }
            c.run("CLIENT PAUSE 60000 WRITE");
            // To look is not to write.
            let count = c.get("k");
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(1));
                assert_eq!(c.get("k"), count);
                assert!(verdict(&c.run("RL.PEEK k 5000 600")).is_some());
            }
            c.run("CLIENT UNPAUSE");
        }
        drop(working);
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(allowed, LIMIT);
}
