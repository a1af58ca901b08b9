//! A panic anywhere in the module ends at the guard. The build of the module that this loads panics
//! on purpose: in a command, in an event, and while it is unloaded.

use std::path::PathBuf;

use crate::common::{built, Server};

fn panicking_module() -> PathBuf {
    built("librl-panics.so")
}

#[test]
fn a_panic_is_an_error_reply_and_the_server_lives() {
    let module = panicking_module();
    let mut server = Server::start_bare(&["--loadmodule", module.to_str().unwrap()]);
    let mut c = server.connect();

    assert_eq!(c.error("RL.PANIC k"), "ERR internal error");
    server.assert_alive();

    assert_eq!(c.string("FLUSHALL").as_deref(), Some("OK"));
    server.assert_alive();

    let refused = c.error("MODULE UNLOAD rl");
    assert!(
        refused.starts_with("ERR Error unloading module"),
        "{refused}"
    );
    server.assert_alive();

    // The connection, scripts, transactions and the other commands go on.
    assert_eq!(c.hit("k 2 60"), [1, 2, 1, 0, 60]);
    let script = "return redis.pcall('RL.PANIC', KEYS[1]).err";
    assert_eq!(
        c.run_words(&["EVAL", script, "1", "k"]),
        redis::Value::BulkString(b"ERR internal error".into())
    );
    for line in ["MULTI", "RL.PANIC k", "RL.HIT k 2 60", "EXEC"] {
        c.run(line);
    }
    assert_eq!(c.get("k").as_deref(), Some("2"));
    for _ in 0..1_000 {
        c.error("RL.PANIC k");
    }
    server.assert_alive();

    let log = server.log();
    for entry in ["a command", "an event", "unload"] {
        // By the server's own means: what Rust says goes to where nobody looks.
        let lines = log.split("rl: panicked at ").skip(1);
        let mut reasons = lines.filter_map(|said| said.lines().nth(1));
        let reason = format!("on purpose, in {entry}");
        assert!(reasons.any(|said| said.contains(&reason)), "{entry}");
    }
}

#[test]
fn a_panic_while_it_is_loaded_is_a_refusal_and_the_server_lives() {
    let mut server = Server::start_bare(&[]);
    let mut c = server.connect();
    let load = format!("MODULE LOAD {} panic", panicking_module().display());
    let refused = c.error(&load);
    assert!(
        refused.starts_with("ERR Error loading the extension"),
        "{refused}"
    );
    let log = server.log();
    assert!(log.contains("rl: panicked at "), "{log}");
    assert!(log.contains("on purpose, in load"), "{log}");
    server.assert_alive();
}

#[test]
fn the_build_for_users_has_no_command_that_panics() {
    let server = Server::start();
    assert!(!server.connect().has("rl.panic"));
}
