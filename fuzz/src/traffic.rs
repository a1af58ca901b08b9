//! Made-up traffic for one key: what it holds at first, then calls, with a clock that goes where it
//! likes. Each call is answered by the module and by the model; besides, what must hold for any
//! answer is looked at without the model.

use arbitrary::Arbitrary;

use crate::limiter::{self, decide, Action, Algorithm, Rule, Stored, Unfit, Verdict, Written};
use crate::model;
use crate::number::{Moment, Number};

/// The algorithm of all calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Fixed,
    Sliding,
    Bucket,
}

#[derive(Arbitrary, Debug)]
pub struct Traffic {
    now: Moment,
    start: Start,
    end: End,
    /// All calls are hits by the first one's rule, and nobody meddles: how many pass is counted.
    steady: bool,
    steps: Vec<Step>,
}

/// More steps than these find nothing new.
pub(crate) const MOST_STEPS: usize = 40;

/// What the key holds at first.
#[derive(Arbitrary, Debug)]
pub(crate) enum Start {
    Missing,
    Counter(Number),
    Windows {
        previous: Number,
        current: Number,
        age_ms: Number,
    },
    Debt {
        tokens: Number,
        parts: Number,
        age_ms: Number,
        window_ms: Number,
    },
    Text(Vec<u8>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum End {
    In(Number),
    None,
}

#[derive(Arbitrary, Debug)]
struct Step {
    clock: Clock,
    meddling: Option<Meddling>,
    action: Verb,
    /// The same arguments as the call before.
    same: bool,
    limit: Number,
    window_ms: Number,
    cost: Number,
    capacity: Number,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Clock {
    Stays,
    Forward(Number),
    Back(Number),
    /// To a time that the last answer told, or that the key ends at, or near it.
    ToRetry(i8),
    ToReset(i8),
    ToEnd(i8),
}

/// What somebody else does to the key before the call.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Meddling {
    Persist,
    Expire(Number),
    Delete,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Verb {
    Hit,
    Peek,
    /// A peek whose repair is made, as RL.MHIT does where another rule refuses.
    PeekAndRepair,
    Refund,
}

/// What the key holds.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) text: Vec<u8>,
    pub(crate) end_ms: Option<i64>,
}

/// # Panics
///
/// Where the module's answer isn't the model's, or can't be right.
pub fn check(kind: Kind, traffic: &Traffic) {
    let steady = traffic.steady;
    let mut now_ms = traffic.now.0;
    let start = traffic.start.text(now_ms).filter(|_| !steady);
    let mut key = start.map(|text| Key {
        text,
        end_ms: traffic.end.ms(now_ms),
    });
    let mut rule = None;
    let mut last = None;
    let mut passed = Vec::new();

    for step in traffic.steps.iter().take(MOST_STEPS) {
        let end_ms = key.as_ref().and_then(|key| key.end_ms);
        let before_ms = now_ms;
        now_ms = step.clock.goes_to(now_ms, last.as_ref(), end_ms);
        if steady {
            now_ms = now_ms.max(before_ms);
        } else {
            meddle(&mut key, step.meddling, now_ms);
        }
        let rule = match &mut rule {
            Some(rule) if steady || step.same => rule,
            rule => rule.insert(step.rule(kind)),
        };
        let action = match step.action {
            _ if steady => Action::Hit,
            Verb::Hit => Action::Hit,
            Verb::Peek | Verb::PeekAndRepair => Action::Peek,
            Verb::Refund => Action::Refund,
        };
        if !is_possible(rule, now_ms) {
            // Such a call is an error before it comes this far; there is an answer all the same.
            for action in [Action::Hit, Action::Peek, Action::Refund] {
                for at_ms in [now_ms, !now_ms] {
                    let _ = rule.fits(at_ms);
                    let _ = decide(stored(key.as_ref()), rule, action, at_ms);
                }
            }
            continue;
        }
        let Some((verdict, after)) = answer(key.as_ref(), rule, action, now_ms) else {
            continue;
        };
        if steady && verdict.allowed {
            passed.push((i128::from(now_ms), i128::from(rule.cost)));
        }
        if !matches!(step.action, Verb::Peek) || steady {
            key = after;
        }
        last = Some(verdict);
    }
    if let Some(rule) = rule.filter(|_| steady) {
        assert_no_more_pass_than_promised(&rule, &passed);
    }
}

/// The module's answer, held against the model's, and what the key holds if the change is made.
/// `None` where what is stored is no limiter of the algorithm.
fn answer(
    key: Option<&Key>,
    rule: &Rule,
    action: Action,
    now_ms: i64,
) -> Option<(Verdict, Option<Key>)> {
    let held = key.map(|key| (&key.text[..], key.end_ms.map(i128::from)));
    let call = call(rule);
    let of_model = model::answer(held, &call, model_action(action), now_ms.into());
    let of_module = decide(stored(key), rule, action, now_ms);
    let about = || format!("{action:?} by {rule:?} at {now_ms} to {}", described(key));

    let (verdict, change) = agreed(of_module, of_model, about)?;
    let after = left_by(key, change.as_ref());
    let is_repair = matches!(&change, Some(limiter::Change::Store { repaired: true, .. }));
    let again = |key: Option<&Key>, action, at_ms| {
        decide(stored(key), rule, action, at_ms).expect("still a limiter")
    };

    // Of any answer.
    assert!(verdict.remaining >= 0, "{}", about());
    assert!(verdict.reset_after_ms >= 0, "{}", about());
    assert_eq!(verdict.limit, rule.holds(), "{}", about());
    let may_go = verdict.retry_after_ms == Some(0);
    assert_eq!(verdict.allowed, may_go, "{}", about());
    assert!(verdict.retry_after_ms >= Some(0) || verdict.retry_after_ms.is_none());
    if let Some(limiter::Change::Store { text, end_ms, .. }) = &change {
        assert!(*end_ms > now_ms, "over already: {}", about());
        let read = model::Limiter::read(text).expect("a text that can be read again");
        assert_eq!(read.text().as_bytes(), &text[..], "{}", about());
        assert_eq!(limiter::name_of(text), Some(read.name()), "{}", about());
    }

    // A refusal changes nothing but what it repairs, and neither does a peek, which answers as a hit.
    let (peek, _) = again(key, Action::Peek, now_ms);
    match action {
        Action::Hit => {
            assert!(
                verdict.allowed || change.is_none() || is_repair,
                "{}",
                about()
            );
            assert_eq!(peek.allowed, verdict.allowed, "{}", about());
            assert_eq!(peek.retry_after_ms, verdict.retry_after_ms, "{}", about());
            let taken = if verdict.allowed { rule.cost } else { 0 };
            assert_eq!(verdict.remaining, peek.remaining - taken, "{}", about());
        }
        Action::Peek => assert!(change.is_none() || is_repair, "{}", about()),
        Action::Refund => {
            assert!(verdict.allowed, "{}", about());
            let given = verdict.remaining - peek.remaining;
            assert!(given <= rule.cost, "{}", about());
            assert!(given >= 0, "{}", about());
        }
    }

    // The times are exact: one millisecond before it isn't so yet.
    if let (false, Some(retry_after_ms)) = (verdict.allowed, verdict.retry_after_ms) {
        let at_ms = now_ms + retry_after_ms;
        let hit = |at_ms| again(after.as_ref(), Action::Hit, at_ms).0.allowed;
        assert!(hit(at_ms), "refused after the wait: {}", about());
        assert!(!hit(at_ms - 1), "allowed before: {}", about());
    }
    if verdict.reset_after_ms > 0 {
        let at_ms = now_ms + verdict.reset_after_ms;
        let reset = |at_ms| again(after.as_ref(), Action::Peek, at_ms).0.reset_after_ms;
        assert_eq!(reset(at_ms), 0, "not full at its reset: {}", about());
        assert_eq!(reset(at_ms - 1), 1, "full before: {}", about());
    }
    Some((verdict, after))
}

/// What docs/algorithms.md promises of the worst case, counted over every stretch of time.
fn assert_no_more_pass_than_promised(rule: &Rule, passed: &[(i128, i128)]) {
    let (limit, window_ms) = (i128::from(rule.limit), i128::from(rule.window_ms));
    for (first, (from_ms, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (at_ms, cost) in &passed[first..] {
            sum += cost;
            let is_within_a_window = at_ms - from_ms < window_ms;
            let is_kept = match rule.algorithm {
                Algorithm::Fixed => !is_within_a_window || sum <= 2 * limit,
                Algorithm::Sliding => !is_within_a_window || sum < 2 * limit,
                Algorithm::Bucket { capacity } => {
                    let refilled = (at_ms - from_ms) * limit;
                    sum * window_ms <= i128::from(capacity) * window_ms + refilled
                }
            };
            assert!(
                is_kept,
                "{sum} from {from_ms} to {at_ms} by {rule:?}: {passed:?}"
            );
        }
    }
}

/// Whether the command line would let the rule through; asked of the module and of the model.
fn is_possible(rule: &Rule, now_ms: i64) -> bool {
    let of_model = model::possible(&call(rule), now_ms.into());
    let is_in_range = rule.limit >= 0
        && rule.window_ms >= 1
        && rule.cost >= 1
        && !matches!(rule.algorithm, Algorithm::Bucket { capacity } if capacity < 1);
    if is_in_range {
        assert_eq!(rule.fits(now_ms), of_model, "{rule:?} at {now_ms}");
    }
    of_model.is_ok()
}

pub(crate) fn meddle(key: &mut Option<Key>, meddling: Option<Meddling>, now_ms: i64) {
    match (meddling, key) {
        (Some(Meddling::Persist), Some(key)) => key.end_ms = None,
        (Some(Meddling::Expire(number)), Some(key)) => {
            key.end_ms = Some(now_ms.saturating_add(number.0));
        }
        (Some(Meddling::Delete), key) => *key = None,
        _ => {}
    }
}

impl Start {
    pub(crate) fn text(&self, now_ms: i64) -> Option<Vec<u8>> {
        Some(match self {
            Self::Missing => return None,
            Self::Counter(number) => number.0.to_string().into(),
            Self::Windows {
                previous,
                current,
                age_ms,
            } => {
                let start_ms = now_ms.saturating_sub(age_ms.0);
                format!("s:{}:{}:{start_ms}", previous.0, current.0).into()
            }
            Self::Debt {
                tokens,
                parts,
                age_ms,
                window_ms,
            } => {
                let parts = i128::from(tokens.0) * i128::from(window_ms.0) + i128::from(parts.0);
                let at_ms = now_ms.saturating_sub(age_ms.0);
                format!("b:{parts}:{at_ms}:{}", window_ms.0).into()
            }
            Self::Text(text) => text.clone(),
        })
    }
}

impl End {
    pub(crate) fn ms(self, now_ms: i64) -> Option<i64> {
        match self {
            Self::In(number) => Some(now_ms.saturating_add(number.0)),
            Self::None => None,
        }
    }
}

impl Step {
    fn rule(&self, kind: Kind) -> Rule {
        Rule {
            algorithm: match kind {
                Kind::Fixed => Algorithm::Fixed,
                Kind::Sliding => Algorithm::Sliding,
                Kind::Bucket => Algorithm::Bucket {
                    capacity: self.capacity.0,
                },
            },
            limit: self.limit.0,
            window_ms: self.window_ms.0,
            cost: self.cost.0,
        }
    }
}

impl Clock {
    fn goes_to(self, now_ms: i64, last: Option<&Verdict>, end_ms: Option<i64>) -> i64 {
        let in_ms =
            |after_ms: i64, off: i8| now_ms.saturating_add(after_ms).saturating_add(off.into());
        let to_ms = match self {
            Self::Stays => now_ms,
            Self::Forward(number) => now_ms.saturating_add(number.0.saturating_abs()),
            Self::Back(number) => now_ms.saturating_sub(number.0.saturating_abs()),
            Self::ToRetry(off) => {
                in_ms(last.and_then(|last| last.retry_after_ms).unwrap_or(0), off)
            }
            Self::ToReset(off) => in_ms(last.map_or(0, |last| last.reset_after_ms), off),
            Self::ToEnd(off) => end_ms.unwrap_or(now_ms).saturating_add(off.into()),
        };
        to_ms.max(0)
    }
}

pub(crate) fn stored(key: Option<&Key>) -> Option<Stored<'_>> {
    key.map(|key| Stored {
        text: &key.text,
        end_ms: key.end_ms,
    })
}

pub(crate) fn described(key: Option<&Key>) -> String {
    key.map_or("nothing".into(), |key| {
        format!(
            "{:?} until {:?}",
            String::from_utf8_lossy(&key.text),
            key.end_ms
        )
    })
}

pub(crate) fn call(rule: &Rule) -> model::Call {
    model::Call {
        algorithm: match rule.algorithm {
            Algorithm::Fixed => model::Algorithm::Fixed,
            Algorithm::Sliding => model::Algorithm::Sliding,
            Algorithm::Bucket { capacity } => model::Algorithm::Bucket {
                capacity: capacity.into(),
            },
        },
        limit: rule.limit.into(),
        window_ms: rule.window_ms.into(),
        cost: rule.cost.into(),
    }
}

fn model_action(action: Action) -> model::Action {
    match action {
        Action::Hit => model::Action::Hit,
        Action::Peek => model::Action::Peek,
        Action::Refund => model::Action::Refund,
    }
}

/// What the module decided, if the model says the same; `None` if both say that the text is no state.
pub(crate) fn agreed(
    of_module: Result<(Verdict, Option<limiter::Change>), Unfit>,
    of_model: Result<model::Answer, model::Unfit>,
    about: impl Fn() -> String,
) -> Option<(Verdict, Option<limiter::Change>)> {
    let in_words = match &of_module {
        Ok((verdict, change)) => Ok(in_words_of_the_model(verdict, change.as_ref())),
        Err(Unfit::NotALimiter) => Err(model::Unfit::NotALimiter),
        Err(Unfit::Other(name)) => Err(model::Unfit::Holds(name)),
    };
    assert_eq!(in_words, of_model, "module, model: {}", about());
    of_module.ok()
}

/// What the key holds when the change is made.
pub(crate) fn left_by(key: Option<&Key>, change: Option<&limiter::Change>) -> Option<Key> {
    match change {
        None => key.cloned(),
        Some(limiter::Change::Delete) => None,
        Some(limiter::Change::Store { text, end_ms, .. }) => Some(Key {
            text: text.to_vec(),
            end_ms: Some(*end_ms),
        }),
    }
}

fn in_words_of_the_model(verdict: &Verdict, change: Option<&limiter::Change>) -> model::Answer {
    model::Answer {
        allowed: verdict.allowed,
        limit: verdict.limit.into(),
        remaining: verdict.remaining.into(),
        retry_after_ms: verdict.retry_after_ms.map(i128::from),
        reset_after_ms: verdict.reset_after_ms.into(),
        change: match change {
            None => model::Change::Nothing,
            Some(limiter::Change::Delete) => model::Change::Delete,
            Some(limiter::Change::Store {
                text,
                end_ms,
                written,
                repaired,
            }) => model::Change::Store {
                text: String::from_utf8_lossy(text).into_owned(),
                end_ms: (*end_ms).into(),
                event: match written {
                    Written::Kept => model::Event::None,
                    Written::CountedUp => model::Event::Incrby,
                    Written::CountedDown => model::Event::Decrby,
                    Written::Replaced => model::Event::Set,
                },
                repaired: *repaired,
            },
        },
    }
}
