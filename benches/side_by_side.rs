//! The commands side by side with INCR, GET and what people have instead, on one server, in turn.
//!
//! 50 connections; server and load on a core each where there are two. A round runs every contender
//! once, between two runs of INCR; a figure is its throughput over the mean of those two, and the table
//! shows the median over the rounds with the lowest and the highest. Beside it stands what the server
//! itself says that a call took (`INFO commandstats`).
//!
//! `BENCH=quick` (the default) has the main table, in less than a minute; `BENCH=full` all of them, in some
//! ten. `BENCH_RESULT` names a file for the figures as JSON, `REDIS_CELL` a built redis-cell to be
//! measured as well.

#[allow(dead_code)]
#[path = "../tests/common/mod.rs"]
mod common;
#[allow(dead_code)]
mod load;
mod pin;
mod scripts;

use std::time::Duration;

use common::{wait_until, Conn, Server};
use load::{Load, NUMBERS, RANDOM};
use redis::Value;
use serde_json::{json, Value as Json};

const RUN: Duration = Duration::from_millis(100);
const CONNECTIONS: usize = 50;

fn main() {
    let full = match std::env::var("BENCH").as_deref() {
        Ok("full") => true,
        Ok("quick" | "") | Err(_) => false,
        Ok(other) => {
            eprintln!("BENCH is '{other}', which is neither quick nor full.");
            std::process::exit(1);
        }
    };
    let mut server = start(&[]);
    let mut result = json!({ "server": version(&mut server.connect()), "tables": [] });
    let mut add = |table: Json| result["tables"].as_array_mut().unwrap().push(table);
    println!(
        "{}, {CONNECTIONS} connections",
        version(&mut server.connect())
    );

    let rounds = if full { 31 } else { 5 };
    let all = contenders(&mut server.connect());
    add(table(
        "One key, pipeline 32",
        &server,
        &all,
        "INCR k",
        32,
        rounds,
    ));
    if full {
        let few = selection(&all);
        for pipeline in [1, 128] {
            let name = format!("One key, pipeline {pipeline}");
            add(table(&name, &server, &few, "INCR k", pipeline, 15));
        }

        let mut c = server.connect();
        populate(&mut c);
        let random = random_contenders(&all);
        let incr = format!("INCR f:{RANDOM}");
        add(table(
            "A million keys, pipeline 32",
            &server,
            &random,
            &incr,
            32,
            9,
        ));
        c.run("FLUSHALL SYNC");

        let replica = Server::start_bare(&[]);
        replica.replicate(&server);
        add(table(
            "One key, pipeline 32, a replica",
            &server,
            &few,
            "INCR k",
            32,
            9,
        ));
        drop(replica);

        server = start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
        let few = selection(&contenders(&mut server.connect()));
        add(table(
            "One key, pipeline 32, AOF everysec",
            &server,
            &few,
            "INCR k",
            32,
            9,
        ));

        add(bytes());
        add(memory());
        add(growth());
        add(rules());
    }
    if let Ok(file) = std::env::var("BENCH_RESULT") {
        let text = serde_json::to_string_pretty(&result).expect("it is JSON");
        std::fs::write(&file, text + "\n").expect("the file can be written");
        println!("\n{file} has the figures.");
    }
}

fn start(more: &[&str]) -> Server {
    let cell = std::env::var("REDIS_CELL").ok();
    let cell = cell.iter().flat_map(|path| ["--loadmodule", path]);
    let arguments: Vec<&str> = cell.chain(more.iter().copied()).collect();
    let server = Server::start_with(&arguments);
    pin::apart(server.pid());
    server
}

fn version(c: &mut Conn) -> String {
    let info = c.info("server");
    let of = |name: &str| info.lines().find(|line| line.starts_with(name));
    let version = of("valkey_version:").or_else(|| of("redis_version:"));
    version.unwrap_or_default().replace("_version:", " ")
}

#[derive(Clone)]
struct Contender {
    name: &'static str,
    /// Before each run.
    setup: &'static str,
    request: Vec<String>,
}

impl Contender {
    fn new(name: &'static str, setup: &'static str, request: &str) -> Self {
        Self {
            name,
            setup,
            request: request.split("; ").map(ToString::to_string).collect(),
        }
    }

    /// The command that is asked about in commandstats.
    fn command(&self) -> String {
        let name = self.request.last().unwrap().split(' ').next().unwrap();
        name.to_lowercase()
    }
}

const FRESH: &str = "SET k 0 EX 36000";
const FULL: &str = "SET k 1000 EX 36000";
const GONE: &str = "DEL k j l m";

fn contenders(c: &mut Conn) -> Vec<Contender> {
    let mut load = |script: &str| match c.run_words(&["SCRIPT", "LOAD", script]) {
        Value::BulkString(sha) => String::from_utf8_lossy(&sha).into_owned(),
        other => panic!("{other:?}"),
    };
    let fixed = load(scripts::FIXED);
    let bucket = load(scripts::BUCKET);
    let sliding = load(scripts::SLIDING);
    c.run_words(&["FUNCTION", "LOAD", "REPLACE", &scripts::fixed_library()]);
    let many = "1000000000";
    let mut all = vec![
        Contender::new("PING", "PING", "PING"),
        Contender::new("GET", FRESH, "GET k"),
        Contender::new("RL.HIT, allowed", FRESH, &format!("RL.HIT k {many} 36000")),
        Contender::new("RL.HIT, refused", FULL, "RL.HIT k 1000 36000"),
        Contender::new(
            "MULTI INCR EXPIRE-NX EXEC",
            FRESH,
            "MULTI; INCR k; EXPIRE k 36000 NX; EXEC",
        ),
        Contender::new(
            "Lua, allowed",
            FRESH,
            &format!("EVALSHA {fixed} 1 k {many} 36000"),
        ),
        Contender::new(
            "Lua, refused",
            FULL,
            &format!("EVALSHA {fixed} 1 k 1000 36000"),
        ),
        Contender::new(
            "Lua function, allowed",
            FRESH,
            &format!("FCALL fixed 1 k {many} 36000"),
        ),
        Contender::new("Lua function, refused", FULL, "FCALL fixed 1 k 1000 36000"),
        Contender::new(
            "RL.HIT SLIDING, allowed",
            GONE,
            &format!("RL.HIT k {many} 36000 SLIDING"),
        ),
        Contender::new("RL.HIT SLIDING, refused", GONE, "RL.HIT k 1 36000 SLIDING"),
        Contender::new(
            "Lua sliding window",
            GONE,
            &format!("EVALSHA {sliding} 1 k {many} 36000"),
        ),
        Contender::new(
            "RL.HIT BUCKET, allowed",
            GONE,
            &format!("RL.HIT k {many} 36000 BUCKET {many}"),
        ),
        Contender::new("RL.HIT BUCKET, refused", GONE, "RL.HIT k 1 36000 BUCKET 1"),
        Contender::new(
            "Lua token bucket",
            GONE,
            &format!("EVALSHA {bucket} 1 k {many} {many} 36000"),
        ),
        Contender::new("RL.PEEK", FRESH, &format!("RL.PEEK k {many} 36000")),
        Contender::new(
            "RL.MHIT, 2 rules",
            GONE,
            &format!("RL.MHIT 2 k j {many} 36000 {many} 36000"),
        ),
        Contender::new(
            "RL.MHIT, 4 rules",
            GONE,
            &format!("RL.MHIT 4 k j l m {many} 36000 {many} 36000 {many} 36000 {many} 36000"),
        ),
    ];
    if c.has("INCREX") {
        let request = format!("INCREX k BYINT 1 UBOUND {many} EX 36000 ENX");
        all.push(Contender::new("INCREX", GONE, &request));
    }
    if c.has("CL.THROTTLE") {
        let allowed = format!("CL.THROTTLE k {many} {many} 36000");
        all.push(Contender::new("redis-cell, allowed", GONE, &allowed));
        all.push(Contender::new(
            "redis-cell, refused",
            GONE,
            "CL.THROTTLE k 1 1 36000",
        ));
    }
    all
}

/// Those that the other tables have.
fn selection(all: &[Contender]) -> Vec<Contender> {
    const NAMES: [&str; 8] = [
        "RL.HIT, allowed",
        "RL.HIT, refused",
        "Lua, allowed",
        "Lua, refused",
        "RL.HIT SLIDING, allowed",
        "RL.HIT BUCKET, allowed",
        "RL.PEEK",
        "RL.MHIT, 2 rules",
    ];
    let chosen = all.iter().filter(|one| NAMES.contains(&one.name));
    chosen.cloned().collect()
}

/// A million counters that are fresh and as many that are full.
fn populate(c: &mut Conn) {
    c.run("FLUSHALL SYNC");
    for block in 0..NUMBERS / 10_000 {
        let mut pipeline = redis::pipe();
        for n in block * 10_000..(block + 1) * 10_000 {
            for (prefix, value) in [("f", 0), ("g", 1_000)] {
                let set = pipeline.cmd("SET").arg(format!("{prefix}:{n:07}"));
                set.arg(value).arg("EX").arg(36_000).ignore();
            }
        }
        pipeline.query::<()>(&mut c.0).expect("replies");
    }
}

fn random_contenders(all: &[Contender]) -> Vec<Contender> {
    let chosen = selection(all).into_iter().filter(|one| {
        !one.name.contains("MHIT") && !one.name.contains("SLIDING") && !one.name.contains("BUCKET")
    });
    chosen
        .map(|mut one| {
            let prefix = if one.name.contains("refused") {
                "g"
            } else {
                "f"
            };
            let key = format!(" {prefix}:{RANDOM} ");
            for line in &mut one.request {
                *line = line.replacen(" k ", &key, 1);
            }
            one.setup = "PING";
            one
        })
        .collect()
}

/// Runs the contenders in turn, and prints and returns what they reached.
fn table(
    name: &str,
    server: &Server,
    contenders: &[Contender],
    incr: &str,
    pipeline: usize,
    rounds: usize,
) -> Json {
    let mut c = server.connect();
    let mut load = Load::new(server.port(), CONNECTIONS, pipeline);
    let mut run = |c: &mut Conn, setup: &str, request: &[&str]| {
        c.run(setup);
        load.run(request, RUN)
    };
    let by_incr = if incr.contains(RANDOM) { "PING" } else { FRESH };
    run(&mut c, by_incr, &[incr]);
    let mut ratios = vec![Vec::new(); contenders.len()];
    let mut call_us = vec![Vec::new(); contenders.len()];
    let mut incrs = Vec::new();
    for round in 1..=rounds {
        let mut before = run(&mut c, by_incr, &[incr]);
        for (n, contender) in contenders.iter().enumerate() {
            c.run("CONFIG RESETSTAT");
            let request: Vec<&str> = contender.request.iter().map(String::as_str).collect();
            let throughput = run(&mut c, contender.setup, &request);
            call_us[n].extend(usec_per_call(&mut c, &contender.command()));
            let after = run(&mut c, by_incr, &[incr]);
            ratios[n].push(throughput / ((before + after) / 2.0));
            incrs.push(after);
            before = after;
        }
        eprint!("\r{name}: round {round} of {rounds}");
    }
    eprintln!();

    let (low, median, high) = spread(&mut incrs);
    println!("\n{name}, {rounds} rounds; INCR {median:.0} a second ({low:.0} to {high:.0})");
    println!(
        "{:<28}{:>8}{:>16}{:>14}",
        "", "of INCR", "lowest, highest", "us a call"
    );
    let mut rows = Vec::new();
    for (n, contender) in contenders.iter().enumerate() {
        let (low, median, high) = spread(&mut ratios[n]);
        let (_, us, _) = spread(&mut call_us[n]);
        let name = contender.name;
        println!("{name:<28}{median:>8.2}{low:>10.2}, {high:.2}{us:>14.2}");
        rows.push(json!({
            "name": name,
            "of_incr": rounded(median),
            "lowest": rounded(low),
            "highest": rounded(high),
            "us_a_call": rounded(us),
        }));
    }
    json!({ "name": name, "pipeline": pipeline, "rounds": rounds, "incr_a_second": median.round(), "rows": rows })
}

fn rounded(figure: f64) -> f64 {
    (figure * 1_000.0).round() / 1_000.0
}

/// What the server says that a call of the command took.
fn usec_per_call(c: &mut Conn, command: &str) -> Option<f64> {
    let stats = c.info_field("commandstats", &format!("cmdstat_{command}"))?;
    let figure = stats
        .split(',')
        .find_map(|part| part.strip_prefix("usec_per_call="))?;
    figure.parse().ok()
}

/// Lowest, median, highest.
fn spread(figures: &mut [f64]) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let at = |place: usize| figures.get(place).copied().unwrap_or(0.0);
    let last = figures.len().saturating_sub(1);
    (at(0), at(figures.len() / 2), at(last))
}

/// Prints and returns a table of plain figures.
fn figures(name: &str, rows: &[(String, f64)]) -> Json {
    println!("\n{name}");
    let mut json_rows = Vec::new();
    for (name, figure) in rows {
        println!("{name:<40}{figure:>10.2}");
        json_rows.push(json!({ "name": name, "figure": rounded(*figure) }));
    }
    json!({ "name": name, "rows": json_rows })
}

/// What a call adds to the AOF and to the stream to replicas.
fn bytes() -> Json {
    let server = start(&["--appendonly", "yes"]);
    let replica = Server::start_bare(&[]);
    replica.replicate(&server);
    let mut c = server.connect();
    let mut rows = Vec::new();
    for (name, setup, call) in [
        ("INCR", "SET user:42 5 EX 36000", "INCR user:42"),
        (
            "RL.HIT, allowed",
            "SET user:42 5 EX 36000",
            "RL.HIT user:42 100000 36000",
        ),
        (
            "RL.HIT, refused",
            "SET user:42 5 EX 36000",
            "RL.HIT user:42 5 36000",
        ),
        (
            "RL.HIT SLIDING, allowed",
            "DEL user:42",
            "RL.HIT user:42 100000 36000 SLIDING",
        ),
        (
            "RL.HIT BUCKET, allowed",
            "DEL user:42",
            "RL.HIT user:42 100000 36000 BUCKET 100000",
        ),
    ] {
        c.run(setup);
        c.run(call);
        let figure = |c: &mut Conn, section: &str, field: &str| -> f64 {
            c.info_field(section, field).unwrap().parse().unwrap()
        };
        let settled = |c: &mut Conn| {
            wait_until("the AOF is written", || {
                c.info_field("persistence", "aof_buffer_length").as_deref() == Some("0")
            });
            (
                figure(c, "persistence", "aof_current_size"),
                figure(c, "replication", "master_repl_offset"),
            )
        };
        let before = settled(&mut c);
        const CALLS: u32 = 1_000;
        for _ in 0..CALLS {
            c.run(call);
        }
        let after = settled(&mut c);
        let each = |before: f64, after: f64| (after - before) / f64::from(CALLS);
        rows.push((format!("{name}: AOF"), each(before.0, after.0)));
        rows.push((format!("{name}: to a replica"), each(before.1, after.1)));
    }
    figures("Bytes written for each call, key of 7 bytes", &rows)
}

/// Bytes of each of a million limiters, with their expiry.
fn memory() -> Json {
    let mut rows = Vec::new();
    let bucket = |sha: &str| format!("EVALSHA {sha} 1 {RANDOM} 9 9 36000");
    for (name, request) in [
        (
            "INCR and PEXPIRE",
            "INCR {}; PEXPIRE {} 36000000".to_string(),
        ),
        ("RL.HIT", "RL.HIT {} 9 36000".into()),
        ("RL.HIT SLIDING", "RL.HIT {} 9 36000 SLIDING".into()),
        ("RL.HIT BUCKET", "RL.HIT {} 9 36000 BUCKET 9".into()),
        ("Lua token bucket", bucket("{sha}").replace(RANDOM, "{}")),
        ("redis-cell", "CL.THROTTLE {} 9 9 36000".into()),
    ] {
        // A server of its own: another one's memory would still be given back meanwhile.
        let server = start(&[]);
        let mut c = server.connect();
        let Value::BulkString(sha) = c.run_words(&["SCRIPT", "LOAD", scripts::BUCKET]) else {
            panic!("no digest");
        };
        if request.starts_with("CL.") && !c.has("CL.THROTTLE") {
            continue;
        }
        let request = request.replace("{sha}", &String::from_utf8_lossy(&sha));
        let used = |c: &mut Conn| -> f64 {
            c.info_field("memory", "used_memory")
                .unwrap()
                .parse()
                .unwrap()
        };
        let before = used(&mut c);
        for block in 0..NUMBERS / 10_000 {
            let mut pipeline = redis::pipe();
            for n in block * 10_000..(block + 1) * 10_000 {
                for line in request.split("; ") {
                    let line = line.replace("{}", &format!("key{n:07}"));
                    let mut words = line.split(' ');
                    let command = pipeline.cmd(words.next().unwrap());
                    words.for_each(|word| {
                        command.arg(word);
                    });
                    command.ignore();
                }
            }
            pipeline.query::<()>(&mut c.0).expect("replies");
        }
        let each = (used(&mut c) - before) / f64::from(NUMBERS);
        rows.push((name.to_string(), each));
    }
    figures(
        "Bytes of memory for each of a million, key of 10 bytes",
        &rows,
    )
}

/// What a hit at a random key costs as the keyspace grows, next to INCR.
fn growth() -> Json {
    let server = start(&[]);
    let mut c = server.connect();
    let mut rows = Vec::new();
    let mut made = 0_u32;
    for keys in [1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
        while made < keys {
            let mut pipeline = redis::pipe();
            for n in made..(made + 10_000).min(keys) {
                let set = pipeline.cmd("SET").arg(format!("k:{n:07}"));
                set.arg(0).arg("EX").arg(36_000).ignore();
            }
            pipeline.query::<()>(&mut c.0).expect("replies");
            made = (made + 10_000).min(keys);
        }
        let hit = format!("RL.HIT k:{RANDOM} 1000000000 36000");
        let incr = format!("INCR k:{RANDOM}");
        let mut load = Load::new(server.port(), CONNECTIONS, 32);
        load.numbers = keys;
        let mut ratios = Vec::new();
        for _ in 0..9 {
            let before = load.run(&[&incr], RUN);
            let throughput = load.run(&[&hit], RUN);
            let after = load.run(&[&incr], RUN);
            ratios.push(throughput / ((before + after) / 2.0));
        }
        let (_, median, _) = spread(&mut ratios);
        rows.push((format!("{keys} keys: RL.HIT of INCR"), median));
        eprint!("\rgrowth: {keys} keys");
    }
    eprintln!();
    figures("A hit as the keyspace grows, pipeline 32", &rows)
}

/// What each rule of an RL.MHIT and each key of an RL.AUDIT costs, by their number.
fn rules() -> Json {
    let server = start(&[]);
    let mut c = server.connect();
    let mut rows = Vec::new();
    for rules in [1, 2, 4, 16, 64, 128] {
        let keys: Vec<String> = (0..rules).map(|n| format!("k{n}")).collect();
        let rule = vec!["1000000000 36000"; rules].join(" ");
        let request = format!("RL.MHIT {rules} {} {rule}", keys.join(" "));
        let mut load = Load::new(server.port(), CONNECTIONS, 4);
        c.run("CONFIG RESETSTAT");
        load.run(&[&request], 5 * RUN);
        let us = usec_per_call(&mut c, "rl.mhit").expect("it was called");
        rows.push((
            format!("RL.MHIT, {rules} rules: us a rule"),
            us / rules as f64,
        ));
    }
    populate(&mut c);
    for count in [10, 100, 1_000] {
        c.run("CONFIG RESETSTAT");
        let (mut cursor, mut calls) = ("0".to_string(), 0_u32);
        while calls == 0 || (cursor != "0" && calls * count < 1_000_000) {
            let Value::Array(reply) = c.run(&format!("RL.AUDIT {cursor} COUNT {count}")) else {
                panic!("no reply");
            };
            let Value::BulkString(next) = &reply[0] else {
                panic!("no cursor");
            };
            cursor = String::from_utf8_lossy(next).into_owned();
            calls += 1;
        }
        let us = usec_per_call(&mut c, "rl.audit").expect("it was called");
        rows.push((
            format!("RL.AUDIT, COUNT {count}: us a key"),
            us / f64::from(count),
        ));
    }
    figures("Time in the server, by rules and by keys", &rows)
}
