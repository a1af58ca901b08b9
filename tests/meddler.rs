//! A module that deletes the key `victim` whenever it hears of an event at a key `trigger...`.
//!
//! What it does is allowed, if not kind: a module may write to other keys in its event handlers.
//!
//! `MEDDLER.CALL command [argument ...]` runs a command in the module's own name, which is that of no user.

use redis_module::alloc::RedisAlloc;
use redis_module::{
    redis_module, CallOptionsBuilder, CallResult, Context, NotifyEvent, RedisError, RedisResult,
    RedisString,
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

redis_module! {
    name: "meddler",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [],
    commands: [
        ["meddler.call", call, "write", 0, 0, 0, ""],
    ],
    event_handlers: [
        [@STRING @GENERIC @EXPIRED @NEW: on_event],
    ]
}
