//! FIXED: a counter and the end of its window.
//!
//! The well-known fixed-window counter, exactly what INCR and EXPIRE make: the counter is the text
//! of the key, the end of the window is the key's expiry. Up to 2 x limit can pass within one
//! window's length around a boundary; that is the algorithm's, not a fault.

use super::{full, integer, Action, Change, Held, Rule, State, Text, Verdict, Written};

pub(super) struct Counter(i64);

impl State for Counter {
    const NAME: &'static str = "FIXED";

    fn parse(text: &[u8]) -> Option<Self> {
        integer(text).map(Self)
    }

    fn text(&self) -> Text {
        Text::from_integer(self.0)
    }
}

/// `held` is the limiter before the call, `None` when it is missing or its end has come.
#[inline(always)] // the most frequent one, and what it returns is large
pub(super) fn decide(
    held: Option<Held<Counter>>,
    rule: &Rule,
    action: Action,
    now_ms: i64,
) -> (Verdict, Option<Change>) {
    let missing = held.is_none();
    let (value, running_end_ms) = held.map_or((0, None), |held| (held.state.0, held.end_ms));
    let count = value.max(0);

    // A running window keeps its end. A new one gets it here, and so does one that lost it.
    let end_ms = running_end_ms.unwrap_or_else(|| now_ms.saturating_add(rule.window_ms));
    let until_end_ms = end_ms.saturating_sub(now_ms);

    let fitting = count
        .checked_add(rule.cost)
        .filter(|taken| *taken <= rule.limit);
    let (count_after, written) = match (action, fitting) {
        (Action::Hit, Some(taken)) => (taken, Written::CountedUp),
        (Action::Refund, _) if count > 0 => {
            (count.saturating_sub(rule.cost).max(0), Written::CountedDown)
        }
        _ => (count, Written::Kept),
    };

    let stands = Verdict {
        remaining: rule.limit.saturating_sub(count_after).max(0),
        reset_after_ms: if count_after == 0 { 0 } else { until_end_ms },
        ..full(rule.limit)
    };
    let verdict = match (action, fitting) {
        (Action::Hit | Action::Peek, None) => Verdict {
            allowed: false,
            retry_after_ms: (rule.cost <= rule.limit).then_some(until_end_ms),
            ..stands
        },
        _ => stands,
    };

    let leaked = !missing && running_end_ms.is_none();
    let value_after = match written {
        // The repair keeps the value as it stands, also a negative one.
        Written::Kept if leaked => value,
        Written::Kept => return (verdict, None),
        _ => count_after,
    };
    let change = Change::Store {
        text: Counter(value_after).text(),
        end_ms,
        written,
        repaired: leaked,
    };
    (verdict, Some(change))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{rule, verdict, Key, NOW_MS};
    use super::super::{decide, Algorithm, Stored, Unfit};
    use super::*;
    use proptest::prelude::*;

    fn fixed(limit: i64, window_ms: i64, cost: i64) -> Rule {
        rule(Algorithm::Fixed, limit, window_ms, cost)
    }

    #[test]
    fn each_hit_takes_one_until_the_limit_and_the_next_is_refused() {
        let mut key = Key::default();
        let rule = fixed(3, 60_000, 1);
        for (at_ms, want) in [
            (0, (true, 3, 2, Some(0), 60_000)),
            (10_000, (true, 3, 1, Some(0), 50_000)),
            (20_000, (true, 3, 0, Some(0), 40_000)),
            (20_001, (false, 3, 0, Some(39_999), 39_999)),
            (59_999, (false, 3, 0, Some(1), 1)),
            (60_000, (true, 3, 2, Some(0), 60_000)),
        ] {
            assert_eq!(key.hit(&rule, NOW_MS + at_ms), verdict(want), "at {at_ms}");
        }
        assert_eq!(key.end_ms(), Some(NOW_MS + 120_000));
    }

    #[test]
    fn a_running_window_is_never_moved_by_a_new_window_argument() {
        let mut key = Key::default();
        key.hit(&fixed(5, 1_000, 1), NOW_MS);
        let longer = key.hit(&fixed(5, 60_000, 1), NOW_MS + 1);
        assert_eq!(longer, verdict((true, 5, 3, Some(0), 999)));
        assert_eq!(key.end_ms(), Some(NOW_MS + 1_000));
    }

    #[test]
    fn a_refused_hit_does_not_count_and_changes_nothing() {
        let stored = Stored {
            text: b"8",
            end_ms: Some(NOW_MS + 500),
        };
        let (answer, change) =
            decide(Some(stored), &fixed(10, 1_000, 3), Action::Hit, NOW_MS).unwrap();
        assert_eq!(answer, verdict((false, 10, 2, Some(500), 500)));
        assert_eq!(change, None);
    }

    #[test]
    fn a_cost_that_fits_exactly_is_allowed() {
        let mut key = Key::holding("8", Some(NOW_MS + 500));
        assert_eq!(
            key.hit(&fixed(10, 1_000, 2), NOW_MS),
            verdict((true, 10, 0, Some(0), 500))
        );
        assert_eq!(key.text(), Some("10"));
    }

    #[test]
    fn a_cost_above_the_limit_never_passes_and_makes_no_key() {
        let mut key = Key::default();
        assert_eq!(
            key.hit(&fixed(10, 1_000, 11), NOW_MS),
            verdict((false, 10, 10, None, 0))
        );
        assert_eq!(
            key.hit(&fixed(0, 1_000, 1), NOW_MS),
            verdict((false, 0, 0, None, 0))
        );
        assert_eq!(key.text(), None);
    }

    /// A counter without expiry, the rule, the answer, and the counter afterwards; in each case it
    /// ends one window from now.
    #[test]
    fn a_counter_that_lost_its_expiry_is_repaired_on_both_paths_and_keeps_its_count() {
        for (text, (limit, cost), want, after) in [
            ("5", (10, 1), (true, 10, 4, Some(0), 1_000), "6"),
            ("10", (10, 1), (false, 10, 0, Some(1_000), 1_000), "10"),
            ("2550", (10, 1), (false, 10, 0, Some(1_000), 1_000), "2550"),
            ("5", (0, 1), (false, 0, 0, None, 1_000), "5"),
            ("5", (10, 11), (false, 10, 5, None, 1_000), "5"),
            ("0", (10, 11), (false, 10, 10, None, 0), "0"),
            ("-1", (5, 1), (true, 5, 4, Some(0), 1_000), "1"),
            ("-7", (5, 6), (false, 5, 5, None, 0), "-7"),
            (
                "9223372036854775807",
                (i64::MAX, 1),
                (false, i64::MAX, 0, Some(1_000), 1_000),
                "9223372036854775807",
            ),
        ] {
            let mut key = Key::holding(text, None);
            let answer = key.hit(&fixed(limit, 1_000, cost), NOW_MS);
            assert_eq!(answer, verdict(want), "{text} {limit} {cost}");
            assert_eq!(key.text(), Some(after), "{text} {limit} {cost}");
            assert_eq!(key.end_ms(), Some(NOW_MS + 1_000), "{text} {limit} {cost}");
        }
    }

    #[test]
    fn a_repair_is_told_apart_from_a_hit() {
        let leaked = |text| Some(Stored { text, end_ms: None });
        let (_, taken) = decide(leaked(b"5"), &fixed(10, 1_000, 1), Action::Hit, NOW_MS).unwrap();
        let (_, repaired) =
            decide(leaked(b"10"), &fixed(10, 1_000, 1), Action::Hit, NOW_MS).unwrap();
        let written = |change: Option<Change>| match change {
            Some(Change::Store { written, .. }) => Some(written),
            _ => None,
        };
        assert_eq!(written(taken), Some(Written::CountedUp));
        assert_eq!(written(repaired), Some(Written::Kept));
    }

    #[test]
    fn a_limiter_whose_end_is_now_or_earlier_is_missing_whatever_it_holds() {
        for text in ["10", "hello", ""] {
            for end_ms in [NOW_MS, NOW_MS - 1, 0, -1, i64::MIN] {
                let mut key = Key::holding(text, Some(end_ms));
                assert_eq!(
                    key.hit(&fixed(10, 1_000, 1), NOW_MS),
                    verdict((true, 10, 9, Some(0), 1_000))
                );
                assert_eq!(key.text(), Some("1"));
                assert_eq!(key.end_ms(), Some(NOW_MS + 1_000));
            }
        }
        let mut key = Key::holding("10", Some(NOW_MS + 1));
        assert_eq!(
            key.hit(&fixed(10, 1_000, 1), NOW_MS),
            verdict((false, 10, 0, Some(1), 1))
        );
    }

    #[test]
    fn a_text_that_is_no_counter_is_an_error() {
        for text in ["hello", "", " 5", "3.14", "9223372036854775808"] {
            for end_ms in [None, Some(NOW_MS + 1)] {
                let stored = Stored {
                    text: text.as_bytes(),
                    end_ms,
                };
                assert_eq!(
                    decide(Some(stored), &fixed(10, 1_000, 1), Action::Hit, NOW_MS),
                    Err(Unfit::NotALimiter),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn numbers_up_to_the_last_one_work_or_refuse() {
        let mut key = Key::default();
        let first = key.hit(&fixed(i64::MAX, 1, i64::MAX - 1), NOW_MS);
        assert_eq!(first, verdict((true, i64::MAX, 1, Some(0), 1)));
        let second = key.hit(&fixed(i64::MAX, 1, 2), NOW_MS);
        assert_eq!(second, verdict((false, i64::MAX, 1, Some(1), 1)));
        let third = key.hit(&fixed(i64::MAX, 1, 1), NOW_MS);
        assert_eq!(third, verdict((true, i64::MAX, 0, Some(0), 1)));
        assert_eq!(key.text(), Some("9223372036854775807"));

        let mut endless = Key::default();
        let all_time = endless.hit(&fixed(1, i64::MAX - NOW_MS, 1), NOW_MS);
        assert_eq!(all_time, verdict((true, 1, 0, Some(0), i64::MAX - NOW_MS)));
        assert_eq!(endless.end_ms(), Some(i64::MAX));
    }

    #[test]
    fn a_peek_tells_what_a_hit_would_be_answered_and_takes_nothing() {
        let key = Key::holding("8", Some(NOW_MS + 500));
        let want = (true, 10, 2, Some(0), 500);
        assert_eq!(key.peek(&fixed(10, 1_000, 2), NOW_MS), verdict(want));
        let want = (false, 10, 2, Some(500), 500);
        assert_eq!(key.peek(&fixed(10, 1_000, 3), NOW_MS), verdict(want));
        let want = (false, 10, 2, None, 500);
        assert_eq!(key.peek(&fixed(10, 1_000, 11), NOW_MS), verdict(want));
        let full = verdict((true, 10, 10, Some(0), 0));
        assert_eq!(key.peek(&fixed(10, 1_000, 10), NOW_MS + 500), full);
        assert_eq!(Key::default().peek(&fixed(10, 1_000, 1), NOW_MS), full);
        // Without an expiry: what the repair would give.
        let leaked = Key::holding("8", None);
        let want = (false, 5, 0, Some(1_000), 1_000);
        assert_eq!(leaked.peek(&fixed(5, 1_000, 1), NOW_MS), verdict(want));
    }

    #[test]
    fn a_refund_gives_back_as_far_as_empty_and_never_moves_the_end() {
        let mut key = Key::holding("8", Some(NOW_MS + 500));
        let some = key.refund(&fixed(10, 1_000, 3), NOW_MS);
        assert_eq!(some, verdict((true, 10, 5, Some(0), 500)));
        let rest = key.refund(&fixed(10, 1_000, 100), NOW_MS);
        assert_eq!(rest, verdict((true, 10, 10, Some(0), 0)));
        assert_eq!((key.text(), key.end_ms()), (Some("0"), Some(NOW_MS + 500)));
        let before = key.clone();
        assert_eq!(key.refund(&fixed(10, 1_000, 1), NOW_MS), rest);
        assert_eq!(key, before);
        // The next hit goes on in the same window.
        key.hit(&fixed(10, 9_000, 1), NOW_MS + 1);
        assert_eq!((key.text(), key.end_ms()), (Some("1"), Some(NOW_MS + 500)));

        let mut missing = Key::default();
        assert_eq!(missing.refund(&fixed(10, 1_000, 3), NOW_MS), rest);
        assert_eq!(missing, Key::default());
        let mut over = Key::holding("8", Some(NOW_MS));
        assert_eq!(over.refund(&fixed(10, 1_000, 3), NOW_MS), rest);
        assert_eq!(over.text(), Some("8"));
    }

    #[test]
    fn a_refund_repairs_too() {
        for (text, cost, after) in [("8", 3, "5"), ("8", 9, "0"), ("0", 1, "0"), ("-4", 1, "-4")] {
            let mut key = Key::holding(text, None);
            assert!(key.refund(&fixed(10, 1_000, cost), NOW_MS).allowed);
            assert_eq!(key.text(), Some(after));
            assert_eq!(key.end_ms(), Some(NOW_MS + 1_000));
        }
    }

    /// The naive model: every admitted hit, with its window. It knows nothing of counters and ends.
    #[derive(Default)]
    struct Model {
        window_end_ms: i64,
        admitted: Vec<i64>,
    }

    impl Model {
        fn hit(&mut self, rule: &Rule, now_ms: i64) -> bool {
            if now_ms >= self.window_end_ms {
                self.admitted.clear();
            }
            let allowed = self.admitted.iter().sum::<i64>() + rule.cost <= rule.limit;
            if allowed {
                if self.admitted.is_empty() {
                    self.window_end_ms = now_ms + rule.window_ms;
                }
                self.admitted.push(rule.cost);
            }
            allowed
        }
    }

    fn any_number() -> impl Strategy<Value = i64> {
        prop_oneof![
            any::<i64>(),
            prop::sample::select(vec![
                i64::MIN,
                i64::MIN + 1,
                -1,
                0,
                1,
                i64::MAX - 1,
                i64::MAX
            ]),
            -3..20_i64,
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn verdicts_are_those_of_a_list_of_admitted_hits(
            limit in 0..12_i64,
            window_ms in 1..50_i64,
            calls in prop::collection::vec((0..30_i64, 1..5_i64), 1..80),
        ) {
            let (mut key, mut model) = (Key::default(), Model::default());
            let mut now_ms = NOW_MS;
            let mut admitted: Vec<(i64, i64)> = Vec::new();
            for (step_ms, cost) in calls {
                now_ms += step_ms;
                let rule = fixed(limit, window_ms, cost);
                let before = key.clone();
                let answer = key.hit(&rule, now_ms);

                prop_assert_eq!(answer.allowed, model.hit(&rule, now_ms));
                prop_assert_eq!(answer.remaining, limit - model.admitted.iter().sum::<i64>());
                prop_assert_eq!(answer.allowed, answer.retry_after_ms == Some(0));
                if answer.allowed {
                    admitted.push((now_ms, cost));
                } else {
                    prop_assert_eq!(&key, &before);
                }
                let in_window: i64 = admitted
                    .iter()
                    .filter(|(at_ms, _)| *at_ms >= model.window_end_ms - window_ms)
                    .map(|(_, cost)| cost)
                    .sum();
                prop_assert!(in_window <= limit);
            }
        }

        #[test]
        fn retry_after_is_exact(
            count in 0..20_i64,
            until_end_ms in prop::option::of(1..1_000_i64),
            limit in 0..20_i64,
            cost in 1..20_i64,
        ) {
            let mut key = Key::holding(&count.to_string(), until_end_ms.map(|ms| NOW_MS + ms));
            let rule = fixed(limit, 700, cost);
            let answer = key.hit(&rule, NOW_MS);
            match answer.retry_after_ms {
                Some(0) => prop_assert!(answer.allowed),
                None => {
                    prop_assert!(!answer.allowed);
                    prop_assert!(!key.clone().hit(&rule, NOW_MS + 100_000).allowed);
                }
                Some(retry_after_ms) => {
                    prop_assert!(!answer.allowed && retry_after_ms >= 1);
                    prop_assert!(!key.clone().hit(&rule, NOW_MS + retry_after_ms - 1).allowed);
                    prop_assert!(key.clone().hit(&rule, NOW_MS + retry_after_ms).allowed);
                }
            }
        }

        #[test]
        fn reset_after_is_exact(
            count in 0..20_i64,
            until_end_ms in prop::option::of(1..1_000_i64),
            limit in 1..20_i64,
        ) {
            let mut key = Key::holding(&count.to_string(), until_end_ms.map(|ms| NOW_MS + ms));
            let answer = key.hit(&fixed(limit, 700, 1), NOW_MS);
            // A call for all of the limit passes exactly when the limiter is full.
            let full = |at_ms| key.clone().hit(&fixed(limit, 700, limit), at_ms).allowed;
            prop_assert!(full(NOW_MS + answer.reset_after_ms));
            prop_assert!(!full(NOW_MS + answer.reset_after_ms - 1));
        }

        #[test]
        fn any_input_has_an_answer_that_keeps_the_promises(
            value in any_number(),
            missing: bool,
            end_ms in prop::option::of(any_number()),
            limit in any_number(),
            window_ms in any_number(),
            cost in any_number(),
            now_ms in any_number(),
        ) {
            let text = value.to_string();
            let stored = (!missing).then_some(Stored { text: text.as_bytes(), end_ms });
            let (answer, change) = decide(stored, &fixed(limit, window_ms, cost), Action::Hit, now_ms).unwrap();

            prop_assert!(answer.remaining >= 0);
            prop_assert!(!answer.allowed || answer.retry_after_ms == Some(0));
            if window_ms >= 1 && cost >= 1 && now_ms.checked_add(window_ms).is_some() {
                prop_assert_eq!(answer.allowed, answer.retry_after_ms == Some(0));
                prop_assert!(answer.reset_after_ms >= 0);
                prop_assert!(answer.retry_after_ms.is_none_or(|retry_ms| retry_ms >= 0));
            }
            let live = !missing && end_ms.is_none_or(|end_ms| end_ms > now_ms);
            let count = if live { value.max(0) } else { 0 };
            prop_assert_eq!(
                answer.allowed,
                i128::from(count) + i128::from(cost) <= i128::from(limit)
            );
            if let Some(Change::Store { end_ms: after, written, .. }) = &change {
                if live && end_ms.is_some() {
                    prop_assert_eq!(Some(*after), end_ms);
                }
                prop_assert_eq!(*written == Written::CountedUp, answer.allowed);
                prop_assert!(answer.allowed || (live && end_ms.is_none()));
            }
            // Whatever the verdict: a limiter that stands has an end.
            prop_assert!(change.is_some() || !live || end_ms.is_some());
        }
    }
}
