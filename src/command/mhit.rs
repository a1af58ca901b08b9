//! RL.MHIT numkeys key [key ...] rule [rule ...] [MS]
//!
//! A rule is `limit window [FIXED | SLIDING | BUCKET capacity] [COST cost]`.

use std::ffi::CStr;

use redis_module::Context;

use super::args::{many_keys, ManyCall, PerRule};
use super::{oom, Handler};
use crate::api::{self, Argument, Mode};
use crate::errors::Error;
use crate::key::{notify_refused, Events, LimiterKey, ROOM};
use crate::limiter::{self, Action, Change, Stored, Verdict};
use crate::{config, reply, stats};

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
        let mut rooms = PerRule::from_elem(ROOM, call.keys.len());
        let limiters = call.keys.iter().zip(&call.rules);

        // Decide all. One key is open at a time: opening one that has expired makes the server tell
        // other modules so, and what they do then may concern the others. From the last to the
        // first, which stays open: it is the first to be written.
        let mut open = None;
        let mut decisions = PerRule::with_capacity(rooms.len());
        for ((name, rule), room) in limiters.clone().zip(&mut rooms).rev() {
            drop(open.take());
            let key = open.insert(LimiterKey::open(ctx, name, Mode::ReadAndWrite)?);
            let stored = key.stored(room);
            let decision = limiter::decide(stored, rule, Action::Hit, now_ms)?;
            decisions.push((stored, decision));
        }
        decisions.reverse();
        let refused = |decisions: &[(_, (Verdict, _))]| {
            decisions.iter().any(|(_, (verdict, _))| !verdict.allowed)
        };

        // Those that can't be made are not stored, and refuse if that is the policy.
        let unmade = |(stored, (_, change)): &(Option<Stored<'_>>, (_, Option<Change>))| {
            stored.is_none() && change.is_some()
        };
        let first_unmade = call.keys.iter().zip(&decisions).find(|(_, d)| unmade(d));
        if let Some((name, _)) = first_unmade.filter(|_| !refused(&decisions)) {
            drop(open.take());
            if let Some(allowed) = oom::lets_through(ctx, name)? {
                for (decision, rule) in decisions.iter_mut().zip(&call.rules) {
                    if unmade(decision) {
                        decision.1 = (rule.unstored(allowed), None);
                    }
                }
            }
        }

        // If one refuses, nobody takes: those that would have are only looked at.
        if refused(&decisions) {
            for ((stored, decision), rule) in decisions.iter_mut().zip(&call.rules) {
                if decision.0.allowed {
                    *decision = limiter::decide(*stored, rule, Action::Peek, now_ms)?;
                }
            }
        }

        // Then write all, and when the last key is closed, tell all.
        let mut events = PerRule::with_capacity(decisions.len());
        for ((name, _), (_, (_, change))) in limiters.zip(&decisions) {
            let first = open.take();
            if let Some(change) = change {
                let key = match first {
                    Some(key) => key,
                    None => LimiterKey::open(ctx, name, Mode::ReadAndWrite)?,
                };
                events.push(key.store(change)?);
            }
        }
        events.into_iter().for_each(Events::send);
        if config::notify_refused() {
            for (name, (_, (verdict, _))) in call.keys.iter().zip(&decisions) {
                if !verdict.allowed {
                    notify_refused(ctx, name);
                }
            }
        }

        stats::MHITS.add(1);
        stats::count_hit(!refused(&decisions));
        let verdicts = decisions.iter().map(|(_, (verdict, _))| verdict);
        reply::verdicts(ctx, verdicts, call.unit);
        Ok(())
    }
}
