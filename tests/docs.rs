//! The README and the pages: every session is run, every header held against the server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use redis::Value;

use crate::common::{built, text, verdict, Conn, Server, WITH_CATEGORIES, WITH_OWN_CATEGORY};

#[allow(dead_code)]
#[path = "../benches/chart.rs"]
mod chart;

const PROMPT: &str = "redis> ";
/// Of a session with a server that has INCREX.
const PROMPT_8_8: &str = "redis-8.8> ";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Those of the first directory, and all others.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for directory in ["", "docs", "docs/commands"] {
        let entries = std::fs::read_dir(root().join(directory)).unwrap();
        pages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// The fenced blocks of a page.
fn blocks(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let parts = text.split("```").skip(1).step_by(2);
    // The first line is the block's language.
    parts
        .map(|block| block.split_once('\n').unwrap().1.to_string())
        .collect()
}

/// A line of a reply without the remark behind it.
fn without_remark(line: &str) -> &str {
    line.split(" # ").next().unwrap().trim_end()
}

/// A server that has also the command that has to be asked for, and something in the place of INCREX.
fn with_all_commands() -> Server {
    let meddler = built("examples/libmeddler.so");
    Server::start_with(&[
        "cl-throttle",
        "yes",
        "--loadmodule",
        meddler.to_str().unwrap(),
    ])
}

#[test]
fn every_session_in_the_docs_is_what_redis_cli_shows() {
    let server = with_all_commands();
    let mut sessions = 0;
    let has_increx = server.connect().has("increx");
    for page in pages() {
        for block in blocks(&page) {
            // What INCREX is documented to do, where the server doesn't have it.
            let block = match block.starts_with(PROMPT_8_8) {
                true if has_increx => block.replace(PROMPT_8_8, PROMPT),
                true => block.replace(PROMPT_8_8, &format!("{PROMPT}MEDDLER.")),
                false => block,
            };
            if !block.starts_with(PROMPT) {
                continue;
            }
            sessions += 1;
            server.connect().run("FLUSHALL");
            // What is typed is meant to be pasted, so it goes in as it stands.
            let (typed, replies): (Vec<&str>, Vec<&str>) =
                block.lines().partition(|line| line.starts_with(PROMPT));
            let commands: Vec<&str> = typed
                .iter()
                .filter_map(|line| line.strip_prefix(PROMPT))
                .collect();
            let want: Vec<&str> = replies.into_iter().map(without_remark).collect();
            let shown = redis_cli(&server, &commands);
            let shown: Vec<&str> = shown.lines().filter(|line| !line.is_empty()).collect();
            assert_eq!(shown, want, "{}:\n{block}", page.display());
        }
    }
    assert!(sessions >= 6, "{sessions} sessions");
}

/// By its documentation, and so as far as a counter that has lost its expiry.
#[test]
fn increx_and_the_line_that_takes_its_place_give_the_same_verdicts_until_an_expiry_is_lost() {
    let server = with_all_commands();
    let mut c = server.connect();
    let name = if c.has("increx") {
        "INCREX"
    } else {
        "MEDDLER.INCREX"
    };
    let mut both = |cost: i64| -> (bool, bool) {
        let increx = format!("{name} old BYINT {cost} UBOUND 10 EX 600 ENX");
        let Value::Array(reply) = c.run(&increx) else {
            panic!("no reply");
        };
        let hit = c.hit(&format!("new 10 600 COST {cost}"));
        assert_eq!(
            reply[0],
            Value::Int(10 - hit[2]),
            "the value, and what remains"
        );
        (reply[1] == Value::Int(cost), hit[0] == 1)
    };
    let mut allowed = 0;
    for cost in [1, 3, 2, 5, 4, 1, 2, 1, 1] {
        let (by_increx, by_hit) = both(cost);
        assert_eq!(by_increx, by_hit, "{cost}");
        allowed += i64::from(by_hit) * cost;
    }
    assert_eq!(allowed, 10);
    let mut c = server.connect();
    assert!(c.pttl("old") > 0 && c.pttl("new") > 0);
    c.run("PERSIST old");
    c.run("PERSIST new");
    assert_eq!(both(1), (false, false));
    let mut c = server.connect();
    assert_eq!(c.pttl("old"), -1);
    assert!(c.pttl("new") > 0);
}

/// The scripts of the page, each with the line that takes its place.
#[test]
fn a_script_and_the_line_that_takes_its_place_give_the_same_verdicts() {
    let server = Server::start();
    let mut c = server.connect();
    let page = std::fs::read_to_string(root().join("docs/from-lua.md")).unwrap();
    let mut pairs = 0;
    for part in page.split("```lua\n-- EVAL script ").skip(1) {
        let (arguments, rest) = part.split_once('\n').unwrap();
        let (script, rest) = rest.split_once("```").unwrap();
        let hit = rest.lines().find_map(|line| line.strip_prefix("    "));
        let hit = hit.unwrap();
        c.run("FLUSHALL");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let mut allowed = 0;
        for n in 0..15 {
            let by_script = c.run_words(&[&["EVAL", script][..], &arguments].concat());
            let by_hit = verdict(&c.run(hit)).unwrap()[0];
            assert_eq!(by_script, Value::Int(by_hit), "{hit}: {n}");
            allowed += by_hit;
        }
        assert!((5..=10).contains(&allowed), "{hit}: {allowed}");
        pairs += 1;
    }
    assert_eq!(pairs, 4);
}

/// What redis-cli shows on a terminal.
fn redis_cli(server: &Server, commands: &[&str]) -> String {
    let mut cli = Command::new("redis-cli")
        .args(["--no-raw", "-p", &server.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = commands.join("\n") + "\n";
    cli.stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    String::from_utf8(cli.wait_with_output().unwrap().stdout).unwrap()
}

/// A map of a reply in RESP2: names and values in turn.
fn map(value: &Value) -> Vec<(String, Value)> {
    let Value::Array(values) = value else {
        panic!("no map: {value:?}");
    };
    values
        .chunks(2)
        .map(|pair| (text(&pair[0]), pair[1].clone()))
        .collect()
}

fn field(map: &[(String, Value)], name: &str) -> Option<Value> {
    let (_, value) = map.iter().find(|(key, _)| key == name)?;
    Some(value.clone())
}

/// The syntax that COMMAND DOCS tells: `NAME required [WORD] [WORD value] [THIS | THAT]`, and a line
/// more for each argument that is made of others: `name = ...`.
fn syntax(name: &str, docs: &[(String, Value)]) -> String {
    let mut blocks = Vec::new();
    let words = words(&field(docs, "arguments").unwrap(), &mut blocks);
    blocks.insert(0, format!("{} {words}", name.to_uppercase()));
    blocks.join("\n    ")
}

fn words(arguments: &Value, blocks: &mut Vec<String>) -> String {
    let words: Vec<String> = list(arguments)
        .iter()
        .map(|argument| word(&map(argument), blocks))
        .collect();
    words.join(" ")
}

fn word(argument: &[(String, Value)], blocks: &mut Vec<String>) -> String {
    let name = text(&field(argument, "name").unwrap());
    let token = field(argument, "token").map(|token| text(&token));
    let flags: Vec<String> = field(argument, "flags")
        .map(|flags| list(&flags).iter().map(text).collect())
        .unwrap_or_default();
    let has = |flag: &str| flags.iter().any(|name| name == flag);
    let word = match text(&field(argument, "type").unwrap()).as_str() {
        "pure-token" => token.unwrap(),
        "oneof" => {
            let parts = field(argument, "arguments").unwrap();
            let parts = list(&parts);
            let parts: Vec<String> = parts.iter().map(|part| word(&map(part), blocks)).collect();
            parts.join(" | ")
        }
        "block" => {
            let parts = words(&field(argument, "arguments").unwrap(), blocks);
            blocks.push(format!("{name} = {parts}"));
            name
        }
        _ => match token {
            Some(token) => format!("{token} {name}"),
            None => name,
        },
    };
    match (has("optional"), has("multiple")) {
        (true, _) => format!("[{word}]"),
        (false, true) => format!("{word} [{word} ...]"),
        (false, false) => word,
    }
}

fn list(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(values) | Value::Set(values) => values.clone(),
        other => panic!("no list: {other:?}"),
    }
}

fn module_commands(c: &mut Conn) -> Vec<String> {
    let Value::Array(names) = c.run("COMMAND LIST FILTERBY MODULE rl") else {
        panic!("no list");
    };
    names.iter().map(text).collect()
}

/// Since which version there is a command: one that was released, or the one that is being made.
fn since(docs: &[(String, Value)]) -> String {
    let since = text(&field(docs, "since").unwrap());
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let is_released = changelog.contains(&format!("\n## [{since}] "));
    assert!(is_released || since == env!("CARGO_PKG_VERSION"), "{since}");
    since
}

#[test]
fn every_command_has_a_page_whose_header_is_what_command_docs_tells() {
    let server = with_all_commands();
    let mut c = server.connect();
    let commands = module_commands(&mut c);
    assert_eq!(commands.len(), 7, "{commands:?}");
    for command in commands {
        let page = root().join(format!("docs/commands/{command}.md"));
        let page_text = std::fs::read_to_string(&page).unwrap();
        let docs = map(&map(&c.run(&format!("COMMAND DOCS {command}")))[0].1);
        let docs_text = |name: &str| text(&field(&docs, name).unwrap());

        let title = format!("# {}\n", command.to_uppercase());
        assert!(page_text.starts_with(&title), "{command}");
        assert_eq!(blocks(&page)[0].trim_end(), syntax(&command, &docs));
        for line in [
            docs_text("summary"),
            format!("| Available since | {} |", since(&docs)),
            format!("| Time complexity | {} |", docs_text("complexity")),
        ] {
            assert!(page_text.lines().any(|l| l == line), "{command}: {line}");
        }

        let Value::Array(infos) = c.run(&format!("COMMAND INFO {command}")) else {
            panic!("no info");
        };
        let Value::Array(info) = &infos[0] else {
            panic!("no info");
        };
        let mut flags: Vec<String> = list(&info[2]).iter().map(text).collect();
        flags.retain(|flag| flag != "module");
        let flags = format!("| Command flags | `{}` |", flags.join("` `"));
        assert!(page_text.lines().any(|l| l == flags), "{command}: {flags}");
        let mut categories: Vec<String> = list(&info[6]).iter().map(text).collect();
        if (WITH_CATEGORIES..WITH_OWN_CATEGORY).contains(&c.version()) {
            categories.push("@ratelimit".into());
        }
        if !categories.is_empty() {
            let line = format!("| ACL categories | `{}` |", categories.join("` `"));
            assert!(page_text.lines().any(|l| l == line), "{command}: {line}");
        }
    }
}

#[test]
fn the_errors_on_the_wire_stand_on_the_pages() {
    let server = with_all_commands();
    let mut c = server.connect();
    c.run("RPUSH list 1");
    c.hit("fixed 5 600");
    c.hit("sliding 5 600 SLIDING");
    c.hit("bucket 5 600 BUCKET 5");
    for (command, calls) in [
        (
            "rl.hit",
            &[
                "k 5",
                "k 5 60 SLOW",
                "k x 60",
                "k -1 60",
                "k 5 0",
                "k 5 60 BUCKET 0",
                "k 5 60 COST 0",
                "list 5 60",
                "sliding 5 60",
            ][..],
        ),
        (
            "rl.mhit",
            &[
                "x k 5 60",
                "0 k 5 60",
                "129 k 5 60",
                "2 k k 5 60 5 60",
                "2 k j 5 60",
            ],
        ),
        (
            "cl.throttle",
            &[
                "k 1 1",
                "k x 1 1",
                "k -1 1 1",
                "k 1 0 1",
                "k 1 1 0",
                "k 1 1 1 -1",
                "list 1 1 1",
                "fixed 1 1 1",
            ],
        ),
        ("rl.audit", &["", "0 COUNT 0", "0 COUNT x", "x", "0 SLOW"]),
        (
            "rl.repair",
            &["0 *", "0 * 60 SLOW", "0 * x", "x * 60", "0 * 0"],
        ),
    ] {
        let page = root().join(format!("docs/commands/{command}.md"));
        let page = std::fs::read_to_string(page).unwrap();
        for call in calls {
            let row = format!("| `{}` |", c.error(&format!("{command} {call}")));
            assert!(page.contains(&row), "{row}");
        }
    }
    c.run("CONFIG SET maxmemory 1");
    let page = std::fs::read_to_string(root().join("docs/commands/rl.hit.md")).unwrap();
    let row = format!("| `{}` |", c.error("RL.HIT k 5 60"));
    assert!(page.contains(&row), "{row}");
}

#[test]
fn the_loops_of_the_page_on_leaks_walk_over_all_keys() {
    let server = Server::start();
    let mut c = server.connect();
    let mut pipeline = redis::pipe();
    for n in 0..3_000 {
        pipeline.cmd("SET").arg(format!("k{n}")).arg("x").ignore();
    }
    pipeline.cmd("SET").arg("user:next-id").arg(7).ignore();
    for n in 0..10 {
        pipeline
            .cmd("SET")
            .arg(format!("user:4{n}"))
            .arg(n)
            .ignore();
    }
    pipeline.query::<()>(&mut c.0).unwrap();

    let loops = blocks(&root().join("docs/leaks.md"));
    let loops: Vec<_> = loops
        .iter()
        .filter(|block| block.starts_with("cursor=0"))
        .collect();
    let [audit, repair] = &loops[..] else {
        panic!("{loops:?}");
    };
    let run = |block: &str| {
        let cli = format!(
            "redis-cli() {{ command redis-cli -p {} \"$@\"; }}",
            server.port()
        );
        let output = Command::new("bash")
            .args(["-c", &format!("{cli}\n{block}")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let found = run(audit);
    let found = found.lines().filter(|line| line.starts_with("user:4"));
    assert_eq!(found.count(), 10);
    let repaired = run(repair);
    let repaired = repaired.lines().map(|line| line.parse::<u32>().unwrap());
    assert_eq!(repaired.sum::<u32>(), 10);
    assert_eq!(run(audit).trim(), "");
    // And ends, too, when there is nobody to ask, or no module.
    c.run("MODULE UNLOAD rl");
    run(audit);
    run(repair);
}

#[test]
fn the_figures_are_what_prometheus_reads() {
    let server = Server::start();
    let mut c = server.connect();
    c.hit("k 1 600");
    let scrape = |port: u16| {
        Command::new(root().join("examples/rl-metrics.sh"))
            .args(["-p", &port.to_string()])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let output = scrape(server.port());
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let figures = c.info("rl");
    for line in figures.lines().filter(|line| line.starts_with("rl_")) {
        let (name, value) = line.split_once(':').unwrap();
        let (kind, name) = match name {
            "rl_sweeper_running" => ("gauge", name.to_string()),
            _ => ("counter", format!("{name}_total")),
        };
        let want = format!("# TYPE {name} {kind}\n{name} {value}\n");
        assert!(text.contains(&want), "{want}{text}");
    }
    assert!(text.contains("rl_hits_allowed_total 1\n"));
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    for line in figures.lines().filter(|line| line.starts_with("rl_")) {
        let name = line.split(':').next().unwrap();
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
    // Nothing, and a failure, where there is no module.
    let bare = Server::start_bare(&[]);
    assert!(!scrape(bare.port()).status.success());
}

#[test]
fn the_users_of_the_page_on_operations_can_do_what_they_are_for_and_no_more() {
    let server = Server::start();
    let mut c = server.connect();
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let rules = page
        .split('`')
        .filter(|text| text.starts_with("ACL SETUSER"));
    for (rule, may, may_not) in rules
        .zip([
            (
                &[
                    "RL.HIT user:1 5 60",
                    "RL.MHIT 1 user:1 5 60",
                    "RL.REFUND user:1 5 60",
                ][..],
                &[
                    "RL.HIT other 5 60",
                    "RL.PEEK user:1 5 60",
                    "RL.REPAIR 0 * 60",
                ][..],
            ),
            (
                &["RL.PEEK user:1 5 60"],
                &["RL.HIT user:1 5 60", "RL.PEEK other 5 60"],
            ),
            (
                &["RL.AUDIT 0", "INFO rl"],
                &["RL.REPAIR 0 * 60", "GET user:1"],
            ),
            (
                &["RL.AUDIT 0", "RL.REPAIR 0 user:* 60"],
                &["RL.HIT user:1 5 60"],
            ),
        ])
        .map(|(rule, (may, may_not))| (rule, may, may_not))
    {
        assert_eq!(c.run(rule), Value::Okay, "{rule}");
        let name = rule.split(' ').nth(2).unwrap();
        let mut user = server.connect();
        assert_eq!(user.run(&format!("AUTH {name} password")), Value::Okay);
        for line in may {
            assert_eq!(
                crate::common::error(&user.run(line)),
                None,
                "{name}: {line}"
            );
        }
        for line in may_not {
            let text = user.error(line);
            assert!(text.starts_with("NOPERM"), "{name}: {line}: {text}");
        }
    }
    let users = page.matches("`ACL SETUSER").count();
    assert_eq!(users, 4);
}

#[test]
fn the_chart_is_drawn_from_the_figures_beside_it() {
    let read = |name: &str| std::fs::read_to_string(root().join("docs").join(name)).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&read("bench.json")).unwrap();
    assert!(
        chart::svg(&figures) == read("bench.svg"),
        "make bench-chart"
    );
}

#[test]
fn the_tests_on_the_page_on_testing_are_there() {
    let page = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let mut tests = 0;
    for name in page.split('`').skip(1).step_by(2) {
        let Some((file, test)) = name.rsplit_once("::").filter(|_| !name.contains(' ')) else {
            continue;
        };
        if test.ends_with("...") {
            continue;
        }
        let path = match file.strip_prefix("limiter") {
            Some("" | "::tests") => "src/limiter/mod.rs".to_string(),
            Some(rest) => format!("src/limiter/{}.rs", &rest[2..]),
            None => format!("tests/{file}.rs"),
        };
        let source = std::fs::read_to_string(root().join(&path));
        let source = source.unwrap_or_else(|_| panic!("{name}: no {path}"));
        assert!(
            source.contains(&format!("fn {test}(")) || test.is_empty(),
            "{name}"
        );
        tests += 1;
    }
    assert!(tests > 30, "{tests} tests");
}

#[test]
fn every_link_between_the_pages_leads_somewhere() {
    let mut links = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let there = std::fs::read_to_string(&target).unwrap();
                let mut headings = there.lines().filter(|line| line.starts_with("## "));
                let anchor = |line: &str| line[3..].to_lowercase().replace(' ', "-");
                let found = headings.any(|line| anchor(line) == heading);
                assert!(found, "{}: {link}", page.display());
            }
        }
    }
    assert!(links >= 5, "{links} links");
}

#[test]
fn the_example_configuration_starts_a_server() {
    let configuration = std::fs::read_to_string(root().join("examples/redis.conf")).unwrap();
    let module = crate::common::module();
    let placed = "loadmodule /usr/lib/redis/modules/librl.so";
    assert!(configuration.contains(placed));
    let here = format!("loadmodule {}", module.display());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redis.conf");
    let here = configuration
        .replace(placed, &here)
        .replace("dir /var/lib/redis\n", "");
    std::fs::write(&file, here).unwrap();

    // The file comes first; the port and the directory of the test win over its own.
    let server = Server::start_from(&file);
    let mut c = server.connect();
    assert_eq!(c.hit("k 3 60"), [1, 3, 2, 0, 60]);
}
