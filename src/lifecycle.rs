//! Loading and unloading.

use std::borrow::Cow;
use std::ffi::CStr;
use std::panic;

use redis_module::{Context, RedisValue, Status};

use crate::api::{self, Argument};
use crate::command::{guard, Command};
use crate::{config, sweeper, COMMANDS};

/// Before the names of the module's INFO sections and configuration, and in MODULE LIST.
pub(crate) const NAME: &CStr = c"rl";

/// As MODULE LIST shows it: 1.2.3 is 10203.
pub(crate) const VERSION: i32 = version([
    env!("CARGO_PKG_VERSION_MAJOR"),
    env!("CARGO_PKG_VERSION_MINOR"),
    env!("CARGO_PKG_VERSION_PATCH"),
]);

/// The ACL category of every command of the module, where the server lets modules have one.
const CATEGORY: &CStr = c"ratelimit";

pub(crate) fn load(ctx: &Context, arguments: &[Argument]) -> Status {
    let status = status(guard(|| {
        panic::set_hook(Box::new(|panic| api::log_warning(&panic.to_string())));
        try_load(ctx, arguments)
    }));
    if status == Status::Err {
        guard(release);
    }
    status
}

/// The one thing that the server refuses by itself is a name that is taken, and it doesn't say why.
pub(crate) fn refuse_another() -> Status {
    let reason =
        "not loaded: there is a module named rl already. Is its loadmodule line there twice?";
    status(Some(Err(reason.into())))
}

pub(crate) fn unload(ctx: &Context) -> Status {
    let status = status(guard(|| try_unload(ctx)));
    if status == Status::Ok {
        guard(release);
    }
    status
}

/// Gives back what the module holds of the server.
fn release() {
    sweeper::release();
    config::release();
    api::release();
}

/// Logs why the server is told no. A panic has logged itself.
fn status(outcome: Option<Result<(), String>>) -> Status {
    match outcome {
        Some(Ok(())) => Status::Ok,
        Some(Err(reason)) => {
            api::log_warning(&reason);
            Status::Err
        }
        None => Status::Err,
    }
}

fn try_load(ctx: &Context, arguments: &[Argument]) -> Result<(), String> {
    #[cfg(feature = "deliberate-panic")]
    if arguments
        .iter()
        .any(|argument| argument.bytes() == b"panic")
    {
        crate::command::panic::on_purpose("load");
    }
    if !api::has_command_info() {
        return Err("not loaded: it takes Redis 7.0 or later, or Valkey".into());
    }
    // What the server can't look up by name it doesn't replicate.
    let needed = [c"SET", c"DEL"];
    if !needed.iter().all(|name| api::has_command(ctx, name)) {
        return Err(
            "not loaded: SET or DEL has another name here (rename-command), and \
                    they are what replicas and the AOF get of a limiter"
                .into(),
        );
    }
    api::set_options(ctx, is_valkey(ctx));
    // Before the commands: they depend on the settings.
    config::load(ctx, arguments)?;
    let has_own_category = api::add_acl_category(ctx, CATEGORY);
    for command in commands() {
        register(ctx, command, has_own_category)?;
    }
    if !api::add_info(ctx) {
        return Err("not loaded: the server refuses the figures for INFO".into());
    }
    if !api::has_command(ctx, c"SETRANGE") {
        api::log_warning("rl.oom-policy has no effect: SETRANGE has another name here");
    }
    api::acquire();
    // Events come last: Redis 7.0 goes on calling a module that subscribed and then refused to load.
    #[cfg(feature = "deliberate-panic")]
    api::panic_on_flush(ctx);
    if !api::add_cron(ctx) {
        return Err("not loaded: the server refuses the cron's event".into());
    }
    Ok(())
}

/// Those that the server has.
fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().filter(|command| (command.is_on)())
}

fn is_valkey(ctx: &Context) -> bool {
    ctx.call("INFO", &["server"])
        .is_ok_and(|info| text(&info).contains("\nvalkey_version:"))
}

fn register(ctx: &Context, command: &Command, has_own_category: bool) -> Result<(), String> {
    let name = command.name.to_string_lossy();
    let registered = api::create_command(
        ctx,
        command.name,
        command.entry,
        command.flags,
        command.docs.keys,
    )
    .ok_or_else(|| {
        format!("not loaded: the server refuses the command {name}; another module may have it")
    })?;
    if !registered.set_docs(command.docs) {
        return Err(format!("not loaded: the server refuses the docs of {name}"));
    }
    let mut categories = Cow::from(command.categories);
    if has_own_category {
        categories = format!("{categories} {}", CATEGORY.to_string_lossy()).into();
    }
    // Redis 7.0 has no categories for a module's commands; they are granted by name there.
    registered.set_acl_categories(&categories);
    Ok(())
}

/// Refuses while the server still holds on to a command of the module, which it does not forget
/// together with the module: many servers abort when they come back to it.
fn try_unload(ctx: &Context) -> Result<(), String> {
    #[cfg(feature = "deliberate-panic")]
    crate::command::panic::on_purpose("unload");

    let Ok(RedisValue::Array(users)) = ctx.call("ACL", &["LIST"]) else {
        return Err("not unloaded: ACL LIST doesn't tell whether a rule names a command".into());
    };
    for user in &users {
        if let Some((user, command)) = named_command(&text(user)) {
            return Err(format!(
                "not unloaded: the ACL rules of user '{user}' name {command}; take that out first"
            ));
        }
    }
    // Who asks is on the list. An empty one is that of a server on which the command has another name.
    let clients = ctx.call("CLIENT", &["LIST"]).unwrap_or(RedisValue::Null);
    let clients = text(&clients);
    if clients.is_empty() {
        return Err("not unloaded: CLIENT LIST doesn't tell who uses a command".into());
    }
    if let Some((id, reason)) = clients.lines().find_map(user_of_a_command) {
        return Err(format!(
            "not unloaded: client {id} {reason}; stop the clients that use rl.* and close their \
             connections first (CLIENT KILL TYPE normal)"
        ));
    }
    Ok(())
}

fn text(reply: &RedisValue) -> Cow<'_, str> {
    match reply {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => text.into(),
        RedisValue::StringBuffer(bytes) => String::from_utf8_lossy(bytes),
        _ => "".into(),
    }
}

/// The user and the command, if a line of ACL LIST (`user NAME on +get (-rl.hit ~x*)`) has a rule
/// for a command of the module.
fn named_command(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ').skip(1);
    let user = words.next()?;
    let command = words
        .filter_map(|word| {
            let rule = word.trim_start_matches('(').trim_end_matches(')');
            rule.strip_prefix(['+', '-']).map(command_of)
        })
        .find(|name| is_of_the_module(name))?;
    Some((user, command))
}

/// The id of a client, and how it holds on to a command of the module, by its line of CLIENT LIST
/// (`id=7 ... multi=-1 ... cmd=rl.hit ...`).
fn user_of_a_command(line: &str) -> Option<(&str, &str)> {
    // From the end: the path of a Unix socket, which comes first, may look like anything.
    let field = |name| line.rsplit(' ').find_map(|word| word.strip_prefix(name));
    let id = field("id=")?;
    if field("cmd=").is_some_and(|name| is_of_the_module(command_of(name))) {
        return Some((id, "has run one of its commands last"));
    }
    // What is queued there, or waits behind a command that blocks, the server doesn't tell.
    let queued: i64 = field("multi=")?.parse().ok()?;
    if queued > 0 {
        return Some((id, "has a transaction open"));
    }
    let blocked = field("flags=")?.contains('b');
    blocked.then_some((id, "is blocked, and may have commands waiting"))
}

/// The name of a command, without the first argument that a rule can name too: `rl.hit|x`.
fn command_of(name: &str) -> &str {
    name.split('|').next().unwrap_or(name)
}

fn is_of_the_module(name: &str) -> bool {
    let name = name.as_bytes();
    commands().any(|command| name.eq_ignore_ascii_case(command.name.to_bytes()))
}

/// Two digits for each part.
const fn version(parts: [&str; 3]) -> i32 {
    let [major, minor, patch] = parts;
    number(major)
        .wrapping_mul(100)
        .wrapping_add(number(minor))
        .wrapping_mul(100)
        .wrapping_add(number(patch))
}

const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_number_of_two_digits_a_part() {
        assert_eq!(version(["0", "1", "0"]), 100);
        assert_eq!(version(["1", "2", "3"]), 10_203);
        assert_eq!(version(["12", "34", "56"]), 123_456);
    }

    #[test]
    fn a_rule_that_names_a_command_is_found_wherever_it_stands() {
        for rules in [
            "on nopass +rl.hit",
            "on nopass -@all -rl.hit",
            "on nopass +RL.Hit",
            "off +rl.hit|first",
            "on ~* &* -@all (~x* -@all +rl.hit)",
            "on ~* (+rl.hit ~x*) (~y* +get)",
        ] {
            let line = format!("user ann {rules}");
            let found = named_command(&line).map(|(user, name)| (user, name.to_lowercase()));
            assert_eq!(found, Some(("ann", "rl.hit".to_string())), "{rules}");
        }
    }

    #[test]
    fn other_rules_are_not_taken_for_one() {
        for line in [
            "user default on nopass sanitize-payload ~* &* +@all",
            "user ann on ~rl.hit &+rl.hit -@all +@ratelimit +get",
            "user +rl.hit on ~* +get",
            "user ann on +rl.hits +rl.hi +rl",
            "user ann on ~a\u{a0}+rl.hit +get",
            "user ann\u{3000}+rl.hit on +get",
            "",
            "user",
        ] {
            assert_eq!(named_command(line), None, "{line}");
        }
    }

    #[test]
    fn a_client_that_holds_on_to_a_command_is_found() {
        for (line, found) in [
            (
                "id=7 addr=1:2 name= multi=-1 cmd=rl.hit user=default",
                Some("7"),
            ),
            ("id=7 name=cmd=x multi=-1 cmd=RL.HIT", Some("7")),
            ("id=8 flags=x multi=2 cmd=get", Some("8")),
            ("id=8 flags=b multi=-1 cmd=blpop", Some("8")),
            (
                "id=8 addr=/a cmd=ping multi=-1 b:0 flags=x multi=1 cmd=get",
                Some("8"),
            ),
            (
                "id=8 addr=/a cmd=ping multi=-1 b:0 flags=U multi=-1 cmd=rl.hit",
                Some("8"),
            ),
            ("id=9 flags=x multi=0 cmd=multi", None),
            ("id=9 name=rl.hit flags=N multi=-1 cmd=module|unload", None),
            ("id=9 flags=N multi=-1 cmd=rl.hits", None),
            ("", None),
        ] {
            assert_eq!(user_of_a_command(line).map(|(id, _)| id), found, "{line}");
        }
    }
}
