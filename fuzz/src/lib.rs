//! What `make fuzz` holds the module to: made-up traffic and made-up command lines, each answered
//! by the module and by a slow model that was written from the documentation.
//!
//! The module is a library for a server and for nothing else, so the files that need no server are
//! included as they are. (They name each other from the root of their crate, hence so does this.)

pub mod arguments;
mod model;
mod number;
pub mod throttle;
pub mod traffic;

#[allow(dead_code)] // Not all that the module needs is called here.
#[path = "../../src/limiter/mod.rs"]
mod limiter;

#[allow(dead_code)]
#[path = "../../src/errors.rs"]
mod errors;

#[path = "../../src/command/args.rs"]
mod args;

/// Stands in for the server's strings.
mod api {
    #[derive(Debug)]
    pub(crate) struct Argument(pub(crate) Vec<u8>);

    impl Argument {
        pub(crate) fn bytes(&self) -> &[u8] {
            &self.0
        }

        pub(crate) fn is(&self, word: &[u8]) -> bool {
            self.0.eq_ignore_ascii_case(word)
        }
    }
}

/// Stands in for the part of the replies that the command line decides.
mod reply {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Unit {
        Seconds,
        Milliseconds,
    }

    impl Unit {
        pub(crate) fn ms(self) -> i64 {
            match self {
                Self::Seconds => 1_000,
                Self::Milliseconds => 1,
            }
        }
    }
}
