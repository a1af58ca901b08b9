//! What every command has in common: the guard around each entry into the module, and the error
//! reply.

pub(crate) mod args;
pub(crate) mod audit;
pub(crate) mod mhit;
pub(crate) mod one;
pub(crate) mod oom;
#[cfg(feature = "deliberate-panic")]
pub(crate) mod panic;
pub(crate) mod repair;
pub(crate) mod throttle;

use std::ffi::CStr;
use std::panic::{catch_unwind, AssertUnwindSafe};

use redis_module::Context;

use crate::api::{self, Argument};
use crate::docs::Docs;
use crate::errors::Error;

/// A row of the table of commands.
pub(crate) struct Command {
    pub(crate) name: &'static CStr,
    pub(crate) entry: api::Entry,
    pub(crate) flags: &'static CStr,
    /// ACL categories, separated by blanks.
    pub(crate) categories: &'static str,
    pub(crate) docs: &'static Docs,
    /// Whether the server gets the command.
    pub(crate) is_on: fn() -> bool,
}

impl Command {
    pub(crate) const fn new<H: Handler>(
        flags: &'static CStr,
        categories: &'static str,
        docs: &'static Docs,
    ) -> Self {
        Self {
            name: H::NAME,
            entry: api::entry::<H>,
            flags,
            categories,
            docs,
            is_on: || true,
        }
    }

    /// Only if a setting says so.
    pub(crate) const fn only_if(mut self, is_on: fn() -> bool) -> Self {
        self.is_on = is_on;
        self
    }
}

/// A command's handler.
pub(crate) trait Handler {
    /// In lower case, as error texts name it.
    const NAME: &'static CStr;

    /// Does what the command is for, and replies; an error is replied by the caller.
    ///
    /// Nothing that can panic may run between the first reply call and the last: the client would
    /// wait for the rest of an array.
    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error>;
}

/// Runs a handler behind the guard; there is a reply whatever happens.
pub(crate) fn answer<H: Handler>(ctx: &Context, args: &[Argument]) {
    if let Err(error) = guard(|| H::run(ctx, args)).unwrap_or(Err(Error::Internal)) {
        api::reply_error(ctx, &error.text(&H::NAME.to_string_lossy()));
    }
}

/// Runs what the server called. A panic in it ends here, as `None`: beyond lies the server, which
/// it would abort. What it was about, the panic hook has logged.
pub(crate) fn guard<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body))
        // Dropping what the panic carries could panic again.
        .map_err(std::mem::forget)
        .ok()
}
