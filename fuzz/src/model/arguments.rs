//! The command line, read a second time: from the syntax and the errors of the command pages.
//!
//! First all words are told apart, then the numbers are read: a word in the wrong place is an error
//! before a number is.

use super::{integer, possible, throttle, Algorithm, Call, LAST_MS};

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// What a line says, or the text of its error.
pub(crate) type Read<T> = Result<T, String>;

type Words<'a> = &'a [&'a [u8]];

#[derive(Debug, PartialEq)]
pub(crate) struct OneLimiter<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) rule: Call,
    pub(crate) in_ms: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) struct ManyLimiters<'a> {
    pub(crate) keys: Vec<&'a [u8]>,
    pub(crate) rules: Vec<Call>,
    pub(crate) in_ms: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Throttled<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) rule: throttle::Call,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Walk<'a> {
    pub(crate) cursor: &'a [u8],
    pub(crate) pattern: &'a [u8],
    pub(crate) count: i128,
    /// Of RL.REPAIR.
    pub(crate) end_ms: Option<i128>,
}

/// `key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]`
pub(crate) fn one_limiter<'a>(
    command: &str,
    words: Words<'a>,
    now_ms: i128,
) -> Read<OneLimiter<'a>> {
    let [key, limit, window, options @ ..] = words else {
        return Err(arity(command));
    };
    let (options, rest) =
        options_at_the_start(options, &["FIXED", "SLIDING", "MS"], &["BUCKET", "COST"])?;
    if !rest.is_empty() {
        return Err(SYNTAX.into());
    }
    let in_ms = options.iter().any(|(name, _)| *name == "MS");
    let rule = rule(command, limit, window, &options, in_ms, now_ms)?;
    Ok(OneLimiter { key, rule, in_ms })
}

/// `numkeys key [key ...] rule [rule ...] [MS]`
pub(crate) fn many_limiters<'a>(
    command: &str,
    words: Words<'a>,
    now_ms: i128,
) -> Read<ManyLimiters<'a>> {
    let keys = keys(command, words)?;
    let mut rest = &words[1 + keys.len()..];
    let mut in_ms = false;
    let mut rules = Vec::new();
    while !rest.is_empty() {
        if rest.len() == 1 && rest[0].eq_ignore_ascii_case(b"MS") {
            in_ms = true;
            break;
        }
        // A word that is no option starts the next rule.
        let [limit, window, behind @ ..] = rest else {
            return Err(SYNTAX.into());
        };
        let (options, behind) =
            options_at_the_start(behind, &["FIXED", "SLIDING"], &["BUCKET", "COST"])?;
        rules.push((limit, window, options));
        rest = behind;
    }
    if rules.len() != keys.len() {
        return Err(SYNTAX.into());
    }
    let rules = rules
        .iter()
        .map(|(limit, window, options)| rule(command, limit, window, options, in_ms, now_ms))
        .collect::<Read<Vec<Call>>>()?;
    // The pages don't say whether this comes before the numbers; the module looks at it last.
    for (at, key) in keys.iter().enumerate() {
        if keys[..at].contains(key) {
            return Err(format!("ERR duplicate key in '{command}' command"));
        }
    }
    Ok(ManyLimiters { keys, rules, in_ms })
}

/// The keys at the start of `numkeys key [key ...] ...`. Their number goes before all: without it
/// there is no telling what the other words are.
pub(crate) fn keys<'a>(command: &str, words: Words<'a>) -> Read<Vec<&'a [u8]>> {
    let [numkeys, rest @ ..] = words else {
        return Err(arity(command));
    };
    match integer(numkeys) {
        None => Err(NOT_AN_INTEGER.into()),
        Some(..1) => Err("ERR numkeys should be greater than 0".into()),
        Some(129..) => Err(format!("ERR too many keys in '{command}' command")),
        Some(numkeys) => {
            let keys: Vec<_> = rest.iter().copied().take(numkeys as usize).collect();
            if keys.len() < numkeys as usize {
                return Err(SYNTAX.into());
            }
            Ok(keys)
        }
    }
}

/// `key max_burst count period [quantity]`
pub(crate) fn throttled<'a>(command: &str, words: Words<'a>, now_us: i128) -> Read<Throttled<'a>> {
    let (key, max_burst, count, period, quantity) = match *words {
        [key, max_burst, count, period] => (key, max_burst, count, period, &b"1"[..]),
        [key, max_burst, count, period, quantity] => (key, max_burst, count, period, quantity),
        _ => return Err(arity(command)),
    };
    let rule = throttle::Call {
        max_burst: at_least(0, max_burst, "max_burst", command)?,
        count: at_least(1, count, "count", command)?,
        period_seconds: at_least(1, period, "period", command)?,
        quantity: at_least(0, quantity, "quantity", command)?,
    };
    throttle::possible(&rule, now_us).map_err(|name| invalid(name, command))?;
    Ok(Throttled { key, rule })
}

/// `cursor [MATCH pattern] [COUNT count]`
pub(crate) fn audit<'a>(command: &str, words: Words<'a>) -> Read<Walk<'a>> {
    let [cursor, options @ ..] = words else {
        return Err(arity(command));
    };
    let (options, rest) = options_at_the_start(options, &[], &["MATCH", "COUNT"])?;
    if !rest.is_empty() {
        return Err(SYNTAX.into());
    }
    let cursor = checked_cursor(cursor)?;
    let count = count(&options)?;
    Ok(Walk {
        cursor,
        pattern: value_of(&options, "MATCH").unwrap_or(b"*"),
        count,
        end_ms: None,
    })
}

/// `cursor pattern window [COUNT count] [MS]`
pub(crate) fn repair<'a>(command: &str, words: Words<'a>, now_ms: i128) -> Read<Walk<'a>> {
    let [cursor, pattern, window, options @ ..] = words else {
        return Err(arity(command));
    };
    let (options, rest) = options_at_the_start(options, &["MS"], &["COUNT"])?;
    if !rest.is_empty() {
        return Err(SYNTAX.into());
    }
    let in_ms = options.iter().any(|(name, _)| *name == "MS");
    let cursor = checked_cursor(cursor)?;
    let end_ms = now_ms + window_ms(command, window, in_ms)?;
    let count = count(&options)?;
    if end_ms > LAST_MS {
        return Err(invalid("window", command));
    }
    Ok(Walk {
        cursor,
        pattern,
        count,
        end_ms: Some(end_ms),
    })
}

type Options<'a> = Vec<(&'static str, Option<&'a [u8]>)>;

/// The options that the words begin with, and what is behind them. The value of an option is the
/// word behind it, whatever it is. Each option may stand once, and of the algorithms one.
fn options_at_the_start<'a>(
    words: Words<'a>,
    alone: &[&'static str],
    with_value: &[&'static str],
) -> Read<(Options<'a>, Words<'a>)> {
    let named = |names: &[&'static str], word: &[u8]| {
        let mut names = names.iter().copied();
        names.find(|name| word.to_ascii_uppercase() == name.as_bytes())
    };
    let mut options = Options::new();
    let mut at = 0;
    while at < words.len() {
        if let Some(name) = named(alone, words[at]) {
            options.push((name, None));
            at += 1;
        } else if let Some(name) = named(with_value, words[at]) {
            let value = words.get(at + 1).ok_or(SYNTAX)?;
            options.push((name, Some(value)));
            at += 2;
        } else {
            break;
        }
    }
    let times = |wanted: &[&str]| {
        let is_wanted = |(name, _): &&(&str, _)| wanted.contains(name);
        options.iter().filter(is_wanted).count()
    };
    for group in [
        &["FIXED", "SLIDING", "BUCKET"][..],
        &["COST"],
        &["MS"],
        &["MATCH"],
        &["COUNT"],
    ] {
        if times(group) > 1 {
            return Err(SYNTAX.into());
        }
    }
    Ok((options, &words[at..]))
}

fn value_of<'a>(options: &Options<'a>, wanted: &str) -> Option<&'a [u8]> {
    options.iter().find(|(name, _)| *name == wanted)?.1
}

/// "Numbers of a rule are checked as the syntax names them: limit, window, capacity, cost; then
/// whether its end fits."
fn rule(
    command: &str,
    limit: &[u8],
    window: &[u8],
    options: &Options<'_>,
    in_ms: bool,
    now_ms: i128,
) -> Read<Call> {
    let limit = at_least(0, limit, "limit", command)?;
    let window_ms = window_ms(command, window, in_ms)?;
    let algorithm = if let Some(capacity) = value_of(options, "BUCKET") {
        Algorithm::Bucket {
            capacity: at_least(1, capacity, "capacity", command)?,
        }
    } else if options.iter().any(|(name, _)| *name == "SLIDING") {
        Algorithm::Sliding
    } else {
        Algorithm::Fixed
    };
    let cost = value_of(options, "COST").unwrap_or(b"1");
    let call = Call {
        algorithm,
        limit,
        window_ms,
        cost: at_least(1, cost, "cost", command)?,
    };
    possible(&call, now_ms).map_err(|name| invalid(name, command))?;
    Ok(call)
}

fn window_ms(command: &str, window: &[u8], in_ms: bool) -> Read<i128> {
    Ok(at_least(1, window, "window", command)? * if in_ms { 1 } else { 1_000 })
}

/// At most 1000, and 10 without the option.
fn count(options: &Options<'_>) -> Read<i128> {
    match integer(value_of(options, "COUNT").unwrap_or(b"10")) {
        None => Err(NOT_AN_INTEGER.into()),
        Some(..1) => Err(SYNTAX.into()),
        Some(count) => Ok(count.min(1_000)),
    }
}

/// "An integer from 0 to 2^64-1."
fn checked_cursor(cursor: &[u8]) -> Read<&[u8]> {
    let text = std::str::from_utf8(cursor).unwrap_or_default();
    match text.parse::<u64>() {
        Ok(value) if value.to_string() == text => Ok(cursor),
        _ => Err("ERR invalid cursor".into()),
    }
}

fn at_least(least: i128, text: &[u8], name: &str, command: &str) -> Read<i128> {
    match integer(text) {
        None => Err(NOT_AN_INTEGER.into()),
        Some(value) if value < least => Err(invalid(name, command)),
        Some(value) => Ok(value),
    }
}

fn invalid(name: &str, command: &str) -> String {
    format!("ERR invalid {name} in '{command}' command")
}

fn arity(command: &str) -> String {
    format!("ERR wrong number of arguments for '{command}' command")
}
