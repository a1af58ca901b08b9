//! The decisions, as pure functions of (stored state, rule, now): no server, no clock, no I/O.
//!
//! Nothing at or below this module knows the server, so every timing rule is tested with a made-up
//! clock. Every function is total: any 64-bit input gives an answer, without overflow or panic.

#![forbid(unsafe_code)]

mod bucket;
#[cfg(test)]
mod drawings;
mod fixed;
mod sliding;
#[cfg(test)]
mod testing;
pub(crate) mod throttle;

use std::ops::Deref;

pub(crate) use throttle::Throttle;

/// What a call asks for.
///
/// The command line's reader admits `limit >= 0`, `window_ms >= 1`, `cost >= 1`, a capacity of at
/// least 1 and what [`Rule::fits`]; the functions here are total all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) algorithm: Algorithm,
    /// How much a window grants, or a bucket refills in a window; 0 refuses everything.
    pub(crate) limit: i64,
    pub(crate) window_ms: i64,
    /// What this call takes, or gives back.
    pub(crate) cost: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Fixed,
    Sliding,
    Bucket { capacity: i64 },
}

/// What a call wants of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Take the cost, if it fits.
    Hit,
    /// Tell what a hit would be answered, with what remains as it stands.
    Peek,
    /// Give the cost back.
    Refund,
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
pub(crate) enum Change {
    Store {
        text: Text,
        /// Unix time. There is no limiter without an end, so this is not optional.
        end_ms: i64,
        written: Written,
        /// Whether the limiter had lost its expiry, or was dated after now.
        repaired: bool,
    },
    Delete,
}

/// How the text of a change came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is what it was; only the end is new.
    Kept,
    /// A counter counted up.
    CountedUp,
    /// A counter counted down.
    CountedDown,
    /// A state took the place of another.
    Replaced,
}

impl Written {
    /// By a repair: a state that was dated after now is written anew, else only the end is.
    fn by_repair(was_ahead: bool) -> Self {
        if was_ahead {
            Self::Replaced
        } else {
            Self::Kept
        }
    }
}

/// Why the stored text is no limiter of the rule's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    NotALimiter,
    /// It is the limiter of another algorithm, of this name.
    Other(&'static str),
}

/// Answers a call, and tells what the key has to hold from now on, if that is another thing.
///
/// # Errors
///
/// [`Unfit`] when the key holds a text that is no limiter of the rule's algorithm.
pub(crate) fn decide(
    stored: Option<Stored<'_>>,
    rule: &Rule,
    action: Action,
    now_ms: i64,
) -> Result<(Verdict, Option<Change>), Unfit> {
    let live = live(stored, now_ms);
    Ok(match rule.algorithm {
        Algorithm::Fixed => fixed::decide(read(live)?, rule, action, now_ms),
        Algorithm::Sliding => sliding::decide(read(live)?, rule, action, now_ms),
        Algorithm::Bucket { capacity } => {
            bucket::decide(read(live)?, rule, capacity, action, now_ms)
        }
    })
}

/// What is stored, if it has not ended.
///
/// The server drops a key only at now > end, and inside MULTI by an older clock. A limiter whose end has
/// come is missing, whatever the server says of the key: else a refusal would answer "retry after 0".
fn live(stored: Option<Stored<'_>>, now_ms: i64) -> Option<Stored<'_>> {
    stored.filter(|stored| stored.end_ms.is_none_or(|end_ms| end_ms > now_ms))
}

impl Rule {
    /// What a limiter of this rule holds when it is full.
    pub(crate) fn holds(&self) -> i64 {
        match self.algorithm {
            Algorithm::Fixed | Algorithm::Sliding => self.limit,
            Algorithm::Bucket { capacity } => capacity,
        }
    }

    /// The verdict on a hit that fits, where its limiter can't be stored: let through as if it were
    /// the only one, or sent away for a window.
    pub(crate) fn unstored(&self, allowed: bool) -> Verdict {
        unstored(self.holds(), self.cost, self.window_ms, allowed)
    }

    /// Whether every end that a limiter of this rule can have is a time that there is: Unix time
    /// in 63 bits. The error is the name of the argument that is too large.
    pub(crate) fn fits(&self, now_ms: i64) -> Result<(), &'static str> {
        let until_last_ms = i64::MAX.saturating_sub(now_ms);
        if self.window_ms > until_last_ms {
            return Err("window");
        }
        match self.algorithm {
            Algorithm::Fixed => Ok(()),
            // The next window weighs the current one.
            Algorithm::Sliding if self.window_ms > until_last_ms / 2 => Err("window"),
            Algorithm::Sliding => Ok(()),
            Algorithm::Bucket { capacity } => {
                let to_fill_ms = bucket::time_to_fill_ms(self.limit, capacity, self.window_ms);
                if to_fill_ms > until_last_ms.into() {
                    return Err("capacity");
                }
                Ok(())
            }
        }
    }
}

/// The state of one algorithm, as a text and back.
trait State: Sized {
    /// As an error names it.
    const NAME: &'static str;

    fn parse(text: &[u8]) -> Option<Self>;

    fn text(&self) -> Text;
}

/// A limiter that is there, with its state read.
struct Held<S> {
    state: S,
    /// `None` if it lost its expiry.
    end_ms: Option<i64>,
}

fn read<S: State>(live: Option<Stored<'_>>) -> Result<Option<Held<S>>, Unfit> {
    let Some(stored) = live else {
        return Ok(None);
    };
    match S::parse(stored.text) {
        Some(state) => Ok(Some(Held {
            state,
            end_ms: stored.end_ms,
        })),
        None => Err(name_of(stored.text).map_or(Unfit::NotALimiter, Unfit::Other)),
    }
}

/// The name of the algorithm that a text is a limiter of: any integer is a counter.
pub(crate) fn name_of(text: &[u8]) -> Option<&'static str> {
    fn name<S: State>(text: &[u8]) -> Option<&'static str> {
        S::parse(text).map(|_| S::NAME)
    }
    name::<fixed::Counter>(text)
        .or_else(|| name::<sliding::Windows>(text))
        .or_else(|| name::<bucket::Debt>(text))
}

/// The verdict on a call that finds the limiter full, or leaves it so.
fn full(holds: i64) -> Verdict {
    Verdict {
        allowed: true,
        limit: holds,
        remaining: holds.max(0),
        retry_after_ms: Some(0),
        reset_after_ms: 0,
    }
}

/// The verdict on a call that fits, where its limiter can't be stored: let through as if it were the only
/// one, or sent away.
fn unstored(holds: i64, cost: i64, away_ms: i64, allowed: bool) -> Verdict {
    let full = full(holds);
    if allowed {
        return Verdict {
            remaining: full.remaining.saturating_sub(cost).max(0),
            ..full
        };
    }
    Verdict {
        allowed: false,
        remaining: 0,
        retry_after_ms: Some(away_ms),
        reset_after_ms: away_ms,
        ..full
    }
}

/// A number that is never negative where it comes from: a command line or a state.
fn unsigned(value: i64) -> u128 {
    u128::try_from(value).unwrap_or(0)
}

/// A time, or the last that there is.
fn clamp_ms(ms: i128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// A short text on the stack: what a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    bytes: [u8; Text::CAPACITY],
    length: usize,
}

impl Text {
    /// The longest is a bucket's: a debt of 38 digits and two numbers of 19, with their marks.
    pub(crate) const CAPACITY: usize = 80;

    const fn new() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            length: 0,
        }
    }

    #[inline]
    fn from_integer(value: impl itoa::Integer) -> Self {
        let mut text = Self::new();
        text.push(itoa::Buffer::new().format(value).as_bytes());
        text
    }

    /// A mark, then a number behind each colon: what [`numbers`] reads.
    fn from_numbers(mark: u8, numbers: &[u128]) -> Self {
        let mut text = Self::new();
        text.push(&[mark]);
        for number in numbers {
            text.push(b":");
            // Of a number that fits into 64 bits the digits are cheaper.
            match u64::try_from(*number) {
                Ok(number) => text.push(itoa::Buffer::new().format(number).as_bytes()),
                Err(_) => text.push(itoa::Buffer::new().format(*number).as_bytes()),
            }
        }
        text
    }

    /// What doesn't fit is left out; nothing that is stored is that long.
    #[inline]
    fn push(&mut self, more: &[u8]) {
        let end = self.length.saturating_add(more.len());
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(more);
            self.length = end;
        }
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Reads an integer as strictly as the server's INCR: no sign +, no blanks, no leading zeros.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    // Nearly all of them: up to 18 digits, which fit.
    if let [first @ b'1'..=b'9', rest @ ..] = text {
        if rest.len() < 18 {
            let mut value = i64::from(first.wrapping_sub(b'0'));
            for byte in rest {
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 {
                    return None;
                }
                value = value.wrapping_mul(10).wrapping_add(digit.into());
            }
            return Some(value);
        }
    }
    any_integer(text)
}

#[cold]
fn any_integer(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        // There is no -0.
        Some(digits) => match number(digits)? {
            0 => None,
            value => 0_i64.checked_sub_unsigned(value.try_into().ok()?),
        },
        None => number(text)?.try_into().ok(),
    }
}

/// Reads what [`Text::from_numbers`] makes.
fn numbers<const N: usize>(text: &[u8], mark: u8) -> Option<[u128; N]> {
    let mut parts = text.split(|byte| *byte == b':');
    if text.len() > Text::CAPACITY || parts.next()? != [mark] {
        return None;
    }
    let mut numbers = [0; N];
    for found in &mut numbers {
        *found = number(parts.next()?)?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Reads digits without leading zeros.
pub(crate) fn number(digits: &[u8]) -> Option<u128> {
    if digits.len() > 1 && digits.first() == Some(&b'0') {
        return None;
    }
    // Up to 19 digits fit into 64 bits, in which it is several times as fast.
    let (first, rest) = digits.split_at(digits.len().min(19));
    let first = first.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| value.wrapping_mul(10).wrapping_add(digit.into()))
    })?;
    let value = rest.iter().try_fold(u128::from(first), |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value.checked_mul(10)?.checked_add(digit.into())
    })?;
    (!digits.is_empty()).then_some(value)
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

    #[test]
    fn a_state_is_read_strictly() {
        assert_eq!(numbers(b"s:1:2:3", b's'), Some([1, 2, 3]));
        for text in [
            "",
            "s",
            "s:",
            "s:1:2",
            "s:1:2:",
            "s:1:2:3:",
            "s:1:2:3:4",
            "s:01:2:3",
            "s:-1:2:3",
            "s:1:2:3 ",
            " s:1:2:3",
            "s:1::3",
            "s:1:2:x",
            "S:1:2:3",
            "ss:1:2:3",
            "b:1:2:3",
            "s:1:2:340282366920938463463374607431768211456",
        ] {
            assert_eq!(numbers::<3>(text.as_bytes(), b's'), None, "{text}");
        }
        // A bucket's longest text is read; a longer one was cut off and is none.
        let [nines, ones] = ["9".repeat(38), "1".repeat(19)];
        let longest = format!("b:{nines}:{ones}:{ones}");
        assert_eq!(longest.len(), Text::CAPACITY);
        let [parts, ..] = numbers::<3>(longest.as_bytes(), b'b').unwrap();
        assert_eq!(parts.to_string(), nines);
        assert_eq!(
            *Text::from_numbers(b'b', &numbers::<3>(longest.as_bytes(), b'b').unwrap()),
            *longest.as_bytes()
        );
        let longer = format!("b:1{}:{ones}:{ones}", "1".repeat(38));
        assert_eq!(numbers::<3>(longer.as_bytes(), b'b'), None);
    }

    #[test]
    fn a_limiter_met_by_another_algorithm_is_told_by_name() {
        let bucket = Algorithm::Bucket { capacity: 5 };
        for (text, name, others) in [
            ("7", "FIXED", [Algorithm::Sliding, bucket]),
            ("s:1:2:3", "SLIDING", [Algorithm::Fixed, bucket]),
            ("b:1:2:3", "BUCKET", [Algorithm::Fixed, Algorithm::Sliding]),
        ] {
            for algorithm in others {
                for action in [Action::Hit, Action::Peek, Action::Refund] {
                    let stored = Stored {
                        text: text.as_bytes(),
                        end_ms: None,
                    };
                    let rule = testing::rule(algorithm, 5, 1_000, 1);
                    let answer = decide(Some(stored), &rule, action, 5);
                    assert_eq!(answer, Err(Unfit::Other(name)), "{text} {algorithm:?}");
                }
            }
        }
    }

    #[test]
    fn a_mangled_state_is_no_limiter() {
        for text in [
            "s:1:2",
            "s:9223372036854775808:2:3",
            "s:1:9223372036854775808:3",
            "s:1:2:9223372036854775808",
            "b:1:2:0",
            "b:1:9223372036854775808:3",
            "b:1:2:9223372036854775808",
            "x:1:2:3",
            "",
        ] {
            let bucket = Algorithm::Bucket { capacity: 5 };
            for algorithm in [Algorithm::Fixed, Algorithm::Sliding, bucket] {
                let stored = Stored {
                    text: text.as_bytes(),
                    end_ms: None,
                };
                let rule = testing::rule(algorithm, 5, 1_000, 1);
                let answer = decide(Some(stored), &rule, Action::Hit, 5);
                assert_eq!(answer, Err(Unfit::NotALimiter), "{text} {algorithm:?}");
            }
        }
    }

    #[test]
    fn a_rule_fits_as_far_as_its_ends_are_times() {
        let now_ms = testing::NOW_MS;
        let most = i64::MAX - now_ms;
        let fits = |algorithm, limit, window_ms| {
            testing::rule(algorithm, limit, window_ms, 1).fits(now_ms)
        };
        assert_eq!(fits(Algorithm::Fixed, 1, most), Ok(()));
        assert_eq!(fits(Algorithm::Fixed, 1, most + 1), Err("window"));
        assert_eq!(fits(Algorithm::Sliding, 1, most / 2), Ok(()));
        assert_eq!(fits(Algorithm::Sliding, 1, most / 2 + 1), Err("window"));
        let bucket = |capacity| Algorithm::Bucket { capacity };
        assert_eq!(fits(bucket(1), 1, most), Ok(()));
        assert_eq!(fits(bucket(2), 1, most), Err("capacity"));
        assert_eq!(fits(bucket(2), 2, most), Ok(()));
        assert_eq!(fits(bucket(1), 1, most + 1), Err("window"));
        assert_eq!(fits(bucket(i64::MAX), 0, most), Ok(()));
        assert_eq!(fits(bucket(i64::MAX), i64::MAX, most), Ok(()));
        assert_eq!(fits(bucket(i64::MAX), 1, 1_000), Err("capacity"));
    }

    fn any_number() -> impl Strategy<Value = i64> {
        let edges = vec![i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
        prop_oneof![any::<i64>(), prop::sample::select(edges), -3..20_i64]
    }

    fn any_text() -> impl Strategy<Value = String> {
        let parts = prop_oneof![
            any::<u128>(),
            prop::sample::select(vec![0, 1, u128::MAX, i64::MAX as u128]),
            0..100_u128,
        ];
        prop_oneof![
            any_number().prop_map(|value| value.to_string()),
            (any_number(), any_number(), any_number())
                .prop_map(|(previous, current, start)| format!("s:{previous}:{current}:{start}")),
            (parts, any_number(), any_number())
                .prop_map(|(parts, at, window)| format!("b:{parts}:{at}:{window}")),
        ]
    }

    /// The most that a rule lets through within `span_ms`, for a whole number rounded up.
    fn most(rule: &Rule, span_ms: i64) -> i64 {
        match rule.algorithm {
            // Around an end two limits, and one more for each further window.
            Algorithm::Fixed | Algorithm::Sliding => rule.limit * (span_ms / rule.window_ms + 2),
            Algorithm::Bucket { capacity } => {
                capacity + (rule.limit * span_ms + rule.window_ms - 1) / rule.window_ms
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Limit, window and capacity change once, at some moment.
        #[test]
        fn a_changed_rule_lets_no_more_through_than_the_old_and_the_new_one_together(
            algorithm in 0..3_usize,
            (old_limit, old_window_ms, old_capacity) in (0..10_i64, 1..60_i64, 1..10_i64),
            (new_limit, new_window_ms, new_capacity) in (0..10_i64, 1..60_i64, 1..10_i64),
            calls in prop::collection::vec((0..25_i64, 1..4_i64), 2..60),
            change in 0..60_usize,
        ) {
            let rule = |limit, window_ms, capacity, cost| {
                let algorithms =
                    [Algorithm::Fixed, Algorithm::Sliding, Algorithm::Bucket { capacity }];
                testing::rule(algorithms[algorithm], limit, window_ms, cost)
            };
            let (mut key, mut now_ms) = (testing::Key::default(), testing::NOW_MS);
            let mut log: Vec<(i64, i64)> = Vec::new();
            for (n, (step_ms, cost)) in calls.into_iter().enumerate() {
                now_ms += step_ms;
                let asked = if n < change {
                    rule(old_limit, old_window_ms, old_capacity, cost)
                } else {
                    rule(new_limit, new_window_ms, new_capacity, cost)
                };
                if key.hit(&asked, now_ms).allowed {
                    log.push((now_ms, cost));
                }
            }
            let old = rule(old_limit, old_window_ms, old_capacity, 1);
            let new = rule(new_limit, new_window_ms, new_capacity, 1);
            for from in 0..log.len() {
                let mut admitted = 0;
                for (at_ms, cost) in &log[from..] {
                    admitted += cost;
                    let span_ms = at_ms - log[from].0;
                    prop_assert!(admitted <= most(&old, span_ms) + most(&new, span_ms));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Whatever is stored and asked: an answer that keeps the promises, or an error.
        #[test]
        fn any_state_and_any_call_have_an_answer(
            text in prop::option::of(any_text()),
            end_ms in prop::option::of(any_number()),
            algorithm in prop_oneof![
                Just(Algorithm::Fixed),
                Just(Algorithm::Sliding),
                any_number().prop_map(|capacity| Algorithm::Bucket { capacity }),
            ],
            action in prop::sample::select(vec![Action::Hit, Action::Peek, Action::Refund]),
            (limit, window_ms, cost) in (any_number(), any_number(), any_number()),
            now_ms in any_number(),
        ) {
            let stored = text.as_ref().map(|text| Stored { text: text.as_bytes(), end_ms });
            let rule = testing::rule(algorithm, limit, window_ms, cost);
            let Ok((verdict, change)) = decide(stored, &rule, action, now_ms) else {
                return Ok(());
            };
            prop_assert!(verdict.remaining >= 0);
            let capacity_is_possible =
                !matches!(algorithm, Algorithm::Bucket { capacity } if capacity < 1);
            let is_possible = limit >= 0 && window_ms >= 1 && cost >= 1 && now_ms >= 0
                && capacity_is_possible && rule.fits(now_ms).is_ok();
            if !is_possible {
                return Ok(());
            }
            prop_assert_eq!(verdict.allowed, verdict.retry_after_ms == Some(0));
            prop_assert!(verdict.retry_after_ms.is_none_or(|retry_ms| retry_ms >= 0));
            prop_assert!(verdict.reset_after_ms >= 0);
            prop_assert!(verdict.remaining <= verdict.limit);
            if action == Action::Refund {
                prop_assert!(verdict.allowed);
            }
            if action == Action::Hit && verdict.allowed {
                prop_assert!(change.is_some());
            }
            if let Some(Change::Store { end_ms, text, .. }) = &change {
                prop_assert!(*end_ms > now_ms, "{}", end_ms);
                // What is written can be read again, by the same algorithm.
                let stored = Stored { text, end_ms: Some(*end_ms) };
                prop_assert!(decide(Some(stored), &rule, Action::Peek, now_ms).is_ok());
            }
            // After the call no limiter stands without an end.
            let live = stored.is_some_and(|s| s.end_ms.is_none_or(|end_ms| end_ms > now_ms));
            prop_assert!(change.is_some() || !live || end_ms.is_some());
        }
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
