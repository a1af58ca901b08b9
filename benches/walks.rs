//! How long others wait while RL.AUDIT, RL.REPAIR and the sweeper walk over a million keys: the time of a
//! PING on another connection, before and meanwhile.

#[allow(dead_code)]
#[path = "../tests/common/mod.rs"]
mod common;
mod pin;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Conn, Server};
use redis::Value;

const KEYS: u32 = 1_000_000;
/// Of so many keys one has no expiry.
const LEAK: u32 = 10;

fn main() {
    let server = Server::start();
    pin::apart(server.pid());
    let mut c = server.connect();
    fill(&mut c);

    println!(
        "{KEYS} keys, {} of them without expiry; PING, in milliseconds:",
        KEYS / LEAK
    );
    println!(
        "{:<26}{:>8}{:>8}{:>8}{:>8}{:>14}",
        "", "p50", "p99", "p99.9", "max", "whole walk"
    );
    let idle = Duration::from_secs(5);
    report("nothing else", &server, |_| std::thread::sleep(idle));
    for count in [10, 100, 1_000] {
        let name = format!("RL.AUDIT, COUNT {count}");
        report(&name, &server, |c| {
            walk(c, &format!("RL.AUDIT {{}} COUNT {count}"))
        });
    }
    report("RL.REPAIR, COUNT 1000", &server, |c| {
        walk(c, "RL.REPAIR {} key:* 36000 COUNT 1000");
    });
    for rate in [1_000, 1_000_000] {
        c.run("FLUSHALL SYNC");
        fill(&mut c);
        c.run(&format!("CONFIG SET rl.sweep-keys-per-second {rate}"));
        report(&format!("sweeper, {rate} a second"), &server, |c| {
            c.run("CONFIG SET rl.sweep-pattern key:* rl.sweep-window-seconds 36000");
            std::thread::sleep(2 * idle);
            c.run("CONFIG SET rl.sweep-pattern nothing rl.sweep-window-seconds 0");
        });
        let walked = c.info_field("rl", "rl_sweeper_keys_walked").unwrap();
        println!("{:<26}walked {walked} keys so far", "");
    }
}

fn fill(c: &mut Conn) {
    for block in 0..KEYS / 10_000 {
        let mut pipeline = redis::pipe();
        for n in block * 10_000..(block + 1) * 10_000 {
            let set = pipeline.cmd("SET").arg(format!("key:{n:07}")).arg(n);
            if n % LEAK != 0 {
                set.arg("EX").arg(360_000);
            }
            set.ignore();
        }
        pipeline.query::<()>(&mut c.0).expect("replies");
    }
}

/// Walks from cursor 0 to cursor 0.
fn walk(c: &mut Conn, call: &str) {
    let mut cursor = "0".to_string();
    loop {
        let Value::Array(reply) = c.run(&call.replace("{}", &cursor)) else {
            panic!("no reply to {call}");
        };
        let Value::BulkString(next) = &reply[0] else {
            panic!("no cursor");
        };
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            return;
        }
    }
}

/// Measures PING while `work` runs.
fn report(name: &str, server: &Server, work: impl FnOnce(&mut Conn)) {
    let done = AtomicBool::new(false);
    let (mut times, took) = std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut c = server.connect();
            let mut times = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let sent = Instant::now();
                c.run("PING");
                times.push(sent.elapsed());
                std::thread::sleep(Duration::from_micros(200));
            }
            times
        });
        let started = Instant::now();
        work(&mut server.connect());
        let took = started.elapsed();
        done.store(true, Ordering::Relaxed);
        (pings.join().expect("it pings"), took)
    });
    times.sort();
    let at = |share: f64| {
        let place = ((times.len() - 1) as f64 * share) as usize;
        times[place].as_secs_f64() * 1_000.0
    };
    println!(
        "{name:<26}{:>8.3}{:>8.3}{:>8.3}{:>8.3}{:>12.1} s",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        took.as_secs_f64()
    );
}
