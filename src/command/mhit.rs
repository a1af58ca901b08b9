//! RL.MHIT numkeys key [key ...] rule [rule ...] [MS]
//!
//! A rule is `limit window [FIXED | SLIDING | BUCKET capacity] [COST cost]`.

use std::ffi::CStr;

use redis_module::Context;

use super::args::{many_keys, ManyCall};
use super::Handler;
use crate::api::{self, Argument, Mode};
use crate::errors::Error;
use crate::key::{Events, LimiterKey, ROOM};
use crate::limiter::{self, Action, Change, Verdict};
use crate::reply;

pub(crate) struct Mhit;

/// What becomes of a limiter: if all rules allow, and if one refuses.
struct Decision {
    taken: (Verdict, Option<Change>),
    looked_at: (Verdict, Option<Change>),
}

impl Decision {
    fn refuses(&self) -> bool {
        !self.taken.0.allowed
    }
}

/// The position of the first key; the command's name is at 0.
const FIRST_KEY: usize = 2;

impl Handler for Mhit {
    const NAME: &'static CStr = c"rl.mhit";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        if ctx.is_keys_position_request() {
            // None if they can't be told: else words of rules would pass for keys.
            let keys = many_keys(args).unwrap_or_default();
            api::name_keys(ctx, FIRST_KEY, keys.len());
            return Ok(());
        }
        let now_ms = api::now_ms();
        let call = ManyCall::parse(args, now_ms)?;
        let limiters = call.keys.iter().zip(&call.rules);

        // Decide all. One key is open at a time: opening one that has expired makes the server tell
        // other modules so, and what they do then may concern the others.
        let mut decisions = Vec::with_capacity(call.keys.len());
        for (name, rule) in limiters.clone() {
            let mut room = ROOM;
            let mut key = LimiterKey::open(ctx, name, Mode::ReadAndWrite)?;
            let stored = key.stored(&mut room);
            decisions.push(Decision {
                taken: limiter::decide(stored, rule, Action::Hit, now_ms)?,
                looked_at: limiter::decide(stored, rule, Action::Peek, now_ms)?,
            });
        }
        // If one refuses, nobody takes: those that would have are only looked at.
        let refused = decisions.iter().any(Decision::refuses);
        let decisions = decisions.into_iter().map(|decision| match refused {
            true if !decision.refuses() => decision.looked_at,
            _ => decision.taken,
        });
        let decisions: Vec<_> = decisions.collect();

        // Then write all, and when the last key is closed, tell all.
        let mut events = Vec::with_capacity(decisions.len());
        for ((name, _), (_, change)) in limiters.zip(&decisions) {
            if let Some(change) = change {
                let key = LimiterKey::open(ctx, name, Mode::ReadAndWrite)?;
                events.push(key.store(change)?);
            }
        }
        events.into_iter().for_each(Events::send);

        let verdicts: Vec<_> = decisions.iter().map(|(verdict, _)| *verdict).collect();
        reply::verdicts(ctx, &verdicts, call.unit);
        Ok(())
    }
}
