//! Made-up command lines, each read by the module and by the model: the same meaning, or the same
//! error.

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::api::Argument;
use crate::args::{many_keys, AuditCall, Call, ManyCall, RepairCall, ThrottleCall};
use crate::errors::Error;
use crate::limiter::Rule;
use crate::model;
use crate::model::arguments::{ManyLimiters, OneLimiter, Read, Throttled, Walk};
use crate::number::{Moment, MomentUs, Number};
use crate::reply::Unit;
use crate::throttle;
use crate::traffic::call;

#[derive(Arbitrary, Debug)]
pub struct Line {
    command: Command,
    now: Moment,
    words: Vec<Word>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Command {
    OneLimiter,
    ManyLimiters,
    Audit,
    Repair,
    /// By a clock in microseconds, at this time.
    Throttle(MomentUs),
}

/// A word of the line.
#[derive(Debug)]
struct Word(Vec<u8>);

const OPTIONS: [&str; 7] = ["FIXED", "SLIDING", "BUCKET", "COST", "MS", "MATCH", "COUNT"];

/// Words that are nearly something.
const ODD: [&str; 12] = [
    "", "+5", "05", "-0", "5 ", " 5", "5.0", "-", "*", "MSS", "COS", "128",
];

impl<'a> Arbitrary<'a> for Word {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let kind: u8 = u.arbitrary()?;
        let which = usize::from(u.arbitrary::<u8>()?);
        Ok(Self(match kind % 16 {
            0..=6 => u.arbitrary::<Number>()?.0.to_string().into(),
            7..=8 => OPTIONS[which % OPTIONS.len()].into(),
            9..=10 => OPTIONS[which % OPTIONS.len()].to_lowercase().into(),
            11 => ODD[which % ODD.len()].into(),
            12 => u64::MAX.wrapping_add(which as u64).to_string().into(),
            13..=14 => vec![b'a' + (which % 3) as u8],
            _ => u.arbitrary()?,
        }))
    }
}

/// # Panics
///
/// Where the module reads another thing than the model.
pub fn check(line: &Line) {
    // The server's clock isn't before 1970.
    let now_ms = line.now.0.max(0);
    let command = match line.command {
        Command::OneLimiter => "rl.hit",
        Command::ManyLimiters => "rl.mhit",
        Command::Audit => "rl.audit",
        Command::Repair => "rl.repair",
        Command::Throttle(_) => "cl.throttle",
    };
    let words: Vec<&[u8]> = line.words.iter().map(|word| &word.0[..]).collect();
    let named = std::iter::once(command.as_bytes()).chain(words.iter().copied());
    let args: Vec<Argument> = named.map(|word| Argument(word.to_vec())).collect();
    let in_words = |error: Error| error.text(command).into_owned();
    let about = || {
        let words: Vec<_> = words.iter().map(|word| word.escape_ascii()).collect();
        format!("module, model: {command} {words:?} at {now_ms}")
    };

    match line.command {
        Command::OneLimiter => {
            let of_module: Read<_> = Call::parse(&args, now_ms)
                .map(|found| OneLimiter {
                    key: found.key.bytes(),
                    rule: call(&found.rule),
                    in_ms: found.unit == Unit::Milliseconds,
                })
                .map_err(in_words);
            let of_model = model::arguments::one_limiter(command, &words, now_ms.into());
            assert_eq!(of_module, of_model, "{}", about());
        }
        Command::ManyLimiters => {
            let of_module: Read<_> = ManyCall::parse(&args, now_ms)
                .map(|found| ManyLimiters {
                    keys: bytes(found.keys),
                    rules: found.rules.iter().map(|rule: &Rule| call(rule)).collect(),
                    in_ms: found.unit == Unit::Milliseconds,
                })
                .map_err(in_words);
            let of_model = model::arguments::many_limiters(command, &words, now_ms.into());
            assert_eq!(of_module, of_model, "{}", about());

            // Asked for by itself when the server wants to know the keys.
            let of_module: Read<_> = many_keys(&args).map(bytes).map_err(in_words);
            let of_model = model::arguments::keys(command, &words);
            assert_eq!(of_module, of_model, "keys: {}", about());
        }
        Command::Audit => {
            let of_module: Read<_> = AuditCall::parse(&args)
                .map(|found| Walk {
                    cursor: found.cursor,
                    pattern: found.pattern,
                    count: found.count.into(),
                    end_ms: None,
                })
                .map_err(in_words);
            let of_model = model::arguments::audit(command, &words);
            assert_eq!(of_module, of_model, "{}", about());
        }
        Command::Repair => {
            let of_module: Read<_> = RepairCall::parse(&args, now_ms)
                .map(|found| Walk {
                    cursor: found.cursor,
                    pattern: found.pattern,
                    count: found.count.into(),
                    end_ms: Some(found.end_ms.into()),
                })
                .map_err(in_words);
            let of_model = model::arguments::repair(command, &words, now_ms.into());
            assert_eq!(of_module, of_model, "{}", about());
        }
        Command::Throttle(now_us) => {
            let now_us = now_us.0.max(0);
            let of_module: Read<_> = ThrottleCall::parse(&args, now_us)
                .map(|found| Throttled {
                    key: found.key.bytes(),
                    rule: throttle::call(&found.rule),
                })
                .map_err(in_words);
            let of_model = model::arguments::throttled(command, &words, now_us.into());
            assert_eq!(of_module, of_model, "{now_us} us: {}", about());
        }
    }
}

fn bytes(arguments: &[Argument]) -> Vec<&[u8]> {
    arguments.iter().map(Argument::bytes).collect()
}
