//! BUCKET: a token bucket.
//!
//! A bucket holds `capacity` tokens and refills continuously, `limit` tokens in a window. What is
//! kept is the debt: what was taken and not yet refilled. It is the generic cell rate algorithm
//! (GCRA, ITU-T I.371) in its form as a leaky bucket: there the debt is called the bucket's level.
//! Debts, unlike arrival times, stay fair when the rate or the capacity changes.
//!
//! Exact integers: a debt is counted in parts of a token of which a token has `window_ms`, so each
//! millisecond refills `limit` of them, and nothing is ever rounded, but when the window changes.

use super::{
    clamp_ms, full, numbers, unsigned, Action, Change, Held, Rule, State, Text, Verdict, Written,
};

/// What is owed to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Debt {
    /// In parts, of which a token has `window_ms`.
    parts: u128,
    /// When it was reckoned: Unix time.
    at_ms: i64,
    window_ms: i64,
}

impl State for Debt {
    const NAME: &'static str = "BUCKET";

    fn parse(text: &[u8]) -> Option<Self> {
        let [parts, at_ms, window_ms] = numbers(text, b'b')?;
        let debt = Self {
            parts,
            at_ms: at_ms.try_into().ok()?,
            window_ms: window_ms.try_into().ok()?,
        };
        // No bucket holds more tokens than a capacity can be; with more, the parts of another window
        // might be too many to be written.
        let most = unsigned(i64::MAX).saturating_mul(unsigned(debt.window_ms));
        (debt.window_ms >= 1 && parts <= most).then_some(debt)
    }

    fn text(&self) -> Text {
        let numbers = [self.parts, unsigned(self.at_ms), unsigned(self.window_ms)];
        Text::from_numbers(b'b', &numbers)
    }
}

/// How long an empty bucket takes to be full, rounded up; 0 if it never refills.
pub(super) fn time_to_fill_ms(limit: i64, capacity: i64, window_ms: i64) -> i128 {
    let parts = unsigned(capacity).saturating_mul(unsigned(window_ms));
    time_to_refill_ms(parts, limit).unwrap_or(0)
}

/// How long so many parts take, rounded up; `None` if the bucket never refills.
fn time_to_refill_ms(parts: u128, limit: i64) -> Option<i128> {
    let limit = unsigned(limit);
    if limit == 0 {
        return None;
    }
    Some(i128::try_from(parts.div_ceil(limit)).unwrap_or(i128::MAX))
}

impl Debt {
    /// What is still owed at `now_ms`, in parts of which a token has `rule.window_ms`.
    ///
    /// A capacity below what was owed makes it an empty bucket of that capacity, from the time at
    /// which the debt was reckoned: else a refusal, which writes nothing, would find it as far
    /// from refilled as the one before.
    fn owed_at(&self, now_ms: i64, rule: &Rule, whole: u128) -> u128 {
        let elapsed_ms = unsigned(now_ms.saturating_sub(self.at_ms));
        let refilled = elapsed_ms.saturating_mul(unsigned(rule.limit));
        let owed = self.scaled_to(rule.window_ms).min(whole);
        owed.saturating_sub(refilled)
    }

    /// When a bucket that never refills lets go of the debt: it tells of no rate, so after the
    /// longer of the windows that are known.
    fn end_unrefilled_ms(&self, now_ms: i64, rule: &Rule) -> i64 {
        now_ms.saturating_add(self.window_ms.max(rule.window_ms))
    }

    /// The parts, if a token has `window_ms` of them: whole tokens and the rest apart, so that it
    /// can't overflow, and rounded up, so that nothing is given away.
    fn scaled_to(&self, window_ms: i64) -> u128 {
        if self.window_ms == window_ms {
            return self.parts;
        }
        let (old, new) = (unsigned(self.window_ms).max(1), unsigned(window_ms));
        let (whole, rest) = (
            self.parts.checked_div(old).unwrap_or(0),
            self.parts.checked_rem(old).unwrap_or(0),
        );
        whole
            .saturating_mul(new)
            .saturating_add(rest.saturating_mul(new).div_ceil(old))
    }
}

/// `held` is the limiter before the call, `None` when it is missing or its end has come.
pub(super) fn decide(
    held: Option<Held<Debt>>,
    rule: &Rule,
    capacity: i64,
    action: Action,
    now_ms: i64,
) -> (Verdict, Option<Change>) {
    let window = unsigned(rule.window_ms).max(1);
    let whole = unsigned(capacity).saturating_mul(window);
    let wanted = unsigned(rule.cost).saturating_mul(window);

    let mut stored = held.as_ref().map(|held| held.state);
    // The clock stepped back: what is owed is owed from now.
    let ahead = stored.is_some_and(|debt| debt.at_ms > now_ms);
    if let Some(debt) = stored.as_mut().filter(|_| ahead) {
        debt.at_ms = now_ms;
    }
    let owed = stored.map_or(0, |debt| debt.owed_at(now_ms, rule, whole));

    let fits = rule.limit > 0 && owed.saturating_add(wanted) <= whole;
    // Of all that was owed, whatever the capacity of this call: it gives back its cost alone. And at the
    // time at which that was reckoned: reckoned anew, a debt that was beyond the capacity would be as
    // far from refilled as it was then.
    let refunded = stored
        .filter(|_| action == Action::Refund)
        .map(|debt| Debt {
            parts: debt.scaled_to(rule.window_ms).saturating_sub(wanted),
            at_ms: debt.at_ms,
            window_ms: rule.window_ms,
        });
    let owed_after = match refunded {
        Some(debt) => debt.owed_at(now_ms, rule, u128::MAX),
        None if action == Action::Hit && fits => owed.saturating_add(wanted),
        None => owed,
    };

    let held_end_ms = held.as_ref().and_then(|held| held.end_ms);
    let kept_end_ms = held_end_ms.filter(|_| !ahead);
    let end_ms = |owed: u128| match (time_to_refill_ms(owed, rule.limit), stored) {
        (Some(wait_ms), _) => clamp_ms(wait_ms.saturating_add(now_ms.into())),
        (None, Some(debt)) => held_end_ms.unwrap_or_else(|| debt.end_unrefilled_ms(now_ms, rule)),
        (None, None) => now_ms,
    };
    // With the key's end all is forgotten, also where the rule has changed since it was set. A hit
    // and a refund set it anew.
    let forgotten_ms = match action {
        Action::Hit if fits => i64::MAX,
        Action::Refund => i64::MAX,
        _ => kept_end_ms.unwrap_or(i64::MAX),
    };
    let until_ms = |at_ms: i64| at_ms.min(forgotten_ms).saturating_sub(now_ms);

    let owed_of_whole = match refunded {
        Some(debt) => debt.owed_at(now_ms, rule, whole),
        None => owed_after.min(whole),
    };
    let stands = Verdict {
        remaining: if rule.limit > 0 {
            let left = whole.saturating_sub(owed_of_whole).checked_div(window);
            left.and_then(|left| left.try_into().ok())
                .unwrap_or(capacity)
        } else {
            0
        },
        reset_after_ms: if owed_of_whole == 0 {
            0
        } else {
            until_ms(end_ms(owed_of_whole))
        },
        ..full(capacity)
    };
    let verdict = match action {
        Action::Hit | Action::Peek if !fits => Verdict {
            allowed: false,
            retry_after_ms: if rule.cost > capacity {
                None
            } else {
                let missing = owed.saturating_add(wanted).saturating_sub(whole);
                time_to_refill_ms(missing, rule.limit)
                    .map(|wait_ms| until_ms(clamp_ms(wait_ms.saturating_add(now_ms.into()))))
            },
            ..stands
        },
        _ => stands,
    };

    let reckoned = Debt {
        parts: owed_after,
        at_ms: now_ms,
        window_ms: rule.window_ms,
    };
    let (debt, end_ms, written) = match (action, stored) {
        (Action::Hit, _) if fits => (reckoned, end_ms(owed_after), Written::Replaced),
        (Action::Refund, Some(_)) if owed_after == 0 => return (verdict, Some(Change::Delete)),
        (Action::Refund, Some(debt)) => {
            let debt = refunded.unwrap_or(debt);
            (debt, end_ms(owed_after), Written::Replaced)
        }
        // The repair: a debt dated after now, or one that lost its expiry.
        (_, Some(debt)) if kept_end_ms.is_none() => {
            let written = Written::by_repair(ahead);
            (debt, end_ms(owed).max(now_ms.saturating_add(1)), written)
        }
        _ => return (verdict, None),
    };
    let change = Change::Store {
        text: debt.text(),
        end_ms,
        written,
        repaired: stored.is_some() && kept_end_ms.is_none(),
    };
    (verdict, Some(change))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{rule, verdict, Key, NOW_MS};
    use super::super::{Algorithm, Rule};
    use super::{time_to_fill_ms, Debt, State};
    use proptest::prelude::*;

    const YEAR_MS: i64 = 365 * 24 * 3_600 * 1_000;

    fn bucket(capacity: i64, limit: i64, window_ms: i64, cost: i64) -> Rule {
        rule(Algorithm::Bucket { capacity }, limit, window_ms, cost)
    }

    #[test]
    fn a_full_bucket_gives_its_capacity_and_then_refills_at_the_rate() {
        let mut key = Key::default();
        let three = bucket(3, 10, 1_000, 1);
        for (left, reset_ms) in [(2, 100), (1, 200), (0, 300)] {
            let want = (true, 3, left, Some(0), reset_ms);
            assert_eq!(key.hit(&three, NOW_MS), verdict(want));
        }
        assert_eq!(key.text(), Some("b:3000:1800000000000:1000"));
        assert_eq!(key.end_ms(), Some(NOW_MS + 300));
        assert_eq!(
            key.hit(&three, NOW_MS),
            verdict((false, 3, 0, Some(100), 300))
        );
        assert_eq!(
            key.hit(&three, NOW_MS + 99),
            verdict((false, 3, 0, Some(1), 201))
        );
        assert_eq!(
            key.hit(&three, NOW_MS + 100),
            verdict((true, 3, 0, Some(0), 300))
        );
        assert_eq!(
            key.peek(&three, NOW_MS + 400),
            verdict((true, 3, 3, Some(0), 0))
        );
    }

    #[test]
    fn a_debt_of_more_tokens_than_any_bucket_holds_is_none() {
        let most = i64::MAX as u128;
        for (parts, window_ms, is_one) in [
            (most, 1, true),
            (most + 1, 1, false),
            (most * 1_000, 1_000, true),
            (most * 1_000 + 1, 1_000, false),
            (most * most, i64::MAX, true),
            (most * most + 1, i64::MAX, false),
            (133_516_564_132_673_790_119, 1, false),
        ] {
            let text = format!("b:{parts}:4:{window_ms}");
            let debt = Debt::parse(text.as_bytes());
            assert_eq!(debt.is_some(), is_one, "{text}");
            // In the parts of whatever window, it can be written and read again.
            if let Some(debt) = debt {
                let parts = debt.scaled_to(i64::MAX);
                let window_ms = i64::MAX;
                let scaled = Debt {
                    parts,
                    window_ms,
                    ..debt
                };
                assert_eq!(Debt::parse(&scaled.text()), Some(scaled), "{text}");
            }
        }
    }

    #[test]
    fn a_rate_that_is_no_whole_number_a_millisecond_does_not_drift() {
        // Three in a thousand milliseconds: 333 1/3 each.
        let mut key = Key::default();
        let one = bucket(1, 3, 1_000, 1);
        assert_eq!(key.hit(&one, NOW_MS), verdict((true, 1, 0, Some(0), 334)));
        assert_eq!(key.end_ms(), Some(NOW_MS + 334));
        assert_eq!(
            key.hit(&one, NOW_MS),
            verdict((false, 1, 0, Some(334), 334))
        );
        let allowed = (0..=300_000)
            .filter(|at_ms| key.hit(&one, NOW_MS + at_ms).allowed)
            .count();
        // Taken as soon as it is there, each of the tokens waits for a whole millisecond.
        assert_eq!(allowed, 300_000 / 334);
        let mut key = Key::default();
        let burst = bucket(900, 3, 1_000, 1);
        let allowed = (0..=300_000)
            .filter(|at_ms| key.hit(&burst, NOW_MS + at_ms).allowed)
            .count();
        assert_eq!(allowed, 900 + 900);
    }

    #[test]
    fn rates_from_one_a_year_to_a_million_a_second_are_exact() {
        let mut key = Key::default();
        for left in (0..300).rev() {
            assert_eq!(key.hit(&bucket(300, 1, YEAR_MS, 1), NOW_MS).remaining, left);
        }
        let empty = key.hit(&bucket(300, 1, YEAR_MS, 1), NOW_MS);
        assert_eq!(
            empty,
            verdict((false, 300, 0, Some(YEAR_MS), 300 * YEAR_MS))
        );

        let mut key = Key::default();
        let fast = |cost| bucket(1_000_000, 1_000_000, 1_000, cost);
        assert!(key.hit(&fast(1_000_000), NOW_MS).allowed);
        assert_eq!(key.hit(&fast(1), NOW_MS).retry_after_ms, Some(1));
        assert_eq!(key.hit(&fast(1), NOW_MS + 1).remaining, 999);
        assert_eq!(key.hit(&fast(1_000), NOW_MS + 1).retry_after_ms, Some(1));
    }

    #[test]
    fn numbers_up_to_the_last_one_work_or_refuse() {
        let mut key = Key::default();
        let all = |cost| bucket(i64::MAX, i64::MAX, 60_000, cost);
        let first = key.hit(&all(i64::MAX), NOW_MS);
        assert_eq!(first, verdict((true, i64::MAX, 0, Some(0), 60_000)));
        let second = key.hit(&all(i64::MAX), NOW_MS + 1);
        assert_eq!(second.retry_after_ms, Some(59_999));
        assert!(key.text().is_some_and(|text| text.len() <= 80));
    }

    #[test]
    fn a_limit_of_zero_refuses_and_keeps_what_is_there() {
        let mut key = Key::default();
        let never = bucket(5, 0, 1_000, 1);
        assert_eq!(key.hit(&never, NOW_MS), verdict((false, 5, 0, None, 0)));
        assert_eq!(key, Key::default());
        key.hit(&bucket(5, 1, 1_000, 2), NOW_MS);
        let before = key.clone();
        assert_eq!(
            key.hit(&never, NOW_MS + 500),
            verdict((false, 5, 0, None, 1_500))
        );
        assert_eq!(key, before);
        // The clock steps back: it is owed from now, and ends when it did.
        let brief = bucket(5, 0, 1, 1);
        assert_eq!(
            key.hit(&brief, NOW_MS - 500),
            verdict((false, 5, 0, None, 2_500))
        );
        assert_eq!(key.end_ms(), Some(NOW_MS + 2_000));
        assert_eq!(key.text(), Some("b:2000:1799999999500:1000"));
        // Without an end it gets one: the longest window that is known.
        key.persist();
        assert_eq!(key.hit(&brief, NOW_MS), verdict((false, 5, 0, None, 1_000)));
        assert_eq!(key.end_ms(), Some(NOW_MS + 1_000));
    }

    #[test]
    fn a_changed_rate_counts_from_the_last_change_of_the_debt() {
        // Three of fifteen taken, at ten in twenty seconds; then at a thousand.
        let mut key = Key::default();
        for _ in 0..3 {
            key.hit(&bucket(15, 10, 20_000, 1), NOW_MS);
        }
        let answer = key.hit(&bucket(15, 1_000, 20_000, 1), NOW_MS + 1);
        assert_eq!(answer, verdict((true, 15, 11, Some(0), 79)));
    }

    #[test]
    fn a_smaller_capacity_is_an_empty_bucket_of_that_capacity_at_worst() {
        let mut key = Key::default();
        key.hit(&bucket(1_000, 10, 1_000, 900), NOW_MS);
        let small = key.hit(&bucket(5, 10, 1_000, 1), NOW_MS);
        assert_eq!(small, verdict((false, 5, 0, Some(100), 500)));
        let large = key.peek(&bucket(2_000, 10, 1_000, 1), NOW_MS);
        assert_eq!(large.remaining, 1_100);
    }

    #[test]
    fn a_changed_window_scales_the_debt_and_rounds_up() {
        // Owed are 2 1/3 tokens, in thousandths: 2334 when rounded up.
        let key = Key::holding("b:7:1800000000000:3", Some(NOW_MS + 1_000_000));
        assert_eq!(
            key.peek(&bucket(9, 1, 1_000, 1), NOW_MS).reset_after_ms,
            2_334
        );
        assert_eq!(key.peek(&bucket(9, 1, 3, 1), NOW_MS).reset_after_ms, 7);
        let most = format!("b:{}:1800000000000:1", i64::MAX);
        let key = Key::holding(&most, Some(NOW_MS + 1_000_000));
        let answer = key.peek(&bucket(9, 1, i64::MAX / 10, 1), NOW_MS);
        assert_eq!((answer.allowed, answer.remaining), (false, 0));
        // All that a bucket can owe, from one window of decades to another.
        let decades_ms = 1 << 40;
        let mut key = Key::default();
        let all = |window_ms| bucket(i64::MAX, i64::MAX, window_ms, i64::MAX);
        assert!(key.hit(&all(decades_ms), NOW_MS).allowed);
        let answer = key.peek(&all(2 * decades_ms + 1), NOW_MS);
        assert_eq!((answer.allowed, answer.remaining), (false, 0));
    }

    #[test]
    fn a_refund_shortens_the_debt_and_a_full_bucket_is_gone() {
        let mut key = Key::default();
        key.hit(&bucket(5, 1, 1_000, 4), NOW_MS);
        let some = key.refund(&bucket(5, 1, 1_000, 1), NOW_MS + 500);
        assert_eq!(some, verdict((true, 5, 2, Some(0), 2_500)));
        assert_eq!(key.end_ms(), Some(NOW_MS + 3_000));
        let all = key.refund(&bucket(5, 1, 1_000, 3), NOW_MS + 500);
        assert_eq!(all, verdict((true, 5, 5, Some(0), 0)));
        assert_eq!(key, Key::default());
        assert_eq!(key.refund(&bucket(5, 1, 1_000, 3), NOW_MS), all);
        assert_eq!(key, Key::default());
    }

    #[test]
    fn a_refund_gives_back_its_cost_alone_whatever_its_capacity() {
        let mut key = Key::default();
        key.hit(&bucket(100, 1, 60_000, 100), NOW_MS);
        let small = key.refund(&bucket(1, 1, 60_000, 1), NOW_MS);
        assert_eq!(small, verdict((true, 1, 0, Some(0), 60_000)));
        assert_eq!(key.text(), Some("b:5940000:1800000000000:60000"));
        assert_eq!(key.peek(&bucket(100, 1, 60_000, 1), NOW_MS).remaining, 1);
    }

    #[test]
    fn a_refund_never_takes_away_what_was_refilled_of_a_debt_beyond_the_capacity() {
        // A hundred tokens are owed, of which a smaller bucket counts ten; five were refilled since.
        let text = format!("b:1000000:{NOW_MS}:10000");
        let mut key = Key::holding(&text, Some(NOW_MS + 100_000));
        let ten = bucket(10, 10, 10_000, 1);
        let at_ms = NOW_MS + 5_000;
        assert_eq!(key.peek(&ten, at_ms).remaining, 5);
        assert_eq!(key.refund(&ten, at_ms).remaining, 5);
        assert_eq!(key.text(), Some("b:990000:1800000000000:10000"));
        assert_eq!(key.peek(&ten, at_ms).remaining, 5);
        assert_eq!(key.end_ms(), Some(NOW_MS + 99_000));
        assert_eq!(key.hit(&ten, at_ms), verdict((true, 10, 4, Some(0), 6_000)));
    }

    #[test]
    fn a_hit_sets_the_end_by_its_own_rate() {
        let mut key = Key::default();
        key.hit(&bucket(10, 1, 60_000, 5), NOW_MS);
        assert_eq!(key.end_ms(), Some(NOW_MS + 300_000));
        let faster = key.hit(&bucket(10, 1_000, 60_000, 1), NOW_MS);
        assert_eq!(faster, verdict((true, 10, 4, Some(0), 360)));
        assert_eq!(key.end_ms(), Some(NOW_MS + 360));
    }

    #[test]
    fn a_refund_sets_the_end_by_its_own_rate() {
        let mut key = Key::default();
        key.hit(&bucket(10, 10, 1_000, 10), NOW_MS);
        let slower = key.refund(&bucket(10, 1, 60_000, 1), NOW_MS);
        assert_eq!(slower, verdict((true, 10, 1, Some(0), 540_000)));
        assert_eq!(key.end_ms(), Some(NOW_MS + 540_000));
    }

    #[test]
    fn nobody_is_told_to_wait_beyond_the_end_of_the_key() {
        let mut key = Key::default();
        key.hit(&bucket(10, 10, 1_000, 10), NOW_MS);
        let slower = bucket(10, 1, 60_000, 1);
        assert_eq!(
            key.hit(&slower, NOW_MS),
            verdict((false, 10, 0, Some(1_000), 1_000))
        );
        assert!(key.hit(&slower, NOW_MS + 1_000).allowed);
    }

    #[test]
    fn a_limiter_that_lost_its_expiry_ends_when_its_debt_is_paid() {
        for (cost, allowed) in [(1, true), (3, false)] {
            let mut key = Key::holding("b:3000:1800000000000:1000", None);
            assert_eq!(key.hit(&bucket(5, 1, 1_000, cost), NOW_MS).allowed, allowed);
            let end_ms = if allowed { 4_000 } else { 3_000 };
            assert_eq!(key.end_ms(), Some(NOW_MS + end_ms));
        }
        let mut key = Key::holding("b:3000:1800000000000:1000", None);
        assert!(!key.hit(&bucket(5, 1, 1_000, 6), NOW_MS + 99_999).allowed);
        assert_eq!(key.end_ms(), Some(NOW_MS + 100_000));
    }

    #[test]
    fn a_debt_dated_after_now_is_owed_from_now_also_by_a_refusal() {
        for (cost, parts) in [(1, 4_000), (3, 3_000)] {
            let mut key = Key::holding("b:3000:1800000900000:1000", Some(NOW_MS + 903_000));
            let answer = key.hit(&bucket(5, 1, 1_000, cost), NOW_MS);
            assert_eq!(answer.reset_after_ms, parts);
            assert_eq!(
                key.text(),
                Some(format!("b:{parts}:1800000000000:1000").as_str())
            );
            assert_eq!(key.end_ms(), Some(NOW_MS + parts));
        }
        // And by a refund.
        let mut key = Key::holding("b:3000:1800000900000:1000", Some(NOW_MS + 903_000));
        let answer = key.refund(&bucket(5, 1, 1_000, 1), NOW_MS);
        assert_eq!(answer, verdict((true, 5, 3, Some(0), 2_000)));
        assert_eq!(key.text(), Some("b:2000:1800000000000:1000"));
        assert_eq!(key.end_ms(), Some(NOW_MS + 2_000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Never more than capacity + rate x T in any span T.
        #[test]
        fn no_span_admits_more_than_the_capacity_and_what_it_refills(
            capacity in 1..12_i64,
            limit in 1..20_i64,
            window_ms in 1..50_i64,
            calls in prop::collection::vec((0..30_i64, 1..5_i64), 1..60),
        ) {
            let (mut key, mut log) = (Key::default(), Vec::<(i64, i64)>::new());
            let mut now_ms = NOW_MS;
            for (step_ms, cost) in calls {
                now_ms += step_ms;
                let before = key.clone();
                let answer = key.hit(&bucket(capacity, limit, window_ms, cost), now_ms);
                prop_assert_eq!(answer.allowed, answer.retry_after_ms == Some(0));
                if answer.allowed {
                    log.push((now_ms, cost));
                } else {
                    prop_assert_eq!(&key, &before);
                }
            }
            for from in 0..log.len() {
                let mut admitted = 0;
                for (at_ms, cost) in &log[from..] {
                    admitted += cost;
                    let span_ms = at_ms - log[from].0;
                    prop_assert!(admitted * window_ms <= capacity * window_ms + limit * span_ms);
                }
            }
        }

        #[test]
        fn retry_and_reset_are_exact(
            tokens in 0..30_i64,
            rest in 0..1_000_i64,
            scale_ms in 1..1_000_i64,
            elapsed_ms in 0..2_500_i64,
            window_ms in 1..1_200_i64,
            (capacity, limit) in (1..20_i64, 1..20_i64),
            cost in 1..20_i64,
            left_ms in prop::option::of(prop_oneof![1..3_000_i64, Just(i64::MAX / 2)]),
        ) {
            let now_ms = NOW_MS + elapsed_ms;
            let parts = tokens * scale_ms + rest % scale_ms;
            let text = format!("b:{parts}:{NOW_MS}:{scale_ms}");
            let key = Key::holding(&text, left_ms.map(|left_ms| now_ms + left_ms));
            let asked = bucket(capacity, limit, window_ms, cost);
            let answer = key.peek(&asked, now_ms);
            let at = |cost, at_ms| key.peek(&bucket(capacity, limit, window_ms, cost), at_ms).allowed;
            match answer.retry_after_ms {
                None => prop_assert!(cost > capacity),
                Some(0) => prop_assert!(answer.allowed),
                Some(retry_ms) => {
                    prop_assert!(!answer.allowed && retry_ms >= 1);
                    // Whatever the rule was before: never longer than the bucket takes to fill.
                    prop_assert!(i128::from(retry_ms) <= time_to_fill_ms(limit, capacity, window_ms));
                    prop_assert!(!at(cost, now_ms + retry_ms - 1));
                    prop_assert!(at(cost, now_ms + retry_ms));
                }
            }
            prop_assert!(at(capacity, now_ms + answer.reset_after_ms));
            if answer.reset_after_ms > 0 {
                prop_assert!(!at(capacity, now_ms + answer.reset_after_ms - 1));
            }
            if answer.remaining > 0 {
                prop_assert!(at(answer.remaining, now_ms));
            }
            if answer.remaining < capacity {
                prop_assert!(!at(answer.remaining + 1, now_ms));
            }
        }
    }
}
