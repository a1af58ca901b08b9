//! A module that deletes the key `victim` whenever it hears of an event at a key `trigger...`.
//!
//! What it does is allowed, if not kind: a module may write to other keys in its event handlers.

use redis_module::alloc::RedisAlloc;
use redis_module::{redis_module, CallOptionsBuilder, CallResult, Context, NotifyEvent};

fn on_event(ctx: &Context, _: NotifyEvent, _: &str, key: &[u8]) {
    if key.starts_with(b"trigger") {
        let options = CallOptionsBuilder::new().replicate().build();
        let _: CallResult<'_> = ctx.call_ext("DEL", &options, &["victim"]);
    }
}

redis_module! {
    name: "meddler",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [],
    commands: [],
    event_handlers: [
        [@STRING @GENERIC @EXPIRED @NEW: on_event],
    ]
}
