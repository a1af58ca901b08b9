//! SLIDING: an estimate from two windows.

use super::{first_time, Action, Answer, Call, Change, Event, Limiter};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Windows {
    pub(super) previous: i128,
    pub(super) current: i128,
    pub(super) start_ms: i128,
}

impl Windows {
    fn text(&self) -> String {
        let Self {
            previous,
            current,
            start_ms,
        } = *self;
        Limiter::Windows {
            previous,
            current,
            start_ms,
        }
        .text()
    }

    /// The windows as they are at a later time, if nothing is added.
    fn later(self, at_ms: i128, window_ms: i128) -> Self {
        match (at_ms - self.start_ms) / window_ms {
            0 => self,
            1 => Self {
                previous: self.current,
                current: 0,
                start_ms: self.start_ms + window_ms,
            },
            _ => Self {
                previous: 0,
                current: 0,
                start_ms: at_ms,
            },
        }
    }

    /// "taken = current + floor(previous x (window - elapsed) / window)"
    fn taken(&self, at_ms: i128, window_ms: i128) -> i128 {
        let windows = self.later(at_ms, window_ms);
        let elapsed_ms = at_ms - windows.start_ms;
        windows.current + windows.previous * (window_ms - elapsed_ms) / window_ms
    }

    /// When the key ends: when nothing weighs any more. A window that was emptied by refunds runs to
    /// its own end, for the next hit goes on in it; and there is no end that is over.
    fn end_ms(&self, now_ms: i128, window_ms: i128) -> i128 {
        first_time(now_ms, |at_ms| self.taken(at_ms, window_ms) == 0)
            .max(self.start_ms + window_ms)
            .max(now_ms + 1)
    }
}

pub(super) fn answer(
    stored: Option<Windows>,
    end_ms: Option<i128>,
    call: &Call,
    action: Action,
    now_ms: i128,
) -> Answer {
    let window_ms = call.window_ms;

    // A state dated after now is taken to be of now, and its end is reckoned anew.
    let ahead = stored.is_some_and(|windows| windows.start_ms > now_ms);
    let stored = stored.map(|windows| Windows {
        start_ms: windows.start_ms.min(now_ms),
        ..windows
    });
    let kept_end_ms = end_ms.filter(|_| !ahead);
    let needs_repair = stored.is_some() && kept_end_ms.is_none();

    // Once it is full again by the passing of time it is gone: the next hit starts a window. Not so
    // while the window that it is dated in runs.
    let running = stored
        .filter(|windows| {
            now_ms - windows.start_ms < window_ms || windows.taken(now_ms, window_ms) > 0
        })
        .map(|windows| windows.later(now_ms, window_ms));
    let before = running.unwrap_or(Windows {
        previous: 0,
        current: 0,
        start_ms: now_ms,
    });
    let fits = |at_ms| before.taken(at_ms, window_ms) + call.cost <= call.limit;
    let allowed = fits(now_ms);
    let refused = action != Action::Refund && !allowed;

    let mut after = before;
    match action {
        Action::Hit if allowed => after.current += call.cost,
        Action::Refund => {
            let of_current = call.cost.min(after.current);
            after.current -= of_current;
            after.previous -= (call.cost - of_current).min(after.previous);
        }
        _ => {}
    }

    let change = if action == Action::Hit && allowed {
        Change::Store {
            text: after.text(),
            end_ms: after.end_ms(now_ms, window_ms),
            event: Event::Set,
            repaired: needs_repair,
        }
    } else if action == Action::Refund && running.is_some() {
        if kept_end_ms.is_some() && running == stored && after == before {
            Change::Nothing
        } else {
            Change::Store {
                text: after.text(),
                end_ms: kept_end_ms.unwrap_or_else(|| after.end_ms(now_ms, window_ms)),
                event: if !ahead && stored == Some(after) {
                    Event::None
                } else {
                    Event::Set
                },
                repaired: needs_repair,
            }
        }
    } else if needs_repair {
        // What is stored, as it is: it isn't carried on into the window that runs now. The
        // documentation doesn't say which of the two.
        let stored = stored.unwrap();
        Change::Store {
            text: stored.text(),
            end_ms: stored.end_ms(now_ms, window_ms),
            event: if ahead { Event::Set } else { Event::None },
            repaired: true,
        }
    } else {
        Change::Nothing
    };

    // Nobody waits beyond the key's expiry, which only a hit sets anew.
    let forgotten_ms = match action {
        Action::Hit if allowed => None,
        _ => kept_end_ms,
    };
    let wait_ms = |until_ms: i128| until_ms.min(forgotten_ms.unwrap_or(until_ms)) - now_ms;
    let taken_after = after.taken(now_ms, window_ms);
    Answer {
        allowed: !refused,
        limit: call.limit,
        remaining: (call.limit - taken_after).max(0),
        retry_after_ms: if !refused {
            Some(0)
        } else if call.cost > call.limit {
            None
        } else {
            Some(wait_ms(first_time(now_ms, fits)))
        },
        reset_after_ms: if taken_after == 0 {
            0
        } else {
            wait_ms(first_time(now_ms, |at_ms| {
                after.taken(at_ms, window_ms) == 0
            }))
        },
        change,
    }
}
