//! The settings `rl.*`: by CONFIG, in the configuration file, as load arguments.

use std::process::{Command, Stdio};

use redis::Value;
use tempfile::TempDir;

use crate::common::{module, server_program, text, wait_until, Conn, Running, Server};

const DEFAULTS: &[(&str, &str)] = &[
    ("rl.cl-throttle", "no"),
    ("rl.notify-refused", "no"),
    ("rl.oom-policy", "error"),
    ("rl.sweep-keys-per-second", "1000"),
    ("rl.sweep-pattern", ""),
    ("rl.sweep-window-seconds", "0"),
];

fn settings(c: &mut Conn) -> Vec<(String, String)> {
    let pairs: Vec<String> = match c.run("CONFIG GET rl.*") {
        Value::Array(words) => words.iter().map(text).collect(),
        other => panic!("{other:?}"),
    };
    let pairs = pairs.chunks(2);
    let mut pairs: Vec<_> = pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect();
    pairs.sort();
    pairs
}

fn with(changed: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    let mut all: Vec<_> = DEFAULTS.iter().map(owned).collect();
    for (name, value) in changed {
        let setting = all.iter_mut().find(|(known, _)| known == name).unwrap();
        setting.1 = value.to_string();
    }
    all
}

#[test]
fn config_gets_and_sets_them_and_refuses_what_is_not_possible() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(settings(&mut c), with(&[]));
    for (name, value) in [
        ("rl.notify-refused", "yes"),
        ("rl.oom-policy", "allow"),
        ("rl.oom-policy", "refuse"),
        ("rl.oom-policy", "error"),
        ("rl.sweep-keys-per-second", "1"),
        ("rl.sweep-keys-per-second", "1000000"),
        ("rl.sweep-pattern", "user:*"),
        ("rl.sweep-window-seconds", "3155760000"),
        ("rl.sweep-window-seconds", "0"),
    ] {
        assert_eq!(c.run(&format!("CONFIG SET {name} {value}")), Value::Okay);
        let got = settings(&mut c);
        assert!(got.contains(&(name.into(), value.into())), "{got:?}");
    }
    let before = settings(&mut c);
    for (name, value, complaint) in [
        ("rl.notify-refused", "maybe", "'yes' or 'no'"),
        ("rl.cl-throttle", "yes", "can't set immutable config"),
        ("rl.oom-policy", "open", "error, allow, refuse"),
        ("rl.sweep-keys-per-second", "0", "between 1 and 1000000"),
        (
            "rl.sweep-keys-per-second",
            "1000001",
            "between 1 and 1000000",
        ),
        ("rl.sweep-keys-per-second", "fast", "couldn't be parsed"),
        ("rl.sweep-window-seconds", "-1", "between 0 and 3155760000"),
        (
            "rl.sweep-window-seconds",
            "3155760001",
            "between 0 and 3155760000",
        ),
    ] {
        let text = c.error(&format!("CONFIG SET {name} {value}"));
        assert!(text.contains(complaint), "{text}");
    }
    assert!(c
        .error("CONFIG SET rl.no-such 1")
        .contains("Unknown option"));
    assert_eq!(settings(&mut c), before);
}

#[test]
fn a_pattern_of_any_bytes_is_kept_or_refused() {
    let (mut server, _file) = server_with_file("", "");
    let mut c = server.connect();
    let patterns: [&[u8]; 4] = [
        b"\xff\xfe*",
        b"a \"b\" \\ 'c' # %s\r\n",
        "schlüssel:*".as_bytes(),
        b"",
    ];
    for pattern in patterns {
        assert_eq!(
            c.run_words(&[&b"CONFIG"[..], b"SET", b"rl.sweep-pattern", pattern]),
            Value::Okay
        );
        let pair = |c: &mut Conn| c.run("CONFIG GET rl.sweep-pattern");
        let want = Value::Array(vec![
            Value::BulkString(b"rl.sweep-pattern".into()),
            Value::BulkString(pattern.into()),
        ]);
        assert_eq!(pair(&mut c), want);
        if !c.rewrites_as_it_was(pattern) {
            continue;
        }
        c.run("CONFIG REWRITE");
        server.kill_and_restart();
        c = server.connect();
        assert_eq!(pair(&mut c), want, "{}", pattern.escape_ascii());
    }
    // The server would take what is behind it for nothing when it rewrites its file.
    let reply = c.run_words(&[&b"CONFIG"[..], b"SET", b"rl.sweep-pattern", b"a\0b"]);
    let text = crate::common::error(&reply).unwrap();
    assert!(text.contains("a NUL byte can't be kept"), "{text}");
    server.assert_alive();
}

/// A server by a configuration file, which CONFIG REWRITE writes to.
fn server_with_file(arguments: &str, lines: &str) -> (Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    let load = format!("loadmodule {} {arguments}\n{lines}", module().display());
    std::fs::write(&file, load).unwrap();
    (Server::start_from(&file), directory)
}

#[test]
fn load_arguments_are_the_same_names_with_or_without_the_prefix() {
    let path = module();
    let path = path.to_str().unwrap();
    for arguments in [
        "oom-policy allow sweep-keys-per-second 50 sweep-pattern user:* notify-refused yes",
        "rl.oom-policy allow RL.Sweep-Keys-Per-Second 50 sweep-pattern user:* NOTIFY-REFUSED YES",
    ] {
        let words: Vec<&str> = ["--loadmodule", path]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        let server = Server::start_bare(&words);
        let mut c = server.connect();
        let want = with(&[
            ("rl.oom-policy", "allow"),
            ("rl.sweep-keys-per-second", "50"),
            ("rl.sweep-pattern", "user:*"),
            ("rl.notify-refused", "yes"),
        ]);
        assert_eq!(settings(&mut c), want);
        // They hold no longer than until somebody sets another value.
        c.run("CONFIG SET rl.oom-policy error");
        assert_eq!(
            settings(&mut c)[2],
            ("rl.oom-policy".into(), "error".into())
        );
    }
}

#[test]
fn a_load_argument_that_is_none_refuses_to_load_and_says_why() {
    let mut server = Server::start_bare(&[]);
    let mut c = server.connect();
    for (arguments, why) in [
        ("nonsense", "'nonsense' is no load argument"),
        ("rl.nonsense 1", "'rl.nonsense' is no load argument"),
        ("oom-polciy allow", "'oom-polciy' is no load argument"),
        ("oom-policy", "the load argument 'oom-policy' has no value"),
        (
            "oom-policy allow rl.oom-policy allow",
            "the load argument 'rl.oom-policy' stands twice",
        ),
        (
            "oom-policy open",
            "'open' is no value for the load argument oom-policy, which is error or allow or refuse",
        ),
        (
            "notify-refused 1",
            "'1' is no value for the load argument notify-refused, which is no or yes",
        ),
        (
            "cl-throttle on",
            "'on' is no value for the load argument cl-throttle, which is no or yes",
        ),
        (
            "sweep-keys-per-second 0",
            "'0' is no value for the load argument sweep-keys-per-second, which is 1 to 1000000",
        ),
        (
            "sweep-window-seconds 1h",
            "'1h' is no value for the load argument sweep-window-seconds, which is 0 to 3155760000",
        ),
    ] {
        let load = format!("MODULE LOAD {} {arguments}", module().display());
        assert!(c.error(&load).starts_with("ERR"), "{arguments}");
        let log = server.log();
        let want = format!("rl: not loaded: {why}");
        assert!(log.contains(&want), "{want}\n{log}");
        assert!(!c.has("rl.hit"), "{arguments}");
    }
    for config in ["rl.oom-policy open", "rl.nonsense 1"] {
        let load = format!("MODULE LOADEX {} CONFIG {config}", module().display());
        assert!(c.error(&load).starts_with("ERR"), "{config}");
    }
    // What a module subscribed to before it refused, some servers go on calling.
    let uptime = c.info_field("server", "uptime_in_seconds");
    wait_until("the server's cron ran", || {
        c.info_field("server", "uptime_in_seconds") != uptime
    });
    server.assert_alive();
    let load = module();
    let words: [&[u8]; 5] = [
        b"MODULE",
        b"LOAD",
        load.to_str().unwrap().as_bytes(),
        b"sweep-pattern",
        b"a\0b",
    ];
    assert!(crate::common::error(&c.run_words(&words)).is_some());
    assert!(server
        .log()
        .contains(r"'a\x00b' is no value for the load argument sweep-pattern"));

    // And loads afterwards.
    c.run(&format!(
        "MODULE LOAD {} oom-policy refuse",
        module().display()
    ));
    assert_eq!(settings(&mut c), with(&[("rl.oom-policy", "refuse")]));
}

#[test]
fn a_server_does_not_start_with_an_impossible_setting_in_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    for line in ["rl.oom-policy open", "rl.sweep-window-seconds -5"] {
        let text = format!("port 0\nloadmodule {}\n{line}\n", module().display());
        std::fs::write(&file, text).unwrap();
        let output = Command::new(server_program())
            .arg(&file)
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{line}");
    }
}

#[test]
fn a_server_without_the_module_does_not_start_over_what_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    for (line, starts) in [
        ("rl.oom-policy allow", false),
        ("user ann on nopass ~* +rl.hit", false),
        ("user ann on nopass ~* +get", true),
    ] {
        let port = crate::common::free_port();
        std::fs::write(&file, format!("port {port}\nbind 127.0.0.1\n{line}\n")).unwrap();
        let mut program = Command::new(server_program());
        let mut server = Running::start(program.arg(&file).current_dir(directory.path()));
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut started = false;
        wait_until("it starts or it ends", || {
            started = client.get_connection().is_ok();
            started || server.0.try_wait().unwrap().is_some()
        });
        assert_eq!(started, starts, "{line}");
    }
}

#[test]
fn the_file_wins_over_load_arguments_and_a_rewrite_keeps_all() {
    let (mut server, _file) =
        server_with_file("", "rl.oom-policy refuse\nrl.sweep-pattern \"user:*\"\n");
    let mut c = server.connect();
    let mut want = with(&[("rl.oom-policy", "refuse"), ("rl.sweep-pattern", "user:*")]);
    assert_eq!(settings(&mut c), want);
    c.run("CONFIG SET rl.notify-refused yes rl.sweep-window-seconds 60");
    c.run("CONFIG REWRITE");
    server.kill_and_restart();
    let mut c = server.connect();
    want[1].1 = "yes".into();
    want[5].1 = "60".into();
    assert_eq!(settings(&mut c), want);

    // Where the loadmodule line has arguments, too.
    let (mut server, _file) = server_with_file(
        "oom-policy allow sweep-window-seconds 5",
        "rl.oom-policy refuse\n",
    );
    let mut c = server.connect();
    let mut want = with(&[
        ("rl.oom-policy", "refuse"),
        ("rl.sweep-window-seconds", "5"),
    ]);
    assert_eq!(settings(&mut c), want);
    // Back to the module's own default, which is not the argument's.
    c.run("CONFIG SET rl.oom-policy error");
    c.run("CONFIG REWRITE");
    server.kill_and_restart();
    want[2].1 = "error".into();
    assert_eq!(settings(&mut server.connect()), want);
}
