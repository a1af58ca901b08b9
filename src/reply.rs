//! The one place that knows the order of a reply's fields, and their unit.

use std::ffi::c_long;

use redis_module::{raw, Context};

use crate::api;
use crate::key::LeakedKey;
use crate::limiter::Verdict;

/// The unit of a call's window and of the times in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    pub(crate) const fn ms(self) -> i64 {
        match self {
            Self::Seconds => 1_000,
            Self::Milliseconds => 1,
        }
    }

    /// Always up: a caller that waits for as long as it was told is never early.
    fn round_up(self, ms: i64) -> i64 {
        match self {
            Self::Seconds => (ms / 1_000).saturating_add(i64::from(ms % 1_000 > 0)),
            Self::Milliseconds => ms,
        }
    }
}

/// Replies the verdict: allowed, limit, remaining, retry_after, reset_after.
pub(crate) fn verdict(ctx: &Context, verdict: &Verdict, unit: Unit) {
    let fields = [
        i64::from(verdict.allowed),
        verdict.limit,
        verdict.remaining,
        retry_after(verdict.retry_after_ms, unit),
        unit.round_up(verdict.reset_after_ms),
    ];
    five(ctx, fields);
}

#[inline]
fn five(ctx: &Context, fields: [i64; 5]) {
    raw::reply_with_array(ctx.ctx, 5);
    for field in fields {
        raw::reply_with_long_long(ctx.ctx, field);
    }
}

/// Replies as redis-cell does: limited, limit, remaining, retry_after, reset_after, where retry_after is -1
/// also for a call that is let through.
pub(crate) fn throttled(ctx: &Context, verdict: &Verdict) {
    let limited = !verdict.allowed;
    let retry_after_ms = verdict.retry_after_ms.filter(|_| limited);
    let fields = [
        i64::from(limited),
        verdict.limit,
        verdict.remaining,
        retry_after(retry_after_ms, Unit::Seconds),
        Unit::Seconds.round_up(verdict.reset_after_ms),
    ];
    five(ctx, fields);
}

/// Replies what holds for all verdicts together, and each: allowed, retry_after, verdicts.
pub(crate) fn verdicts<'a>(
    ctx: &Context,
    verdicts: impl ExactSizeIterator<Item = &'a Verdict> + Clone,
    unit: Unit,
) {
    let allowed = verdicts.clone().all(|verdict| verdict.allowed);
    // Of those that refused; one that never can be allowed is the longest of all.
    let retry_after_ms = verdicts
        .clone()
        .map(|verdict| verdict.retry_after_ms)
        .try_fold(0, |longest: i64, retry_after_ms| {
            retry_after_ms.map(|retry_after_ms| longest.max(retry_after_ms))
        });
    raw::reply_with_array(ctx.ctx, 3);
    raw::reply_with_long_long(ctx.ctx, i64::from(allowed));
    raw::reply_with_long_long(ctx.ctx, retry_after(retry_after_ms, unit));
    // 128 at the most.
    raw::reply_with_array(ctx.ctx, verdicts.len() as c_long);
    for each in verdicts {
        verdict(ctx, each, unit);
    }
}

/// Replies a step of a walk: the cursor to go on with, and each key with its value.
pub(crate) fn leaked(ctx: &Context, cursor: &[u8], found: &[LeakedKey<'_>]) {
    raw::reply_with_array(ctx.ctx, 2);
    api::reply_bytes(ctx, cursor);
    raw::reply_with_array(ctx.ctx, found.len().saturating_mul(2) as c_long);
    for leaked in found {
        api::reply_bytes(ctx, leaked.name().bytes());
        api::reply_bytes(ctx, leaked.text());
    }
}

/// Replies a step of a walk: the cursor to go on with, and how many limiters were repaired.
pub(crate) fn repaired(ctx: &Context, cursor: &[u8], repaired: usize) {
    raw::reply_with_array(ctx.ctx, 2);
    api::reply_bytes(ctx, cursor);
    raw::reply_with_long_long(ctx.ctx, repaired as i64);
}

fn retry_after(retry_after_ms: Option<i64>, unit: Unit) -> i64 {
    retry_after_ms.map_or(-1, |retry_after_ms| unit.round_up(retry_after_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_the_unit() {
        for (ms, seconds) in [
            (0, 0),
            (1, 1),
            (999, 1),
            (1_000, 1),
            (1_001, 2),
            (57_900, 58),
            (i64::MAX, i64::MAX / 1_000 + 1),
        ] {
            assert_eq!(Unit::Seconds.round_up(ms), seconds, "{ms}");
            assert_eq!(Unit::Milliseconds.round_up(ms), ms);
        }
    }
}
