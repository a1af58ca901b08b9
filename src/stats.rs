//! What INFO rl shows.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::Info;

/// A figure that only the server's main thread changes.
pub(crate) struct Figure(AtomicU64);

impl Figure {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn add(&self, more: u64) {
        // Two plain instructions; a locked one would cost more than all that is around it.
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(more), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) static HITS_ALLOWED: Figure = Figure::new();
pub(crate) static HITS_REFUSED: Figure = Figure::new();
pub(crate) static PEEKS: Figure = Figure::new();
pub(crate) static REFUNDS: Figure = Figure::new();
pub(crate) static MHITS: Figure = Figure::new();
pub(crate) static LIMITERS_REPAIRED: Figure = Figure::new();
pub(crate) static LIMITERS_REPAIRED_BY_REPAIR: Figure = Figure::new();
pub(crate) static LIMITERS_REPAIRED_BY_SWEEPER: Figure = Figure::new();
pub(crate) static OOM_ERRORS: Figure = Figure::new();
pub(crate) static OOM_ALLOWED: Figure = Figure::new();
pub(crate) static OOM_REFUSED: Figure = Figure::new();
pub(crate) static SWEEPER_KEYS_WALKED: Figure = Figure::new();
/// 1 while the sweeper runs, the one figure here that also falls.
pub(crate) static SWEEPER_RUNNING: Figure = Figure::new();

const FIGURES: &[(&CStr, &Figure)] = &[
    (c"hits_allowed", &HITS_ALLOWED),
    (c"hits_refused", &HITS_REFUSED),
    (c"peeks", &PEEKS),
    (c"refunds", &REFUNDS),
    (c"mhits", &MHITS),
    (c"limiters_repaired", &LIMITERS_REPAIRED),
    (c"limiters_repaired_by_repair", &LIMITERS_REPAIRED_BY_REPAIR),
    (
        c"limiters_repaired_by_sweeper",
        &LIMITERS_REPAIRED_BY_SWEEPER,
    ),
    (c"oom_errors", &OOM_ERRORS),
    (c"oom_allowed", &OOM_ALLOWED),
    (c"oom_refused", &OOM_REFUSED),
    (c"sweeper_keys_walked", &SWEEPER_KEYS_WALKED),
    (c"sweeper_running", &SWEEPER_RUNNING),
];

/// A hit, or a call for several limiters, has its verdict.
pub(crate) fn count_hit(allowed: bool) {
    if allowed {
        &HITS_ALLOWED
    } else {
        &HITS_REFUSED
    }
    .add(1);
}

pub(crate) fn tell(info: &Info) {
    if info.section() {
        for (name, figure) in FIGURES {
            info.field(name, figure.get());
        }
    }
}
