//! Loading and unloading.

use std::borrow::Cow;
use std::ffi::CStr;
use std::panic;

use redis_module::{Context, RedisString, RedisValue, Status};

use crate::command::{guard, Command};
use crate::{api, COMMANDS};

/// As MODULE LIST shows it: 1.2.3 is 10203.
pub(crate) const VERSION: i32 = version([
    env!("CARGO_PKG_VERSION_MAJOR"),
    env!("CARGO_PKG_VERSION_MINOR"),
    env!("CARGO_PKG_VERSION_PATCH"),
]);

/// The ACL category of every command of the module, where the server lets modules have one.
const CATEGORY: &CStr = c"ratelimit";

pub(crate) fn load(ctx: &Context, arguments: &[RedisString]) -> Status {
    status(guard(|| {
        panic::set_hook(Box::new(|panic| api::log_warning(&panic.to_string())));
        try_load(ctx, arguments)
    }))
}

pub(crate) fn unload(ctx: &Context) -> Status {
    status(guard(|| try_unload(ctx)))
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

fn try_load(ctx: &Context, arguments: &[RedisString]) -> Result<(), String> {
    if let Some(argument) = arguments.first() {
        let argument = argument.to_string_lossy();
        return Err(format!("not loaded: '{argument}' is no load argument"));
    }
    if !knows_set(ctx) {
        return Err(
            "not loaded: SET has another name here (rename-command), and SET is what \
                    replicas and the AOF get of a limiter"
                .into(),
        );
    }
    api::set_options(ctx);
    api::keep_words();
    let has_own_category = api::add_acl_category(ctx, CATEGORY);
    for command in COMMANDS {
        register(ctx, command, has_own_category)?;
    }
    #[cfg(feature = "deliberate-panic")]
    api::panic_on_flush(ctx);
    Ok(())
}

fn register(ctx: &Context, command: &Command, has_own_category: bool) -> Result<(), String> {
    let name = command.name.to_string_lossy();
    let registered = api::create_command(ctx, command.name, command.entry, command.flags)
        .ok_or_else(|| format!("not loaded: the server refuses the command {name}"))?;
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

/// Whether there is a command named SET: what the server can't look up it doesn't replicate.
fn knows_set(ctx: &Context) -> bool {
    match ctx.call("COMMAND", &["INFO", "SET"]) {
        Ok(RedisValue::Array(infos)) => infos.first() != Some(&RedisValue::Null),
        _ => true,
    }
}

/// Refuses while an ACL rule names a command of the module: some servers keep such a rule by a
/// number that stands for the command, and abort when they can't turn it into a name again.
fn try_unload(ctx: &Context) -> Result<(), String> {
    #[cfg(feature = "deliberate-panic")]
    crate::command::panic::on_purpose("unload");
    let Ok(RedisValue::Array(lines)) = ctx.call("ACL", &["LIST"]) else {
        return Err("not unloaded: ACL LIST doesn't tell whether a rule names a command".into());
    };
    for line in &lines {
        if let Some((user, command)) = named_command(&text(line)) {
            return Err(format!(
                "not unloaded: the ACL rules of user '{user}' name {command}; take that out first"
            ));
        }
    }
    api::free_words();
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
    let mut words = line.split_whitespace().skip(1);
    let user = words.next()?;
    let command = words
        .filter_map(|word| {
            let rule = word.trim_start_matches('(').trim_end_matches(')');
            let name = rule.strip_prefix(['+', '-'])?;
            // A rule can name a first argument too: +rl.hit|x.
            Some(name.split('|').next().unwrap_or(name))
        })
        .find(|name| {
            COMMANDS.iter().any(|command| {
                name.as_bytes()
                    .eq_ignore_ascii_case(command.name.to_bytes())
            })
        })?;
    Some((user, command))
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
            "",
            "user",
        ] {
            assert_eq!(named_command(line), None, "{line}");
        }
    }
}
