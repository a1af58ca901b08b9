//! RL.MHIT numkeys key [key ...] rule [rule ...] [MS]
//!
//! A rule is `limit window [FIXED | SLIDING | BUCKET capacity] [COST cost]`.

use std::ffi::CStr;

use redis_module::Context;

use super::args::{many_keys, ManyCall};
use super::Handler;
use crate::api::{self, Argument, Mode};
use crate::errors::Error;
use crate::key::{LimiterKey, ROOM};
use crate::limiter::{self, Action};
use crate::reply;

pub(crate) struct Mhit;

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
        let keys = call.keys.iter();
        let mut keys = keys
            .map(|name| LimiterKey::open(ctx, name, Mode::ReadAndWrite))
            .collect::<Result<Vec<_>, _>>()?;

        // Decide all ...
        let mut room = ROOM;
        let mut decisions = Vec::with_capacity(keys.len());
        for (key, rule) in keys.iter_mut().zip(&call.rules) {
            let stored = key.stored(&mut room);
            decisions.push(limiter::decide(stored, rule, Action::Hit, now_ms)?);
        }
        // ... and if one refuses, nobody takes: those that would have are only looked at.
        if decisions.iter().any(|(verdict, _)| !verdict.allowed) {
            let limiters = keys.iter_mut().zip(&call.rules).zip(&mut decisions);
            for ((key, rule), decision) in limiters {
                if decision.0.allowed {
                    let stored = key.stored(&mut room);
                    *decision = limiter::decide(stored, rule, Action::Peek, now_ms)?;
                }
            }
        }
        // Then write all, close all, and tell all.
        for (key, (_, change)) in keys.iter_mut().zip(&decisions) {
            if let Some(change) = change {
                key.store(change)?;
            }
        }
        let events: Vec<_> = keys.into_iter().map(LimiterKey::close).collect();
        for events in events {
            events.send();
        }

        let verdicts: Vec<_> = decisions.iter().map(|(verdict, _)| *verdict).collect();
        reply::verdicts(ctx, &verdicts, call.unit);
        Ok(())
    }
}
