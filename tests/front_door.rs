//! What a newcomer types: `make run`, `make help`, and what they hear when something is missing.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{server_program, verdict, wait_until};

fn script(name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("scripts").join(name));
    command.current_dir(root).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A script that serves, ended with its server also when the test fails.
struct Running(Child);

impl Running {
    /// As Ctrl-C and `kill` do. (`kill` is built into the shell; not everybody has the program.)
    fn stop(&mut self) {
        let kill = format!("kill -TERM {}", self.0.id());
        let _ = Command::new("sh").args(["-c", &kill]).status();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

#[test]
fn make_run_takes_the_next_port_says_so_serves_and_cleans_up() {
    // Below the ports that the system hands out, so that no other test gets the next one.
    let taken = (24_000..32_000)
        .step_by(7)
        .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .expect("a free port");
    let port = taken.local_addr().unwrap().port();
    let temporary = tempfile::tempdir().unwrap();
    let run = script("run")
        .env("PORT", port.to_string())
        .env("SERVER", server_program())
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Running(run);

    let mut lines = BufReader::new(run.0.stdout.take().unwrap()).lines();
    let mut shown = Vec::new();
    while !shown
        .last()
        .is_some_and(|line: &String| line.contains("TTL"))
    {
        shown.push(lines.next().expect("more lines").unwrap());
    }
    let shown = shown.join("\n");
    let served: u16 = shown
        .split("on port ")
        .nth(1)
        .and_then(|rest| rest.split(';').next())
        .and_then(|port| port.parse().ok())
        .unwrap_or_else(|| panic!("no port in: {shown}"));
    assert!(served > port);

    // The three commands that it shows work as they stand.
    let commands: Vec<&str> = shown
        .lines()
        .filter(|line| line.trim_start().starts_with("redis-cli"))
        .collect();
    assert_eq!(commands.len(), 3, "{shown}");
    for command in &commands {
        let output = Command::new("sh").args(["-c", command]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && !text.contains("ERR"),
            "{command}: {text}"
        );
    }
    let client = redis::Client::open(format!("redis://127.0.0.1:{served}/")).unwrap();
    let mut connection = client.get_connection().unwrap();
    let reply = redis::cmd("RL.HIT")
        .arg(&["user:1", "3", "60"])
        .query(&mut connection)
        .unwrap();
    assert_eq!(verdict(&reply).unwrap()[..3], [0, 3, 0]);

    run.stop();
    let mut said = String::new();
    let mut stderr = run.0.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains(&format!("Port {port} is taken")), "{said}");
    wait_until("the server is gone", || client.get_connection().is_err());
    let left = std::fs::read_dir(temporary.path()).unwrap().count();
    assert_eq!(left, 0, "files are left behind");
}

#[test]
fn make_demo_draws_the_same_traffic_three_times_and_cleans_up() {
    let temporary = tempfile::tempdir().unwrap();
    // Meanwhile on a terminal, and on a narrow one.
    let on_terminals = [80, 60].map(|columns| {
        let line = format!("stty cols {columns}; exec scripts/demo");
        Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("SERVER", server_program())
            .env("TMPDIR", temporary.path())
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let output = script("demo")
        .env("SERVER", server_program())
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let drawn_over = on_terminals.map(|demo| {
        let output = demo.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout)
            .matches("\x1b[7A")
            .count()
    });
    assert_eq!(drawn_over, [69, 0]);
    let shown = String::from_utf8(output.stdout).unwrap();
    // Not on a terminal, so there is nothing but text.
    assert!(!shown.contains('\x1b'), "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    let mut let_in = Vec::new();
    for name in ["FIXED", "SLIDING", "BUCKET 5"] {
        let place = lines.iter().position(|line| line.starts_with(name));
        let place = place.unwrap_or_else(|| panic!("no {name} in\n{shown}"));
        let (marks, remains) = (&lines[place][10..], &lines[place + 1][10..]);
        assert_eq!((marks.len(), remains.len()), (69, 69), "{shown}");
        let asked = marks.chars().filter(|mark| *mark != ' ').count();
        assert_eq!(asked, 27, "{shown}");
        assert!(
            marks.starts_with('o') && remains.starts_with('4'),
            "{shown}"
        );
        for (mark, remaining) in marks.chars().zip(remains.chars()) {
            assert!(mark != 'x' || remaining == '0', "{shown}");
        }
        let_in.push(marks.matches('o').count());
    }
    let sums = format!(
        "Of 27 requests FIXED let in {}, SLIDING {}, BUCKET {}.",
        let_in[0], let_in[1], let_in[2]
    );
    assert!(shown.contains(&sums), "{shown}");
    assert!(let_in.iter().all(|count| *count >= 10), "{sums}");
    let widest = lines.iter().map(|line| line.len()).max();
    assert!(widest <= Some(80), "for a terminal of 80 columns: {shown}");
    // The counter that lost its expiry: refused and repaired, then let in.
    let leak = shown.split("> SET user:42 2550").nth(1).unwrap();
    let replies: Vec<&str> = leak.lines().map(str::trim).collect();
    assert!(replies.contains(&"(integer) -1"), "{leak}");
    let verdicts: Vec<&&str> = replies
        .iter()
        .filter(|line| line.starts_with("1) "))
        .collect();
    assert_eq!(verdicts, [&"1) (integer) 0", &"1) (integer) 1"]);
    let left = std::fs::read_dir(temporary.path()).unwrap().count();
    assert_eq!(left, 0, "files are left behind");
}

#[test]
fn make_run_says_so_when_the_server_does_not_start() {
    let output = script("run")
        .env("PORT", "24999")
        .env("SERVER", "true")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("true does not start"),
        "{}",
        said(&output)
    );
}

#[test]
fn make_run_refuses_a_port_that_is_none() {
    for port in ["x", "0", "-1", "65536", "99999", "6379 "] {
        let output = script("run").env("PORT", port).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{port}");
        assert!(said(&output).contains("which is no port"), "{port}");
    }
}

/// A directory with the programs named and no others, for a PATH.
fn programs(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in names {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {name}")])
            .output()
            .unwrap();
        let path = String::from_utf8(found.stdout).unwrap();
        symlink(path.trim(), directory.path().join(name)).unwrap();
    }
    directory
}

#[test]
fn what_is_missing_and_cannot_be_installed_is_named() {
    let path = programs(&["bash", "env", "dirname", "id", "cargo", "cc"]);
    let output = script("prerequisites")
        .args([
            "redis-server",
            "redis-cli",
            "bash",
            "/no/such/valkey-server",
        ])
        .env("PATH", path.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(
        said.contains("Missing: redis-server redis-cli /no/such/valkey-server."),
        "{said}"
    );
    assert!(
        said.contains("apt-get install redis-server redis-tools\n"),
        "{said}"
    );
}

#[test]
fn without_rust_or_a_c_compiler_it_says_so() {
    let path = programs(&["bash", "env", "dirname", "id", "cc"]);
    let output = script("prerequisites")
        .env("PATH", path.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("Rust is missing"));
    let path = programs(&["bash", "env", "dirname", "id", "cargo"]);
    let output = script("prerequisites")
        .env("PATH", path.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("A C compiler (cc) is missing"));
}

#[test]
fn a_rust_that_is_too_old_is_named() {
    let path = programs(&["bash", "env", "dirname", "id", "cc"]);
    let cargo = path.path().join("cargo");
    std::fs::write(&cargo, "#!/bin/sh\necho 'cargo 1.65.0'\n").unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = script("prerequisites")
        .env("PATH", path.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    let needed = format!("has to be {} or later", env!("CARGO_PKG_RUST_VERSION"));
    assert!(
        said.contains("cargo 1.65.0") && said.contains(&needed),
        "{said}"
    );
}

#[test]
fn what_is_there_passes_in_silence() {
    let output = script("prerequisites")
        .args(["redis-cli"])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn make_help_lists_every_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let makefile = std::fs::read_to_string(root.join("Makefile")).unwrap();
    let targets = makefile
        .lines()
        .find_map(|line| line.strip_prefix(".PHONY: "))
        .expect("a list of targets");
    let output = Command::new("make")
        .arg("help")
        .current_dir(root)
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for target in targets.split(' ') {
        let line = format!("  make {target:<16} ");
        assert!(help.contains(&line), "{target}: {help}");
    }
    assert!(targets.contains("run demo test"));
}
