//! Made-up calls of CL.THROTTLE for one key, as in [`crate::traffic`], with a clock in microseconds.

use arbitrary::Arbitrary;

use crate::limiter::{Change, Throttle, Verdict};
use crate::model;
use crate::model::throttle::{Call, FIRST_NS, LAST_NS, NS_OF_S};
use crate::number::{MomentUs, Number};
use crate::traffic::{self, agreed, described, left_by, meddle, stored, Key, Meddling, MOST_STEPS};

#[derive(Arbitrary, Debug)]
pub struct Calls {
    now: MomentUs,
    start: Start,
    end: End,
    /// All calls are by the first one's rule, of any quantity, and nobody meddles: how much passes is
    /// counted.
    steady: bool,
    steps: Vec<Step>,
}

/// What the key holds at first.
#[derive(Arbitrary, Debug)]
enum Start {
    /// An arrival time so many nanoseconds from now.
    In(Number),
    /// One that leaves so much to be refilled by the first rule.
    Owed { intervals: Number, off_ns: i8 },
    /// One of the last that there are, or later.
    Last(Number),
    /// Nothing, a counter, what RL.HIT leaves, any text.
    Other(traffic::Start),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum End {
    Any(traffic::End),
    /// When the arrival time has come, or nearly.
    ByTat(i8),
}

#[derive(Arbitrary, Debug)]
struct Step {
    clock: Clock,
    meddling: Option<Meddling>,
    /// The same rule as the call before; the quantity is this one's.
    same: bool,
    max_burst: Wish,
    count: Wish,
    period_seconds: Wish,
    quantity: Quantity,
}

/// An argument: any number, or near the largest that is possible beside the others.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Wish {
    Any(Number),
    Most(i8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Quantity {
    Look,
    One,
    Any(Number),
    /// Near the limit, or what the last answer left.
    Limit(i8),
    Remaining(i8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Clock {
    Stays,
    Forward(Number),
    Back(Number),
    /// To a time that the last answer told, or that the key ends at, or is full at, or near it.
    ToRetry(i8),
    ToReset(i8),
    ToEnd(i8),
    ToTat(i8),
}

/// # Panics
///
/// Where the module's answer isn't the model's, or can't be right.
pub fn check(calls: &Calls) {
    let steady = calls.steady;
    let mut now_us = calls.now.0.max(0);
    let mut rule = calls.steps.first().map(|step| step.rule(now_us));
    let mut key = calls.start.text(now_us, rule.as_ref()).map(|text| Key {
        end_ms: calls.end.ms(&text, now_us),
        text,
    });
    let mut last = None;
    let mut passed = Vec::new();

    for step in calls.steps.iter().take(MOST_STEPS) {
        let before_us = now_us;
        now_us = step.clock.goes_to(now_us, last.as_ref(), key.as_ref());
        if steady {
            now_us = now_us.max(before_us);
        } else {
            meddle(&mut key, step.meddling, now_us / 1_000);
        }
        let rule = match &mut rule {
            Some(rule) if steady || step.same => rule,
            rule => rule.insert(step.rule(now_us)),
        };
        rule.quantity = step.quantity.number(rule, last.as_ref());
        if !is_possible(rule, now_us) {
            // Such a call is an error before it comes this far; there is an answer all the same.
            for at_us in [now_us, !now_us] {
                let _ = rule.fits(at_us);
                let _ = rule.decide(stored(key.as_ref()), at_us);
                let _ = (rule.unstored(true), rule.unstored(false));
            }
            continue;
        }
        let Some((verdict, after)) = answer(key.as_ref(), rule, now_us) else {
            continue;
        };
        if verdict.allowed {
            passed.push((i128::from(now_us), i128::from(rule.quantity)));
        }
        key = after;
        last = Some(verdict);
    }
    if let Some(rule) = rule.filter(|_| steady) {
        assert_no_more_pass_than_promised(&call(&rule), &passed);
    }
}

/// The module's answer, held against the model's, and what the key holds if the change is made.
/// `None` where what is stored is no state of the command.
fn answer(key: Option<&Key>, rule: &Throttle, now_us: i64) -> Option<(Verdict, Option<Key>)> {
    let held = key.map(|key| (&key.text[..], key.end_ms.map(i128::from)));
    let of_model = model::throttle::answer(held, &call(rule), now_us.into());
    let of_module = rule.decide(stored(key), now_us);
    let about = || format!("{rule:?} at {now_us} us to {}", described(key));

    let (verdict, change) = agreed(of_module, of_model, about)?;
    let is_deleted = matches!(change, Some(Change::Delete));
    assert!(!is_deleted, "nothing is given back: {}", about());
    let after = left_by(key, change.as_ref());
    if now_ns(now_us) < FIRST_NS {
        // What is stored then is a counter to the next call.
        return Some((verdict, after));
    }
    let again = |key: Option<&Key>, quantity, at_us| {
        let rule = Throttle { quantity, ..*rule };
        rule.decide(stored(key), at_us).expect("still a limiter")
    };
    let look = |key: Option<&Key>, at_us| again(key, 0, at_us).0;
    let before = look(key, now_us);
    let left = look(after.as_ref(), now_us);

    // Of any answer.
    assert_eq!(verdict.limit, rule.max_burst + 1, "{}", about());
    let can_remain = 0..=verdict.limit;
    assert!(can_remain.contains(&verdict.remaining), "{}", about());
    assert!(verdict.reset_after_ms >= 0, "{}", about());
    let may_go = verdict.retry_after_ms == Some(0);
    assert_eq!(verdict.allowed, may_go, "{}", about());
    assert!(verdict.retry_after_ms >= Some(0) || verdict.retry_after_ms.is_none());
    assert_eq!(left.remaining, verdict.remaining, "{}", about());
    assert_eq!(left.reset_after_ms, verdict.reset_after_ms, "{}", about());
    let taken = if verdict.allowed { rule.quantity } else { 0 };
    assert_eq!(verdict.remaining, before.remaining - taken, "{}", about());

    // What it leaves: a look and a refusal as it was, but for an expiry that was lost.
    let lost_its_end = is_leaked(key);
    match &change {
        None => {
            let may_leave = rule.quantity == 0 || !verdict.allowed && !lost_its_end;
            assert!(may_leave, "nothing is written: {}", about());
        }
        Some(_) if rule.quantity == 0 => panic!("a look writes: {}", about()),
        Some(Change::Store { text, end_ms, .. }) => {
            assert!(*end_ms > now_us / 1_000, "over already: {}", about());
            let tat_ns = model::throttle::read(text).expect("a text that can be read again");
            assert_eq!(tat_ns.to_string().as_bytes(), &text[..], "{}", about());
            let end_ns = i128::from(*end_ms) * 1_000_000;
            assert!(end_ns >= tat_ns, "forgotten too soon: {}", about());
            if verdict.allowed {
                assert!(end_ns - tat_ns < 1_000_000, "kept too long: {}", about());
            } else {
                let held = key.map(|key| &key.text[..]);
                assert_eq!(held, Some(&text[..]), "a refusal takes: {}", about());
                assert!(lost_its_end, "a refusal writes: {}", about());
            }
        }
        Some(Change::Delete) => {}
    }

    // The times are exact: one millisecond before it isn't so yet.
    if let (false, Some(retry_after_ms)) = (verdict.allowed, verdict.retry_after_ms) {
        let is_allowed = |wait_ms| {
            let at_us = now_us + wait_ms * 1_000;
            again(after.as_ref(), rule.quantity, at_us).0.allowed
        };
        assert!(is_allowed(retry_after_ms), "refused after it: {}", about());
        assert!(!is_allowed(retry_after_ms - 1), "too long: {}", about());
    }
    if verdict.reset_after_ms > 0 {
        let reset = |wait_ms| look(after.as_ref(), now_us + wait_ms * 1_000).reset_after_ms;
        let reset_after_ms = verdict.reset_after_ms;
        assert_eq!(reset(reset_after_ms), 0, "not full then: {}", about());
        assert_eq!(reset(reset_after_ms - 1), 1, "full before: {}", about());
    }

    assert_is_unstored(rule);
    Some((verdict, after))
}

/// Out of memory: let through as if it were the only one, or sent away for a period.
fn assert_is_unstored(rule: &Throttle) {
    let limit = rule.max_burst + 1;
    let period_ms = rule.period_seconds.saturating_mul(1_000);
    let answer = |allowed, remaining, wait_ms| Verdict {
        allowed,
        limit,
        remaining,
        retry_after_ms: Some(wait_ms),
        reset_after_ms: wait_ms,
    };
    let let_in = answer(true, (limit - rule.quantity).max(0), 0);
    assert_eq!(rule.unstored(true), let_in, "{rule:?}");
    assert_eq!(
        rule.unstored(false),
        answer(false, 0, period_ms),
        "{rule:?}"
    );
}

/// In any stretch of time: max_burst + 1, and what is refilled in it.
fn assert_no_more_pass_than_promised(call: &Call, passed: &[(i128, i128)]) {
    for (first, (from_us, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (at_us, quantity) in &passed[first..] {
            sum += quantity;
            let span_ns = (at_us - from_us) * 1_000;
            assert!(
                (sum - call.limit()) * call.interval_ns() <= span_ns,
                "{sum} from {from_us} to {at_us} us by {call:?}: {passed:?}"
            );
        }
    }
}

/// Whether the command line would let the rule through; asked of the module and of the model.
fn is_possible(rule: &Throttle, now_us: i64) -> bool {
    let of_model = model::throttle::possible(&call(rule), now_us.into());
    let is_in_range =
        rule.max_burst >= 0 && rule.count >= 1 && rule.period_seconds >= 1 && rule.quantity >= 0;
    if is_in_range {
        assert_eq!(rule.fits(now_us), of_model, "{rule:?} at {now_us} us");
    }
    of_model.is_ok()
}

fn is_leaked(key: Option<&Key>) -> bool {
    key.is_some_and(|key| key.end_ms.is_none())
}

impl Start {
    fn text(&self, now_us: i64, rule: Option<&Throttle>) -> Option<Vec<u8>> {
        let now_ns = now_ns(now_us);
        let tat_ns = match self {
            Self::In(number) => now_ns + i128::from(number.0),
            Self::Owed { intervals, off_ns } => {
                let interval_ns = rule.filter(|rule| rule.count > 0).map_or(0, |rule| {
                    i128::from(rule.period_seconds) * NS_OF_S / i128::from(rule.count)
                });
                let owed_ns = interval_ns.saturating_mul(intervals.0.into());
                (now_ns + i128::from(*off_ns)).saturating_add(owed_ns)
            }
            Self::Last(number) => LAST_NS - i128::from(number.0),
            Self::Other(start) => return start.text(now_us / 1_000),
        };
        Some(tat_ns.to_string().into())
    }
}

impl End {
    fn ms(self, text: &[u8], now_us: i64) -> Option<i64> {
        let now_ms = now_us / 1_000;
        match self {
            Self::Any(end) => end.ms(now_ms),
            Self::ByTat(off) => {
                let tat_us = tat_us(text).unwrap_or(now_us);
                Some(tat_us / 1_000 + i64::from(off))
            }
        }
    }
}

fn now_ns(now_us: i64) -> i128 {
    i128::from(now_us) * 1_000
}

/// Of a text that may be none; rounded down.
fn tat_us(text: &[u8]) -> Option<i64> {
    let tat_ns: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    i64::try_from(tat_ns / 1_000).ok()
}

impl Step {
    fn rule(&self, now_us: i64) -> Throttle {
        let left_ns = LAST_NS - now_ns(now_us);
        let number = |wish, most: i128| match wish {
            Wish::Any(number) => number.0,
            Wish::Most(off) => {
                let wanted = most.saturating_add(off.into()).max(0);
                wanted.try_into().unwrap_or(i64::MAX)
            }
        };
        // The longest period by the count; else the largest count by the period.
        let (count, period_seconds) = match (self.count, self.period_seconds) {
            (Wish::Any(count), period) => {
                let longest = left_ns.saturating_mul(count.0.into()) / NS_OF_S;
                (count.0, number(period, longest))
            }
            (count, period) => {
                let period = number(period, 1);
                (number(count, i128::from(period) * NS_OF_S), period)
            }
        };
        let interval_ns = i128::from(period_seconds) * NS_OF_S / i128::from(count.max(1));
        Throttle {
            max_burst: number(self.max_burst, left_ns / interval_ns.max(1) - 1),
            count,
            period_seconds,
            quantity: 1,
        }
    }
}

impl Quantity {
    fn number(self, rule: &Throttle, last: Option<&Verdict>) -> i64 {
        let near = |number: i64, off: i8| number.saturating_add(off.into()).max(0);
        match self {
            Self::Look => 0,
            Self::One => 1,
            Self::Any(number) => number.0,
            Self::Limit(off) => near(rule.max_burst.saturating_add(1), off),
            Self::Remaining(off) => near(last.map_or(0, |last| last.remaining), off),
        }
    }
}

impl Clock {
    fn goes_to(self, now_us: i64, last: Option<&Verdict>, key: Option<&Key>) -> i64 {
        let in_ms = |after_ms: i64, off: i8| {
            let after_us = after_ms.saturating_mul(1_000);
            now_us.saturating_add(after_us).saturating_add(off.into())
        };
        let to_us = match self {
            Self::Stays => now_us,
            Self::Forward(number) => now_us.saturating_add(number.0.saturating_abs()),
            Self::Back(number) => now_us.saturating_sub(number.0.saturating_abs()),
            Self::ToRetry(off) => {
                in_ms(last.and_then(|last| last.retry_after_ms).unwrap_or(0), off)
            }
            Self::ToReset(off) => in_ms(last.map_or(0, |last| last.reset_after_ms), off),
            Self::ToEnd(off) => key
                .and_then(|key| key.end_ms)
                .map_or(now_us, |end_ms| end_ms.saturating_mul(1_000))
                .saturating_add(off.into()),
            Self::ToTat(off) => key
                .and_then(|key| tat_us(&key.text))
                .unwrap_or(now_us)
                .saturating_add(off.into()),
        };
        to_us.max(0)
    }
}

pub(crate) fn call(rule: &Throttle) -> Call {
    Call {
        max_burst: rule.max_burst.into(),
        count: rule.count.into(),
        period_seconds: rule.period_seconds.into(),
        quantity: rule.quantity.into(),
    }
}
