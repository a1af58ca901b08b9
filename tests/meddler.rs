//! A module that deletes the key `victim` whenever it hears of an event at a key `trigger...`.
//!
//! What it does is allowed, if not kind: a module may write to other keys in its event handlers.
//!
//! `MEDDLER.CALL command [argument ...]` runs a command in the module's own name, which is that of no user.
//!
//! `MEDDLER.INCREX key BYINT increment UBOUND bound EX seconds ENX` stands in for INCREX on servers that don't have it:
//! what its documentation says of this form.

use redis_module::alloc::RedisAlloc;
use redis_module::{
    redis_module, CallOptionsBuilder, CallResult, Context, NotifyEvent, RedisError, RedisResult,
    RedisString, RedisValue,
};

fn on_event(ctx: &Context, _: NotifyEvent, _: &str, key: &[u8]) {
    if key.starts_with(b"trigger") {
        let options = CallOptionsBuilder::new().replicate().build();
        let _: CallResult<'_> = ctx.call_ext("DEL", &options, &["victim"]);
    }
}

fn call(ctx: &Context, words: Vec<RedisString>) -> RedisResult {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    let [_, command, arguments @ ..] = &words[..] else {
        return Err(RedisError::WrongArity);
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    ctx.call(command, &arguments[..])
}

fn increx(ctx: &Context, words: Vec<RedisString>) -> RedisResult {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [_, key, "BYINT", increment, "UBOUND", bound, "EX", seconds, "ENX"] = words[..] else {
        return Err(RedisError::WrongArity);
    };
    let number = |text: &str| {
        text.parse::<i64>()
            .map_err(|_| RedisError::Str("ERR no integer"))
    };
    let integer = |reply: RedisValue| match reply {
        RedisValue::Integer(value) => Ok(value),
        RedisValue::SimpleString(text) => number(&text),
        RedisValue::BulkString(text) => number(&text),
        _ => Ok(0),
    };
    let value = integer(ctx.call("GET", &[key])?)?;
    let (increment_by, bound) = (number(increment)?, number(bound)?);
    // Key and expiry are left as they are, also where the expiry is lost.
    if value + increment_by > bound {
        return Ok(RedisValue::Array(vec![value.into(), 0_i64.into()]));
    }
    ctx.call("INCRBY", &[key, increment])?;
    if integer(ctx.call("PTTL", &[key])?)? == -1 {
        ctx.call("EXPIRE", &[key, seconds])?;
    }
    Ok(RedisValue::Array(vec![
        (value + increment_by).into(),
        increment_by.into(),
    ]))
}

redis_module! {
    name: "meddler",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [],
    commands: [
        ["meddler.call", call, "write", 0, 0, 0, ""],
        ["meddler.increx", increx, "write", 1, 1, 1, ""],
    ],
    event_handlers: [
        [@STRING @GENERIC @EXPIRED @NEW: on_event],
    ]
}
