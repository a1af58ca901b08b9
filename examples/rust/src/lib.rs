//! Rate limiting by RL.HIT and RL.MHIT: one call, one deadline, and a verdict whatever becomes of the server.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult,
};
use tokio::time::{timeout_at, Instant};

pub mod layer;

/// How long one attempt to connect may take. It goes on behind the calls that wait for it, so it may be longer than
/// their deadline: names, TLS and a server far away still get their connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// An error reply is often about one key (WRONGTYPE) or about new ones (OOM), while other calls succeed in between.
/// Trouble of that kind is over only after so long without it, or the log had two lines for every such reply.
const QUIET_AFTER_ERROR_REPLY: Duration = Duration::from_secs(1);

/// What a call gets that the server didn't answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Let in: no limit meanwhile.
    Open,
    /// Refuse: nobody gets in meanwhile.
    Closed,
}

impl FromStr for OnFailure {
    type Err = Mistake;

    fn from_str(word: &str) -> Result<OnFailure, Mistake> {
        match word {
            "open" => Ok(OnFailure::Open),
            "closed" => Ok(OnFailure::Closed),
            _ => Err(Mistake::OnFailure),
        }
    }
}

/// A programmer's mistake, told before anything is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    OnFailure,
    Limit,
    Window,
    Capacity,
    Cost,
    Keys,
    DuplicateKey,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mistake::OnFailure => "the policy for failures has to be open or closed",
            Mistake::Limit => "a limit has to be from 0 to 9223372036854775807",
            Mistake::Window => "a window has to be from 1 to 9223372036854775807 seconds",
            Mistake::Capacity => "a capacity has to be from 1 to 9223372036854775807",
            Mistake::Cost => "a cost has to be from 1 to 9223372036854775807",
            Mistake::Keys => "RL.MHIT takes from 1 to 128 keys",
            Mistake::DuplicateKey => "RL.MHIT takes no key twice",
        })
    }
}

impl std::error::Error for Mistake {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Fixed,
    Sliding,
    Bucket { capacity: u64 },
}

/// So much in a window of so many seconds: `Rule::new(10, 60)?.bucket(5)?.cost(2)?`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    limit: u64,
    window: u64,
    algorithm: Algorithm,
    cost: u64,
}

/// The server's integers have 63 bits and a sign.
fn check(number: u64, least: u64, mistake: Mistake) -> Result<u64, Mistake> {
    if number >= least && i64::try_from(number).is_ok() {
        Ok(number)
    } else {
        Err(mistake)
    }
}

impl Rule {
    /// A fixed window, and a cost of 1.
    pub fn new(limit: u64, window: u64) -> Result<Rule, Mistake> {
        Ok(Rule {
            limit: check(limit, 0, Mistake::Limit)?,
            window: check(window, 1, Mistake::Window)?,
            algorithm: Algorithm::Fixed,
            cost: 1,
        })
    }

    pub fn sliding(mut self) -> Rule {
        self.algorithm = Algorithm::Sliding;
        self
    }

    /// A bucket that holds `capacity` and refills at `limit` in a window.
    pub fn bucket(mut self, capacity: u64) -> Result<Rule, Mistake> {
        let capacity = check(capacity, 1, Mistake::Capacity)?;
        self.algorithm = Algorithm::Bucket { capacity };
        Ok(self)
    }

    pub fn cost(mut self, cost: u64) -> Result<Rule, Mistake> {
        self.cost = check(cost, 1, Mistake::Cost)?;
        Ok(self)
    }

    fn add_to(&self, command: &mut Cmd) {
        command.arg(self.limit).arg(self.window);
        match self.algorithm {
            Algorithm::Fixed => {}
            Algorithm::Sliding => {
                command.arg("SLIDING");
            }
            Algorithm::Bucket { capacity } => {
                command.arg("BUCKET").arg(capacity);
            }
        }
        command.arg("COST").arg(self.cost);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    pub limit: u64,
    pub remaining: u64,
    /// Seconds; None where the call never can be allowed.
    pub retry_after: Option<u64>,
    /// Seconds until the limiter is full again.
    pub reset_after: u64,
    /// The server gave no answer: `allowed` is the policy for failures, and the numbers mean nothing.
    pub failed: bool,
}

/// What several rules together said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdicts {
    pub allowed: bool,
    pub retry_after: Option<u64>,
    /// One for each rule, in their order.
    pub each: Vec<Verdict>,
    pub failed: bool,
}

impl From<[i64; 5]> for Verdict {
    fn from(reply: [i64; 5]) -> Verdict {
        let [allowed, limit, remaining, retry_after, reset_after] = reply;
        Verdict {
            allowed: allowed == 1,
            limit: limit.unsigned_abs(),
            remaining: remaining.unsigned_abs(),
            retry_after: u64::try_from(retry_after).ok(), // -1 is never
            reset_after: reset_after.unsigned_abs(),
            failed: false,
        }
    }
}

/// One connection for all its clones, made at the first call and again whenever it is lost.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    client: Client,
    on_failure: OnFailure,
    deadline: Duration,
    state: Mutex<State>,
}

/// An attempt to connect that all calls wait for, so there is one at a time; afterwards, its outcome.
type Connecting = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

#[derive(Default)]
struct State {
    /// How many attempts there were: who gives up a connection must not give up the next one.
    attempt: u64,
    connecting: Option<Connecting>,
    /// There is trouble, and a success of a call begun after this moment ends it.
    trouble_until: Option<Instant>,
}

impl Limiter {
    /// `deadline` is for one call in all, the connecting included.
    ///
    /// Connects to nothing yet, so it works also while the server isn't there.
    pub fn new(
        client: Client,
        on_failure: OnFailure,
        deadline: Duration,
    ) -> Result<Limiter, RedisError> {
        // RESP3, because only with it redis-rs tells of a connection that broke while nobody used it. Without
        // Nagle's algorithm, which redis-rs leaves on: a call would wait for the acknowledgement of the one before.
        let info = client.get_connection_info();
        let settings = info.redis_settings().clone();
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info
            .clone()
            .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
            .set_tcp_settings(tcp);
        Ok(Limiter(Arc::new(Inner {
            client: Client::open(info)?,
            on_failure,
            deadline,
            state: Mutex::default(),
        })))
    }

    pub async fn hit(&self, key: impl AsRef<[u8]>, rule: &Rule) -> Verdict {
        let mut command = redis::cmd("RL.HIT");
        command.arg(key.as_ref());
        rule.add_to(&mut command);
        match self.0.call::<[i64; 5]>(&command).await {
            Some(reply) => reply.into(),
            None => self.0.failed_verdict(rule),
        }
    }

    /// Takes from all of them or from none. In a cluster the keys have to share a slot.
    pub async fn mhit<K: AsRef<[u8]>>(&self, limits: &[(K, Rule)]) -> Result<Verdicts, Mistake> {
        if limits.is_empty() || limits.len() > 128 {
            return Err(Mistake::Keys);
        }
        let mut command = redis::cmd("RL.MHIT");
        command.arg(limits.len());
        let mut seen = HashSet::new();
        for (key, _) in limits {
            if !seen.insert(key.as_ref()) {
                return Err(Mistake::DuplicateKey);
            }
            command.arg(key.as_ref());
        }
        for (_, rule) in limits {
            rule.add_to(&mut command);
        }
        let reply = self.0.call::<(i64, i64, Vec<[i64; 5]>)>(&command).await;
        Ok(match reply {
            Some((allowed, retry_after, each)) => Verdicts {
                allowed: allowed == 1,
                retry_after: u64::try_from(retry_after).ok(),
                each: each.into_iter().map(Verdict::from).collect(),
                failed: false,
            },
            None => {
                let verdict = |(_, rule): &(K, Rule)| self.0.failed_verdict(rule);
                Verdicts {
                    allowed: self.0.on_failure == OnFailure::Open,
                    retry_after: self.0.failed_retry_after(),
                    each: limits.iter().map(verdict).collect(),
                    failed: true,
                }
            }
        })
    }
}

/// Why a call has no answer, and for how long this kind of trouble has to stay away to be over.
struct Failure {
    reason: String,
    quiet: Duration,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, or None; with the log lines that belong to it.
    async fn call<T: FromRedisValue>(self: &Arc<Inner>, command: &Cmd) -> Option<T> {
        let begun = Instant::now();
        match self.ask(command, begun + self.deadline).await {
            Ok(reply) => {
                self.note_success(begun);
                Some(reply)
            }
            Err(failure) => {
                self.note_failure(failure);
                None
            }
        }
    }

    /// Sends once: a hit that has no answer may have counted.
    async fn ask<T: FromRedisValue>(
        self: &Arc<Inner>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<T, Failure> {
        let (attempt, connecting) = self.connection();
        let mut connection = match timeout_at(deadline, connecting).await {
            Ok(connected) => connected.map_err(Failure::from)?,
            Err(_) => return Err(self.too_late("no connection")),
        };
        match timeout_at(deadline, command.query_async(&mut connection)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                if error.is_unrecoverable_error() {
                    self.give_up(attempt);
                }
                Err(error.into())
            }
            Err(_) => {
                // Replies come in order, so all later calls would wait behind this one's: for as long as a server
                // stands still, and for a quarter of an hour where its host is gone. redis-rs keeps a connection
                // after a timeout (its ConnectionManager too).
                self.give_up(attempt);
                Err(self.too_late("no answer"))
            }
        }
    }

    /// The connection, or the attempt that is under way, or a new one.
    fn connection(self: &Arc<Inner>) -> (u64, Connecting) {
        let mut state = self.state();
        if let Some(connecting) = &state.connecting {
            return (state.attempt, connecting.clone());
        }
        state.attempt += 1;
        let connecting = connect(self.client.clone(), Arc::downgrade(self), state.attempt)
            .boxed()
            .shared();
        // It goes on by itself: neither a caller's deadline nor a caller that is dropped ends it.
        tokio::spawn(connecting.clone());
        state.connecting = Some(connecting.clone());
        (state.attempt, connecting)
    }

    /// The next call connects anew. Calls that still wait for a reply have their own handle and keep it.
    fn give_up(&self, attempt: u64) {
        let mut state = self.state();
        if state.attempt == attempt {
            let lost = state.connecting.take();
            drop(state); // the lock first: dropping a connection runs code that isn't ours
            drop(lost);
        }
    }

    fn failed_verdict(&self, rule: &Rule) -> Verdict {
        Verdict {
            allowed: self.on_failure == OnFailure::Open,
            limit: rule.limit,
            remaining: 0,
            retry_after: self.failed_retry_after(),
            reset_after: 0,
            failed: true,
        }
    }

    fn failed_retry_after(&self) -> Option<u64> {
        match self.on_failure {
            OnFailure::Open => Some(0),
            OnFailure::Closed => Some(1),
        }
    }

    fn too_late(&self, what: &str) -> Failure {
        Failure {
            reason: format!("{what} within {} ms", self.deadline.as_millis()),
            quiet: Duration::ZERO,
        }
    }

    fn note_failure(&self, failure: Failure) {
        let mut state = self.state();
        let begins = state.trouble_until.is_none();
        let until = Instant::now() + failure.quiet;
        state.trouble_until = state.trouble_until.max(Some(until));
        drop(state); // nobody waits for a log that is slow
        if begins {
            let policy = match self.on_failure {
                OnFailure::Open => "letting requests in",
                OnFailure::Closed => "refusing requests",
            };
            let reason = failure.reason;
            tracing::warn!("rate limiter unavailable, {policy}: {reason}");
        }
    }

    /// A call begun before the last failure says nothing about now, however late it is answered.
    fn note_success(&self, begun: Instant) {
        let mut state = self.state();
        if state.trouble_until.is_some_and(|until| begun > until) {
            state.trouble_until = None;
            drop(state);
            tracing::info!("rate limiter available again");
        }
    }
}

async fn connect(
    client: Client,
    limiter: Weak<Inner>,
    attempt: u64,
) -> RedisResult<MultiplexedConnection> {
    // Weak, here and in the connection below: the limiter owns them both.
    let give_up = move || {
        if let Some(limiter) = limiter.upgrade() {
            limiter.give_up(attempt);
        }
    };
    // Told at once that the server has closed it, so that a restart between two calls costs none of them.
    let told = give_up.clone();
    let on_push = move |push: PushInfo| {
        if push.kind == PushKind::Disconnection {
            told();
        }
        Ok::<(), SendError>(())
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None) // 500 ms by default; each call has its own deadline
        .set_push_sender(on_push);
    let connected = client
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    if connected.is_err() {
        give_up();
    }
    connected
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        let Some(code) = error.code() else {
            return Failure {
                reason: error.to_string(),
                quiet: Duration::ZERO,
            };
        };
        let reply = format!("{code} {}", error.detail().unwrap_or_default());
        if reply.to_lowercase().starts_with("err unknown command") {
            return Failure {
                reason: "the server has no RL.HIT: load the module redis-rl on it \
                         (loadmodule librl.so)"
                    .to_owned(),
                quiet: Duration::ZERO,
            };
        }
        Failure {
            reason: reply,
            quiet: QUIET_AFTER_ERROR_REPLY,
        }
    }
}
