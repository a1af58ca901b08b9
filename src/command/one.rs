//! The commands about one limiter.
//!
//! ```text
//! RL.HIT    key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]
//! RL.PEEK   key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]
//! RL.REFUND key limit window [FIXED | SLIDING | BUCKET capacity] [COST cost] [MS]
//! ```

use std::ffi::CStr;

use redis_module::Context;

use super::args::Call;
use super::{oom, Handler};
use crate::api::{self, Argument, Mode};
use crate::errors::Error;
use crate::key::{notify_refused, LimiterKey, ROOM};
use crate::limiter::{self, Action, Change, Stored, Unfit, Verdict};
use crate::{config, reply, stats};

pub(crate) struct Hit;
pub(crate) struct Peek;
pub(crate) struct Refund;

impl Handler for Hit {
    const NAME: &'static CStr = c"rl.hit";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        answer(ctx, args, Action::Hit)
    }
}

impl Handler for Peek {
    const NAME: &'static CStr = c"rl.peek";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        answer(ctx, args, Action::Peek)
    }
}

impl Handler for Refund {
    const NAME: &'static CStr = c"rl.refund";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        answer(ctx, args, Action::Refund)
    }
}

#[inline(always)] // so that each command has its action as a constant
fn answer(ctx: &Context, args: &[Argument], action: Action) -> Result<(), Error> {
    let now_ms = api::now_ms();
    let call = Call::parse(args, now_ms)?;
    act(
        ctx,
        call.key,
        action,
        |stored| limiter::decide(stored, &call.rule, action, now_ms),
        |allowed| call.rule.unstored(allowed),
        |verdict| reply::verdict(ctx, verdict, call.unit),
    )
}

/// The straight line of every call about one limiter: look, decide, write if that changes something, count,
/// tell of a refusal, reply. `unstored` is the verdict where a new limiter can't be stored.
#[inline(always)]
pub(super) fn act(
    ctx: &Context,
    name: &Argument,
    action: Action,
    decide: impl FnOnce(Option<Stored<'_>>) -> Result<(Verdict, Option<Change>), Unfit>,
    unstored: impl FnOnce(bool) -> Verdict,
    reply: impl FnOnce(&Verdict),
) -> Result<(), Error> {
    let mode = match action {
        Action::Peek => Mode::Read,
        Action::Hit | Action::Refund => Mode::ReadAndWrite,
    };
    let mut key = LimiterKey::open(ctx, name, mode)?;
    let decision = decide(key.stored(&mut { ROOM }));
    // By reference: it is too large to be moved about for every hit.
    let (verdict, change) = match &decision {
        Ok((verdict, change)) => (verdict, change),
        Err(unfit) => return Err((*unfit).into()),
    };
    // Only a hit makes a limiter.
    if change.is_some() && key.is_missing() && action == Action::Hit {
        if let Some(allowed) = oom::lets_through(ctx, name)? {
            drop(key);
            let verdict = unstored(allowed);
            count(ctx, name, action, &verdict);
            reply(&verdict);
            return Ok(());
        }
    }
    match change {
        // A peek leaves also a repair to the next hit.
        Some(change) if mode == Mode::ReadAndWrite => key.store(change)?.send(),
        _ => drop(key),
    }
    count(ctx, name, action, verdict);
    reply(verdict);
    Ok(())
}

/// Counts, and tells of a refusal; no key is open any more.
#[inline(always)]
fn count(ctx: &Context, name: &Argument, action: Action, verdict: &Verdict) {
    match action {
        Action::Hit => {
            stats::count_hit(verdict.allowed);
            if !verdict.allowed && config::notify_refused() {
                notify_refused(ctx, name);
            }
        }
        Action::Peek => stats::PEEKS.add(1),
        Action::Refund => stats::REFUNDS.add(1),
    }
}
