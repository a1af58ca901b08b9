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
