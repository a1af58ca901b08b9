//! What COMMAND DOCS and COMMAND INFO say of each command.

use std::ffi::CStr;

/// Since which version of the module.
const SINCE_FIRST: &CStr = c"0.1.0";

pub(crate) struct Docs {
    pub(crate) summary: &'static CStr,
    pub(crate) since: &'static CStr,
    pub(crate) complexity: &'static CStr,
    /// As the server counts: the command's name included, negative for "at least".
    pub(crate) arity: i32,
    pub(crate) arguments: &'static [Argument],
}

pub(crate) struct Argument {
    pub(crate) name: &'static CStr,
    pub(crate) kind: Kind,
    /// The option's word; an argument that has one may be left out.
    pub(crate) word: Option<&'static CStr>,
}

pub(crate) enum Kind {
    Key,
    Integer,
    /// A word that stands alone.
    Word,
}

const fn required(name: &'static CStr, kind: Kind) -> Argument {
    Argument {
        name,
        kind,
        word: None,
    }
}

const fn optional(word: &'static CStr, name: &'static CStr, kind: Kind) -> Argument {
    Argument {
        name,
        kind,
        word: Some(word),
    }
}

pub(crate) const HIT: Docs = Docs {
    summary:
        c"Takes from a rate limiter, or refuses, in one step that also sets and repairs its expiry.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: -4,
    arguments: &[
        required(c"key", Kind::Key),
        required(c"limit", Kind::Integer),
        required(c"window", Kind::Integer),
        optional(c"FIXED", c"fixed", Kind::Word),
        optional(c"COST", c"cost", Kind::Integer),
        optional(c"MS", c"ms", Kind::Word),
    ],
};

#[cfg(feature = "deliberate-panic")]
pub(crate) const PANIC: Docs = Docs {
    summary: c"Panics on purpose.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: 2,
    arguments: &[required(c"key", Kind::Key)],
};
