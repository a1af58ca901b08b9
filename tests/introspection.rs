//! What the server tells about the commands.

use redis::Value;

use crate::common::{module_version, Conn, Server, WITH_CATEGORIES, WITH_OWN_CATEGORY};

/// All that a reply says, in a line: arrays in brackets.
fn shown(value: &Value) -> String {
    let list = |values: &[Value]| {
        let values: Vec<String> = values.iter().map(shown).collect();
        format!("[{}]", values.join(" "))
    };
    match value {
        Value::Array(values) | Value::Set(values) => list(values),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".into(),
        Value::Int(number) => number.to_string(),
        Value::Nil => "nil".into(),
        other => format!("{other:?}"),
    }
}

/// A command's categories as the server shows them: of these the ones that it lets a module's command have.
fn shown_categories(c: &mut Conn, of_the_server: &str) -> String {
    let version = c.version();
    if version < WITH_CATEGORIES {
        "[]".into()
    } else if version < WITH_OWN_CATEGORY {
        format!("[{of_the_server}]")
    } else {
        format!("[{of_the_server} @ratelimit]")
    }
}

#[test]
fn command_info_tells_arity_flags_and_where_the_keys_are() {
    let server = Server::start_with(&["cl-throttle", "yes"]);
    let mut c = server.connect();
    let first = "begin_search [type index spec [index 1]] \
                 find_keys [type range spec [lastkey 0 keystep 1 limit 0]]";
    let counted = "begin_search [type index spec [index 1]] \
                   find_keys [type keynum spec [keynumidx 0 firstkey 1 keystep 1]]";
    for (name, arity, flags, legacy, categories, key_flags, keys) in [
        (
            "rl.hit",
            "-4",
            "write module fast",
            "1",
            "@write @fast",
            "RW access update",
            first,
        ),
        (
            "rl.peek",
            "-4",
            "readonly module fast",
            "1",
            "@read @fast",
            "RO access",
            first,
        ),
        (
            "rl.refund",
            "-4",
            "write module fast",
            "1",
            "@write @fast",
            "RW access update",
            first,
        ),
        (
            "cl.throttle",
            "-5",
            "write module fast",
            "1",
            "@write @fast",
            "RW access update",
            first,
        ),
        (
            "rl.mhit",
            "-5",
            "write module fast movablekeys",
            "0",
            "@write @fast",
            "RW access update",
            counted,
        ),
    ] {
        let Value::Array(infos) = c.run(&format!("COMMAND INFO {name}")) else {
            panic!("no info");
        };
        let Value::Array(info) = &infos[0] else {
            panic!("no info");
        };
        let categories = shown_categories(&mut c, categories);
        let shown: Vec<String> = info.iter().map(shown).collect();
        assert_eq!(
            shown[..9],
            [
                name,
                arity,
                &format!("[{flags}]"),
                legacy,
                legacy,
                legacy,
                &categories,
                "[]",
                &format!("[[flags [{key_flags}] {keys}]]"),
            ]
        );
    }
}

/// Each node has its own keys and each step its own: proxies and cluster clients learn it from the hints.
#[test]
fn command_info_tells_of_the_walks_that_they_name_no_key() {
    let server = Server::start();
    let mut c = server.connect();
    for (name, arity, flags, categories) in [
        ("rl.audit", "-2", "readonly module", "@keyspace @read @slow"),
        (
            "rl.repair",
            "-4",
            "write module",
            "@keyspace @write @slow @dangerous",
        ),
    ] {
        let categories = shown_categories(&mut c, categories);
        assert_eq!(
            shown(&c.run(&format!("COMMAND INFO {name}"))),
            format!(
                "[[{name} {arity} [{flags}] 0 0 0 {categories} [nondeterministic_output \
                 request_policy:special response_policy:special] [] []]]"
            )
        );
    }
}

#[test]
fn command_docs_tells_every_argument() {
    let server = Server::start();
    let mut c = server.connect();
    let limit_and_window = "[name limit type integer] [name window type integer]";
    let options = "[name algorithm type oneof flags [optional] arguments [\
                   [name fixed type pure-token token FIXED] \
                   [name sliding type pure-token token SLIDING] \
                   [name capacity type integer token BUCKET]]] \
                   [name cost type integer token COST flags [optional]]";
    let ms = "[name ms type pure-token token MS flags [optional]]";
    let one = format!("[name key type key key_spec_index 0] {limit_and_window} {options} {ms}");
    let many = format!(
        "[name numkeys type integer] [name key type key key_spec_index 0 flags [multiple]] \
         [name rule type block flags [multiple] arguments [{limit_and_window} {options}]] {ms}"
    );
    for (name, arguments) in [
        ("rl.hit", &one),
        ("rl.peek", &one),
        ("rl.refund", &one),
        ("rl.mhit", &many),
    ] {
        let docs = shown(&c.run(&format!("COMMAND DOCS {name}")));
        // Newer servers add a text to display, the same as the name.
        let names = "numkeys key rule limit window algorithm fixed sliding capacity cost ms";
        let docs = names.split(' ').fold(docs, |docs, name| {
            docs.replace(&format!(" display_text {name}"), "")
        });
        assert!(
            docs.contains(" since 0.1.0 group module complexity "),
            "{docs}"
        );
        let want = format!(" module rl arguments [{arguments}]]]");
        assert!(docs.ends_with(&want), "{docs}\n{want}");
    }
}

#[test]
fn command_getkeys_finds_the_key() {
    let server = Server::start_with(&["cl-throttle", "yes"]);
    let mut c = server.connect();
    for call in [
        "RL.HIT user:42 5 60 COST 2",
        "RL.PEEK user:42 5 60 COST 2",
        "RL.REFUND user:42 5 60 COST 2",
        "CL.THROTTLE user:42 15 30 60 1",
    ] {
        let keys = c.run(&format!("COMMAND GETKEYS {call}"));
        assert_eq!(shown(&keys), "[user:42]");
    }
}

#[test]
fn module_list_tells_the_version_of_the_crate() {
    let server = Server::start();
    let mut c = server.connect();
    let modules = shown(&c.run("MODULE LIST"));
    let entry = format!("name rl ver {} ", module_version());
    assert!(modules.contains(&entry), "{modules}");
}
