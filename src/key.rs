//! The only file that opens keys: load a limiter, store it with its expiry, and say so to the
//! replicas, the AOF, WATCH, client-side caches and listeners.

use redis_module::{Context, NotifyEvent};
use std::ffi::CStr;

use crate::api::{self, Argument, Held};
use crate::errors::Error;
use crate::limiter::{Change, Stored, Text};

/// The key of a limiter, open from here to [`LimiterKey::store`] or the end of the call.
pub(crate) struct LimiterKey<'a> {
    ctx: &'a Context,
    name: &'a Argument,
    key: api::Key<'a>,
    end_ms: Option<i64>,
    /// One byte more than any limiter's text, so that a longer one is seen to be none.
    room: [u8; Text::CAPACITY + 1],
}

impl<'a> LimiterKey<'a> {
    /// # Errors
    ///
    /// [`Error::WrongType`] if the key holds anything but a string.
    pub(crate) fn open(ctx: &'a Context, name: &'a Argument) -> Result<Self, Error> {
        let key = api::Key::open(ctx, name).ok_or(Error::Internal)?;
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
            room: [0; Text::CAPACITY + 1],
        })
    }

    /// What the key holds now; `None` if it is missing.
    pub(crate) fn stored(&mut self) -> Option<Stored<'_>> {
        // An empty string is a text, and no limiter: not the same as a missing key.
        self.key.read(&mut self.room).map(|text| Stored {
            text,
            end_ms: self.end_ms,
        })
    }

    /// Makes the key hold what `change` says, in one step, and closes it. `taken_event` is the
    /// keyspace event of a call that took its cost.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the server refuses what it has no reason to refuse: it is asked to
    /// write a short text and an end after now to a key that is open for writing.
    pub(crate) fn store(mut self, change: &Change, taken_event: &CStr) -> Result<(), Error> {
        let ends_anew = self.end_ms != Some(change.end_ms);

        // The effect goes first (the server sends it when the call is over), so that nothing is
        // changed here that the replicas don't hear of.
        let end_ms = Text::from_integer(change.end_ms);
        let done = api::replicate_set(self.ctx, self.name, &change.text, &end_ms)
            && self.key.write(&change.text)
            && (!ends_anew || self.key.set_end_ms(change.end_ms));
        if !done {
            return Err(Error::Internal);
        }
        api::signal_modified(self.ctx, self.name);

        // Other modules run inside the events, so the key is closed before the first. (But for
        // `new`, which the server itself sends as soon as it has added a key.)
        let Self { ctx, name, key, .. } = self;
        drop(key);
        if change.taken {
            api::notify(ctx, NotifyEvent::STRING, taken_event, name);
        }
        if ends_anew {
            api::notify(ctx, NotifyEvent::GENERIC, c"expire", name);
        }
        Ok(())
    }
}
