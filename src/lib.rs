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

/// The server's own allocator, so that its memory figures and limits count the module too.
/// Unit tests run without a server, so without it.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;
