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
use crate::limiter::{self, Action, Change, Rule, Stored, Verdict};
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

        // Decide all. One key is open at a time: opening one that has expired makes the server tell
        // other modules so, and what they do then may concern the others. From the last to the
        // first, which stays open: it is the first to be written.
        let mut first = None;
        let mut parts = PerRule::with_capacity(rooms.len());
        for ((name, rule), room) in call.keys.iter().zip(&call.rules).zip(&mut rooms).rev() {
            drop(first.take());
            let key = first.insert(LimiterKey::open(ctx, name, Mode::ReadAndWrite)?);
            let stored = key.stored(room);
            let (verdict, change) = limiter::decide(stored, rule, Action::Hit, now_ms)?;
            parts.push(Part {
                name,
                rule,
                stored,
                verdict,
                change,
            });
        }
        parts.reverse();

        // Those that the server has no memory to make are left out, or refuse.
        let missing = parts.iter().find(|part| part.has_to_be_made());
        if let Some(name) = missing.filter(|_| !refused(&parts)).map(|part| part.name) {
            drop(first.take());
            if let Some(allowed) = oom::lets_through(ctx, name)? {
                for part in parts.iter_mut().filter(|part| part.has_to_be_made()) {
                    part.verdict = part.rule.unstored(allowed);
                    part.change = None;
                }
            }
        }
        // If one refuses, nobody takes: those that would have are only looked at.
        let refused = refused(&parts);
        if refused {
            for part in parts.iter_mut().filter(|part| part.verdict.allowed) {
                (part.verdict, part.change) =
                    limiter::decide(part.stored, part.rule, Action::Peek, now_ms)?;
            }
        }

        // Then write all, and when the last key is closed, tell all.
        let mut events = PerRule::with_capacity(parts.len());
        for part in &parts {
            let first = first.take();
            if let Some(change) = &part.change {
                let key = match first {
                    Some(key) => key,
                    None => LimiterKey::open(ctx, part.name, Mode::ReadAndWrite)?,
                };
                events.push(key.store(change)?);
            }
        }
        events.into_iter().for_each(Events::send);
        if refused && config::notify_refused() {
            for part in parts.iter().filter(|part| !part.verdict.allowed) {
                notify_refused(ctx, part.name);
            }
        }

        stats::MHITS.add(1);
        stats::count_hit(!refused);
        reply::verdicts(ctx, parts.iter().map(|part| &part.verdict), call.unit);
        Ok(())
    }
}

/// One of the limiters, and what becomes of it.
struct Part<'a> {
    name: &'a Argument,
    rule: &'a Rule,
    /// What its key held when it was looked at.
    stored: Option<Stored<'a>>,
    verdict: Verdict,
    change: Option<Change>,
}

impl Part<'_> {
    fn has_to_be_made(&self) -> bool {
        self.stored.is_none() && self.change.is_some()
    }
}

fn refused(parts: &[Part<'_>]) -> bool {
    parts.iter().any(|part| !part.verdict.allowed)
}
