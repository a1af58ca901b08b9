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
mod config;
mod docs;
mod errors;
mod key;
mod lifecycle;
mod limiter;
mod reply;
mod stats;
mod sweeper;

use command::audit::Audit;
use command::mhit::Mhit;
use command::one::{Hit, Peek, Refund};
use command::repair::Repair;
use command::throttle::Throttle;
use command::Command;

#[rustfmt::skip]
const COMMANDS: &[Command] = &[
    // RL.HIT key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]
    Command::new::<Hit>(c"write fast", "write fast", &docs::HIT),
    // RL.PEEK key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]
    Command::new::<Peek>(c"readonly fast", "read fast", &docs::PEEK),
    // RL.REFUND key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]
    Command::new::<Refund>(c"write fast", "write fast", &docs::REFUND),
    // RL.MHIT numkeys key [key ...] rule [rule ...] [MS]
    //         rule: limit window [FIXED | SLIDING | BUCKET capacity] [COST cost]
    Command::new::<Mhit>(c"write fast getkeys-api", "write fast", &docs::MHIT),
    // RL.AUDIT cursor [MATCH pattern] [COUNT count]
    Command::new::<Audit>(c"readonly", "read keyspace slow", &docs::AUDIT),
    // RL.REPAIR cursor pattern window [COUNT count] [MS]
    Command::new::<Repair>(c"write", "write keyspace slow dangerous", &docs::REPAIR),
    // CL.THROTTLE key max_burst count period [quantity], with the setting rl.cl-throttle
    Command::new::<Throttle>(c"write fast", "write fast", &docs::THROTTLE).only_if(config::has_cl_throttle),

    #[cfg(feature = "deliberate-panic")]
    Command::new::<command::panic::Panic>(c"fast", "fast", &docs::PANIC),
];

/// The server's own allocator, so that its memory figures and limits count the module too.
/// Unit tests run without a server, so without it.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;
