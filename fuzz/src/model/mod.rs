//! The algorithms, written a second time: from docs/algorithms.md and the command pages, not from the
//! module. Slow and plain. Times in an answer are found by asking for one after the other (by halves),
//! not by solving for them.
//!
//! Arithmetic is in 128 bits, which is enough but for one product; overflow panics here.

pub(crate) mod arguments;
mod bucket;
mod fixed;
mod sliding;
pub(crate) mod throttle;

/// The last time that there is: Unix time in 63 bits.
pub(crate) const LAST_MS: i128 = i64::MAX as i128;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    Hit,
    Peek,
    Refund,
}

/// The arguments of a call, which passed for possible ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) algorithm: Algorithm,
    pub(crate) limit: i128,
    pub(crate) window_ms: i128,
    pub(crate) cost: i128,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Algorithm {
    Fixed,
    Sliding,
    Bucket { capacity: i128 },
}

#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) limit: i128,
    pub(crate) remaining: i128,
    pub(crate) retry_after_ms: Option<i128>,
    pub(crate) reset_after_ms: i128,
    /// What the key holds from now on, if something changes. A peek is the exception: it tells what
    /// repair a hit would make. (RL.PEEK leaves that; RL.MHIT, which peeks where another rule refuses,
    /// makes it.)
    pub(crate) change: Change,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    Nothing,
    Store {
        text: String,
        end_ms: i128,
        event: Event,
        repaired: bool,
    },
    Delete,
}

/// What is told of a text that is stored.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// Only the end is new.
    None,
    Incrby,
    Decrby,
    Set,
}

/// Why a text can't be used.
#[derive(Debug, PartialEq)]
pub(crate) enum Unfit {
    NotALimiter,
    Holds(&'static str),
}

/// What a text says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limiter {
    Counter(i128),
    Windows {
        previous: i128,
        current: i128,
        start_ms: i128,
    },
    Debt {
        parts: i128,
        at_ms: i128,
        window_ms: i128,
    },
}

impl Limiter {
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [value] => Some(Self::Counter(integer(value.as_bytes())?)),
            ["s", previous, current, start_ms] => Some(Self::Windows {
                previous: natural(previous, LAST_MS)?,
                current: natural(current, LAST_MS)?,
                start_ms: natural(start_ms, LAST_MS)?,
            }),
            ["b", parts, at_ms, window_ms] => {
                let window_ms = natural(window_ms, LAST_MS).filter(|window_ms| *window_ms >= 1)?;
                Some(Self::Debt {
                    // The documentation names no bound for a debt. The module takes one above the
                    // largest capacity that can be written for a mangled text.
                    parts: natural(parts, LAST_MS * window_ms)?,
                    at_ms: natural(at_ms, LAST_MS)?,
                    window_ms,
                })
            }
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Counter(counter) => counter.to_string(),
            Self::Windows {
                previous,
                current,
                start_ms,
            } => format!("s:{previous}:{current}:{start_ms}"),
            Self::Debt {
                parts,
                at_ms,
                window_ms,
            } => format!("b:{parts}:{at_ms}:{window_ms}"),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Counter(_) => "FIXED",
            Self::Windows { .. } => "SLIDING",
            Self::Debt { .. } => "BUCKET",
        }
    }
}

/// "As strictly as INCR reads them: no sign +, no blanks, no leading zeros, no decimals."
pub(crate) fn integer(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let value: i64 = text.parse().ok()?;
    (value.to_string() == text).then_some(value.into())
}

/// A number as the module writes it: digits alone, and no 0 in front.
fn natural(text: &str, most: i128) -> Option<i128> {
    let value: i128 = text.parse().ok()?;
    ((0..=most).contains(&value) && value.to_string() == text).then_some(value)
}

/// Whether the arguments are possible at this time; else the name of the one that an error names.
pub(crate) fn possible(call: &Call, now_ms: i128) -> Result<(), &'static str> {
    if call.limit < 0 {
        return Err("limit");
    }
    if call.window_ms < 1 {
        return Err("window");
    }
    if matches!(call.algorithm, Algorithm::Bucket { capacity } if capacity < 1) {
        return Err("capacity");
    }
    if call.cost < 1 {
        return Err("cost");
    }
    let last_window_ms = match call.algorithm {
        // What is taken now weighs until the next window is over.
        Algorithm::Sliding => 2 * call.window_ms,
        _ => call.window_ms,
    };
    if now_ms + last_window_ms > LAST_MS {
        return Err("window");
    }
    match call.algorithm {
        Algorithm::Bucket { capacity }
            if call.limit > 0
                && now_ms + rounded_up(capacity * call.window_ms, call.limit) > LAST_MS =>
        {
            Err("capacity")
        }
        _ => Ok(()),
    }
}

/// `held` is the text of a key and its end, if it has one.
pub(crate) fn answer(
    held: Option<(&[u8], Option<i128>)>,
    call: &Call,
    action: Action,
    now_ms: i128,
) -> Result<Answer, Unfit> {
    // A limiter whose end has come counts as missing, whatever it holds.
    let live = held.filter(|(_, end_ms)| end_ms.is_none() || end_ms.unwrap() > now_ms);
    let Some((text, end_ms)) = live else {
        return Ok(match call.algorithm {
            Algorithm::Fixed => fixed::answer(None, None, call, action, now_ms),
            Algorithm::Sliding => sliding::answer(None, None, call, action, now_ms),
            Algorithm::Bucket { .. } => bucket::answer(None, None, call, action, now_ms),
        });
    };
    let limiter = Limiter::read(text).ok_or(Unfit::NotALimiter)?;
    match (call.algorithm, limiter) {
        (Algorithm::Fixed, Limiter::Counter(counter)) => {
            Ok(fixed::answer(Some(counter), end_ms, call, action, now_ms))
        }
        (
            Algorithm::Sliding,
            Limiter::Windows {
                previous,
                current,
                start_ms,
            },
        ) => {
            let windows = sliding::Windows {
                previous,
                current,
                start_ms,
            };
            Ok(sliding::answer(Some(windows), end_ms, call, action, now_ms))
        }
        (
            Algorithm::Bucket { .. },
            Limiter::Debt {
                parts,
                at_ms,
                window_ms,
            },
        ) => {
            let debt = bucket::Debt {
                parts,
                at_ms,
                window_ms,
            };
            Ok(bucket::answer(Some(debt), end_ms, call, action, now_ms))
        }
        (_, other) => Err(Unfit::Holds(other.name())),
    }
}

fn rounded_up(dividend: i128, divisor: i128) -> i128 {
    dividend / divisor + i128::from(dividend % divisor > 0)
}

/// The first time, from `from_ms` on, at which it is so; it stays so.
fn first_time(from_ms: i128, is_so: impl Fn(i128) -> bool) -> i128 {
    if is_so(from_ms) {
        return from_ms;
    }
    let mut step_ms = 1;
    while !is_so(from_ms + step_ms) {
        step_ms *= 2;
    }
    let (mut not_yet_ms, mut so_ms) = (from_ms + step_ms / 2, from_ms + step_ms);
    while so_ms - not_yet_ms > 1 {
        let middle_ms = not_yet_ms + (so_ms - not_yet_ms) / 2;
        if is_so(middle_ms) {
            so_ms = middle_ms;
        } else {
            not_yet_ms = middle_ms;
        }
    }
    so_ms
}
