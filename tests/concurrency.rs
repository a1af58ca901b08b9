//! Many clients at once.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use crate::common::{verdict, Server};

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
                    let replies: Vec<redis::Value> = pipeline.query(&mut c.0).unwrap();
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
                        let replies: Vec<redis::Value> = pipeline.query(&mut c.0).unwrap();
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
