//! Panics on purpose, to prove the guard: built with the feature `deliberate-panic` alone.

use std::ffi::CStr;

use redis_module::Context;

use super::Handler;
use crate::api::Argument;
use crate::errors::Error;

/// RL.PANIC
pub(crate) struct Panic;

impl Handler for Panic {
    const NAME: &'static CStr = c"rl.panic";

    fn run(_: &Context, _: &[Argument]) -> Result<(), Error> {
        on_purpose("a command");
        Ok(())
    }
}

#[allow(clippy::panic)]
pub(crate) fn on_purpose(entry: &str) {
    std::panic::panic_any(format!("on purpose, in {entry}"))
}
