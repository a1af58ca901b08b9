//! What a hit is answered that would have to make a limiter, while the server is out of memory.

use redis_module::Context;

use crate::api::{self, Argument};
use crate::config::{self, OomPolicy};
use crate::errors::Error;
use crate::stats;

/// Whether the policy lets a hit through whose limiter, of this name, can't be made; `None` if it
/// can. Counts the call.
///
/// # Errors
///
/// [`Error::OutOfMemory`], if that is the policy.
pub(crate) fn lets_through(ctx: &Context, missing: &Argument) -> Result<Option<bool>, Error> {
    if !api::out_of_memory(ctx, missing) {
        return Ok(None);
    }
    match config::oom_policy() {
        OomPolicy::Error => {
            stats::OOM_ERRORS.add(1);
            Err(Error::OutOfMemory)
        }
        OomPolicy::Allow => {
            stats::OOM_ALLOWED.add(1);
            Ok(Some(true))
        }
        OomPolicy::Refuse => {
            stats::OOM_REFUSED.add(1);
            Ok(Some(false))
        }
    }
}
