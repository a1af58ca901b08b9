//! From the words of a call to a rule. Every argument error is made here, before any key is open.
//!
//! In the server's order: arity, syntax, numbers. `rl.hit k x 60 NOSUCHWORD` is a syntax error.

use crate::api::Argument;
use crate::errors::Error;
use crate::limiter::{Algorithm, Rule};
use crate::reply::Unit;

/// A call about one limiter: `key limit window [FIXED] [COST cost] [MS]`.
pub(crate) struct Call<'a> {
    pub(crate) key: &'a Argument,
    pub(crate) rule: Rule,
    pub(crate) unit: Unit,
}

impl<'a> Call<'a> {
    /// `args` starts with the command's own name.
    pub(crate) fn parse(args: &'a [Argument], now_ms: i64) -> Result<Self, Error> {
        let [_, key, limit, window, options @ ..] = args else {
            return Err(Error::WrongArity);
        };
        let options = Options::parse(options)?;
        let unit = options.unit.unwrap_or(Unit::Seconds);

        let limit = integer(limit, 0, "limit")?;
        let window_ms = integer(window, 1, "window")?
            .checked_mul(unit.ms())
            .filter(|window_ms| now_ms.checked_add(*window_ms).is_some())
            .ok_or(Error::Invalid("window"))?;
        let cost = options
            .cost
            .map_or(Ok(1), |cost| integer(cost, 1, "cost"))?;

        Ok(Self {
            key,
            rule: Rule {
                algorithm: options.algorithm.unwrap_or(Algorithm::Fixed),
                limit,
                window_ms,
                cost,
            },
            unit,
        })
    }
}

/// The option words, in any order and case, each at most once.
#[derive(Default)]
struct Options<'a> {
    algorithm: Option<Algorithm>,
    cost: Option<&'a Argument>,
    unit: Option<Unit>,
}

impl<'a> Options<'a> {
    fn parse(words: &'a [Argument]) -> Result<Self, Error> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let word = word.bytes();
            let repeated = if word.eq_ignore_ascii_case(b"FIXED") {
                options.algorithm.replace(Algorithm::Fixed).is_some()
            } else if word.eq_ignore_ascii_case(b"COST") {
                let cost = words.next().ok_or(Error::Syntax)?;
                options.cost.replace(cost).is_some()
            } else if word.eq_ignore_ascii_case(b"MS") {
                options.unit.replace(Unit::Milliseconds).is_some()
            } else {
                return Err(Error::Syntax);
            };
            if repeated {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }
}

/// An integer that is at least `least`; `name` is what an error calls it.
fn integer(argument: &Argument, least: i64, name: &'static str) -> Result<i64, Error> {
    let value = argument.integer().ok_or(Error::NotAnInteger)?;
    if value < least {
        return Err(Error::Invalid(name));
    }
    Ok(value)
}
