//! The only file that opens keys: load a limiter, store it with its expiry, and say so to the
//! replicas, the AOF, WATCH, client-side caches and listeners.

use redis_module::{Context, NotifyEvent};
use std::ffi::CStr;

use crate::api::{self, Argument, Held, Mode};
use crate::errors::Error;
use crate::limiter::{Change, Stored, Text, Written};

/// Room for what a key holds: for one byte more than any limiter's text has, so that a longer one is
/// seen to be none.
pub(crate) type Room = [u8; Text::CAPACITY + 1];

/// An empty one.
pub(crate) const ROOM: Room = [0; Text::CAPACITY + 1];

/// The key of a limiter, open until it is closed or goes out of scope.
pub(crate) struct LimiterKey<'a> {
    ctx: &'a Context,
    name: &'a Argument,
    key: api::Key<'a>,
    end_ms: Option<i64>,
}

impl<'a> LimiterKey<'a> {
    /// # Errors
    ///
    /// [`Error::WrongType`] if the key holds anything but a string.
    pub(crate) fn open(ctx: &'a Context, name: &'a Argument, mode: Mode) -> Result<Self, Error> {
        let key = api::Key::open(ctx, name, mode).ok_or(Error::Internal)?;
        let end_ms = match key.held() {
            Held::Nothing => None,
            Held::String => key.end_ms(),
            Held::Other => return Err(Error::WrongType),
        };
        Ok(Self {
            ctx,
            name,
            key,
            end_ms,
        })
    }

    /// What the key holds now, copied into `room`; `None` if it is missing.
    pub(crate) fn stored<'b>(&mut self, room: &'b mut Room) -> Option<Stored<'b>> {
        // An empty string is a text, and no limiter: not the same as a missing key.
        let text = self.key.read(room)?;
        Some(Stored {
            text,
            end_ms: self.end_ms,
        })
    }

    /// Makes the key hold what `change` says, in one step, and closes it. What is left to do is to
    /// tell listeners.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the server refuses what it has no reason to refuse: it is asked to
    /// write a short text and an end after now to a key that is open for writing.
    pub(crate) fn store(mut self, change: &Change) -> Result<Events<'a>, Error> {
        let mut events = Events {
            ctx: self.ctx,
            name: self.name,
            of_text: None,
            of_end: None,
        };
        // The effect goes first (the server sends it when the call is over), so that nothing is
        // changed here that the replicas don't hear of.
        let done = match change {
            Change::Store {
                text,
                end_ms,
                written,
            } => {
                let ends_anew = self.end_ms != Some(*end_ms);
                events.of_text = match written {
                    Written::Kept => None,
                    Written::CountedUp => Some((NotifyEvent::STRING, c"incrby")),
                    Written::CountedDown => Some((NotifyEvent::STRING, c"decrby")),
                    Written::Replaced => Some((NotifyEvent::STRING, c"set")),
                };
                events.of_end = ends_anew.then_some((NotifyEvent::GENERIC, c"expire"));
                api::replicate_set(self.ctx, self.name, text, &Text::from_integer(*end_ms))
                    && self.key.write(text)
                    && (!ends_anew || self.key.set_end_ms(*end_ms))
            }
            Change::Delete => {
                events.of_text = Some((NotifyEvent::GENERIC, c"del"));
                api::replicate_del(self.ctx, self.name) && self.key.delete()
            }
        };
        if !done {
            return Err(Error::Internal);
        }
        api::signal_modified(self.ctx, self.name);
        Ok(events)
    }
}

/// The keyspace events of a key that is closed.
///
/// Other modules run inside them, so no key may be open when they are sent. (But for `new`, which
/// the server itself sends as soon as it has added a key.)
#[must_use]
pub(crate) struct Events<'a> {
    ctx: &'a Context,
    name: &'a Argument,
    of_text: Option<(NotifyEvent, &'static CStr)>,
    of_end: Option<(NotifyEvent, &'static CStr)>,
}

impl Events<'_> {
    pub(crate) fn send(self) {
        for (class, event) in [self.of_text, self.of_end].into_iter().flatten() {
            api::notify(self.ctx, class, event, self.name);
        }
    }
}
