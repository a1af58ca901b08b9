//! CL.THROTTLE: a token bucket as redis-cell keeps it, of which the theoretical arrival time (TAT) is
//! kept: when it is full again, in nanoseconds of Unix time. Written from docs/commands/cl.throttle.md
//! and docs/from-redis-cell.md.

use num_bigint::BigInt;

use super::{first_time, natural, rounded_up, Answer, Change, Event, Limiter, Unfit, LAST_MS};

/// "When 64 bits of nanoseconds end": in July 2554.
pub(crate) const LAST_NS: i128 = u64::MAX as i128;

/// A smaller number is a counter. The documentation names no bound; the module takes this one, of
/// March 1973.
pub(crate) const FIRST_NS: i128 = 100_000_000_000_000_000;

pub(crate) const NS_OF_S: i128 = 1_000_000_000;

/// The arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) max_burst: i128,
    pub(crate) count: i128,
    pub(crate) period_seconds: i128,
    pub(crate) quantity: i128,
}

impl Call {
    /// "Period / count, in whole nanoseconds, rounded down."
    pub(crate) fn interval_ns(&self) -> i128 {
        self.period_seconds * NS_OF_S / self.count
    }

    pub(crate) fn limit(&self) -> i128 {
        self.max_burst + 1
    }

    /// Whether it would be let through where so much is owed. Of what fits into the bucket the products
    /// fit, too.
    fn fits_beside(&self, owed_ns: i128, quantity: i128) -> bool {
        let holds_ns = self.limit() * self.interval_ns();
        quantity <= self.limit() && owed_ns + quantity * self.interval_ns() <= holds_ns
    }
}

/// What a key holds.
#[derive(Clone, Copy, Debug)]
struct State {
    tat_ns: i128,
    end_ms: Option<i128>,
}

/// What is owed of the bucket, in the time that it takes to refill that. A limiter whose end has come
/// counts as missing.
fn owed_ns(state: Option<State>, at_us: i128) -> i128 {
    match state {
        Some(State {
            end_ms: Some(end_ms),
            ..
        }) if end_ms <= at_us / 1_000 => 0,
        Some(state) => (state.tat_ns - at_us * 1_000).max(0),
        None => 0,
    }
}

/// Whether the arguments are possible at this time; else the name of the one that an error names.
pub(crate) fn possible(call: &Call, now_us: i128) -> Result<(), &'static str> {
    if call.max_burst < 0 {
        return Err("max_burst");
    }
    if call.count < 1 {
        return Err("count");
    }
    if call.period_seconds < 1 {
        return Err("period");
    }
    if call.quantity < 0 {
        return Err("quantity");
    }
    if call.count > call.period_seconds * NS_OF_S {
        return Err("count");
    }
    let is_over = |intervals: i128| {
        BigInt::from(now_us) * 1_000 + BigInt::from(call.interval_ns()) * intervals
            > BigInt::from(LAST_NS)
    };
    if is_over(1) {
        return Err("period");
    }
    // Of two that are too large the pages don't say which is named; the module looks at this last.
    if call.max_burst == LAST_MS || is_over(call.limit()) {
        return Err("max_burst");
    }
    Ok(())
}

/// What a text says. RL.HIT's limiters are told by name.
pub(crate) fn read(text: &[u8]) -> Result<i128, Unfit> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| natural(text, LAST_NS));
    match (number, Limiter::read(text)) {
        (Some(tat_ns), _) if tat_ns >= FIRST_NS => Ok(tat_ns),
        (_, Some(limiter)) => Err(Unfit::Holds(limiter.name())),
        (_, None) => Err(Unfit::NotALimiter),
    }
}

/// `held` is the text of a key and its end, if it has one.
pub(crate) fn answer(
    held: Option<(&[u8], Option<i128>)>,
    call: &Call,
    now_us: i128,
) -> Result<Answer, Unfit> {
    // A limiter whose end has come counts as missing, whatever it holds.
    let now_ms = now_us / 1_000;
    let live = held.filter(|(_, end_ms)| end_ms.is_none_or(|end_ms| end_ms > now_ms));
    let before = match live {
        None => None,
        Some((text, end_ms)) => Some(State {
            tat_ns: read(text)?,
            end_ms,
        }),
    };
    let lost_its_end = before.is_some_and(|state| state.end_ms.is_none());

    let is_let_through = |state, at_us| call.fits_beside(owed_ns(state, at_us), call.quantity);
    let allowed = is_let_through(before, now_us);
    // "With 0 it only looks, and writes nothing."
    let looks = call.quantity == 0;

    let owed_before_ns = owed_ns(before, now_us);
    let tat_ns = match before {
        _ if allowed => now_us * 1_000 + owed_before_ns + call.quantity * call.interval_ns(),
        Some(state) => state.tat_ns,
        // Refused by an empty key: more than it can hold.
        None => now_us * 1_000,
    };
    let changes = !looks && (allowed || lost_its_end);
    let after = if changes {
        // "The millisecond in which it has come"; there is no end that is over.
        let end_ms = rounded_up(tat_ns, 1_000_000).max(now_ms + 1);
        Some(State {
            tat_ns,
            end_ms: Some(end_ms),
        })
    } else {
        before
    };
    let change = match after {
        Some(State {
            tat_ns,
            end_ms: Some(end_ms),
        }) if changes => Change::Store {
            text: tat_ns.to_string(),
            end_ms,
            event: if allowed { Event::Set } else { Event::None },
            repaired: lost_its_end,
        },
        _ => Change::Nothing,
    };

    // Nobody waits beyond the key's expiry, with which all is forgotten.
    let later_us = |wait_ms: i128| now_us + wait_ms * 1_000;
    let owed_after_ns = owed_ns(after, now_us);
    Ok(Answer {
        allowed,
        limit: call.limit(),
        remaining: first_time(0, |taken| !call.fits_beside(owed_after_ns, taken + 1)),
        retry_after_ms: if allowed {
            Some(0)
        } else if call.quantity > call.limit() {
            None
        } else {
            Some(first_time(0, |wait_ms| {
                is_let_through(after, later_us(wait_ms))
            }))
        },
        reset_after_ms: first_time(0, |wait_ms| owed_ns(after, later_us(wait_ms)) == 0),
        change,
    })
}
