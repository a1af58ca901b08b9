//! From one version to the next: what a former one stored, and another file in the place of the one that runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use redis::Value;

use crate::common::{module, text, verdict, wait_until, Conn, RaiseAtEnd, Server};

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
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/swap-module.sh");
    let output = Command::new(program)
        .arg(file)
        .args(["-p", &server.port().to_string()])
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
        let setting = |c: &mut Conn, name: &str| match c.run(&format!("CONFIG GET {name}")) {
            Value::Array(words) => text(&words[1]),
            other => panic!("{other:?}"),
        };
        assert_eq!(setting(&mut c, "rl.oom-policy"), "refuse");
        assert_eq!(setting(&mut c, "rl.sweep-pattern"), "us'er:*");
    }
}

#[test]
fn a_file_that_cannot_take_the_place_is_reported() {
    let mut server = Server::start();
    let mut c = server.connect();
    // A rule that names a command is told before any connection is closed.
    c.run("ACL SETUSER ann on nopass ~* +rl.hit");
    let output = swap(&module(), &server);
    assert!(!output.status.success());
    assert!(text_of(&output).contains("user ann"), "{output:?}");
    assert_eq!(c.hit("k 5 60")[0], 1);
    c.run("ACL DELUSER ann");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("librl.so");
    fs::write(&file, "no module").unwrap();
    let output = swap(&file, &server);
    assert!(!output.status.success());
    assert!(
        text_of(&output).contains("THE MODULE IS NOT LOADED"),
        "{output:?}"
    );
    server.assert_alive();
    // And back.
    let output = swap(&module(), &server);
    assert!(server.connect().has("rl.hit"), "{output:?}");
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}
