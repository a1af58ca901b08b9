//! CL.THROTTLE: a token bucket as redis-cell keeps it.
//!
//! It is the generic cell rate algorithm (GCRA, ITU-T I.371) in its form as a virtual schedule. What is
//! kept is a theoretical arrival time (TAT): when the next call would come if all came evenly, at the
//! rate. A call may come before it by the tolerance, which is what the burst takes at the rate.
//!
//! Times are in nanoseconds of Unix time, as redis-cell stores them, and so is the interval between two
//! calls at the rate, rounded down.

use super::{clamp_ms, full, live, number, read, unsigned};
use super::{Change, Held, State, Stored, Text, Unfit, Verdict, Written};

const NS_PER_SECOND: u128 = 1_000_000_000;
const NS_PER_MS: u128 = 1_000_000;
const NS_PER_US: u128 = 1_000;

/// What a call asks for.
///
/// The command line's reader admits only what [`Throttle::fits`]; the functions here are total all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Throttle {
    /// How much more than one may be taken at once.
    pub(crate) max_burst: i64,
    /// How much is refilled in a period.
    pub(crate) count: i64,
    pub(crate) period_seconds: i64,
    /// What this call takes; with 0 it only looks.
    pub(crate) quantity: i64,
}

/// When the next call would come at the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tat {
    ns: u64,
}

impl Tat {
    /// In March 1973: a smaller number is no time of a call, but a count.
    const EARLIEST_NS: u64 = 100_000_000_000_000_000;
}

impl State for Tat {
    const NAME: &'static str = "CL.THROTTLE";

    fn parse(text: &[u8]) -> Option<Self> {
        let ns = number(text)?.try_into().ok()?;
        (ns >= Self::EARLIEST_NS).then_some(Self { ns })
    }

    fn text(&self) -> Text {
        Text::from_integer(self.ns)
    }
}

/// Whether a text is the state of CL.THROTTLE, as far as it can be told: most are counters as well.
pub(crate) fn is_state(text: &[u8]) -> bool {
    Tat::parse(text).is_some()
}

impl Throttle {
    /// What a limiter of this rule holds when it is full.
    fn holds(&self) -> i64 {
        self.max_burst.saturating_add(1)
    }

    fn interval_ns(&self) -> u128 {
        let period_ns = unsigned(self.period_seconds).saturating_mul(NS_PER_SECOND);
        period_ns.checked_div(unsigned(self.count)).unwrap_or(0)
    }

    fn tolerance_ns(&self, interval_ns: u128) -> u128 {
        interval_ns.saturating_mul(unsigned(self.holds()))
    }

    /// Whether every TAT that a limiter of this rule can have is a time that can be stored: nanoseconds of
    /// Unix time in 64 bits, until July 2554. The error is the name of the argument that is too large.
    pub(crate) fn fits(&self, now_us: i64) -> Result<(), &'static str> {
        let left_ns = u128::from(u64::MAX).saturating_sub(ns(now_us));
        let interval_ns = self.interval_ns();
        if interval_ns == 0 {
            return Err("count");
        }
        if interval_ns > left_ns {
            return Err("period");
        }
        if self.tolerance_ns(interval_ns) > left_ns || self.max_burst == i64::MAX {
            return Err("max_burst");
        }
        Ok(())
    }

    /// Answers a call, and tells what the key has to hold from now on, if that is another thing.
    ///
    /// # Errors
    ///
    /// [`Unfit`] when the key holds a text that is no TAT.
    pub(crate) fn decide(
        &self,
        stored: Option<Stored<'_>>,
        now_us: i64,
    ) -> Result<(Verdict, Option<Change>), Unfit> {
        let now_ms = now_us / 1_000;
        let held: Option<Held<Tat>> = read(live(stored, now_ms))?;
        let held_end_ms = held.as_ref().and_then(|held| held.end_ms);
        let now_ns = ns(now_us);
        let tat_ns = held
            .as_ref()
            .map_or(now_ns, |held| now_ns.max(held.state.ns.into()));
        let interval_ns = self.interval_ns();
        let wanted_ns = interval_ns.saturating_mul(unsigned(self.quantity));
        let new_tat_ns = tat_ns.saturating_add(wanted_ns);
        let latest_ns = now_ns.saturating_add(self.tolerance_ns(interval_ns));
        let allowed = new_tat_ns <= latest_ns;

        // With the key's end all is forgotten. (redis-cell sets it up to a millisecond before the TAT.) A
        // call that takes sets it anew.
        let takes = allowed && self.quantity > 0;
        let forgotten_ms = held_end_ms.filter(|_| !takes).unwrap_or(i64::MAX);
        let wait_ms = |ns: u128| ms_up(ns).min(forgotten_ms.saturating_sub(now_ms));
        let after_ns = if allowed { new_tat_ns } else { tat_ns };
        let left_ns = latest_ns.saturating_sub(after_ns);
        let left = left_ns.checked_div(interval_ns).unwrap_or(0);
        let verdict = Verdict {
            allowed,
            remaining: left.try_into().unwrap_or(self.holds()),
            retry_after_ms: if allowed {
                Some(0)
            } else if self.quantity > self.holds() {
                None
            } else {
                Some(wait_ms(new_tat_ns.saturating_sub(latest_ns)))
            },
            reset_after_ms: wait_ms(after_ns.saturating_sub(now_ns)),
            ..full(self.holds())
        };

        let lost_its_expiry = held.is_some() && held_end_ms.is_none();
        let (tat, written) = match &held {
            _ if takes => {
                let ns = new_tat_ns.try_into().unwrap_or(u64::MAX);
                (Tat { ns }, Written::Replaced)
            }
            // The repair, also by a refusal; but not by a look.
            Some(held) if lost_its_expiry && self.quantity > 0 => (held.state, Written::Kept),
            _ => return Ok((verdict, None)),
        };
        let change = Change::Store {
            text: tat.text(),
            end_ms: ms_up(tat.ns.into()).max(now_ms.saturating_add(1)),
            written,
            repaired: lost_its_expiry,
        };
        Ok((verdict, Some(change)))
    }

    /// The verdict on a call whose limiter can't be stored: let through as if it were the only one, or sent
    /// away for a period.
    pub(crate) fn unstored(&self, allowed: bool) -> Verdict {
        let period_ms = self.period_seconds.saturating_mul(1_000);
        super::unstored(self.holds(), self.quantity, period_ms, allowed)
    }
}

fn ns(now_us: i64) -> u128 {
    unsigned(now_us).saturating_mul(NS_PER_US)
}

fn ms_up(ns: u128) -> i64 {
    clamp_ms(i128::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(i128::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::testing::verdict;
    use super::*;
    use proptest::prelude::*;

    const NOW_US: i64 = 1_800_000_000_000_000;

    /// A key of a made-up server: what it holds, and when it ends.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Key(Option<(Vec<u8>, Option<i64>)>);

    impl Key {
        fn holding(tat_ns: u64, end_ms: Option<i64>) -> Self {
            Self(Some((tat_ns.to_string().into_bytes(), end_ms)))
        }

        fn call(&mut self, rule: &Throttle, now_us: i64) -> Verdict {
            let stored = self.0.as_ref().map(|(text, end_ms)| Stored {
                text,
                end_ms: *end_ms,
            });
            let (verdict, change) = rule.decide(stored, now_us).expect("a TAT");
            match change {
                Some(Change::Store { text, end_ms, .. }) => {
                    assert!(end_ms > now_us / 1_000, "{end_ms} is over at {now_us}");
                    self.0 = Some((text.to_vec(), Some(end_ms)));
                }
                Some(Change::Delete) => panic!("nothing is ever deleted"),
                None => {}
            }
            verdict
        }

        /// What a call would be answered.
        fn look(&self, rule: &Throttle, now_us: i64) -> Verdict {
            self.clone().call(rule, now_us)
        }

        /// The TAT, if it is not over.
        fn tat_ns(&self, now_us: i64) -> Option<u128> {
            let (text, end_ms) = self.0.as_ref()?;
            let is_live = end_ms.is_none_or(|end_ms| end_ms > now_us / 1_000);
            number(text).filter(|tat_ns| is_live && *tat_ns > ns(now_us))
        }
    }

    fn throttle(max_burst: i64, count: i64, period_seconds: i64, quantity: i64) -> Throttle {
        Throttle {
            max_burst,
            count,
            period_seconds,
            quantity,
        }
    }

    /// What redis-cell (4d42338, February 2026) answers and stores, recorded with a made-up clock: the
    /// sequences in which it is right.
    #[test]
    fn the_replies_and_the_states_are_those_of_redis_cell() {
        let facts = include_str!("../../tests/data/redis-cell.txt");
        let (mut sequences, mut steps) = (0, 0);
        let mut key = Key::default();
        for line in facts.lines().filter(|line| !line.starts_with('#')) {
            match line {
                "" => continue,
                "sequence" => {
                    sequences += 1;
                    key = Key::default();
                    continue;
                }
                _ => {}
            }
            let words: Vec<&str> = line.split(' ').filter(|word| *word != "->").collect();
            let number = |place: usize| -> i64 { words[place].parse().expect(line) };
            let after_us = (words[0].parse::<f64>().expect(line) * 1_000.0).round() as i64;
            let now_us = NOW_US + after_us;
            let rule = throttle(number(1), number(2), number(3), number(4));
            assert_eq!(rule.fits(now_us), Ok(()), "{line}");
            let got = key.call(&rule, now_us);
            let seconds = |ms: i64| ms / 1_000 + i64::from(ms % 1_000 > 0);
            let retry_after = got.retry_after_ms.filter(|_| !got.allowed);
            let reply = [
                i64::from(!got.allowed),
                got.limit,
                got.remaining,
                retry_after.map_or(-1, seconds),
                seconds(got.reset_after_ms),
            ];
            let want: Vec<i64> = (5..10).map(number).collect();
            assert_eq!(reply[..], want, "{line}");
            // A TAT that is over is as good as none.
            let stored = words[10].parse::<u128>().ok();
            let stored = stored.map(|after_ns| ns(NOW_US) + after_ns);
            let stored = stored.filter(|tat_ns| *tat_ns > ns(now_us));
            assert_eq!(key.tat_ns(now_us), stored, "{line}");
            steps += 1;
        }
        assert_eq!((sequences, steps), (305, 2_047));
    }

    #[test]
    fn a_rule_fits_as_far_as_its_times_can_be_stored() {
        for (rule, fits) in [
            (throttle(300, 1, 31_536_000, 1), Ok(())),
            (throttle(0, 2_000, 1, 1), Ok(())),
            (throttle(0, 1_000_000_000, 1, 1), Ok(())),
            (throttle(0, 1_000_000_001, 1, 1), Err("count")),
            (throttle(600, 1, 31_536_000, 1), Err("max_burst")),
            (throttle(i64::MAX, 1_000_000_000, 1, 1), Err("max_burst")),
            (throttle(0, 1, 16_646_744_073, 1), Ok(())),
            (throttle(0, 1, 16_646_744_074, 1), Err("period")),
            (throttle(0, 1, i64::MAX, 1), Err("period")),
            (throttle(0, i64::MAX, 1, 1), Err("count")),
        ] {
            assert_eq!(rule.fits(NOW_US), fits, "{rule:?}");
        }
    }

    #[test]
    fn fast_rates_count_in_parts_of_a_millisecond() {
        // 2000 a second, none ahead: one each half millisecond.
        let (rule, mut key) = (throttle(0, 2_000, 1, 1), Key::default());
        let at_once = |allowed, retry_ms| verdict((allowed, 1, 0, Some(retry_ms), 1));
        assert_eq!(key.call(&rule, NOW_US), at_once(true, 0));
        assert_eq!(key.call(&rule, NOW_US), at_once(false, 1));
        assert_eq!(key.call(&rule, NOW_US + 499), at_once(false, 1));
        assert_eq!(key.call(&rule, NOW_US + 500), at_once(true, 0));
        let allowed = (1..=1_000_000).filter(|us| key.call(&rule, NOW_US + 500 + us).allowed);
        assert_eq!(allowed.count(), 2_000);
    }

    #[test]
    fn a_state_that_lost_its_expiry_gets_it_by_any_call_that_takes() {
        let tat_ns = 1_800_000_010_000_000_001;
        let end_ms = Some(1_800_000_010_001);
        let leaked = Key::holding(tat_ns, None);
        for quantity in [1, 6] {
            let mut key = leaked.clone();
            let refused = key.call(&throttle(0, 1, 10, quantity), NOW_US);
            assert!(!refused.allowed);
            assert_eq!(key, Key::holding(tat_ns, end_ms));
        }
        let mut key = leaked.clone();
        assert!(key.call(&throttle(2, 1, 10, 1), NOW_US).allowed);
        assert_eq!(
            key,
            Key::holding(tat_ns + 10_000_000_000, end_ms.map(|ms| ms + 10_000))
        );
        // A look leaves it, as RL.PEEK does.
        let mut key = leaked.clone();
        key.call(&throttle(1, 1, 10, 0), NOW_US);
        assert_eq!(key, leaked);
    }

    #[test]
    fn a_state_that_is_over_or_ended_is_a_full_bucket() {
        let rule = throttle(4, 1, 1, 1);
        let taken = verdict((true, 5, 4, Some(0), 1_000));
        for (tat_ns, end_ms) in [
            (1_700_000_000_000_000_000, None),
            (1_700_000_000_000_000_000, Some(1_900_000_000_000)),
            (1_900_000_000_000_000_000, Some(NOW_US / 1_000)),
        ] {
            let mut key = Key::holding(tat_ns, end_ms);
            assert_eq!(key.call(&rule, NOW_US), taken);
            let after = Key::holding(1_800_000_001_000_000_000, Some(1_800_000_001_000));
            assert_eq!(key, after);
        }
    }

    #[test]
    fn nobody_is_told_to_wait_beyond_the_end_of_the_key() {
        let mut key = Key::holding(u64::MAX, Some(NOW_US / 1_000 + 700));
        let refused = key.call(&throttle(4, 1, 1, 1), NOW_US);
        assert_eq!(refused, verdict((false, 5, 0, Some(700), 700)));
    }

    #[test]
    fn a_counter_and_the_states_of_others_are_no_arrival_time() {
        let rule = throttle(4, 1, 1, 1);
        for (text, unfit) in [
            ("0", Unfit::Other("FIXED")),
            ("5", Unfit::Other("FIXED")),
            ("-5", Unfit::Other("FIXED")),
            ("99999999999999999", Unfit::Other("FIXED")),
            ("s:1:2:3", Unfit::Other("SLIDING")),
            ("b:1:2:3", Unfit::Other("BUCKET")),
            ("", Unfit::NotALimiter),
            ("+1800000000000000000", Unfit::NotALimiter),
            ("01800000000000000000", Unfit::NotALimiter),
            ("18446744073709551616", Unfit::NotALimiter),
            ("1800000000000000000 ", Unfit::NotALimiter),
        ] {
            let stored = Stored {
                text: text.as_bytes(),
                end_ms: None,
            };
            assert_eq!(rule.decide(Some(stored), NOW_US), Err(unfit), "{text:?}");
        }
    }

    /// Rules that fit, with intervals from one nanosecond to years.
    fn rules() -> impl Strategy<Value = Throttle> {
        let counts = prop_oneof![1..20_i64, 1..5_000_i64];
        let periods = prop_oneof![1..100_i64, Just(86_400), Just(31_536_000)];
        let numbers = (0..12_i64, counts, periods, 0..8_i64);
        numbers.prop_map(|(max_burst, count, period, quantity)| {
            throttle(max_burst, count, period, quantity)
        })
    }

    proptest! {
        #[test]
        fn retry_and_reset_are_exact(
            rule in rules(),
            calls in prop::collection::vec((0..2_000_000_i64, 1..4_i64), 1..20),
        ) {
            let (mut key, mut now_us) = (Key::default(), NOW_US);
            for (pause_us, quantity) in calls {
                now_us += pause_us / rule.count;
                key.call(&Throttle { quantity, ..rule }, now_us);
            }
            let told = key.look(&rule, now_us);
            if let (false, Some(retry_after_ms)) = (told.allowed, told.retry_after_ms) {
                prop_assert!(retry_after_ms >= 1);
                let at_us = now_us + retry_after_ms * 1_000;
                prop_assert!(key.look(&rule, at_us).allowed);
                prop_assert!(!key.look(&rule, at_us - 1_000).allowed);
            }
            let whole = Throttle { quantity: rule.holds(), ..rule };
            let empty = Throttle { quantity: 0, ..rule };
            let reset_us = key.look(&empty, now_us).reset_after_ms * 1_000;
            prop_assert!(key.look(&whole, now_us + reset_us).allowed);
            prop_assert!(reset_us == 0 || !key.look(&whole, now_us + reset_us - 1_000).allowed);
        }

        #[test]
        fn no_span_admits_more_than_the_burst_and_what_it_refills(
            rule in rules(),
            calls in prop::collection::vec((0..3_000_000_i64, 0..6_i64), 1..60),
        ) {
            let (mut key, mut now_us) = (Key::default(), NOW_US);
            let mut log: Vec<(i64, i64)> = Vec::new();
            for (pause_us, quantity) in calls {
                now_us += pause_us / rule.count;
                let call = Throttle { quantity, ..rule };
                if key.call(&call, now_us).allowed {
                    log.push((now_us, quantity));
                }
                let mut taken = 0_i128;
                for (at_us, quantity) in log.iter().rev() {
                    taken += i128::from(*quantity);
                    let span_ns = i128::from(now_us - at_us) * 1_000;
                    let refilled = span_ns / rule.interval_ns() as i128 + 1;
                    let most = i128::from(rule.holds()) + refilled;
                    prop_assert!(taken <= most, "{taken} of {most} since {at_us}");
                }
            }
        }

        #[test]
        fn any_state_and_any_call_have_an_answer(
            tat in any::<u64>(),
            end_ms in prop::option::of(any::<i64>()),
            numbers in (any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>()),
            now_us in any::<i64>(),
        ) {
            let (max_burst, count, period, quantity) = numbers;
            let text = tat.to_string();
            let stored = Stored { text: text.as_bytes(), end_ms };
            let rule = throttle(max_burst, count, period, quantity);
            if let Ok((verdict, change)) = rule.decide(Some(stored), now_us) {
                prop_assert!(verdict.remaining >= 0 && verdict.reset_after_ms >= 0);
                prop_assert!(verdict.allowed == (verdict.retry_after_ms == Some(0)));
                if !verdict.allowed && end_ms.is_some() {
                    prop_assert_eq!(change, None);
                }
            }
        }
    }
}
