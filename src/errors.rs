//! Every error a command can answer with, and its text on the wire.

use std::borrow::Cow;

use crate::limiter::Unfit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    WrongArity,
    Syntax,
    /// An argument or a stored value that is no integer of 64 bits.
    NotAnInteger,
    /// An integer that is not possible; the name is the argument's.
    Invalid(&'static str),
    WrongType,
    /// The key holds the limiter of another algorithm, of this name.
    Holds(&'static str),
    NoKeys,
    TooManyKeys,
    DuplicateKey,
    InvalidCursor,
    /// The server has no memory for a new limiter, and the policy is to say so.
    OutOfMemory,
    /// SCAN or GET has another name on this server.
    NoScan,
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
            Self::Holds(algorithm) => format!("ERR key holds a {algorithm} limiter").into(),
            Self::NoKeys => "ERR numkeys should be greater than 0".into(),
            Self::TooManyKeys => format!("ERR too many keys in '{command}' command").into(),
            Self::DuplicateKey => format!("ERR duplicate key in '{command}' command").into(),
            Self::InvalidCursor => "ERR invalid cursor".into(),
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.".into(),
            Self::NoScan => "ERR this server doesn't run SCAN or GET".into(),
            Self::Internal => "ERR internal error".into(),
        }
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::NotALimiter => Self::NotAnInteger,
            Unfit::Other(algorithm) => Self::Holds(algorithm),
        }
    }
}
