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
    /// For proxies and cluster-aware clients.
    pub(crate) tips: Option<&'static CStr>,
    pub(crate) keys: Keys,
    pub(crate) arguments: &'static [Argument],
}

/// Where the keys are, and what happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    None,
    /// The first argument, read.
    FirstRead,
    /// The first argument, read and updated.
    FirstUpdated,
    /// As many as the first argument says, behind it, read and updated.
    CountedUpdated,
}

#[derive(Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) name: &'static CStr,
    pub(crate) kind: Kind,
    /// The word before it.
    pub(crate) word: Option<&'static CStr>,
    pub(crate) optional: bool,
    pub(crate) multiple: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Key,
    Integer,
    Pattern,
    /// A word that stands alone.
    Word,
    OneOf(&'static [Argument]),
    Block(&'static [Argument]),
}

impl Argument {
    const fn new(name: &'static CStr, kind: Kind) -> Self {
        Self {
            name,
            kind,
            word: None,
            optional: false,
            multiple: false,
        }
    }

    const fn after(mut self, word: &'static CStr) -> Self {
        self.word = Some(word);
        self
    }

    const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    const fn multiple(mut self) -> Self {
        self.multiple = true;
        self
    }
}

const KEY: Argument = Argument::new(c"key", Kind::Key);
const LIMIT: Argument = Argument::new(c"limit", Kind::Integer);
const WINDOW: Argument = Argument::new(c"window", Kind::Integer);
const ALGORITHM: Argument = Argument::new(
    c"algorithm",
    Kind::OneOf(&[
        Argument::new(c"fixed", Kind::Word).after(c"FIXED"),
        Argument::new(c"sliding", Kind::Word).after(c"SLIDING"),
        Argument::new(c"capacity", Kind::Integer).after(c"BUCKET"),
    ]),
)
.optional();
const COST: Argument = Argument::new(c"cost", Kind::Integer)
    .after(c"COST")
    .optional();
const MS: Argument = Argument::new(c"ms", Kind::Word).after(c"MS").optional();

const ONE_LIMITER: &[Argument] = &[KEY, LIMIT, WINDOW, ALGORITHM, COST, MS];

pub(crate) const HIT: Docs = Docs {
    summary:
        c"Takes from a rate limiter, or refuses, in one step that also sets and repairs its expiry.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: -4,
    tips: None,
    keys: Keys::FirstUpdated,
    arguments: ONE_LIMITER,
};

pub(crate) const PEEK: Docs = Docs {
    summary: c"Tells what RL.HIT would be answered now, and takes nothing.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: -4,
    tips: None,
    keys: Keys::FirstRead,
    arguments: ONE_LIMITER,
};

pub(crate) const REFUND: Docs = Docs {
    summary: c"Gives back to a rate limiter what a hit took.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: -4,
    tips: None,
    keys: Keys::FirstUpdated,
    arguments: ONE_LIMITER,
};

pub(crate) const MHIT: Docs = Docs {
    summary: c"Takes from several rate limiters, or from none of them if one refuses.",
    since: SINCE_FIRST,
    complexity: c"O(N log N) where N is the number of keys, at most 128",
    arity: -5,
    tips: None,
    keys: Keys::CountedUpdated,
    arguments: &[
        Argument::new(c"numkeys", Kind::Integer),
        KEY.multiple(),
        Argument::new(c"rule", Kind::Block(&[LIMIT, WINDOW, ALGORITHM, COST])).multiple(),
        MS,
    ],
};

pub(crate) const THROTTLE: Docs = Docs {
    summary: c"Takes from a token bucket as redis-cell keeps it, or refuses.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: -5,
    tips: None,
    keys: Keys::FirstUpdated,
    arguments: &[
        KEY,
        Argument::new(c"max_burst", Kind::Integer),
        Argument::new(c"count", Kind::Integer),
        Argument::new(c"period", Kind::Integer),
        Argument::new(c"quantity", Kind::Integer).optional(),
    ],
};

/// What each node has of it, and each call, is its own.
const WALK: Option<&CStr> =
    Some(c"nondeterministic_output request_policy:special response_policy:special");
const CURSOR: Argument = Argument::new(c"cursor", Kind::Integer);
const COUNT: Argument = Argument::new(c"count", Kind::Integer)
    .after(c"COUNT")
    .optional();

pub(crate) const AUDIT: Docs = Docs {
    summary: c"Lists limiters and integer counters that have no expiry.",
    since: SINCE_FIRST,
    complexity: c"O(1) for every call, O(N) for a complete walk over N keys.",
    arity: -2,
    tips: WALK,
    keys: Keys::None,
    arguments: &[
        CURSOR,
        Argument::new(c"pattern", Kind::Pattern)
            .after(c"MATCH")
            .optional(),
        COUNT,
    ],
};

pub(crate) const REPAIR: Docs = Docs {
    summary: c"Gives an expiry to limiters and integer counters that have none.",
    since: SINCE_FIRST,
    complexity: c"O(1) for every call, O(N) for a complete walk over N keys.",
    arity: -4,
    tips: WALK,
    keys: Keys::None,
    arguments: &[
        CURSOR,
        Argument::new(c"pattern", Kind::Pattern),
        WINDOW,
        COUNT,
        MS,
    ],
};

#[cfg(feature = "deliberate-panic")]
pub(crate) const PANIC: Docs = Docs {
    summary: c"Panics on purpose.",
    since: SINCE_FIRST,
    complexity: c"O(1)",
    arity: 2,
    tips: None,
    keys: Keys::FirstRead,
    arguments: &[KEY],
};
