//! redis-rl: rate limiting for Redis and Valkey in one atomic call.

// The server outlives any input: nothing that can panic, outside tests.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod api;
mod command;
mod docs;
mod errors;
mod key;
mod lifecycle;
mod limiter;
mod reply;

use command::{hit::Hit, Command};

#[rustfmt::skip]
const COMMANDS: &[Command] = &[
    // RL.HIT key limit window [FIXED] [COST cost] [MS]
    Command::new::<Hit>(c"write deny-oom fast", "write fast", &docs::HIT),

    #[cfg(feature = "deliberate-panic")]
    Command::new::<command::panic::Panic>(c"fast", "fast", &docs::PANIC),
];

// The macro makes the server's entry points, which are unsafe code, and the module's allocator:
// the server's own, so that its memory figures and limits count the module too.
#[allow(unsafe_code)]
mod module {
    use crate::lifecycle::{load, unload, VERSION};

    #[cfg(not(test))]
    use redis_module::alloc::RedisAlloc as Allocator;
    // Unit tests run without a server, so without its allocator.
    #[cfg(test)]
    use std::alloc::System as Allocator;

    redis_module::redis_module! {
        name: "rl",
        version: VERSION,
        allocator: (Allocator, Allocator),
        data_types: [],
        init: load,
        deinit: unload,
        commands: [],
    }
}
