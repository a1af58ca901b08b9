//! From the words of a call to rules. Every argument error is made here, before any key is open.
//!
//! In the server's order: arity, syntax, numbers. `rl.hit k x 60 NOSUCHWORD` is a syntax error.

use smallvec::SmallVec;

use crate::api::Argument;
use crate::errors::Error;
use crate::limiter::{self, Algorithm, Rule, Throttle};
use crate::reply::Unit;

/// The most rules that a call may have.
const MOST_RULES: usize = 128;

/// The most keys that a step of a walk looks at, whatever its COUNT: the server does nothing else
/// meanwhile.
const MOST_KEYS: i64 = 1_000;

/// A call about one limiter: `key rule [MS]`.
pub(crate) struct Call<'a> {
    pub(crate) key: &'a Argument,
    pub(crate) rule: Rule,
    pub(crate) unit: Unit,
}

impl<'a> Call<'a> {
    /// `args` starts with the command's own name.
    pub(crate) fn parse(args: &'a [Argument], now_ms: i64) -> Result<Self, Error> {
        let [_, key, words @ ..] = args else {
            return Err(Error::WrongArity);
        };
        if words.len() < 2 {
            return Err(Error::WrongArity);
        }
        let mut unit = Unit::Seconds;
        let (rule, rest) = RuleWords::parse(words, Some(&mut unit))?;
        if !rest.is_empty() {
            return Err(Error::Syntax);
        }
        Ok(Self {
            key,
            rule: rule.reckon(unit, now_ms)?,
            unit,
        })
    }
}

/// A call in the form of redis-cell: `key max_burst count period [quantity]`.
pub(crate) struct ThrottleCall<'a> {
    pub(crate) key: &'a Argument,
    pub(crate) rule: Throttle,
}

impl<'a> ThrottleCall<'a> {
    /// `args` starts with the command's own name.
    pub(crate) fn parse(args: &'a [Argument], now_us: i64) -> Result<Self, Error> {
        let [_, key, max_burst, count, period, quantity @ ..] = args else {
            return Err(Error::WrongArity);
        };
        let quantity = match quantity {
            [] => None,
            [quantity] => Some(quantity),
            _ => return Err(Error::WrongArity),
        };
        let rule = Throttle {
            max_burst: integer(max_burst, 0, "max_burst")?,
            count: integer(count, 1, "count")?,
            period_seconds: integer(period, 1, "period")?,
            quantity: quantity.map_or(Ok(1), |quantity| integer(quantity, 0, "quantity"))?,
        };
        rule.fits(now_us).map_err(Error::Invalid)?;
        Ok(Self { key, rule })
    }
}

/// What a call about several limiters keeps of each; of the usual few it does so without allocating.
pub(crate) type PerRule<T> = SmallVec<[T; 4]>;

/// A call about several limiters: `numkeys key [key ...] rule [rule ...] [MS]`.
pub(crate) struct ManyCall<'a> {
    pub(crate) keys: &'a [Argument],
    /// As many as keys.
    pub(crate) rules: PerRule<Rule>,
    pub(crate) unit: Unit,
}

impl<'a> ManyCall<'a> {
    /// `args` starts with the command's own name.
    pub(crate) fn parse(args: &'a [Argument], now_ms: i64) -> Result<Self, Error> {
        let keys = many_keys(args)?;
        let mut words = args.get(keys.len().saturating_add(2)..).unwrap_or_default();
        let mut unit = Unit::Seconds;
        let mut rules = PerRule::with_capacity(keys.len());
        while rules.len() < keys.len() {
            let (rule, rest) = RuleWords::parse(words, None)?;
            rules.push(rule);
            words = rest;
        }
        match words {
            [] => {}
            [word] if word.is(b"MS") => unit = Unit::Milliseconds,
            _ => return Err(Error::Syntax),
        }
        let rules = rules.iter().map(|rule| rule.reckon(unit, now_ms));
        let rules = rules.collect::<Result<_, _>>()?;
        if repeats(keys) {
            return Err(Error::DuplicateKey);
        }
        Ok(Self { keys, rules, unit })
    }
}

/// The keys of `numkeys key [key ...] ...`, by their number alone; `args` starts with the command's
/// own name.
pub(crate) fn many_keys(args: &[Argument]) -> Result<&[Argument], Error> {
    let [_, numkeys, words @ ..] = args else {
        return Err(Error::WrongArity);
    };
    let numkeys = limiter::integer(numkeys.bytes()).ok_or(Error::NotAnInteger)?;
    if numkeys < 1 {
        return Err(Error::NoKeys);
    }
    match usize::try_from(numkeys) {
        Ok(numkeys) if numkeys <= MOST_RULES => words.get(..numkeys).ok_or(Error::Syntax),
        _ => Err(Error::TooManyKeys),
    }
}

fn repeats(keys: &[Argument]) -> bool {
    let mut names: PerRule<&[u8]> = keys.iter().map(Argument::bytes).collect();
    names.sort_unstable();
    names.iter().zip(names.iter().skip(1)).any(|(a, b)| a == b)
}

/// A step of a walk over the keyspace: `cursor [MATCH pattern] [COUNT count]`.
pub(crate) struct AuditCall<'a> {
    pub(crate) cursor: &'a [u8],
    pub(crate) pattern: &'a [u8],
    pub(crate) count: i64,
}

impl<'a> AuditCall<'a> {
    /// `args` starts with the command's own name.
    pub(crate) fn parse(args: &'a [Argument]) -> Result<Self, Error> {
        let [_, cursor, words @ ..] = args else {
            return Err(Error::WrongArity);
        };
        let (mut pattern, mut count) = (None, None);
        let mut rest = words;
        while let [word, value, after @ ..] = rest {
            let option = if word.is(b"MATCH") {
                &mut pattern
            } else if word.is(b"COUNT") {
                &mut count
            } else {
                break;
            };
            if option.replace(value).is_some() {
                return Err(Error::Syntax);
            }
            rest = after;
        }
        if !rest.is_empty() {
            return Err(Error::Syntax);
        }
        Ok(Self {
            cursor: cursor_of(cursor)?,
            count: count_of_keys(count)?,
            pattern: pattern.map_or(b"*", Argument::bytes),
        })
    }
}

/// A step of a walk that repairs: `cursor pattern window [COUNT count] [MS]`.
pub(crate) struct RepairCall<'a> {
    pub(crate) cursor: &'a [u8],
    pub(crate) pattern: &'a [u8],
    pub(crate) count: i64,
    /// When what is repaired ends.
    pub(crate) end_ms: i64,
}

impl<'a> RepairCall<'a> {
    /// `args` starts with the command's own name.
    pub(crate) fn parse(args: &'a [Argument], now_ms: i64) -> Result<Self, Error> {
        let [_, cursor, pattern, window, words @ ..] = args else {
            return Err(Error::WrongArity);
        };
        let (mut count, mut unit) = (None, Unit::Seconds);
        let mut rest = words;
        while let [word, after @ ..] = rest {
            let repeated = if word.is(b"MS") {
                rest = after;
                std::mem::replace(&mut unit, Unit::Milliseconds) == Unit::Milliseconds
            } else if let (true, [value, after @ ..]) = (word.is(b"COUNT"), after) {
                rest = after;
                count.replace(value).is_some()
            } else {
                return Err(Error::Syntax);
            };
            if repeated {
                return Err(Error::Syntax);
            }
        }
        let cursor = cursor_of(cursor)?;
        let window_ms = window_ms(window, unit)?;
        let count = count_of_keys(count)?;
        let end_ms = window_ms.and_then(|window_ms| window_ms.checked_add(now_ms));
        let end_ms = end_ms.ok_or(Error::Invalid("window"))?;
        Ok(Self {
            cursor,
            pattern: pattern.bytes(),
            count,
            end_ms,
        })
    }
}

/// How many keys a step looks at, about.
fn count_of_keys(count: Option<&Argument>) -> Result<i64, Error> {
    let Some(count) = count else {
        return Ok(10);
    };
    match limiter::integer(count.bytes()).ok_or(Error::NotAnInteger)? {
        ..1 => Err(Error::Syntax),
        count => Ok(count.min(MOST_KEYS)),
    }
}

/// The cursor, if it is one: an integer of 64 bits, as the server's SCAN takes it.
fn cursor_of(cursor: &Argument) -> Result<&[u8], Error> {
    let is_cursor = limiter::number(cursor.bytes()).is_some_and(|n| u64::try_from(n).is_ok());
    is_cursor
        .then_some(cursor.bytes())
        .ok_or(Error::InvalidCursor)
}

/// A rule as it is written: `limit window [FIXED | SLIDING | BUCKET capacity] [COST cost]`.
struct RuleWords<'a> {
    limit: &'a Argument,
    window: &'a Argument,
    algorithm: Option<AlgorithmWords<'a>>,
    cost: Option<&'a Argument>,
}

enum AlgorithmWords<'a> {
    Fixed,
    Sliding,
    Bucket { capacity: &'a Argument },
}

impl<'a> RuleWords<'a> {
    /// The rule at the start of `words`, and the words behind it. The option words may stand in any
    /// order and case, each once; with `unit`, MS is one of them.
    fn parse(
        words: &'a [Argument],
        mut unit: Option<&mut Unit>,
    ) -> Result<(Self, &'a [Argument]), Error> {
        let [limit, window, rest @ ..] = words else {
            return Err(Error::Syntax);
        };
        let mut rest = rest;
        let mut rule = Self {
            limit,
            window,
            algorithm: None,
            cost: None,
        };
        while let [word, after @ ..] = rest {
            let repeated = if word.is(b"COST") {
                let [cost, after @ ..] = after else {
                    return Err(Error::Syntax);
                };
                rest = after;
                rule.cost.replace(cost).is_some()
            } else if word.is(b"BUCKET") {
                let [capacity, after @ ..] = after else {
                    return Err(Error::Syntax);
                };
                rest = after;
                let bucket = AlgorithmWords::Bucket { capacity };
                rule.algorithm.replace(bucket).is_some()
            } else if word.is(b"FIXED") {
                rest = after;
                rule.algorithm.replace(AlgorithmWords::Fixed).is_some()
            } else if word.is(b"SLIDING") {
                rest = after;
                rule.algorithm.replace(AlgorithmWords::Sliding).is_some()
            } else if let Some(unit) = unit.as_deref_mut().filter(|_| word.is(b"MS")) {
                rest = after;
                std::mem::replace(unit, Unit::Milliseconds) == Unit::Milliseconds
            } else {
                break;
            };
            if repeated {
                return Err(Error::Syntax);
            }
        }
        Ok((rule, rest))
    }

    /// The numbers, from left to right as the syntax names them.
    fn reckon(&self, unit: Unit, now_ms: i64) -> Result<Rule, Error> {
        let limit = integer(self.limit, 0, "limit")?;
        let window_ms = window_ms(self.window, unit)?;
        let algorithm = match self.algorithm {
            None | Some(AlgorithmWords::Fixed) => Algorithm::Fixed,
            Some(AlgorithmWords::Sliding) => Algorithm::Sliding,
            Some(AlgorithmWords::Bucket { capacity }) => Algorithm::Bucket {
                capacity: integer(capacity, 1, "capacity")?,
            },
        };
        let cost = self.cost.map_or(Ok(1), |cost| integer(cost, 1, "cost"))?;
        let rule = Rule {
            algorithm,
            limit,
            window_ms: window_ms.ok_or(Error::Invalid("window"))?,
            cost,
        };
        rule.fits(now_ms).map_err(Error::Invalid)?;
        Ok(rule)
    }
}

/// `None` if it is too long to be counted in milliseconds.
fn window_ms(window: &Argument, unit: Unit) -> Result<Option<i64>, Error> {
    Ok(integer(window, 1, "window")?.checked_mul(unit.ms()))
}

/// An integer that is at least `least`; `name` is what an error calls it.
fn integer(argument: &Argument, least: i64, name: &'static str) -> Result<i64, Error> {
    let value = limiter::integer(argument.bytes()).ok_or(Error::NotAnInteger)?;
    if value < least {
        return Err(Error::Invalid(name));
    }
    Ok(value)
}
