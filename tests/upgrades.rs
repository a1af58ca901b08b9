//! From one version to the next: what a former one stored, and another file in the place of the one that runs.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use redis::Value;

use crate::common::{module, module_version, verdict, wait_until, Conn, RaiseAtEnd, Server};

/// As the first version wrote them. They are in files and on replicas, so they are read for ever.
#[test]
fn states_of_the_first_version_are_read() {
    let server = Server::start();
    let mut c = server.connect();
    for (state, ago_ms, rule, remaining) in [
        // Three of five are taken.
        ("3", 0, "5 60", 2),
        // One in this window; of three in the one before the half counts, rounded down.
        ("s:3:1:{}", 30_000, "5 60 SLIDING", 3),
        // Two and a half tokens, of which half a one has been refilled.
        ("b:150000:{}:60000", 6_000, "5 60 BUCKET 5", 3),
    ] {
        let now_ms = c.now_ms();
        let state = state.replace("{}", &(now_ms - ago_ms).to_string());
        c.run(&format!("SET k {state} PXAT {}", now_ms + 50_000));
        let peek = verdict(&c.run(&format!("RL.PEEK k {rule}"))).unwrap();
        assert_eq!(peek[..3], [1, 5, remaining], "{state}");
        assert_eq!(c.hit(&format!("k {rule}"))[..3], [1, 5, remaining - 1]);
    }
}

/// Puts a file in the place of another, as install(1) does: the one that runs stays what it was.
fn install(from: &Path, to: &Path) {
    let new = to.with_extension("new");
    fs::copy(from, &new).unwrap();
    fs::rename(new, to).unwrap();
}

/// Whether the server runs this very file, and none that was there before.
fn runs(server: &Server, file: &Path) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    let files = maps.lines().filter(|line| line.contains("librl.so"));
    let inode = format!(" {} ", fs::metadata(file).unwrap().ino());
    let mut files = files.peekable();
    files.peek().is_some() && files.all(|line| line.contains(&inode))
}

fn swap(file: &Path, server: &Server) -> Output {
    swap_with(file, server, &[])
}

fn swap_with(file: &Path, server: &Server, arguments: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/swap-module.sh");
    let output = Command::new(program)
        .arg(file)
        .args(["-p", &server.port().to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    output.unwrap()
}

#[test]
fn another_file_takes_the_place_of_the_module_under_traffic() {
    for io_threads in ["1", "3"] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("librl.so");
        install(&module(), &file);
        let load = ["--loadmodule", file.to_str().unwrap()];
        let mut server = Server::start_bare(&[&load[..], &["--io-threads", io_threads]].concat());
        let mut c = server.connect();
        c.run("CONFIG SET rl.oom-policy refuse rl.sweep-pattern us'er:*");
        drop(c);
        let (sent, allowed) = (AtomicI64::new(0), AtomicI64::new(0));
        let (cut_off, done) = (AtomicI64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let working = RaiseAtEnd(&done);
            for _ in 0..6 {
                let url = format!("redis://127.0.0.1:{}/", server.port());
                let client = redis::Client::open(url).unwrap();
                let (sent, allowed) = (&sent, &allowed);
                let (cut_off, done) = (&cut_off, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        // Between connecting and the first command it may be cut off as well.
                        let Ok(mut connection) = client.get_connection() else {
                            continue;
                        };
                        while !done.load(Ordering::SeqCst) {
                            let mut hits = redis::pipe();
                            for _ in 0..20 {
                                hits.cmd("RL.HIT").arg(&["k", "1000000000", "600"]);
                            }
                            sent.fetch_add(20, Ordering::SeqCst);
                            match hits.query::<Vec<Value>>(&mut connection) {
                                Ok(replies) => {
                                    let hits = replies.iter().map(|reply| verdict(reply).unwrap());
                                    let hits: i64 = hits.map(|hit| hit[0]).sum();
                                    allowed.fetch_add(hits, Ordering::SeqCst);
                                }
                                Err(error) => {
                                    assert!(error.is_io_error(), "{error}");
                                    cut_off.fetch_add(1, Ordering::SeqCst);
                                    break;
                                }
                            }
                        }
                    }
                });
            }
            for round in 0..6 {
                let before = allowed.load(Ordering::SeqCst);
                wait_until("hits are answered", || {
                    allowed.load(Ordering::SeqCst) > before + 100
                });
                install(&module(), &file);
                let output = swap(&file, &server);
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "round {round}: {said}");
                let said = String::from_utf8_lossy(&output.stdout);
                let version = module_version();
                let versions = format!("version {version} in the place of {version} ");
                assert!(said.contains(&versions), "round {round}: {said}");
                assert!(runs(&server, &file), "round {round}");
            }
            drop(working);
        });
        server.assert_alive();
        let mut c = server.connect();
        let count: i64 = c.get("k").unwrap().parse().unwrap();
        let (sent, allowed) = (sent.into_inner(), allowed.into_inner());
        assert!(
            (allowed..=sent).contains(&count),
            "{allowed} allowed, {sent} sent, {count} counted"
        );
        assert!(c.pttl("k") > 0);
        assert!(cut_off.into_inner() > 0, "nobody was there");
        assert_eq!(c.setting("rl.oom-policy"), "refuse");
        assert_eq!(c.setting("rl.sweep-pattern"), "us'er:*");
    }
}

/// A connection that is closed is no more.
fn is_open(c: &mut Conn) -> bool {
    matches!(c.run("PING"), Value::SimpleString(text) if text == "PONG")
}

#[test]
fn what_would_be_in_the_way_is_told_before_any_connection_is_closed() {
    let started = |more: &[&str]| Server::start_with(&[&["cl-throttle", "yes"], more].concat());
    let refuses = |server: &mut Server, arguments: &[&str], reason: &str| {
        let mut c = server.connect();
        assert!(is_open(&mut c));
        let output = swap_with(&module(), server, arguments);
        assert!(!output.status.success(), "{reason}: {output:?}");
        let said = text_of(&output);
        assert!(said.contains(reason), "{said}");
        assert!(is_open(&mut c), "{reason}");
        assert!(c.has("rl.hit") && c.has("cl.throttle"), "{reason}");
        server.assert_alive();
    };

    let mut server = started(&[]);
    for (rule, users) in [("+get +rl.hit", "ann"), ("+@all -CL.Throttle", "bob")] {
        let user = format!("ACL SETUSER {users} on >secret ~* {rule}");
        server.connect().run(&user);
        refuses(
            &mut server,
            &[],
            &format!("name commands of the module: of {users}"),
        );
        server.connect().run(&format!("ACL DELUSER {users}"));
    }
    // A subscriber isn't closed with the others, and RESP3 lets it call commands.
    let mut subscriber = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let lines = b"HELLO 3\r\nSUBSCRIBE news\r\nRL.HIT k 5 60\r\n";
    subscriber.write_all(lines).unwrap();
    let mut c = server.connect();
    wait_until("it has called", || c.get("k").is_some());
    refuses(&mut server, &[], "subscribers or links of replication");
    drop(subscriber);
    wait_until("it is gone", || {
        !c.string("CLIENT LIST").unwrap().contains("cmd=rl.hit")
    });
    for (rights, reason) in [
        ("+module", "doesn't answer this user's ECHO"),
        (
            "+echo +config|get +acl|list +client|list +client|kill",
            "doesn't tell its modules",
        ),
        (
            "+echo +acl|list +client|list +client|kill +module",
            "can't be read",
        ),
        (
            "+echo +config|get +client|list +client|kill +module",
            "doesn't list its users",
        ),
        (
            "+echo +config|get +acl|list +client|kill +module",
            "doesn't list its clients",
        ),
    ] {
        server
            .connect()
            .run(&format!("ACL SETUSER op reset on nopass {rights}"));
        refuses(
            &mut server,
            &["--user", "op", "--pass", "any", "--no-auth-warning"],
            reason,
        );
    }
    // With what the page says it needs, it works.
    server.connect().run("ACL DELUSER op");
    let rights = "+echo +config|get +acl|list +client|list +client|kill +module";
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    assert!(fs::read_to_string(page).unwrap().contains(rights));
    server
        .connect()
        .run(&format!("ACL SETUSER op on nopass {rights}"));
    let output = swap_with(&module(), &server, &["--user", "op", "--pass", "any"]);
    assert!(output.status.success(), "{output:?}");
    // What redis-cli prints otherwise isn't taken for settings.
    refuses(&mut server, &["--json"], "doesn't answer");

    let mut server = started(&["--rename-command", "CONFIG", "OTHER"]);
    refuses(&mut server, &[], "can't be read");
    let mut server = started(&["--enable-module-command", "no"]);
    refuses(&mut server, &[], "doesn't let this user unload modules");
    let server = Server::start_bare(&[]);
    let output = swap(&module(), &server);
    assert!(text_of(&output).contains("no module rl"), "{output:?}");
}

#[test]
fn settings_of_any_bytes_stay_and_can_be_written_to_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    for pattern in ["us er:*", "us'er:*", "\"x", "a\\*b", "caf\u{e9} *"] {
        fs::write(
            &file,
            format!("loadmodule {} cl-throttle yes\n", module().display()),
        )
        .unwrap();
        let mut server = Server::start_from(&file);
        let set = [
            "CONFIG",
            "SET",
            "rl.sweep-pattern",
            pattern,
            "rl.oom-policy",
            "refuse",
        ];
        assert_eq!(server.connect().run_words(&set), Value::Okay);
        let output = swap(&module(), &server);
        assert!(output.status.success(), "{pattern}: {output:?}");
        let mut c = server.connect();
        if c.rewrites_as_it_was(pattern.as_bytes()) {
            assert_eq!(c.run("CONFIG REWRITE"), Value::Okay);
            server.kill_and_restart();
            c = server.connect();
        }
        assert_eq!(c.setting("rl.sweep-pattern"), pattern);
        assert_eq!(c.setting("rl.oom-policy"), "refuse");
        assert!(c.has("cl.throttle"));
    }
    // What has a line's end in it can't be told from two settings.
    let mut server = Server::start();
    server
        .connect()
        .run_words(&["CONFIG", "SET", "rl.sweep-pattern", "a\nb"]);
    let output = swap(&module(), &server);
    assert!(text_of(&output).contains("can't be read"), "{output:?}");
    assert!(server.connect().has("rl.hit"));
    server.assert_alive();
}

#[test]
fn a_file_that_does_not_load_leaves_what_ran_before_or_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let bad = directory.path().join("bad.so");
    fs::write(&bad, "no module").unwrap();
    let mut server = Server::start_with(&["oom-policy", "refuse"]);
    let output = swap(&bad, &server);
    assert!(!output.status.success());
    let said = text_of(&output);
    assert!(said.contains("goes on with"), "{said}");
    let mut c = server.connect();
    assert_eq!(c.hit("k 5 60")[0], 1);
    assert_eq!(c.setting("rl.oom-policy"), "refuse");

    // In the place of the very file that ran there is nothing to go back to.
    let file = directory.path().join("librl.so");
    install(&module(), &file);
    let mut bare = Server::start_bare(&["--loadmodule", file.to_str().unwrap()]);
    bare.connect().run("CONFIG SET rl.oom-policy refuse");
    install(&bad, &file);
    let output = swap(&file, &bare);
    assert!(!output.status.success());
    let said = text_of(&output);
    assert!(said.contains("THE MODULE IS NOT LOADED"), "{said}");
    assert!(said.contains("rl.oom-policy=refuse"), "{said}");
    bare.assert_alive();
    server.assert_alive();
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}
