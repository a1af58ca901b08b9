//! The decisions, as pure functions of (stored state, rule, now): no server, no clock, no I/O.
//!
//! Nothing at or below this module knows the server, so every timing rule is tested with a made-up
//! clock. Every function is total: any 64-bit input gives an answer, without overflow or panic.

mod fixed;

use std::ops::Deref;

/// What a call asks for.
///
/// The command line's reader admits `limit >= 0`, `window_ms >= 1`, `cost >= 1` and a `window_ms`
/// for which `now_ms + window_ms` fits; the functions here are total all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) algorithm: Algorithm,
    /// How much a window grants; 0 refuses everything.
    pub(crate) limit: i64,
    pub(crate) window_ms: i64,
    /// What this call takes.
    pub(crate) cost: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Fixed,
}

/// What the server holds at the key: a plain string, and when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    pub(crate) text: &'a [u8],
    /// Unix time; `None` for a key that has no expiry.
    pub(crate) end_ms: Option<i64>,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    /// What the limiter holds when it is full.
    pub(crate) limit: i64,
    /// What could still be taken after this call; never negative.
    pub(crate) remaining: i64,
    /// How long until this same call would be allowed: 0 when it was, `None` when it never can be.
    pub(crate) retry_after_ms: Option<i64>,
    /// How long until the limiter is full again; 0 when it is.
    pub(crate) reset_after_ms: i64,
}

/// What the key has to hold from now on.
///
/// A call that changes nothing has none: that is how a refusal writes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) text: Text,
    /// Unix time. There is no limiter without an end, so this is not optional.
    pub(crate) end_ms: i64,
    /// The call took its cost; otherwise the change is a repair alone.
    pub(crate) taken: bool,
}

/// The stored text is no limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotALimiter;

/// Takes `rule.cost` from the limiter, or refuses.
///
/// # Errors
///
/// [`NotALimiter`] when the key holds a text that is none.
pub(crate) fn hit(
    stored: Option<Stored<'_>>,
    rule: &Rule,
    now_ms: i64,
) -> Result<(Verdict, Option<Change>), NotALimiter> {
    // The server drops a key only at now > end, and inside MULTI by an older clock. A limiter
    // whose end has come is missing, whatever the server says of the key: else a refusal would
    // answer "retry after 0".
    let live = stored.filter(|stored| stored.end_ms.is_none_or(|end_ms| end_ms > now_ms));
    match rule.algorithm {
        Algorithm::Fixed => fixed::hit(live, rule, now_ms),
    }
}

/// A short text on the stack: what a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// The text is the end of it.
    bytes: [u8; Text::CAPACITY],
    start: usize,
}

impl Text {
    /// The longest integer, `-9223372036854775808`.
    pub(crate) const CAPACITY: usize = 20;

    /// The digits are made here because every hit needs two numbers as text: the standard
    /// library's formatting takes four times as long.
    pub(crate) fn from_integer(value: i64) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        let mut start = Self::CAPACITY;
        let mut rest = value.unsigned_abs();
        for byte in bytes.iter_mut().rev() {
            *byte = b'0'.saturating_add((rest % 10) as u8);
            start = start.saturating_sub(1);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            start = start.saturating_sub(1);
            if let Some(sign) = bytes.get_mut(start) {
                *sign = b'-';
            }
        }
        Self { bytes, start }
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

/// Reads an integer as strictly as the server's INCR: no sign +, no blanks, no leading zeros.
fn integer(text: &[u8]) -> Option<i64> {
    if text.len() > Text::CAPACITY {
        return None;
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match (text, digits) {
        (b"0", _) | (_, [b'1'..=b'9', ..]) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_integer_is_read_as_strictly_as_incr_reads_it() {
        for (text, value) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("-1", Some(-1)),
            ("10", Some(10)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("05", None),
            ("-05", None),
            ("+5", None),
            ("--5", None),
            (" 5", None),
            ("5 ", None),
            ("5\0", None),
            ("5\n", None),
            ("3.14", None),
            ("1e3", None),
            ("0x10", None),
            ("nan", None),
            ("hello", None),
            ("٥", None),
            ("1_000", None),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(integer(&[0xff; 512]), None);
        assert_eq!(integer(&[b'1'; 512]), None);
    }

    proptest! {
        #[test]
        fn a_text_is_the_integer_it_was_made_of(value: i64) {
            let text = Text::from_integer(value);
            prop_assert_eq!(text.to_vec(), value.to_string().into_bytes());
            prop_assert_eq!(integer(&text), Some(value));
        }

        #[test]
        fn any_bytes_are_an_integer_only_if_they_print_as_it(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            if let Some(value) = integer(&bytes) {
                prop_assert_eq!(value.to_string().into_bytes(), bytes);
            }
        }
    }
}
