//! SLIDING: the sliding-window counter, an estimate from two windows.
//!
//! Windows of one length follow each other from the first hit. What counts at a time is the current
//! window's count plus the part of the previous window's count that the sliding window, which ends
//! now, still covers: previous x (window - elapsed) / window, rounded down. It is exact if the
//! previous window's hits were spread evenly. In the worst case, when they all came last, 2 x
//! limit - 1 pass within one window's length.
//!
//! The method is the well-known one of the "approximated sliding window" (Cloudflare, "How we built
//! rate limiting capable of scaling to millions of domains", 2017).
//!
//! A call measures what is stored by its own window: where a window was changed, both counts are
//! taken to be of windows of the new length. (What was taken under the old one can still go away
//! by the old end: that is the key's expiry.)

use super::{
    clamp_ms, full, numbers, unsigned, Action, Change, Held, Rule, State, Text, Verdict, Written,
};

/// Counts of two windows, and when the second of them began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    previous: i64,
    current: i64,
    start_ms: i64,
}

impl State for Windows {
    const NAME: &'static str = "SLIDING";

    fn parse(text: &[u8]) -> Option<Self> {
        let [previous, current, start_ms] = numbers(text, b's')?;
        Some(Self {
            previous: previous.try_into().ok()?,
            current: current.try_into().ok()?,
            start_ms: start_ms.try_into().ok()?,
        })
    }

    fn text(&self) -> Text {
        let numbers = [self.previous, self.current, self.start_ms];
        Text::from_numbers(b's', &numbers.map(unsigned))
    }
}

/// How many milliseconds a window may still cover for `count`, weighted, to be `at_most` or less.
/// `at_most` is not negative.
fn longest_cover_ms(count: i64, at_most: i64, window_ms: i64) -> i128 {
    // floor(count x cover / window) <= at_most  <=>  count x cover < (at_most + 1) x window
    let bound = i128::from(at_most)
        .saturating_add(1)
        .saturating_mul(window_ms.into())
        .saturating_sub(1);
    bound.checked_div(count.into()).unwrap_or(i128::MAX)
}

impl Windows {
    fn new(start_ms: i64) -> Self {
        Self {
            previous: 0,
            current: 0,
            start_ms,
        }
    }

    /// The same at `now_ms`: with the window that runs then. `None` if nothing counts any more.
    fn at(self, now_ms: i64, window_ms: i64) -> Option<Self> {
        let elapsed_ms = now_ms.saturating_sub(self.start_ms);
        if elapsed_ms < window_ms {
            return Some(self);
        }
        let next = Self {
            previous: self.current,
            current: 0,
            start_ms: self.start_ms.saturating_add(window_ms),
        };
        (next.taken(now_ms, window_ms) > 0).then_some(next)
    }

    /// What counts at `now_ms`, which lies in the current window.
    fn taken(&self, now_ms: i64, window_ms: i64) -> i64 {
        let elapsed_ms = now_ms.saturating_sub(self.start_ms);
        let cover_ms = window_ms
            .saturating_sub(elapsed_ms)
            .clamp(0, window_ms.max(0));
        let weight = i128::from(self.previous)
            .saturating_mul(cover_ms.into())
            .checked_div(window_ms.into())
            .unwrap_or(0);
        clamp_ms(weight).saturating_add(self.current)
    }

    /// When no more than `at_most` counts, if nothing is added. `at_most` is not negative.
    fn at_most_ms(&self, at_most: i64, window_ms: i64) -> i128 {
        let window = i128::from(window_ms);
        let end_ms = i128::from(self.start_ms).saturating_add(window);
        match at_most.checked_sub(self.current) {
            // In this window, as the previous one's weight falls.
            Some(left) if left >= 0 => {
                let cover_ms = longest_cover_ms(self.previous, left, window_ms).min(window);
                end_ms.saturating_sub(cover_ms)
            }
            // In the next one, in which this one's weight falls.
            _ => {
                let cover_ms = longest_cover_ms(self.current, at_most, window_ms).min(window);
                end_ms.saturating_add(window).saturating_sub(cover_ms)
            }
        }
    }

    /// When the limiter can go: when nothing counts any more, but not while its window runs.
    fn end_ms(&self, window_ms: i64, now_ms: i64) -> i64 {
        let window_end_ms = i128::from(self.start_ms).saturating_add(window_ms.into());
        clamp_ms(self.at_most_ms(0, window_ms).max(window_end_ms)).max(now_ms.saturating_add(1))
    }
}

/// `held` is the limiter before the call, `None` when it is missing or its end has come.
pub(super) fn decide(
    held: Option<Held<Windows>>,
    rule: &Rule,
    action: Action,
    now_ms: i64,
) -> (Verdict, Option<Change>) {
    let window_ms = rule.window_ms;
    let mut stored = held.as_ref().map(|held| held.state);
    // The clock stepped back: the window that runs begins now.
    let ahead = stored.is_some_and(|windows| windows.start_ms > now_ms);
    if let Some(windows) = stored.as_mut().filter(|_| ahead) {
        windows.start_ms = now_ms;
    }

    let running = stored.and_then(|windows| windows.at(now_ms, window_ms));
    let windows = running.unwrap_or(Windows::new(now_ms));
    let taken = windows.taken(now_ms, window_ms);
    let fits = taken
        .checked_add(rule.cost)
        .is_some_and(|taken| taken <= rule.limit);

    let after = match action {
        Action::Hit if fits => Some(Windows {
            current: windows.current.saturating_add(rule.cost),
            ..windows
        }),
        Action::Refund => running.map(|windows| {
            // Of this window first; what it doesn't have was taken in the one before.
            let of_current = rule.cost.min(windows.current);
            let of_previous = rule.cost.saturating_sub(of_current).min(windows.previous);
            Windows {
                previous: windows.previous.saturating_sub(of_previous),
                current: windows.current.saturating_sub(of_current),
                ..windows
            }
        }),
        _ => None,
    };

    // With the key's end all is forgotten, also where the rule has changed since it was set. Only a
    // hit sets it anew.
    let kept_end_ms = held.and_then(|held| held.end_ms).filter(|_| !ahead);
    let forgotten_ms = match (action, after) {
        (Action::Hit, Some(_)) => i64::MAX,
        _ => kept_end_ms.unwrap_or(i64::MAX),
    };
    let until_ms = |at_ms: i128| {
        let at_ms = at_ms.min(forgotten_ms.into());
        clamp_ms(at_ms.saturating_sub(now_ms.into()))
    };

    let stands = after.unwrap_or(windows);
    let taken_after = stands.taken(now_ms, window_ms);
    let stands = Verdict {
        remaining: rule.limit.saturating_sub(taken_after).max(0),
        reset_after_ms: if taken_after == 0 {
            0
        } else {
            until_ms(stands.at_most_ms(0, window_ms))
        },
        ..full(rule.limit)
    };
    let verdict = match action {
        Action::Hit | Action::Peek if !fits => Verdict {
            allowed: false,
            retry_after_ms: rule
                .limit
                .checked_sub(rule.cost)
                .filter(|at_most| *at_most >= 0)
                .map(|at_most| until_ms(windows.at_most_ms(at_most, window_ms))),
            ..stands
        },
        _ => stands,
    };

    let change = match (after, stored) {
        // A refund to a limiter that has nothing to give back to.
        (Some(after), Some(stored)) if after == stored && kept_end_ms.is_some() => {
            return (verdict, None);
        }
        (Some(after), _) => {
            let end_ms = match (action, kept_end_ms) {
                (Action::Refund, Some(end_ms)) => end_ms,
                _ => after.end_ms(window_ms, now_ms),
            };
            let written = match stored {
                Some(stored) if stored == after => Written::by_repair(ahead),
                _ => Written::Replaced,
            };
            (after, end_ms, written)
        }
        // The repair: a state dated after now, or one that lost its expiry.
        (None, Some(windows)) if kept_end_ms.is_none() => {
            let written = Written::by_repair(ahead);
            (windows, windows.end_ms(window_ms, now_ms), written)
        }
        _ => return (verdict, None),
    };
    let (windows, end_ms, written) = change;
    let change = Change::Store {
        text: windows.text(),
        end_ms,
        written,
        repaired: stored.is_some() && kept_end_ms.is_none(),
    };
    (verdict, Some(change))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{rule, verdict, Key, NOW_MS};
    use super::super::{decide, Action, Algorithm::Sliding, Rule, Stored};
    use proptest::prelude::*;

    fn sliding(limit: i64, window_ms: i64, cost: i64) -> Rule {
        rule(Sliding, limit, window_ms, cost)
    }

    #[test]
    fn what_the_previous_window_weighs_falls_as_the_current_one_goes_on() {
        let mut key = Key::default();
        let ten = sliding(10, 1_000, 1);
        for n in 1..=10 {
            let answer = key.hit(&ten, NOW_MS);
            // The end: the previous count weighs nothing when less than a tenth is covered.
            let reset_ms = 2_000 - 999 / n;
            assert_eq!(answer, verdict((true, 10, 10 - n, Some(0), reset_ms)));
        }
        assert_eq!(key.text(), Some("s:0:10:1800000000000"));
        // All ten weigh for the rest of their window, and nine of them 1 ms into the next.
        let refused = (false, 10, 0, Some(1_001), 1_901);
        assert_eq!(key.hit(&ten, NOW_MS), verdict(refused));
        assert_eq!(
            key.hit(&ten, NOW_MS + 1_000),
            verdict((false, 10, 0, Some(1), 901))
        );
        assert_eq!(key.peek(&ten, NOW_MS + 1_001).remaining, 1);
        assert_eq!(key.peek(&ten, NOW_MS + 1_500).remaining, 5);
        assert_eq!(key.peek(&ten, NOW_MS + 1_900).remaining, 9);
        assert_eq!(
            key.peek(&ten, NOW_MS + 1_901),
            verdict((true, 10, 10, Some(0), 0))
        );
        assert_eq!(key.hit(&ten, NOW_MS + 1_500).remaining, 4);
        assert_eq!(key.text(), Some("s:10:1:1800000001000"));
        assert_eq!(key.hit(&ten, NOW_MS + 1_999).remaining, 8);
    }

    #[test]
    fn windows_follow_each_other_as_long_as_something_weighs() {
        let ten = sliding(10, 1_000, 1);
        for (text, at_ms, after) in [
            ("s:0:5:1800000000000", 999, "s:0:6:1800000000000"),
            ("s:0:5:1800000000000", 1_000, "s:5:1:1800000001000"),
            ("s:0:5:1800000000000", 1_800, "s:5:1:1800000001000"),
            // Less than one weighs: a window of its own begins.
            ("s:0:5:1800000000000", 1_801, "s:0:1:1800000001801"),
            ("s:0:1:1800000000000", 1_001, "s:0:1:1800000001001"),
            ("s:9:5:1800000000000", 2_500, "s:0:1:1800000002500"),
        ] {
            let mut key = Key::holding(text, None);
            key.hit(&ten, NOW_MS + at_ms);
            assert_eq!(key.text(), Some(after), "{text} at {at_ms}");
        }
    }

    #[test]
    fn a_refund_that_changes_nothing_writes_nothing() {
        let stored = Stored {
            text: b"s:0:0:1800000000000",
            end_ms: Some(NOW_MS + 500),
        };
        let asked = sliding(10, 1_000, 1);
        let (_, change) = decide(Some(stored), &asked, Action::Refund, NOW_MS + 1).unwrap();
        assert_eq!(change, None);
    }

    #[test]
    fn a_refund_gives_an_expiry_back_also_where_it_has_nothing_else_to_give() {
        for (text, after) in [
            ("s:0:0:1800000000000", "s:0:0:1800000000000"),
            ("s:0:1:1800000000000", "s:0:0:1800000000000"),
        ] {
            let mut key = Key::holding(text, None);
            key.refund(&sliding(10, 1_000, 1), NOW_MS + 1);
            assert_eq!(key.text(), Some(after));
            assert_eq!(key.end_ms(), Some(NOW_MS + 1_000));
        }
    }

    #[test]
    fn numbers_up_to_the_last_one_are_weighed_exactly() {
        let mut key = Key::default();
        let all = sliding(i64::MAX, 1_000_000, i64::MAX);
        let first = key.hit(&all, NOW_MS);
        assert_eq!(first, verdict((true, i64::MAX, 0, Some(0), 2_000_000)));
        // Half of it, rounded down.
        let half = i64::MAX / 2;
        let at_ms = NOW_MS + 1_500_000;
        let rest = key.peek(&sliding(i64::MAX, 1_000_000, half + 1), at_ms);
        let want = (true, i64::MAX, half + 1, Some(0), 500_000);
        assert_eq!(rest, verdict(want));
        let want = (false, i64::MAX, half + 1, Some(500_000), 500_000);
        assert_eq!(key.peek(&all, at_ms), verdict(want));
        // A third of the longest window that there is has gone by.
        let longest_ms = (i64::MAX - NOW_MS) / 2;
        let text = format!("s:3:0:{NOW_MS}");
        let key = Key::holding(&text, Some(i64::MAX));
        let answer = key.peek(&sliding(5, longest_ms, 1), NOW_MS + longest_ms / 3);
        assert_eq!((answer.allowed, answer.remaining), (true, 3));
    }

    #[test]
    fn around_the_end_of_a_window_about_one_limit_passes() {
        let mut key = Key::default();
        let ten = sliding(10, 1_000, 1);
        let mut allowed = 0;
        for _ in 0..10 {
            allowed += i64::from(key.hit(&ten, NOW_MS).allowed);
        }
        for _ in 0..10 {
            allowed += i64::from(key.hit(&ten, NOW_MS + 1_010).allowed);
        }
        assert_eq!(allowed, 11);
    }

    #[test]
    fn a_steady_excess_is_cut_to_the_limit() {
        let mut key = Key::default();
        let two = sliding(2, 2_000, 1);
        let allowed = (0..100)
            .filter(|n| key.hit(&two, NOW_MS + n * 100).allowed)
            .count();
        assert!((9..=11).contains(&allowed), "{allowed}");
    }

    /// The usual case of docs/algorithms.md: steady traffic above the limit, at random moments.
    #[test]
    fn of_random_traffic_the_busiest_window_is_a_few_percent_over_the_limit() {
        let thousand = sliding(1_000, 60_000, 1);
        for excess_percent in [110, 150, 200, 2_000] {
            let (mut key, mut admitted) = (Key::default(), Vec::new());
            let (mut now_ms, mut random) = (NOW_MS, 1_u64);
            while now_ms < NOW_MS + 100 * 60_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // On average so many hits that they are so much of the limit.
                let mean_ms = 60_000 * 100 / 1_000 / excess_percent;
                now_ms += (random >> 33) as i64 % (2 * mean_ms + 1);
                if key.hit(&thousand, now_ms).allowed {
                    admitted.push(now_ms);
                }
            }
            let busiest = admitted
                .iter()
                .enumerate()
                .map(|(n, from)| admitted[n..].partition_point(|at| at - from < 60_000))
                .max();
            let busiest = busiest.unwrap();
            assert!(
                (1_000..=1_050).contains(&busiest),
                "{excess_percent} %: {busiest}"
            );
            assert!(
                admitted.len() >= 100 * 980,
                "{excess_percent} %: {}",
                admitted.len()
            );
        }
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut key = Key::holding("s:3:5:1800000000000", Some(NOW_MS + 1_500));
        let before = key.clone();
        for at_ms in [0, 400, 999, 1_000, 1_400] {
            assert!(!key.hit(&sliding(5, 1_000, 5), NOW_MS + at_ms).allowed);
            assert_eq!(
                key.hit(&sliding(5, 1_000, 6), NOW_MS + at_ms)
                    .retry_after_ms,
                None
            );
            assert!(!key.hit(&sliding(0, 1_000, 1), NOW_MS + at_ms).allowed);
        }
        assert_eq!(key, before);
    }

    #[test]
    fn a_missing_limiter_is_full_and_a_limit_of_zero_makes_none() {
        let mut key = Key::default();
        assert_eq!(
            key.peek(&sliding(5, 1_000, 1), NOW_MS),
            verdict((true, 5, 5, Some(0), 0))
        );
        assert_eq!(
            key.hit(&sliding(0, 1_000, 1), NOW_MS),
            verdict((false, 0, 0, None, 0))
        );
        assert_eq!(
            key.hit(&sliding(5, 1_000, 6), NOW_MS),
            verdict((false, 5, 5, None, 0))
        );
        assert_eq!(
            key.refund(&sliding(5, 1_000, 6), NOW_MS),
            verdict((true, 5, 5, Some(0), 0))
        );
        assert_eq!(key, Key::default());
    }

    #[test]
    fn a_refund_gives_back_of_this_window_first_and_never_moves_the_end() {
        let mut key = Key::holding("s:4:3:1800000000000", Some(NOW_MS + 1_700));
        let answer = key.refund(&sliding(10, 1_000, 2), NOW_MS + 500);
        assert_eq!(answer, verdict((true, 10, 7, Some(0), 501)));
        assert_eq!(key.text(), Some("s:4:1:1800000000000"));
        key.refund(&sliding(10, 1_000, 2), NOW_MS + 500);
        assert_eq!(key.text(), Some("s:3:0:1800000000000"));
        let emptied = key.refund(&sliding(10, 1_000, 100), NOW_MS + 500);
        assert_eq!(emptied, verdict((true, 10, 10, Some(0), 0)));
        assert_eq!(key.text(), Some("s:0:0:1800000000000"));
        assert_eq!(key.end_ms(), Some(NOW_MS + 1_700));
        // The next hit goes on in the same window.
        key.hit(&sliding(10, 1_000, 1), NOW_MS + 600);
        assert_eq!(key.text(), Some("s:0:1:1800000000000"));
    }

    #[test]
    fn nobody_is_told_to_wait_beyond_the_end_of_the_key() {
        let mut key = Key::default();
        key.hit(&sliding(5, 1_000, 5), NOW_MS);
        let longer = sliding(5, 60_000, 1);
        let want = (false, 5, 0, Some(1_791), 1_791);
        assert_eq!(key.hit(&longer, NOW_MS + 10), verdict(want));
        assert!(!key.hit(&longer, NOW_MS + 1_800).allowed);
        assert!(key.hit(&longer, NOW_MS + 1_801).allowed);
    }

    #[test]
    fn a_limiter_that_lost_its_expiry_ends_when_its_state_says() {
        for (limit, allowed) in [(10, true), (5, false)] {
            let mut key = Key::holding("s:0:5:1800000000000", None);
            assert_eq!(
                key.hit(&sliding(limit, 1_000, 1), NOW_MS + 100).allowed,
                allowed
            );
            let end_ms = if allowed {
                2_000 - 999 / 6
            } else {
                2_000 - 999 / 5
            };
            assert_eq!(key.end_ms(), Some(NOW_MS + end_ms));
        }
        // Long over: it gets an end at once.
        let mut key = Key::holding("s:0:5:1800000000000", None);
        assert!(!key.hit(&sliding(0, 1_000, 1), NOW_MS + 9_999).allowed);
        assert_eq!(key.end_ms(), Some(NOW_MS + 10_000));
    }

    #[test]
    fn a_state_dated_after_now_is_anchored_at_now_also_by_a_refusal() {
        for limit in [10, 5] {
            let mut key = Key::holding("s:2:5:1800000900000", Some(NOW_MS + 901_800));
            let answer = key.hit(&sliding(limit, 1_000, 1), NOW_MS);
            assert_eq!(answer.allowed, limit == 10);
            assert!(answer
                .retry_after_ms
                .is_some_and(|retry_ms| retry_ms <= 2_000));
            let text = if limit == 10 {
                "s:2:6:1800000000000"
            } else {
                "s:2:5:1800000000000"
            };
            assert_eq!(key.text(), Some(text));
            assert!(key.end_ms().is_some_and(|end_ms| end_ms <= NOW_MS + 2_000));
        }
        // And by a refund.
        let mut key = Key::holding("s:2:5:1800000900000", Some(NOW_MS + 901_800));
        key.refund(&sliding(10, 1_000, 1), NOW_MS);
        assert_eq!(key.text(), Some("s:2:4:1800000000000"));
        assert!(key.end_ms().is_some_and(|end_ms| end_ms <= NOW_MS + 2_000));
    }

    /// The exact sliding window: every admitted hit, with its time.
    fn in_window(log: &[(i64, i64)], now_ms: i64, window_ms: i64) -> i64 {
        log.iter()
            .filter(|(at_ms, _)| *at_ms > now_ms - window_ms)
            .map(|(_, cost)| cost)
            .sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn within_one_window_at_most_twice_the_limit_less_one_passes(
            limit in 1..12_i64,
            window_ms in 1..50_i64,
            calls in prop::collection::vec((0..30_i64, 1..5_i64), 1..80),
        ) {
            let (mut key, mut log) = (Key::default(), Vec::new());
            let mut now_ms = NOW_MS;
            for (step_ms, cost) in calls {
                now_ms += step_ms;
                let before = key.clone();
                let answer = key.hit(&sliding(limit, window_ms, cost), now_ms);
                prop_assert_eq!(answer.allowed, answer.retry_after_ms == Some(0));
                if answer.allowed {
                    log.push((now_ms, cost));
                    let reset_ms = answer.reset_after_ms;
                    prop_assert_eq!(key.end_ms(), Some(now_ms + reset_ms));
                } else {
                    prop_assert_eq!(&key, &before);
                }
                prop_assert!(in_window(&log, now_ms, window_ms) < 2 * limit);
            }
        }

        #[test]
        fn retry_and_reset_are_exact(
            previous in 0..30_i64,
            current in 0..30_i64,
            elapsed_ms in 0..2_500_i64,
            window_ms in 1..1_200_i64,
            limit in 1..20_i64,
            cost in 1..20_i64,
            left_ms in prop::option::of(prop_oneof![1..3_000_i64, Just(i64::MAX / 2)]),
        ) {
            let now_ms = NOW_MS + elapsed_ms;
            let text = format!("s:{previous}:{current}:{NOW_MS}");
            let key = Key::holding(&text, left_ms.map(|left_ms| now_ms + left_ms));
            let asked = sliding(limit, window_ms, cost);
            let answer = key.peek(&asked, now_ms);
            let at = |rule: &Rule, at_ms| key.peek(rule, at_ms).allowed;
            match answer.retry_after_ms {
                None => prop_assert!(cost > limit),
                Some(0) => prop_assert!(answer.allowed),
                Some(retry_ms) => {
                    prop_assert!(!answer.allowed && retry_ms >= 1);
                    // Whatever the rule was before: never a longer lock than two windows.
                    prop_assert!(retry_ms <= 2 * window_ms);
                    prop_assert!(!at(&asked, now_ms + retry_ms - 1));
                    prop_assert!(at(&asked, now_ms + retry_ms));
                }
            }
            // Full is when all of the limit can be taken.
            let all = sliding(limit, window_ms, limit);
            prop_assert!(at(&all, now_ms + answer.reset_after_ms));
            if answer.reset_after_ms > 0 {
                prop_assert!(!at(&all, now_ms + answer.reset_after_ms - 1));
            }
            // What remains can be taken, and no more.
            if answer.remaining > 0 {
                prop_assert!(at(&sliding(limit, window_ms, answer.remaining), now_ms));
            }
            if answer.remaining < limit {
                prop_assert!(!at(&sliding(limit, window_ms, answer.remaining + 1), now_ms));
            }
        }
    }
}
