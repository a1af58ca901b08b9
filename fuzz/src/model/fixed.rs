//! FIXED: the counter is the value, the end of the window is the key's expiry.

use super::{Action, Answer, Call, Change, Event};

pub(super) fn answer(
    counter: Option<i128>,
    end_ms: Option<i128>,
    call: &Call,
    action: Action,
    now_ms: i128,
) -> Answer {
    // A negative one counts as 0.
    let count = counter.unwrap_or(0).max(0);
    let allowed = count + call.cost <= call.limit;

    let lost_its_end = counter.is_some() && end_ms.is_none();
    let window_end_ms = end_ms.unwrap_or(now_ms + call.window_ms);

    let (count_after, event) = match action {
        Action::Hit if allowed => (count + call.cost, Event::Incrby),
        // Where there is nothing to give back, the counter stays: also a negative one, of which the
        // documentation says so only for a refused hit.
        Action::Refund if count > 0 => ((count - call.cost).max(0), Event::Decrby),
        _ => (count, Event::None),
    };
    let value_after = match event {
        Event::None => counter.unwrap_or(0),
        _ => count_after,
    };
    let change = if event != Event::None || lost_its_end {
        Change::Store {
            text: value_after.to_string(),
            end_ms: window_end_ms,
            event,
            repaired: lost_its_end,
        }
    } else {
        Change::Nothing
    };

    let refused = action != Action::Refund && !allowed;
    Answer {
        allowed: !refused,
        limit: call.limit,
        remaining: (call.limit - count_after).max(0),
        retry_after_ms: if !refused {
            Some(0)
        } else if call.cost > call.limit {
            None
        } else {
            Some(window_end_ms - now_ms)
        },
        // "What is left of the window, or 0 when nothing is taken."
        reset_after_ms: if count_after == 0 {
            0
        } else {
            window_end_ms - now_ms
        },
        change,
    }
}
