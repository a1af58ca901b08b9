//! A made-up key with a made-up clock, for the tests of the algorithms.

use super::{decide, Action, Algorithm, Change, Rule, Stored, Verdict};

pub(super) const NOW_MS: i64 = 1_800_000_000_000;

/// A key of a made-up server: what it holds, and when it ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Key(Option<(Vec<u8>, Option<i64>)>);

impl Key {
    pub(super) fn holding(text: &str, end_ms: Option<i64>) -> Self {
        Self(Some((text.as_bytes().to_vec(), end_ms)))
    }

    pub(super) fn hit(&mut self, rule: &Rule, now_ms: i64) -> Verdict {
        self.call(rule, Action::Hit, now_ms)
    }

    pub(super) fn peek(&self, rule: &Rule, now_ms: i64) -> Verdict {
        self.clone().call(rule, Action::Peek, now_ms)
    }

    pub(super) fn refund(&mut self, rule: &Rule, now_ms: i64) -> Verdict {
        self.call(rule, Action::Refund, now_ms)
    }

    pub(super) fn call(&mut self, rule: &Rule, action: Action, now_ms: i64) -> Verdict {
        let stored = self.0.as_ref().map(|(text, end_ms)| Stored {
            text,
            end_ms: *end_ms,
        });
        let (verdict, change) = decide(stored, rule, action, now_ms).expect("a limiter");
        match change {
            Some(Change::Store { text, end_ms, .. }) => {
                assert!(end_ms > now_ms, "{end_ms} is over at {now_ms}");
                self.0 = Some((text.to_vec(), Some(end_ms)));
            }
            Some(Change::Delete) => self.0 = None,
            None => {}
        }
        verdict
    }

    /// Somebody takes the expiry away.
    pub(super) fn persist(&mut self) {
        if let Some((_, end_ms)) = &mut self.0 {
            *end_ms = None;
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        let (text, _) = self.0.as_ref()?;
        Some(std::str::from_utf8(text).expect("a limiter is printable"))
    }

    pub(super) fn end_ms(&self) -> Option<i64> {
        self.0.as_ref()?.1
    }
}

pub(super) fn rule(algorithm: Algorithm, limit: i64, window_ms: i64, cost: i64) -> Rule {
    Rule {
        algorithm,
        limit,
        window_ms,
        cost,
    }
}

/// A verdict by its fields, in their order.
pub(super) fn verdict(fields: (bool, i64, i64, Option<i64>, i64)) -> Verdict {
    let (allowed, limit, remaining, retry_after_ms, reset_after_ms) = fields;
    Verdict {
        allowed,
        limit,
        remaining,
        retry_after_ms,
        reset_after_ms,
    }
}
