//! BUCKET: a token bucket, of which the debt is kept.

use num_bigint::BigInt;

use super::{
    first_time, rounded_up, Action, Algorithm, Answer, Call, Change, Event, Limiter, LAST_MS,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Debt {
    pub(super) parts: i128,
    pub(super) at_ms: i128,
    pub(super) window_ms: i128,
}

impl Debt {
    fn text(&self) -> String {
        let Self {
            parts,
            at_ms,
            window_ms,
        } = *self;
        Limiter::Debt {
            parts,
            at_ms,
            window_ms,
        }
        .text()
    }

    /// "A new window scales it (rounded up to a whole part)."
    fn scaled(&self, window_ms: i128) -> i128 {
        let product = BigInt::from(self.parts) * window_ms;
        let scaled: BigInt = (product + self.window_ms - 1) / self.window_ms;
        scaled.try_into().unwrap()
    }
}

pub(super) fn answer(
    stored: Option<Debt>,
    end_ms: Option<i128>,
    call: &Call,
    action: Action,
    now_ms: i128,
) -> Answer {
    let Algorithm::Bucket { capacity } = call.algorithm else {
        panic!("no bucket");
    };
    let window_ms = call.window_ms;
    // In parts, of which a token has as many as the window has milliseconds.
    let whole = capacity * window_ms;
    let wanted = call.cost * window_ms;

    // A state dated after now is taken to be of now, and its end is reckoned anew.
    let ahead = stored.is_some_and(|debt| debt.at_ms > now_ms);
    let stored = stored.map(|debt| Debt {
        at_ms: debt.at_ms.min(now_ms),
        ..debt
    });
    let kept_end_ms = end_ms.filter(|_| !ahead);
    let needs_repair = stored.is_some() && kept_end_ms.is_none();

    // "Each millisecond refills exactly `limit` parts", from the time at which it was reckoned.
    let still_owed =
        |debt: i128, since_ms: i128, at_ms: i128| (debt - (at_ms - since_ms) * call.limit).max(0);
    // "Of a capacity below the debt it is an empty bucket", at that time, too.
    let owed_at = |at_ms: i128| {
        stored.map_or(0, |debt| {
            still_owed(debt.scaled(window_ms).min(whole), debt.at_ms, at_ms)
        })
    };
    let owed = owed_at(now_ms);

    let fits = |at_ms: i128| call.limit > 0 && owed_at(at_ms) + wanted <= whole;
    let allowed = fits(now_ms);
    let refused = action != Action::Refund && !allowed;

    // "A refund gives back of the whole debt, whatever the capacity of its call", and as of the time
    // at which that was reckoned.
    let refunded = stored
        .filter(|_| action == Action::Refund)
        .map(|debt| Debt {
            parts: (debt.scaled(window_ms) - wanted).max(0),
            at_ms: debt.at_ms,
            window_ms,
        });
    let owed_after = match (action, refunded) {
        (Action::Hit, _) if allowed => owed + wanted,
        (Action::Refund, Some(debt)) => still_owed(debt.parts, debt.at_ms, now_ms),
        _ => owed,
    };

    // When a debt of now is gone. Where nothing refills it that is the key's end, also where the
    // state was dated after now; and without one, which the documentation leaves open, after the
    // longer of the two windows.
    let end_of = |parts: i128| {
        if call.limit > 0 {
            (now_ms + rounded_up(parts, call.limit)).min(LAST_MS)
        } else if let Some(end_ms) = end_ms {
            end_ms
        } else {
            let stored_window_ms = stored.map_or(0, |debt| debt.window_ms);
            (now_ms + stored_window_ms.max(window_ms)).min(LAST_MS)
        }
    };

    let reckoned = Debt {
        parts: owed_after,
        at_ms: now_ms,
        window_ms,
    };
    let change = if action == Action::Hit && allowed || action == Action::Refund && owed_after > 0 {
        Change::Store {
            text: refunded.unwrap_or(reckoned).text(),
            end_ms: end_of(owed_after),
            event: Event::Set,
            repaired: needs_repair,
        }
    } else if action == Action::Refund && stored.is_some() {
        Change::Delete
    } else if needs_repair {
        Change::Store {
            text: stored.unwrap().text(),
            end_ms: end_of(owed).max(now_ms + 1),
            event: if ahead { Event::Set } else { Event::None },
            repaired: true,
        }
    } else {
        Change::Nothing
    };

    // Nobody waits beyond the key's expiry, which a hit and a refund set anew.
    let forgotten_ms = match action {
        Action::Hit if allowed => None,
        Action::Refund => None,
        _ => kept_end_ms,
    };
    let wait_ms = |until_ms: i128| until_ms.min(forgotten_ms.unwrap_or(until_ms)) - now_ms;
    let owed_of_whole = match refunded {
        Some(debt) => still_owed(debt.parts.min(whole), debt.at_ms, now_ms),
        None => owed_after.min(whole),
    };
    Answer {
        allowed: !refused,
        limit: capacity,
        remaining: if call.limit > 0 {
            (whole - owed_of_whole) / window_ms
        } else {
            0
        },
        retry_after_ms: if !refused {
            Some(0)
        } else if call.limit == 0 || call.cost > capacity {
            None
        } else {
            Some(wait_ms(first_time(now_ms, fits)))
        },
        reset_after_ms: if owed_of_whole == 0 {
            0
        } else if call.limit == 0 {
            wait_ms(end_of(owed_of_whole))
        } else {
            wait_ms(first_time(now_ms, |at_ms| {
                still_owed(owed_of_whole, now_ms, at_ms) == 0
            }))
        },
        change,
    }
}
