//! What each call costs in instructions of the server, above those of PING: the figure that doesn't depend
//! on the machine's other work. The table in docs/instructions.txt is what it should be.
//!
//! It is measured by valgrind on Redis 7.0.15, where both are at hand (`make test-all` sees to that), and on x86_64
//! alone: other processors have other instructions.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{error, module, server_program, wait_until, Server};

#[allow(dead_code)]
#[path = "../benches/load.rs"]
mod load;

const PIPELINE: usize = 32;
const PIPELINES: usize = 100;

/// Name, setup, request. PING comes first.
const CALLS: &[(&str, &str, &str)] = &[
    ("PING", "PING", "PING"),
    (
        "RL.HIT, allowed",
        "SET k 0 EX 36000",
        "RL.HIT k 1000000000 36000",
    ),
    (
        "RL.HIT, refused",
        "SET k 1000 EX 36000",
        "RL.HIT k 1000 36000",
    ),
    (
        "RL.HIT SLIDING, allowed",
        "DEL k",
        "RL.HIT k 1000000000 36000 SLIDING",
    ),
    (
        "RL.HIT BUCKET, allowed",
        "DEL k",
        "RL.HIT k 1000000000 36000 BUCKET 1000000000",
    ),
    ("RL.PEEK", "SET k 0 EX 36000", "RL.PEEK k 1000000000 36000"),
    (
        "RL.MHIT, 2 rules",
        "DEL k j",
        "RL.MHIT 2 k j 1000000000 36000 1000000000 36000",
    ),
    (
        "CL.THROTTLE, let through",
        "DEL k",
        "CL.THROTTLE k 1000000000 1000000000 36000",
    ),
    ("CL.THROTTLE, refused", "DEL k", "CL.THROTTLE k 0 1 36000"),
];

fn control(pid: u32, what: &str) {
    let status = Command::new("callgrind_control")
        .args([what, &pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "callgrind_control {what}");
}

/// The instructions of each call.
fn count() -> BTreeMap<&'static str, i64> {
    let module = module();
    let server = Server::start_under(
        &[
            "valgrind",
            "--quiet",
            "--tool=callgrind",
            "--callgrind-out-file=counts",
        ],
        &[
            "--loadmodule",
            module.to_str().unwrap(),
            "cl-throttle",
            "yes",
            // What the server does by the clock costs more for each call, the busier the machine is.
            "--hz",
            "1",
        ],
    );
    let mut c = server.connect();
    let mut counts = BTreeMap::new();
    let mut dumps = 0;
    for (name, setup, request) in CALLS {
        assert_eq!(error(&c.run(setup)), None, "{setup}");
        let mut load = load::Load::new(server.port(), 1, PIPELINE);
        load.repeat(request, PIPELINES / 10);
        let calls = i64::try_from(PIPELINE * PIPELINES).unwrap();
        // A dump begins the count anew. On a busy machine one of them may be far off.
        control(server.pid(), "--zero");
        let mut rounds = [0; 3].map(|_| {
            load.repeat(request, PIPELINES);
            control(server.pid(), "--dump");
            dumps += 1;
            total(&server.directory().join(format!("counts.{dumps}"))) / calls
        });
        rounds.sort_unstable();
        counts.insert(*name, rounds[1]);
    }
    counts
}

/// The sum in a file of callgrind's.
fn total(file: &Path) -> i64 {
    let mut total = None;
    wait_until("the counts are written", || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total = line.and_then(|figure| figure.trim().parse().ok());
        total.is_some()
    });
    total.unwrap()
}

#[test]
fn no_call_costs_more_instructions_than_it_did() {
    let version = Command::new(server_program()).arg("--version").output();
    let version = String::from_utf8(version.unwrap().stdout).unwrap();
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !cfg!(target_arch = "x86_64") || !version.contains("v=7.0.15 ") || !has_valgrind {
        eprintln!("not measured: it takes Redis 7.0.15 and valgrind, on x86_64");
        return;
    }
    let counts = count();
    let ping = counts["PING"];
    let table: Vec<(&str, i64)> = CALLS[1..]
        .iter()
        .map(|(name, _, _)| (*name, counts[name] - ping))
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/instructions.txt");
    if std::env::var_os("WRITE_INSTRUCTIONS").is_some() {
        let lines = table
            .iter()
            .map(|(name, count)| format!("{name:<28}{count:>8}\n"));
        std::fs::write(&path, lines.collect::<String>()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    for (name, count) in table {
        let line = kept.lines().find(|line| line.starts_with(name)).unwrap();
        let before: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        let off = (count - before).abs() * 100;
        assert!(
            off <= before * 3,
            "{name}: {count} instructions, {before} by docs/instructions.txt. \
             If it is meant so: make instructions"
        );
    }
}
