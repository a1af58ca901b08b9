//! The commands side by side with INCR, GET and Lua scripts that do the same, on one server, in turn.
//!
//! One hot key, 50 connections, 32 commands in flight on each; server and load on a core each where
//! there are two. A round runs every contender once, between two runs of INCR; a figure is its
//! throughput over the mean of those two, and the table shows the median over the rounds with the
//! lowest and the highest. `BENCH_ROUNDS` (15), `BENCH_REQUESTS` (200000 a run) and `BENCH_PIPELINE` (32) change the effort.

#[allow(dead_code)]
#[path = "../tests/common/mod.rs"]
mod common;

mod load;
mod pin;

use common::{Conn, Server};
use load::Load;

/// The same rules and the same verdict, as a script: refused hits don't count, a counter without
/// expiry gets one, times are rounded up.
const SCRIPT: &str = r"
local limit, window_ms = tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
local allowed = count + 1 <= limit
if allowed then
    count = redis.call('INCR', KEYS[1])
end
local left_ms = redis.call('PTTL', KEYS[1])
if left_ms == -1 then
    redis.call('PEXPIRE', KEYS[1], window_ms)
    left_ms = window_ms
end
local left = math.ceil(left_ms / 1000)
return {allowed and 1 or 0, limit, math.max(0, limit - count), allowed and 0 or left, left}
";

/// The usual token bucket as a script: a hash of tokens and time, read, reckoned and written back.
const BUCKET_SCRIPT: &str = r"
local capacity, limit, window_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]) * 1000
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(bucket[1]) or capacity
local elapsed_ms = math.max(0, now_ms - (tonumber(bucket[2]) or now_ms))
tokens = math.min(capacity, tokens + elapsed_ms * limit / window_ms)
local allowed = tokens >= 1
if allowed then
    tokens = tokens - 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now_ms)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity * window_ms / limit))
return {allowed and 1 or 0, capacity, math.floor(tokens)}
";

struct Contender {
    name: &'static str,
    /// What the key holds when the run begins.
    setup: &'static str,
    command: Vec<String>,
}

fn contenders(script: &str, bucket_script: &str) -> Vec<Contender> {
    let contender = |name, setup, command: &str| Contender {
        name,
        setup,
        command: command.split(' ').map(ToString::to_string).collect(),
    };
    const FRESH: &str = "SET k 0 EX 36000";
    const FULL: &str = "SET k 1000 EX 36000";
    const GONE: &str = "DEL k j";
    let lua = |limit| format!("EVALSHA {script} 1 k {limit} 36000");
    vec![
        contender("RL.HIT, allowed", FRESH, "RL.HIT k 1000000000 36000"),
        contender("RL.HIT, refused", FULL, "RL.HIT k 1000 36000"),
        contender("Lua script, allowed", FRESH, &lua(1_000_000_000)),
        contender("Lua script, refused", FULL, &lua(1_000)),
        contender(
            "RL.HIT SLIDING, allowed",
            GONE,
            "RL.HIT k 1000000000 36000 SLIDING",
        ),
        contender(
            "RL.HIT BUCKET, allowed",
            GONE,
            "RL.HIT k 1000000000 36000 BUCKET 1000000000",
        ),
        contender(
            "Lua token bucket, allowed",
            GONE,
            &format!("EVALSHA {bucket_script} 1 k 1000000000 1000000000 36000"),
        ),
        contender(
            "RL.MHIT, two rules, allowed",
            GONE,
            "RL.MHIT 2 k j 1000000000 36000 1000000000 36000",
        ),
        contender("GET", FRESH, "GET k"),
        contender("RL.PEEK", FRESH, "RL.PEEK k 1000000000 36000"),
    ]
}

fn main() {
    let rounds: usize = setting("BENCH_ROUNDS", 15);
    let requests: usize = setting("BENCH_REQUESTS", 200_000);
    let pipeline: usize = setting("BENCH_PIPELINE", 32);
    let server = Server::start();
    let mut c = server.connect();
    pin::apart(server.pid());
    let mut load = Load::new(server.port(), 50, pipeline);
    let mut run = |c: &mut Conn, contender: &Contender| {
        c.run(contender.setup);
        load.run(&contender.command, requests)
    };

    let mut load_script = |script: &str| match c.run_words(&["SCRIPT", "LOAD", script]) {
        redis::Value::BulkString(sha) => String::from_utf8_lossy(&sha).into_owned(),
        other => panic!("{other:?}"),
    };
    let contenders = contenders(&load_script(SCRIPT), &load_script(BUCKET_SCRIPT));
    let incr = Contender {
        name: "INCR",
        setup: "SET k 0 EX 36000",
        command: vec!["INCR".into(), "k".into()],
    };

    let version = c.info("server");
    let version = version
        .lines()
        .find(|line| line.starts_with("valkey_version:"))
        .or_else(|| {
            version
                .lines()
                .find(|line| line.starts_with("redis_version:"))
        })
        .unwrap_or_default()
        .replace("_version:", " ");
    println!(
        "{version}, one key, 50 connections, pipeline {pipeline}, {rounds} rounds of {requests}"
    );

    let _ = run(&mut c, &incr);
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let mut incrs = Vec::new();
    for round in 0..rounds {
        let mut before = run(&mut c, &incr);
        for (contender, ratios) in contenders.iter().zip(&mut ratios) {
            let throughput = run(&mut c, contender);
            let after = run(&mut c, &incr);
            ratios.push(throughput / ((before + after) / 2.0));
            incrs.push(after);
            before = after;
        }
        eprintln!("round {} of {rounds}", round + 1);
    }

    println!("{:<28}{:>10}{:>18}", "", "of INCR", "lowest, highest");
    for (contender, ratios) in contenders.iter().zip(&mut ratios) {
        let (low, median, high) = spread(ratios);
        println!("{:<28}{median:>10.2}{low:>12.2}, {high:.2}", contender.name);
    }
    let (low, median, high) = spread(&mut incrs);
    println!("INCR itself: {median:.0} a second ({low:.0}, {high:.0})");

    println!();
    let (incr, hit) = (
        memory(&mut c, MemoryOf::Incr),
        memory(&mut c, MemoryOf::Hit),
    );
    println!("Memory of a key of 10 bytes, with its expiry, over a million:");
    println!("  INCR and PEXPIRE {incr:.0} bytes, RL.HIT {hit:.0} bytes");
}

fn setting(name: &str, default: usize) -> usize {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    match text.parse() {
        Ok(number) if number >= 1 => number,
        _ => {
            eprintln!("{name} is '{text}', which is no number from 1 on.");
            std::process::exit(1);
        }
    }
}

/// Lowest, median, highest.
fn spread(figures: &mut [f64]) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let (first, last) = (figures[0], figures[figures.len() - 1]);
    (first, figures[figures.len() / 2], last)
}

enum MemoryOf {
    Incr,
    Hit,
}

/// Bytes for each of a million keys.
fn memory(c: &mut Conn, of: MemoryOf) -> f64 {
    const KEYS: u32 = 1_000_000;
    c.run("FLUSHALL SYNC");
    let used = |c: &mut Conn| -> f64 {
        let used = c.info_field("memory", "used_memory").expect("a figure");
        used.parse().expect("a number")
    };
    let before = used(c);
    for block in 0..KEYS / 10_000 {
        let mut pipeline = redis::pipe();
        for n in 0..10_000 {
            let key = format!("key{:07}", block * 10_000 + n);
            match of {
                MemoryOf::Incr => {
                    pipeline.cmd("INCR").arg(&key).ignore();
                    pipeline.cmd("PEXPIRE").arg(&key).arg(36_000_000).ignore();
                }
                MemoryOf::Hit => {
                    pipeline.cmd("RL.HIT").arg(&key).arg(9).arg(36_000).ignore();
                }
            }
        }
        pipeline.query::<()>(&mut c.0).expect("replies");
    }
    let after = used(c);
    c.run("FLUSHALL SYNC");
    (after - before) / f64::from(KEYS)
}
