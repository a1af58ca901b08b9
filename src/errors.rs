//! Every error a command can answer with, and its text on the wire.

use std::borrow::Cow;

use crate::limiter::NotALimiter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    WrongArity,
    Syntax,
    /// An argument or a stored value that is no integer of 64 bits.
    NotAnInteger,
    /// An integer that is not possible; the name is the argument's.
    Invalid(&'static str),
    WrongType,
    Internal,
}

impl Error {
    /// The text behind the `-` of the reply; `command` is the name of the command that erred.
    pub(crate) fn text(self, command: &str) -> Cow<'static, str> {
        match self {
            Self::WrongArity => {
                format!("ERR wrong number of arguments for '{command}' command").into()
            }
            Self::Syntax => "ERR syntax error".into(),
            Self::NotAnInteger => "ERR value is not an integer or out of range".into(),
            Self::Invalid(argument) => {
                format!("ERR invalid {argument} in '{command}' command").into()
            }
            Self::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".into()
            }
            Self::Internal => "ERR internal error".into(),
        }
    }
}

impl From<NotALimiter> for Error {
    fn from(_: NotALimiter) -> Self {
        Self::NotAnInteger
    }
}
