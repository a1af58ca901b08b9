//! The sweeper: gives an expiry to limiters that lost theirs, in the background, where the settings
//! ask for it. A step runs some times a second, in the server's own cron.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis_module::Context;

use crate::api::{self, Name};
use crate::key::LeakedKey;
use crate::{config, stats};

/// A step begins nothing after this; the last thing that it began is short.
const STEP: Duration = Duration::from_micros(150);
/// How many keys the server is asked for at a time, at the most.
const PAGE: i64 = 20;
/// Where that takes longer, since names are very long, fewer are asked for the next time.
const TURN: Duration = Duration::from_micros(50);
/// A walk over few keys doesn't begin again at once.
const PASS: Duration = Duration::from_secs(1);
/// What may be walked is counted in parts of a key: at so many keys a second, each microsecond adds
/// as many parts.
const PARTS_OF_A_KEY: i64 = 1_000_000;

struct Sweeper {
    /// What it walks for; with another one it begins anew.
    pattern: Vec<u8>,
    db: c_int,
    /// Where the walk over the database is; `None` before its first page.
    cursor: Option<Vec<u8>>,
    /// Of the page before the cursor, what is still to be looked at.
    names: Vec<Name>,
    /// How many keys the next page has.
    page: i64,
    /// When the walk over all databases began; `None` before the first.
    began: Option<Instant>,
    /// When the last step ran.
    stepped: Option<Instant>,
    /// How much may be walked now.
    allowance_parts: i64,
    /// Whether the log says that it can't walk.
    complained: bool,
}

static SWEEPER: Mutex<Sweeper> = Mutex::new(Sweeper::new());

/// What the server's cron calls.
pub(crate) fn step(ctx: &Context) {
    let pattern = config::sweep_pattern();
    let window_ms = config::sweep_window_ms();
    let wanted = !pattern.is_empty() && window_ms > 0;
    // Asked before each step: a replica, a paused server and one that loads its data must not.
    let runs = wanted && api::may_write_unasked(ctx);

    let mut sweeper = SWEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if !wanted || pattern != sweeper.pattern {
        *sweeper = Sweeper::new();
        sweeper.pattern = pattern;
    }
    if runs {
        sweeper.step(ctx, window_ms, Instant::now());
    } else {
        // What could have been walked meanwhile is not caught up on.
        sweeper.stepped = None;
    }
    let runs = runs && !sweeper.complained;
    stats::SWEEPER_RUNNING.set(runs.into());
}

/// Gives back what the sweeper holds.
pub(crate) fn release() {
    *SWEEPER.lock().unwrap_or_else(PoisonError::into_inner) = Sweeper::new();
}

impl Sweeper {
    const fn new() -> Self {
        Self {
            pattern: Vec::new(),
            db: 0,
            cursor: None,
            names: Vec::new(),
            page: PAGE,
            began: None,
            stepped: None,
            allowance_parts: 0,
            complained: false,
        }
    }

    fn step(&mut self, ctx: &Context, window_ms: i64, now: Instant) {
        self.allow(now);
        while now.elapsed() < STEP {
            // Each step begins with the first database; behind the last the walk is over.
            if !api::select_db(ctx, self.db) {
                self.db = 0;
            } else if let Some(name) = self.names.pop() {
                self.repair(ctx, &name, window_ms);
            } else if !self.turn_page(ctx, now) {
                break;
            }
        }
    }

    /// Adds what may be walked since the last step, but no more than for a second. Of what wasn't
    /// used until now a page is kept.
    fn allow(&mut self, now: Instant) {
        let stepped = self.stepped.replace(now).unwrap_or(now);
        let since = now.saturating_duration_since(stepped);
        let since_us = i64::try_from(since.as_micros().min(1_000_000)).unwrap_or(0);
        let more = config::sweep_keys_per_second().saturating_mul(since_us);
        let most = PAGE.saturating_mul(PARTS_OF_A_KEY);
        self.allowance_parts = self.allowance_parts.min(most).saturating_add(more);
    }

    /// Asks for the next names. False if nothing may be asked now.
    fn turn_page(&mut self, ctx: &Context, now: Instant) -> bool {
        let allowed = self.allowance_parts.checked_div(PARTS_OF_A_KEY);
        let count = allowed.unwrap_or(0).min(self.page);
        if count < 1 {
            return false;
        }
        let cursor = match self.cursor.take() {
            // The walk over this database is over.
            Some(cursor) if cursor == b"0" => {
                self.db = self.db.saturating_add(1);
                return true;
            }
            Some(cursor) => cursor,
            None => {
                if self.db == 0 {
                    let since = self.began.map(|began| now.saturating_duration_since(began));
                    if since.is_some_and(|since| since < PASS) {
                        return false;
                    }
                    self.began = Some(now);
                }
                b"0".to_vec()
            }
        };
        let size = i64::try_from(api::db_size(ctx)).unwrap_or(i64::MAX);
        if size == 0 {
            self.cursor = Some(b"0".to_vec());
            return true;
        }
        let asked = Instant::now();
        let Some(page) = api::scan(ctx, &cursor, &self.pattern, count) else {
            self.complain();
            self.cursor = (cursor != b"0").then_some(cursor);
            return false;
        };
        self.page = match asked.elapsed() > TURN {
            true => self.page.checked_div(2).unwrap_or(1).max(1),
            false => self.page.saturating_add(1).min(PAGE),
        };
        let walked = count.min(size);
        let parts = walked.saturating_mul(PARTS_OF_A_KEY);
        self.allowance_parts = self.allowance_parts.saturating_sub(parts);
        stats::SWEEPER_KEYS_WALKED.add(u64::try_from(walked).unwrap_or(0));
        self.cursor = Some(page.cursor);
        self.names = page.names;
        true
    }

    fn repair(&mut self, ctx: &Context, name: &Name, window_ms: i64) {
        match LeakedKey::find(ctx, name) {
            Ok(Some(leaked)) => {
                let end_ms = api::now_ms().saturating_add(window_ms);
                if let Ok(events) = leaked.repair(end_ms) {
                    events.send();
                    stats::LIMITERS_REPAIRED_BY_SWEEPER.add(1);
                }
            }
            Ok(None) => {}
            Err(_) => self.complain(),
        }
    }

    fn complain(&mut self) {
        if !self.complained {
            self.complained = true;
            api::log_warning("the sweeper doesn't run: this server doesn't run SCAN or GET");
        }
    }
}
