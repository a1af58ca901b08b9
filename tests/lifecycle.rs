//! Loading, unloading, and what stays.

use std::io::Write;
use std::net::TcpStream;

use crate::common::{module, soak, wait_until, Conn, Server};

#[test]
fn the_module_unloads_and_the_data_stays() {
    let mut server = Server::start();
    let mut c = server.connect();
    c.hit("k 3 600");
    c.hit("k 3 600");
    let before = c.picture("k");

    for _ in 0..3 {
        assert_eq!(c.string("MODULE UNLOAD rl").as_deref(), Some("OK"));
        assert!(c.error("RL.HIT k 3 600").starts_with("ERR unknown command"));
        assert_eq!(c.picture("k"), before);
        let load = format!("MODULE LOAD {}", module().display());
        assert_eq!(c.string(&load).as_deref(), Some("OK"));
    }
    assert_eq!(c.hit("k 3 600")[..3], [1, 3, 0]);
    assert_eq!(c.hit("k 3 600")[..3], [0, 3, 0]);
    assert_eq!(c.run("MODULE UNLOAD rl"), redis::Value::Okay);
    assert_eq!(c.integer("INCR k"), 4);
    server.assert_alive();
}

#[test]
fn the_module_does_not_unload_while_an_acl_user_names_its_command() {
    let mut server = Server::start();
    let mut c = server.connect();
    for rules in ["+rl.hit", "+@all -RL.HIT", "-@all (+rl.hit ~a*)"] {
        c.run(&format!("ACL SETUSER ann on nopass ~* {rules}"));
        let refused = c.error("MODULE UNLOAD rl");
        assert!(
            refused.starts_with("ERR Error unloading module"),
            "{rules}: {refused}"
        );
        // Some servers aborted here, with the module gone.
        c.run("ACL LIST");
        c.run("ACL GETUSER ann");
        server.assert_alive();
        assert_eq!(c.hit("k 100 600")[0], 1);
        c.run("ACL DELUSER ann");
    }
    let log = server.log();
    // Valkey 9 looks for itself, and says so.
    assert!(
        log.contains("not unloaded: the ACL rules of user 'ann' name rl.hit; take that out first")
            || log.contains("An ACL user has reference to rule"),
    );
    assert_eq!(c.string("MODULE UNLOAD rl").as_deref(), Some("OK"));
    server.assert_alive();
}

/// A rule that changes nothing is kept by some servers and forgotten by others.
#[test]
fn a_rule_that_takes_away_what_was_not_given_does_no_harm() {
    let mut server = Server::start();
    let mut c = server.connect();
    c.run("ACL SETUSER ann on nopass ~* -rl.hit");
    c.run("MODULE UNLOAD rl");
    c.run("ACL LIST");
    c.run("ACL GETUSER ann");
    server.assert_alive();
}

#[test]
fn a_user_with_a_category_is_no_hindrance_and_keeps_its_rights() {
    let mut server = Server::start();
    let mut c = server.connect();
    let users = [
        "ann on nopass ~* -@all +@ratelimit",
        "bob on nopass ~* +@all -@ratelimit",
    ];
    for user in users {
        if crate::common::error(&c.run(&format!("ACL SETUSER {user}"))).is_some() {
            // Redis 7.0 has no such category.
            assert!(!matches!(
                c.run("ACL CAT ratelimit"),
                redis::Value::Array(_)
            ));
            return;
        }
    }
    let load = format!("MODULE LOAD {}", module().display());
    for _ in 0..3 {
        let (mut ann, mut bob) = (server.connect(), server.connect());
        ann.run("AUTH ann any");
        bob.run("AUTH bob any");
        assert_eq!(ann.hit("k 99 600")[0], 1);
        assert!(bob.error("RL.HIT k 99 600").starts_with("NOPERM"));
        assert!(ann.error("GET k").starts_with("NOPERM"));
        drop((ann, bob));
        wait_until("they are gone", || {
            c.string("CLIENT LIST").unwrap().lines().count() == 1
        });
        assert_eq!(c.string("MODULE UNLOAD rl").as_deref(), Some("OK"));
        c.run("ACL LIST");
        server.assert_alive();
        assert_eq!(c.string(&load).as_deref(), Some("OK"));
    }
    server.assert_alive();
}

/// Many servers keep a pointer to the command that a connection ran last, or has queued, and abort
/// when they come back to it after the module is gone.
#[test]
fn the_module_does_not_unload_while_a_connection_holds_on_to_its_command() {
    let mut server = Server::start();
    let (mut admin, mut c) = (server.connect(), server.connect());
    let refused = |admin: &mut Conn| {
        let text = admin.error("MODULE UNLOAD rl");
        assert!(text.starts_with("ERR Error unloading module"), "{text}");
    };

    c.hit("k 100 600");
    refused(&mut admin);
    assert!(server
        .log()
        .contains("has run one of its commands last; stop the clients"));
    assert_eq!(c.hit("k 100 600")[0], 1);

    for line in ["MULTI", "RL.HIT k 100 600", "GET k"] {
        c.run(line);
    }
    refused(&mut admin);
    assert!(server
        .log()
        .contains("has a transaction open; stop the clients"));
    assert_ne!(c.run("EXEC"), redis::Value::Nil);

    // A transaction of the caller's own.
    for line in ["MULTI", "MODULE UNLOAD rl", "RL.HIT k 100 600"] {
        admin.run(line);
    }
    assert_ne!(admin.run("EXEC"), redis::Value::Nil);
    assert_eq!(admin.get("k").as_deref(), Some("4"));

    // Commands that wait behind one that blocks.
    let mut blocked = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let commands = b"*3\r\n$5\r\nBLPOP\r\n$1\r\nq\r\n$1\r\n0\r\n\
        *4\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n$3\r\n100\r\n$3\r\n600\r\n";
    blocked.write_all(commands).unwrap();
    wait_until("it is blocked", || {
        admin.info_field("clients", "blocked_clients").as_deref() == Some("1")
    });
    c.run("PING");
    refused(&mut admin);
    admin.run("RPUSH q 1");
    wait_until("it goes on", || admin.get("k").as_deref() == Some("5"));
    server.assert_alive();
    drop(blocked);

    // A call that waits until a pause is over.
    admin.run("CLIENT PAUSE 60000 WRITE");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| c.hit("k 100 600"));
        wait_until("the hit waits", || {
            admin.info_field("clients", "blocked_clients").as_deref() == Some("1")
        });
        refused(&mut admin);
        admin.run("CLIENT UNPAUSE");
        assert_eq!(waiting.join().unwrap()[0], 1);
    });

    admin.run("CLIENT KILL TYPE normal SKIPME yes");
    assert_eq!(admin.string("MODULE UNLOAD rl").as_deref(), Some("OK"));
    admin.run("CLIENT LIST");
    server.assert_alive();
}

/// What can't be asked could be the very thing that the server then crashes over.
#[test]
fn the_module_does_not_unload_where_it_can_not_ask_who_uses_a_command() {
    for (renamed, reason) in [
        (
            "ACL",
            "not unloaded: ACL LIST doesn't tell whether a rule names a command",
        ),
        (
            "CLIENT",
            "not unloaded: CLIENT LIST doesn't tell who uses a command",
        ),
    ] {
        let mut server = Server::start_with(&["--rename-command", renamed, "OTHER"]);
        let mut c = server.connect();
        let refused = c.error("MODULE UNLOAD rl");
        assert!(
            refused.starts_with("ERR Error unloading module"),
            "{renamed}: {refused}"
        );
        assert!(server.log().contains(reason), "{renamed}");
        assert_eq!(c.hit("k 3 600")[0], 1);
        server.assert_alive();
    }
}

#[test]
fn loading_and_unloading_leave_no_memory_behind() {
    let server = Server::start();
    let mut c = server.connect();
    let load = format!("MODULE LOAD {}", module().display());
    let mut round = |times: usize| -> i64 {
        for _ in 0..times {
            c.run("MODULE UNLOAD rl");
            c.error(&format!("{load} no-such-argument"));
            assert_eq!(c.string(&load).as_deref(), Some("OK"));
        }
        let used = c.info_field("memory", "used_memory").unwrap();
        used.parse().unwrap()
    };
    round(5);
    let before = round(1);
    let after = round(50);
    assert!(after - before < 100_000, "{before} -> {after}");
}

#[test]
fn loading_twice_is_refused_and_the_server_lives() {
    let mut server = Server::start();
    let mut c = server.connect();
    let load = format!("MODULE LOAD {}", module().display());
    for _ in 0..3 {
        assert!(c
            .error(&load)
            .starts_with("ERR Error loading the extension"));
        assert_eq!(c.hit("k 100 600")[0], 1);
    }
    server.assert_alive();
    let log = server.log();
    assert!(log.contains("there is a module named rl already"), "{log}");
}

#[test]
fn a_load_argument_that_is_none_is_refused() {
    let mut server = Server::start_bare(&[]);
    let mut c = server.connect();
    let load = format!("MODULE LOAD {}", module().display());
    let refused = c.error(&format!("{load} sweep %s%n"));
    assert!(
        refused.starts_with("ERR Error loading the extension"),
        "{refused}"
    );
    assert!(server
        .log()
        .contains("not loaded: 'sweep' is no load argument"));
    let refused = c.error(&format!("{load} %s%n%x"));
    assert!(
        refused.starts_with("ERR Error loading the extension"),
        "{refused}"
    );
    assert!(server
        .log()
        .contains("not loaded: '%s%n%x' is no load argument"));
    server.assert_alive();
    assert_eq!(c.string(&load).as_deref(), Some("OK"));
    assert_eq!(c.hit("k 3 600")[0], 1);
}

/// The server looks up by name what a module replicates: with SET renamed, nothing would be.
#[test]
fn a_server_on_which_an_effect_is_renamed_is_refused() {
    for renamed in ["SET", "DEL"] {
        let mut server = Server::start_bare(&[
            "--rename-command",
            renamed,
            "OTHER",
            "--rename-command",
            "COMMAND",
            "",
        ]);
        let mut c = server.connect();
        let load = format!("MODULE LOAD {}", module().display());
        let refused = c.error(&load);
        assert!(
            refused.starts_with("ERR Error loading the extension"),
            "{refused}"
        );
        let reason = "not loaded: SET or DEL has another name here";
        assert!(server.log().contains(reason), "{renamed}");
        server.assert_alive();
    }
}

/// 'Nobody noticed' is no measure of a leak: the server's own figure is.
#[test]
fn calls_of_every_kind_leave_no_memory_behind() {
    let server = Server::start_with(&["cl-throttle", "yes"]);
    let mut c = server.connect();
    c.run("RPUSH list 5");
    c.run("SET text hello");
    c.run("SET mangled s:1:2");
    let mut round = |times: usize| -> i64 {
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for _ in 0..times {
            for call in [
                "RL.HIT k 1000000000 600",
                "RL.HIT k 0 600",
                "RL.HIT never 5 600 COST 6",
                "RL.HIT list 5 600",
                "RL.HIT text 5 600",
                "RL.HIT k x 600",
                "RL.HIT k 5 600 SLOW",
                "RL.HIT s 5 600 SLIDING",
                "RL.HIT b 5 600 BUCKET 3",
                "RL.HIT b 5 600",
                "RL.HIT mangled 5 600 SLIDING",
                "RL.PEEK s 5 600 SLIDING",
                "RL.PEEK never 5 600",
                "RL.PEEK list 5 600",
                "RL.REFUND s 5 600 SLIDING",
                "RL.REFUND b 5 600 BUCKET 3 COST 3",
                "RL.REFUND text 5 600",
                "RL.MHIT 3 k s b 1000000000 600 9 600 SLIDING 5 600 BUCKET 3",
                "RL.MHIT 2 k never 9999999999 600 0 600",
                "RL.MHIT 2 k list 5 600 5 600",
                "RL.MHIT 2 k k 5 600 5 600",
                "RL.MHIT 2 k b 5 600",
                "SET leaked 5",
                "RL.AUDIT 0 MATCH * COUNT 100",
                "RL.AUDIT x",
                "RL.REPAIR 0 l* 600 COUNT 100",
                "RL.REPAIR 0 l* 0",
                "CL.THROTTLE t 1000000 1 60",
                "CL.THROTTLE t 0 1 60",
                "CL.THROTTLE text 1 1 60",
                "CL.THROTTLE k 1 0 60",
            ] {
                let mut words = call.split(' ');
                pipeline.cmd(words.next().unwrap());
                for word in words {
                    pipeline.arg(word);
                }
            }
        }
        let _: Vec<redis::Value> = pipeline.query(&mut c.0).unwrap();
        c.run("MEMORY PURGE");
        let used = c.info_field("memory", "used_memory").unwrap();
        used.parse().unwrap()
    };
    round(1_000);
    let before = round(1_000);
    // Half a million calls, or ten million: one byte lost in each would show.
    let rounds = if soak().is_some() { 400 } else { 20 };
    for _ in 0..rounds {
        round(1_000);
    }
    let after = round(1_000);
    assert!(after - before < 100_000, "{before} -> {after}");
}
