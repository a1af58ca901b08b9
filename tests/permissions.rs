//! What the ACL makes of the commands, and that none touches a key that it doesn't name.

use redis::Value;

use crate::common::{error, Conn, Server, WITH_CATEGORIES, WITH_OWN_CATEGORY};

/// What a user needs: the command, and of the keys `a...` reading, or reading and writing.
enum Keys {
    Read,
    ReadAndWrite,
    /// None: what it does depends on the keys that the user has.
    Any,
}

const COMMANDS: &[(&str, &str, Keys)] = &[
    ("rl.hit", "RL.HIT a1 9 60", Keys::ReadAndWrite),
    ("rl.peek", "RL.PEEK a1 9 60", Keys::Read),
    ("rl.refund", "RL.REFUND a1 9 60", Keys::ReadAndWrite),
    ("rl.mhit", "RL.MHIT 2 c1 a1 9 60 9 60", Keys::ReadAndWrite),
    ("rl.mhit", "RL.MHIT 2 a1 c1 9 60 9 60", Keys::ReadAndWrite),
    ("cl.throttle", "CL.THROTTLE a1 9 1 60", Keys::ReadAndWrite),
    ("rl.audit", "RL.AUDIT 0 COUNT 100", Keys::Any),
    ("rl.repair", "RL.REPAIR 0 * 60 COUNT 100", Keys::Any),
];

/// What a user is answered who sends the call by itself, in a transaction, from a script and from a
/// function: none of them may do what another may not.
fn answers(user: &mut Conn, call: &str) -> [Value; 4] {
    let words: Vec<&str> = call.split(' ').collect();
    let direct = user.run(call);
    user.run("MULTI");
    let queued = user.run(call);
    let executed = user.run("EXEC");
    let transaction = match executed {
        Value::Array(mut replies) => replies.remove(0),
        _ => queued,
    };
    let script = "return redis.call(unpack(ARGV))";
    let script = user.run_words(&[&["EVAL", script, "0"][..], &words].concat());
    let function = user.run_words(&[&["FCALL", "any", "0"][..], &words].concat());
    [direct, transaction, script, function]
}

#[test]
fn a_command_that_is_denied_is_denied_in_transactions_scripts_and_functions_too() {
    let server = Server::start_with(&["cl-throttle", "yes"]);
    let mut c = server.connect();
    let function = "#!lua name=any\nredis.register_function('any', function(_, words) \
                    return redis.call(unpack(words)) end)";
    c.run_words(&["FUNCTION", "LOAD", function]);
    for (name, call, keys) in COMMANDS {
        for (rules, read, write) in [
            ("+{} ~a* ~c*", true, true),
            ("+{} %RW~a* %RW~c*", true, true),
            ("+{} ~*", true, true),
            ("+{} ~c*", false, false),
            ("+{}", false, false),
            ("+{} %R~a* ~c*", true, false),
            ("+{} %W~a* ~c*", false, true),
        ] {
            let rules = rules.replace("{}", name);
            let may = match keys {
                Keys::Read => read,
                Keys::ReadAndWrite => read && write,
                Keys::Any => true,
            };
            holds(&server, &mut c, &rules, call, may);
        }
        for rules in ["~*", "+@all -{} ~*", "+get +set ~*"] {
            holds(&server, &mut c, &rules.replace("{}", name), call, false);
        }
    }
}

/// That the user may, or may not, in each of the ways; and that what is refused changes nothing.
fn holds(server: &Server, c: &mut Conn, rules: &str, call: &str, may: bool) {
    // Without an expiry, so that the least touch would be seen.
    for key in ["a1", "b1", "c1"] {
        let value = if call.starts_with("CL.") {
            "1700000000000000000"
        } else {
            "2"
        };
        c.run(&format!("SET {key} {value}"));
    }
    let before = c.data(i64::MIN);
    c.run("ACL DELUSER ann");
    let user = "ann on nopass -@all +eval +fcall +multi +exec";
    assert_eq!(c.run(&format!("ACL SETUSER {user} {rules}")), Value::Okay);
    let mut ann = server.connect();
    ann.run("AUTH ann any");
    let answers = answers(&mut ann, call);
    for answer in &answers {
        let refused = error(answer);
        assert_eq!(refused.is_none(), may, "{rules}: {call}: {refused:?}");
    }
    if may {
        return;
    }
    for answer in &answers[..2] {
        let text = error(answer).unwrap();
        assert!(text.starts_with("NOPERM"), "{rules}: {call}: {text}");
    }
    assert_eq!(c.data(i64::MIN), before, "{rules}: {call}");
}

/// RL.AUDIT, RL.REPAIR and the sweeper look at keys that they don't name; what they may see and change
/// is held by the tests of theirs.
#[test]
fn no_command_touches_a_key_that_it_does_not_name() {
    let mut server = Server::start();
    let mut c = server.connect();
    let mut others = Vec::new();
    for (n, value) in ["7", "2550", "s:1:2:3", "b:5:1796000000000:1000", "text", ""]
        .iter()
        .enumerate()
    {
        for (kind, life) in [("leaked", &[][..]), ("running", &["PX", "600000"])] {
            let key = format!("{kind}{n}");
            c.run_words(&[&["SET", &key, value][..], life].concat());
            others.push(key);
        }
    }
    for line in [
        "RPUSH list 1",
        "HSET hash a 1",
        "SADD set 1",
        "ZADD zset 1 a",
    ] {
        c.run(line);
        others.push(line.split(' ').nth(1).unwrap().into());
    }
    let picture = |c: &mut Conn| -> Vec<(Value, Value, Value, i64)> {
        let look = |key: &String| {
            let (kind, dump, end_ms, _) = c.picture(key);
            (kind, dump, c.run(&format!("OBJECT ENCODING {key}")), end_ms)
        };
        others.iter().map(look).collect()
    };
    let before = picture(&mut c);
    let count = c.integer("DBSIZE");
    for algorithm in ["FIXED", "SLIDING", "BUCKET 5"] {
        for setup in [
            "DEL k k2",
            "PERSIST k",
            "PEXPIRE k 600000",
            "SET k 9",
            "RPUSH k2 x",
        ] {
            c.run(setup);
            for call in [
                "RL.PEEK k {}",
                "RL.REFUND k {}",
                "RL.HIT k {}",
                "RL.HIT k {} COST 9",
                "RL.REFUND k {} COST 9",
                "RL.MHIT 2 k k2 {} {}",
                "RL.MHIT 2 k2 k {} 0 60",
                "RL.MHIT 9 k k2 leaked0 {} {}",
                "RL.MHIT 3 k leaked0 k {} {} {}",
                "RL.HIT k {} leaked0",
                "RL.HIT k {} COST leaked0",
            ] {
                let call = call.replace("{}", &format!("5 60 {algorithm}"));
                c.run(&call);
                assert_eq!(picture(&mut c), before, "{setup}: {call}");
            }
        }
        c.run("DEL k k2");
    }
    assert_eq!(c.integer("DBSIZE"), count);
    server.assert_alive();
}

#[test]
fn a_category_grants_the_command_where_the_server_has_them() {
    let server = Server::start();
    let mut c = server.connect();
    let version = c.version();
    if version < WITH_CATEGORIES {
        // Redis 7.0: a module's commands are granted by name.
        c.run("ACL SETUSER ann on nopass -@all +@write +@fast ~*");
        let mut ann = server.connect();
        ann.run("AUTH ann any");
        assert!(ann.error("RL.HIT k 9 60").starts_with("NOPERM"));
        return;
    }
    for (rules, granted) in [
        ("-@all +@ratelimit", true),
        ("-@all +@write", true),
        ("-@all +@fast", true),
        ("-@all +@read", false),
        ("+@all -@ratelimit", false),
    ] {
        c.run("ACL DELUSER ann");
        let rule = format!("ACL SETUSER ann on nopass ~* {rules}");
        if rules.contains("@ratelimit") && version < WITH_OWN_CATEGORY {
            assert!(c.error(&rule).contains("Unknown command or category"));
            continue;
        }
        c.run(&rule);
        let mut ann = server.connect();
        ann.run("AUTH ann any");
        let refused = error(&ann.run("RL.HIT k 9 60"));
        assert_eq!(refused.is_none(), granted, "{rules}: {refused:?}");
    }
}
