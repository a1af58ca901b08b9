//! Files: what the AOF gets, and what a restarted server holds, with the module or without.

use redis::{Parser, Value};

use crate::common::{Conn, Server};

const AOF: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// Limiters that were hit, refused and repaired.
fn fill(c: &mut Conn) {
    c.run("SET leaked 3");
    c.run("SET blocked 2550");
    for call in [
        "fresh 5 600",
        "fresh 5 600",
        "full 1 600",
        "full 1 600",
        "leaked 5 600",
        "blocked 5 600",
        "costly 1000 600 COST 999",
    ] {
        c.hit(call);
    }
}

#[test]
fn an_aof_restores_values_and_ends_with_and_without_the_module() {
    let mut server = Server::start_with(AOF);
    let mut c = server.connect();
    fill(&mut c);
    let before = c.data(i64::MIN);
    assert_eq!(before.len(), 5);
    assert!(before.iter().all(|(_, _, end_ms)| *end_ms > 0));

    server.kill_and_restart();
    let mut c = server.connect();
    assert_eq!(c.data(i64::MIN), before);
    assert_eq!(c.hit("fresh 5 600")[..3], [1, 5, 2]);
    assert_eq!(c.hit("full 1 600")[..3], [0, 1, 0]);

    let before = c.data(i64::MIN);
    server.kill_and_restart_without_module();
    assert_eq!(server.connect().data(i64::MIN), before);
}

#[test]
fn the_aof_gets_one_set_for_each_change_and_nothing_for_a_refusal() {
    let server = Server::start_with(AOF);
    let mut c = server.connect();
    let mut want = Vec::new();
    for (call, changes) in [
        ("k 2 600", true),
        ("k 2 600", true),
        ("k 2 600", false),
        ("k 0 600", false),
        ("other 0 600", false),
    ] {
        c.hit(call);
        if changes {
            want.push(c.effect("k"));
        }
    }
    assert_eq!(appended(&server), want);
}

/// The commands that the AOF got since it was begun, the choice of the database left out.
fn appended(server: &Server) -> Vec<String> {
    let directory = server.directory().join("appendonlydir");
    let file = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .expect("an AOF");
    let bytes = std::fs::read(file).unwrap();
    let (mut rest, mut parser) = (bytes.as_slice(), Parser::new());
    let mut commands = Vec::new();
    while let Ok(command) = parser.parse_value(&mut rest) {
        commands.push(crate::common::stream::words(&command));
    }
    commands.retain(|command| !command.starts_with("SELECT "));
    commands
}

#[test]
fn an_rdb_file_restores_values_and_ends_with_and_without_the_module() {
    let mut server = Server::start();
    let mut c = server.connect();
    fill(&mut c);
    let before = c.data(i64::MIN);

    c.run("DEBUG RELOAD");
    assert_eq!(c.data(i64::MIN), before);

    c.run("SAVE");
    server.kill_and_restart();
    let mut c = server.connect();
    assert_eq!(c.data(i64::MIN), before);
    assert_eq!(c.hit("fresh 5 600")[..3], [1, 5, 2]);

    c.run("SAVE");
    let before = c.data(i64::MIN);
    server.kill_and_restart_without_module();
    assert_eq!(server.connect().data(i64::MIN), before);
}

#[test]
fn a_rewritten_aof_restores_values_and_ends() {
    for preamble in ["yes", "no"] {
        let mut arguments = AOF.to_vec();
        arguments.extend(["--aof-use-rdb-preamble", preamble]);
        let mut server = Server::start_with(&arguments);
        let mut c = server.connect();
        fill(&mut c);
        c.run("BGREWRITEAOF");
        crate::common::wait_until("the AOF is rewritten", || {
            let field = |c: &mut Conn, name| c.info_field("persistence", name).unwrap();
            field(&mut c, "aof_rewrite_in_progress") == "0"
                && field(&mut c, "aof_rewrite_scheduled") == "0"
        });
        c.hit("fresh 5 600");
        let before = c.data(i64::MIN);
        server.kill_and_restart_without_module();
        assert_eq!(
            server.connect().data(i64::MIN),
            before,
            "preamble {preamble}"
        );
    }
}

#[test]
fn a_dump_is_restored_as_a_limiter() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("k 3 600");
    let Value::BulkString(dump) = c.run("DUMP k") else {
        panic!("no dump");
    };
    let end_ms = c.integer("PEXPIRETIME k").to_string();
    c.run_words(&[&b"RESTORE"[..], b"r", end_ms.as_bytes(), &dump, b"ABSTTL"]);
    assert_eq!(c.hit("r 3 600")[..3], [1, 3, 1]);
    assert_eq!(c.integer("PEXPIRETIME r").to_string(), end_ms);
}
