//! The only file that opens keys: load a limiter, store it with its expiry, and say so to the
//! replicas, the AOF, WATCH, client-side caches and listeners.

use redis_module::{Context, NotifyEvent};
use std::ffi::CStr;

use crate::api::{self, Argument, Held, Mode};
use crate::errors::Error;
use crate::limiter::{self, Change, Stored, Text, Written};
use crate::{config, stats};

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

    /// Whether there is no such key. (One whose end has come, and which the server still has, is one.)
    pub(crate) fn is_missing(&self) -> bool {
        self.key.held() == Held::Nothing
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
        let mut events = Events::new(self.ctx, self.name);
        // The effect goes first (the server sends it when the call is over), so that nothing is
        // changed here that the replicas don't hear of.
        let done = match change {
            Change::Store {
                text,
                end_ms,
                written,
                repaired,
            } => {
                events.of_repair = *repaired;
                let ends_anew = self.end_ms != Some(*end_ms);
                events.of_text = match written {
                    Written::Kept => None,
                    Written::CountedUp => Some((NotifyEvent::STRING, c"incrby")),
                    Written::CountedDown => Some((NotifyEvent::STRING, c"decrby")),
                    Written::Replaced => Some((NotifyEvent::STRING, c"set")),
                };
                events.of_end = ends_anew.then_some((NotifyEvent::GENERIC, c"expire"));
                api::replicate_set(self.ctx, self.name, text, *end_ms)
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
    of_repair: bool,
}

impl<'a> Events<'a> {
    fn new(ctx: &'a Context, name: &'a Argument) -> Self {
        Self {
            ctx,
            name,
            of_text: None,
            of_end: None,
            of_repair: false,
        }
    }

    pub(crate) fn send(self) {
        for (class, event) in [self.of_text, self.of_end].into_iter().flatten() {
            api::notify(self.ctx, class, event, self.name);
        }
        if self.of_repair {
            stats::LIMITERS_REPAIRED.add(1);
            api::notify(self.ctx, NotifyEvent::MODULE, c"rl.repaired", self.name);
        }
    }
}

/// Tells listeners of a refusal; no key may be open.
pub(crate) fn notify_refused(ctx: &Context, name: &Argument) {
    api::notify(ctx, NotifyEvent::MODULE, c"rl.refused", name);
}

/// A limiter or an integer counter that has no expiry.
pub(crate) struct LeakedKey<'a> {
    ctx: &'a Context,
    name: &'a Argument,
    text: Vec<u8>,
}

impl<'a> LeakedKey<'a> {
    /// Looks whether the key is one, and leaves it as it is. Of a long value no byte is read.
    ///
    /// # Errors
    ///
    /// [`Error::NoScan`] if the server doesn't tell the value, [`Error::Internal`] if it doesn't open the
    /// key.
    pub(crate) fn find(ctx: &'a Context, name: &'a Argument) -> Result<Option<Self>, Error> {
        let key = api::Key::open(ctx, name, Mode::Look).ok_or(Error::Internal)?;
        let leaks =
            key.held() == Held::String && key.end_ms().is_none() && key.length() <= Text::CAPACITY;
        drop(key);
        if !leaks {
            return Ok(None);
        }
        // In place the server would keep an integer as bytes from now on.
        let text = api::get(ctx, name).ok_or(Error::NoScan)?;
        let leaks = limiter::name_of(&text).is_some()
            || config::has_cl_throttle() && limiter::throttle::is_state(&text);
        Ok(leaks.then_some(Self { ctx, name, text }))
    }

    pub(crate) fn name(&self) -> &Argument {
        self.name
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Gives it an expiry, and closes it. What is left to do is to tell listeners.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the server refuses what it has no reason to refuse.
    pub(crate) fn repair(&self, end_ms: i64) -> Result<Events<'a>, Error> {
        let mut key =
            api::Key::open(self.ctx, self.name, Mode::ReadAndWrite).ok_or(Error::Internal)?;
        if !api::replicate_set(self.ctx, self.name, &self.text, end_ms) || !key.set_end_ms(end_ms) {
            return Err(Error::Internal);
        }
        drop(key);
        api::signal_modified(self.ctx, self.name);
        Ok(Events {
            of_end: Some((NotifyEvent::GENERIC, c"expire")),
            of_repair: true,
            ..Events::new(self.ctx, self.name)
        })
    }
}
