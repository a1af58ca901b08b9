//! What people who run rate limiters on Redis reported in public, as inputs for RL.HIT. Each test
//! names the threads it comes from. After every call the promises are checked as well, and at the
//! end the primary, a replica without the module and a server restarted from the AOF agree.

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Value;

use crate::common::{error, verdict, wait_until, Conn, Server};

const MAX: i64 = i64::MAX;
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

struct Field {
    primary: Server,
    replica: Server,
    c: Conn,
}

impl Field {
    fn new() -> Self {
        let primary = Server::start_with(&[
            "cl-throttle",
            "yes",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]);
        let replica = Server::start_bare(&[]);
        replica.replicate(&primary);
        let c = primary.connect();
        Self {
            primary,
            replica,
            c,
        }
    }

    fn run(&mut self, line: &str) -> Value {
        self.c.run(line)
    }

    /// A hit, with the promises that hold for each one.
    fn hit(&mut self, call: &str) -> [i64; 5] {
        let key = call.split(' ').next().unwrap();
        let end = format!("PEXPIRETIME {key}");
        let before = self.c.integer(&end);
        let reply = self.c.hit(call);
        let after = self.c.integer(&end);

        let [allowed, _, remaining, retry_after, reset_after] = reply;
        assert!(remaining >= 0 && reset_after >= 0, "{call}: {reply:?}");
        assert_eq!(allowed == 1, retry_after == 0, "{call}: {reply:?}");
        assert_ne!(after, -1, "{call}: a limiter without expiry");
        let fixed = !call.contains("SLIDING") && !call.contains("BUCKET");
        let running = fixed && before > 0 && after > 0 && before > self.now_ms();
        assert!(!running || before == after, "{call}: {before} -> {after}");
        reply
    }

    /// A call of another command, `PEEK k 5 60`.
    fn call(&mut self, call: &str) -> [i64; 5] {
        let key = call.split(' ').nth(1).unwrap().to_string();
        let reply = self.c.run(&format!("RL.{call}"));
        let fields = verdict(&reply).unwrap_or_else(|| panic!("{call}: {reply:?}"));
        assert!(
            fields[2..].iter().all(|field| *field >= -1),
            "{call}: {fields:?}"
        );
        assert_eq!(fields[0] == 1, fields[3] == 0, "{call}: {fields:?}");
        if !call.starts_with("PEEK") {
            assert_ne!(self.c.pttl(&key), -1, "{call}: a limiter without expiry");
        }
        fields
    }

    /// A hit in a window of so many seconds, and the times that are left to its end as if none had
    /// passed: a busy machine may have taken a few.
    fn hit_within(&mut self, window_s: i64, call: &str) -> [i64; 5] {
        let mut reply = self.hit(call);
        for time_s in &mut reply[3..] {
            if (window_s - 20..window_s).contains(time_s) {
                *time_s = window_s;
            }
        }
        reply
    }

    /// A call that must err, and change nothing.
    fn error(&mut self, line: &str) -> String {
        let key = line.split(' ').nth(1).unwrap();
        let before = self.c.picture(key);
        let text = self.c.error(line);
        assert_eq!(self.c.picture(key), before, "{line}");
        text
    }

    fn now_ms(&mut self) -> i64 {
        self.c.now_ms()
    }

    /// Primary, replica and a restarted server hold the same of every key that lives on for long
    /// enough to be compared, and the server lives.
    fn agree(mut self) {
        self.primary.assert_alive();
        self.primary.wait_for(&self.replica);
        let mut keys = self.c.keys();
        keys.retain(|key| match self.c.run_words(&[b"PTTL", &key[..]]) {
            Value::Int(left_ms) => left_ms == -1 || left_ms > 25_000,
            other => panic!("{other:?}"),
        });
        let here = data(&mut self.c, &keys);
        let mut there = self.replica.connect();
        assert_eq!(data(&mut there, &keys), here, "the replica");
        self.primary.kill_and_restart();
        let mut restarted = self.primary.connect();
        assert_eq!(data(&mut restarted, &keys), here, "after a restart");
    }
}

fn data(c: &mut Conn, keys: &[Vec<u8>]) -> Vec<(Value, Value)> {
    let mut ask = |question: &[u8], key: &[u8]| c.run_words(&[question, key]);
    keys.iter()
        .map(|key| (ask(b"DUMP", key), ask(b"PEXPIRETIME", key)))
        .collect()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

// Expiry lost or never set.

/// alisaifee/limits#14, long2ice/fastapi-limiter#6
#[test]
fn a_counter_without_expiry_gets_one_from_an_allowed_hit() {
    let mut f = Field::new();
    f.run("SET k 5");
    assert_eq!(f.hit_within(60, "k 10 60"), [1, 10, 4, 0, 60]);
    assert!((40_000..=60_000).contains(&f.c.pttl("k")));
    assert_eq!(f.c.get("k").as_deref(), Some("6"));
    f.agree();
}

/// GitLab issue 285352: a count of 2550 with TTL -1, its user blocked for days.
#[test]
fn a_counter_far_above_its_limit_heals_and_lets_its_user_in_again() {
    let mut f = Field::new();
    f.run("SET k 2550");
    assert_eq!(f.hit_within(60, "k 10 60"), [0, 10, 0, 60, 60]);
    assert!((40_000..=60_000).contains(&f.c.pttl("k")));
    assert_eq!(f.c.get("k").as_deref(), Some("2550"));
    f.run("PEXPIRE k 50");
    wait_until("the window is over", || f.hit("k 10 60")[0] == 1);
    assert_eq!(f.c.get("k").as_deref(), Some("1"));
    f.agree();
}

/// Kong/kong#5763
#[test]
fn a_counter_at_its_limit_is_refused_and_repaired() {
    let mut f = Field::new();
    f.run("SET k 10");
    assert_eq!(f.hit_within(60, "k 10 60"), [0, 10, 0, 60, 60]);
    assert!((40_000..=60_000).contains(&f.c.pttl("k")));
    f.agree();
}

/// redis/redis#3397: time goes on while a transaction runs, and INCR ... EXPIRE lost the expiry.
#[test]
fn a_window_that_ends_inside_a_transaction_leaves_no_key_without_expiry() {
    let mut f = Field::new();
    for line in [
        "MULTI",
        "RL.HIT k 5 100 MS",
        "DEBUG SLEEP 0.15",
        "RL.HIT k 5 100 MS",
        "PTTL k",
        "EXEC",
    ] {
        f.run(line);
    }
    assert_ne!(f.c.pttl("k"), -1);
    wait_until("the limiter is gone", || f.c.integer("EXISTS k") == 0);
    f.agree();
}

/// scttcper/koa-simple-ratelimit#34
#[test]
fn a_negative_counter_counts_as_none() {
    let mut f = Field::new();
    f.run("SET k -1");
    assert_eq!(f.hit_within(60, "k 5 60"), [1, 5, 4, 0, 60]);
    assert_eq!(f.c.get("k").as_deref(), Some("1"));
    f.agree();
}

/// BerriAI/litellm#14204: each hit set the expiry again, and the window never ended.
#[test]
fn steady_traffic_does_not_keep_a_window_alive() {
    let mut f = Field::new();
    let started = Instant::now();
    let (mut windows, mut last_pttl, mut last_remaining) = (0, 0, 0);
    while started.elapsed() < ms(3_000) {
        let [_, _, remaining, _, _] = f.hit("k 100 1000 MS");
        let pttl = f.c.pttl("k");
        if remaining == 99 {
            windows += 1;
        } else {
            assert_eq!(remaining, last_remaining - 1);
            assert!(pttl <= last_pttl, "{last_pttl} -> {pttl}");
        }
        (last_pttl, last_remaining) = (pttl, remaining);
        sleep(ms(200));
    }
    assert!((2..=4).contains(&windows), "{windows} windows in 3 s");
    f.agree();
}

/// stefanprodan/AspNetCoreRateLimit#253
#[test]
fn an_expiry_that_others_dropped_comes_back() {
    let mut f = Field::new();
    f.hit("k 10 60");
    f.run("SET k 5");
    assert_eq!(f.hit_within(60, "k 10 60"), [1, 10, 4, 0, 60]);
    assert_eq!(f.c.get("k").as_deref(), Some("6"));

    f.run("PERSIST k");
    f.run("COPY k copied");
    let Value::BulkString(dump) = f.run("DUMP k") else {
        panic!("no dump");
    };
    f.c.run_words(&[&b"RESTORE"[..], b"restored", b"0", &dump]);
    for key in ["k", "copied", "restored"] {
        assert_eq!(f.c.pttl(key), -1);
        assert_eq!(
            f.hit_within(60, &format!("{key} 10 60")),
            [1, 10, 3, 0, 60],
            "{key}"
        );
        assert!((40_000..=60_000).contains(&f.c.pttl(key)), "{key}");
    }
    f.agree();
}

/// redisson/redisson#4007
#[test]
fn a_limiter_costs_nothing_when_its_life_is_over() {
    let mut f = Field::new();
    f.hit("a 5 30 MS");
    f.hit("b 1 30 MS");
    f.hit("b 1 30 MS");
    f.hit("c 5 30 MS SLIDING");
    f.hit("d 5 30 MS BUCKET 3");
    wait_until("all are gone", || f.c.integer("DBSIZE") == 0);
    f.agree();
}

/// tj/node-ratelimiter#50
#[test]
fn many_short_limiters_all_go_away() {
    let server = Server::start();
    let mut c = server.connect();
    for block in 0..40 {
        let mut pipeline = redis::pipe();
        for n in 0..5_000 {
            let key = format!("k{block}:{n}");
            pipeline.cmd("RL.HIT").arg(key).arg(5).arg(1).ignore();
        }
        pipeline.query::<()>(&mut c.0).unwrap();
    }
    wait_until("200,000 limiters are gone", || c.integer("DBSIZE") == 0);
}

/// rhinobase/hono-rate-limiter#67: a refund after the end of the window.
#[test]
fn a_refund_to_a_limiter_that_is_gone_makes_none() {
    let mut f = Field::new();
    f.hit("k 5 50 MS");
    wait_until("it is gone", || f.c.integer("EXISTS k") == 0);
    for _ in 0..3 {
        assert_eq!(f.call("REFUND k 5 600"), [1, 5, 5, 0, 0]);
    }
    assert_eq!(f.c.integer("EXISTS k"), 0);
    let allowed: i64 = (0..6).map(|_| f.hit("k 5 600")[0]).sum();
    assert_eq!(allowed, 5);
    f.agree();
}

// Counting, limits, costs.

/// ded/express-limiter#3, liwala/ay-framework#375, spring-cloud-zuul-ratelimit#273
#[test]
fn exactly_the_limit_is_allowed() {
    let mut f = Field::new();
    for limit in [1, 2, 5, 20] {
        let call = format!("k{limit} {limit} 600");
        for left in (0..limit).rev() {
            assert_eq!(f.hit_within(600, &call), [1, limit, left, 0, 600]);
        }
        assert_eq!(f.hit_within(600, &call), [0, limit, 0, 600, 600]);
    }
    f.agree();
}

/// animir/node-rate-limiter-flexible#173
#[test]
fn a_counter_above_the_limit_has_nothing_remaining() {
    let mut f = Field::new();
    f.run("SET k 50 PX 60000");
    assert_eq!(f.hit_within(60, "k 10 60"), [0, 10, 0, 60, 60]);
    f.agree();
}

/// brandur/redis-cell#41: a limit of 0 crashed the server.
#[test]
fn a_limit_of_zero_refuses_everything() {
    let mut f = Field::new();
    assert_eq!(f.hit("k 0 60"), [0, 0, 0, -1, 0]);
    assert_eq!(f.hit("k 0 60 COST 9223372036854775807"), [0, 0, 0, -1, 0]);
    for command in ["HIT", "PEEK"] {
        assert_eq!(
            f.call(&format!("{command} k 0 60 SLIDING")),
            [0, 0, 0, -1, 0]
        );
        assert_eq!(
            f.call(&format!("{command} k 0 60 BUCKET 9")),
            [0, 9, 0, -1, 0]
        );
        assert_eq!(f.call(&format!("{command} k 0 60")), [0, 0, 0, -1, 0]);
    }
    assert_eq!(f.c.integer("EXISTS k"), 0);
    f.agree();
}

/// jmcdo29/nest-lab#55, kent8192/reinhardt-web#1148
#[test]
fn a_window_that_is_not_possible_is_an_error() {
    let mut f = Field::new();
    for (window, want) in [
        ("0", "ERR invalid window in 'rl.hit' command"),
        ("-1", "ERR invalid window in 'rl.hit' command"),
        (
            "9223372036854775807",
            "ERR invalid window in 'rl.hit' command",
        ),
        ("9223372036854775808", NOT_AN_INTEGER),
    ] {
        assert_eq!(f.error(&format!("RL.HIT k 5 {window}")), want);
        assert_eq!(f.error(&format!("RL.HIT k 5 {window} MS")), want);
    }
    assert_eq!(f.c.integer("EXISTS k"), 0);
    assert_eq!(f.hit("k 5 1"), [1, 5, 4, 0, 1]);
    wait_until("the window is over", || f.c.integer("EXISTS k") == 0);
    f.agree();
}

/// redis/redis#15113, redisson/redisson#2072
#[test]
fn a_cost_above_the_limit_takes_nothing() {
    let mut f = Field::new();
    assert_eq!(f.hit("k 10 60 COST 11"), [0, 10, 10, -1, 0]);
    assert_eq!(f.c.integer("EXISTS k"), 0);
    assert_eq!(f.hit_within(60, "k 10 60 COST 10"), [1, 10, 0, 0, 60]);
    f.agree();
}

/// upstash/ratelimit-js#156
#[test]
fn a_cost_that_does_not_fit_leaves_what_is_left_to_smaller_ones() {
    let mut f = Field::new();
    assert_eq!(f.hit_within(600, "k 10 600 COST 8"), [1, 10, 2, 0, 600]);
    assert_eq!(f.hit_within(600, "k 10 600 COST 5"), [0, 10, 2, 600, 600]);
    assert_eq!(f.hit_within(600, "k 10 600 COST 2"), [1, 10, 0, 0, 600]);
    assert_eq!(
        f.hit_within(600, "k 10 600 COST 1000000"),
        [0, 10, 0, -1, 600]
    );
    assert!((580_000..=600_000).contains(&f.c.pttl("k")));
    f.agree();
}

/// cristipufu/aspnetcore-redis-rate-limiting#36
#[test]
fn a_cost_is_at_least_one() {
    let mut f = Field::new();
    assert_eq!(f.hit_within(60, "k 10 60 COST 3"), [1, 10, 7, 0, 60]);
    for cost in ["0", "-1"] {
        let text = f.error(&format!("RL.HIT k 10 60 COST {cost}"));
        assert_eq!(text, "ERR invalid cost in 'rl.hit' command");
    }
    assert_eq!(f.c.get("k").as_deref(), Some("3"));
    f.agree();
}

/// mailgun/gubernator#156, envoyproxy/ratelimit#1140
#[test]
fn a_refund_gives_room_and_never_more_than_there_was() {
    let mut f = Field::new();
    f.hit("k 5 600 COST 5");
    let end_ms = f.c.integer("PEXPIRETIME k");
    f.call("REFUND k 5 600");
    assert_eq!(f.hit("k 5 600")[..3], [1, 5, 0]);
    f.call("REFUND k 5 600 COST 100");
    assert_eq!(f.call("PEEK k 5 600")[..3], [1, 5, 5]);
    assert_eq!(f.c.integer("PEXPIRETIME k"), end_ms);
    f.agree();
}

/// envoyproxy/ratelimit#1060, brandur/redis-cell#22
#[test]
fn a_limit_that_refuses_leaves_the_others_untouched() {
    let mut f = Field::new();
    let mut both = || match f.run("RL.MHIT 2 {u}a {u}b 1 1000 100 3600") {
        Value::Array(reply) => match &reply[2] {
            Value::Array(rules) => [&rules[0], &rules[1]].map(|rule| verdict(rule).unwrap()[0]),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(both(), [1, 1]);
    assert_eq!(both(), [0, 1]);
    assert_eq!(f.c.get("{u}b").as_deref(), Some("1"));
    f.agree();
}

/// solana-foundation/kora#571
#[test]
fn the_same_key_twice_is_an_error() {
    let mut f = Field::new();
    assert_eq!(
        f.c.error("RL.MHIT 2 k k 5 60 9 600"),
        "ERR duplicate key in 'rl.mhit' command"
    );
    assert_eq!(f.c.integer("DBSIZE"), 0);
    f.agree();
}

/// throttled 2.1.0, spring-cloud/spring-cloud-gateway#2453: an expiry of 0 seconds, so none.
#[test]
fn a_bucket_faster_than_a_second_holds_on() {
    let mut f = Field::new();
    assert_eq!(f.hit("k 3 1000 BUCKET 1 MS"), [1, 1, 0, 0, 334]);
    f.c.run("DEL k");
    // At once, so that nothing is refilled in between.
    let script = "redis.call('RL.HIT', KEYS[1], 3, 1, 'BUCKET', 1) \
                  return {redis.call('RL.HIT', KEYS[1], 3, 1, 'BUCKET', 1), \
                          redis.call('PTTL', KEYS[1])}";
    let Value::Array(replies) = f.c.run_words(&["EVAL", script, "1", "k"]) else {
        panic!("no replies");
    };
    assert_eq!(verdict(&replies[0]).unwrap()[..3], [0, 1, 0]);
    assert!(matches!(replies[1], Value::Int(left_ms) if left_ms >= 1));
    f.agree();
}

/// brandur/redis-cell#50, #80
#[test]
fn fast_buckets_admit_their_capacity_and_what_they_refill() {
    let mut f = Field::new();
    let started = f.now_ms();
    let mut pipeline = redis::pipe();
    for _ in 0..1_002 {
        pipeline
            .cmd("RL.HIT")
            .arg("k 1000 60 BUCKET 1000".split(' ').collect::<Vec<_>>());
    }
    let replies: Vec<Value> = pipeline.query(&mut f.c.0).unwrap();
    let took_ms = f.now_ms() - started;
    let allowed: i64 = replies.iter().map(|reply| verdict(reply).unwrap()[0]).sum();
    assert!(
        (1_000..=1_001 + took_ms * 1_000 / 60_000).contains(&allowed),
        "{allowed}"
    );
    assert_eq!(f.hit("fast 8000 1 BUCKET 8000")[..3], [1, 8_000, 7_999]);
    assert_eq!(
        f.hit("faster 1000000 1 BUCKET 1000000")[..3],
        [1, 1_000_000, 999_999]
    );
    f.agree();
}

/// brandur/redis-cell#54: a changed rate made an old arrival time a lock.
#[test]
fn a_changed_rate_is_fair_at_once() {
    let mut f = Field::new();
    for _ in 0..3 {
        f.hit("k 10 20 BUCKET 15");
    }
    assert_eq!(f.hit("k 1000 20 BUCKET 15")[0], 1);
    f.agree();
}

/// go-redis/redis_rate#24
#[test]
fn a_bucket_admits_no_more_than_its_capacity_and_its_refill() {
    let mut f = Field::new();
    let started = f.now_ms();
    let mut allowed = 0;
    while f.now_ms() < started + 3_000 {
        allowed += f.hit("k 17 3000 BUCKET 17 MS")[0];
        sleep(ms(30));
    }
    let most = 17 + 17 * (f.now_ms() - started) / 3_000 + 1;
    assert!((17..=most).contains(&allowed), "{allowed} of {most}");
    f.agree();
}

/// tj/node-ratelimiter#45, TykTechnologies/tyk#3102: refused hits that count lock out for good.
#[test]
fn a_steady_excess_over_a_sliding_window_is_cut_to_the_limit() {
    let mut f = Field::new();
    let started = f.now_ms();
    let mut allowed = 0;
    while f.now_ms() < started + 4_000 {
        allowed += f.hit("k 2 800 SLIDING MS")[0];
        sleep(ms(40));
    }
    let windows = (f.now_ms() - started) / 800;
    assert!(
        (windows..=2 * windows + 3).contains(&allowed),
        "{allowed} in {windows}"
    );
    f.agree();
}

/// spring-cloud/spring-cloud-gateway#3594
#[test]
fn limits_beyond_32_bits_are_exact() {
    let mut f = Field::new();
    assert_eq!(f.hit("a 3000000000 60")[2], 2_999_999_999);
    assert_eq!(f.hit("b 9223372036854775807 60")[2], MAX - 1);
    f.agree();
}

/// redis/redis#3224: Lua's numbers lose integers above 2^53.
#[test]
fn counts_beyond_53_bits_are_exact_also_in_a_script() {
    let mut f = Field::new();
    f.run("SET k 9007199254740993 PX 60000");
    let [allowed, _, remaining, _, _] = f.hit("k 9223372036854775807 60");
    assert_eq!((allowed, remaining), (1, MAX - 9_007_199_254_740_994));
    assert_eq!(f.c.get("k").as_deref(), Some("9007199254740994"));
    let script = "redis.call('RL.HIT', KEYS[1], '9223372036854775807', '60')";
    f.c.run_words(&["EVAL", script, "1", "k"]);
    assert_eq!(f.c.get("k").as_deref(), Some("9007199254740995"));
    f.agree();
}

// What the key and the arguments hold.

/// brandur/redis-cell#91: a value that is no number aborted the server.
#[test]
fn a_value_that_is_no_number_is_an_error() {
    let mut f = Field::new();
    let bytes = [0xff; 512];
    let values: [&[u8]; 10] = [
        b"hello",
        b"",
        b" 5",
        b"5 ",
        b"3.14",
        b"1e3",
        b"0x10",
        b"nan",
        b"9223372036854775808",
        &bytes,
    ];
    for value in values {
        f.c.run_words(&[b"SET", &b"k"[..], value]);
        assert_eq!(f.error("RL.HIT k 10 60"), NOT_AN_INTEGER);
        assert_eq!(f.run("PING"), Value::SimpleString("PONG".into()));
        assert_eq!(f.run("GET k"), Value::BulkString(value.to_vec()));
    }
    f.agree();
}

/// cristipufu/aspnetcore-redis-rate-limiting#93
#[test]
fn a_key_of_another_type_is_an_error() {
    let mut f = Field::new();
    for line in [
        "RPUSH l 1",
        "HSET h f 1",
        "SADD s 1",
        "ZADD z 1 m",
        "XADD x 1-1 f 1",
    ] {
        f.run(line);
    }
    for key in ["l", "h", "s", "z", "x"] {
        for command in ["HIT", "PEEK", "REFUND"] {
            assert_eq!(
                f.error(&format!("RL.{command} {key} 10 60")),
                "WRONGTYPE Operation against a key holding the wrong kind of value"
            );
        }
        assert_eq!(
            f.c.error(&format!("RL.MHIT 2 new {key} 10 60 10 60")),
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        );
    }
    assert_eq!(f.c.integer("EXISTS new"), 0);
    f.agree();
}

/// rack/rack-attack#14, SandeepVashishtha/Eventra#19035
#[test]
fn a_number_is_read_strictly() {
    let mut f = Field::new();
    for word in [
        "1.5", "60.0", "1e3", " 5", "+5", "05", "\"5\"", "", "5\0", "५",
    ] {
        for call in [["RL.HIT", "k", word, "60"], ["RL.HIT", "k", "5", word]] {
            let reply = f.c.run_words(&call);
            assert_eq!(error(&reply).as_deref(), Some(NOT_AN_INTEGER), "{word:?}");
        }
    }
    assert_eq!(f.c.integer("DBSIZE"), 0);
    f.agree();
}

/// DistributedProofreaders/dproofreaders#616
#[test]
fn a_key_is_taken_byte_for_byte() {
    let mut f = Field::new();
    let long = vec![b'x'; 1024 * 1024];
    let keys: [&[u8]; 7] = [
        b"a b",
        b"a\r\nb",
        b"a\0b",
        b"\xff\xfe",
        b"",
        &long,
        b"{tag}x",
    ];
    for key in keys {
        let reply = f.c.run_words(&[b"RL.HIT", key, b"5", b"600"]);
        assert_eq!(verdict(&reply), Some([1, 5, 4, 0, 600]));
        assert_eq!(
            f.c.run_words(&[b"GET", key]),
            Value::BulkString(b"1".into())
        );
    }
    assert_eq!(f.c.integer("DBSIZE"), 7);
    f.agree();
}

// Time.

/// alisaifee/flask-limiter#62
#[test]
fn a_peek_at_nothing_is_full_and_never_negative() {
    let mut f = Field::new();
    assert_eq!(f.call("PEEK k 5 60"), [1, 5, 5, 0, 0]);
    f.hit("k 5 20 MS");
    wait_until("the window is over", || f.c.integer("EXISTS k") == 0);
    assert_eq!(f.call("PEEK k 5 60"), [1, 5, 5, 0, 0]);
    f.run("SET k 9");
    assert_eq!(f.call("PEEK k 5 60"), [0, 5, 0, 60, 60]);
    f.run("DEL k");
    f.agree();
}

/// dotnet/runtime#92557
#[test]
fn retry_after_is_the_time_that_is_left() {
    let mut f = Field::new();
    f.hit("k 1 60000 MS");
    sleep(ms(2_000));
    let before = f.c.pttl("k");
    let [allowed, _, _, retry_after_ms, _] = f.hit("k 1 60000 MS");
    let after = f.c.pttl("k");
    assert_eq!(allowed, 0);
    assert!(retry_after_ms <= before && retry_after_ms >= after);
    assert!(retry_after_ms <= 58_000, "{retry_after_ms}");
    f.agree();
}

/// dragonflydb/dragonfly#1008
#[test]
fn the_time_until_a_throttle_is_full_is_that_of_one_call() {
    let mut f = Field::new();
    let reply = f.run("CL.THROTTLE k 15 30 60");
    assert_eq!(verdict(&reply), Some([0, 16, 15, -1, 2]));
    f.agree();
}

/// nestjs/throttler#2208
#[test]
fn a_refusal_does_not_make_the_window_longer() {
    let mut f = Field::new();
    f.hit("k 1 2000 MS");
    let end_ms = f.c.integer("PEXPIRETIME k");
    let mut refused = 0;
    while f.now_ms() < end_ms - 100 {
        refused += 1 - f.hit("k 1 2000 MS")[0];
        sleep(ms(50));
    }
    assert!(refused > 0);
    wait_until("the window is over", || f.hit("k 1 2000 MS")[0] == 1);
    // Let in right at the end, not one window after the last refusal.
    let late_ms = f.c.integer("PEXPIRETIME k") - 2_000 - end_ms;
    assert!((0..1_500).contains(&late_ms), "{late_ms} ms late");
    f.agree();
}

/// tj/node-ratelimiter#11
#[test]
fn retry_after_is_within_the_window_whenever_a_hit_is_refused() {
    let mut f = Field::new();
    let started = Instant::now();
    let mut allowed_hits = 0;
    while started.elapsed() < ms(3_000) {
        let [allowed, _, _, retry_after_ms, _] = f.hit("k 1 1000 MS");
        allowed_hits += allowed;
        if allowed == 0 {
            assert!((1..=1_000).contains(&retry_after_ms), "{retry_after_ms}");
        }
        sleep(ms(7));
    }
    assert!((2..=4).contains(&allowed_hits), "{allowed_hits}");
    f.agree();
}

/// rack/rack-attack#560: a property of the algorithm, and documented as such.
#[test]
fn a_fixed_window_lets_two_limits_pass_around_its_end() {
    let mut f = Field::new();
    // A window of 20 s that is near its end.
    f.run("SET k 0 PX 1000");
    let started = Instant::now();
    let mut allowed = 0;
    for _ in 0..10 {
        allowed += f.hit("k 10 20000 MS")[0];
    }
    assert_eq!(f.hit("k 10 20000 MS")[0], 0);
    wait_until("the window is over", || f.c.integer("EXISTS k") == 0);
    for _ in 0..10 {
        allowed += f.hit("k 10 20000 MS")[0];
    }
    assert_eq!(f.hit("k 10 20000 MS")[0], 0);
    assert_eq!(allowed, 20);
    assert!(started.elapsed() < ms(20_000));

    // A sliding window knows of the one before: here all of its ten hits weigh, but for a little.
    let start_ms = f.now_ms() - 20_100;
    f.run(&format!("SET s s:0:10:{start_ms} PX 19000"));
    let allowed: i64 = (0..10).map(|_| f.hit("s 10 20000 SLIDING MS")[0]).sum();
    assert!((1..=3).contains(&allowed), "{allowed}");
    f.agree();
}

// The server's life.

/// vutran1710/PyrateLimiter#182: a script that was flushed is gone, a command is not.
#[test]
fn hits_go_on_after_script_flush_and_a_restart() {
    let mut f = Field::new();
    f.hit("k 3 600");
    f.run("SCRIPT FLUSH");
    f.hit("k 3 600");
    f.primary.kill_and_restart();
    f.c = f.primary.connect();
    assert_eq!(f.hit("k 3 600")[..3], [1, 3, 0]);
    assert_eq!(f.hit("k 3 600")[..3], [0, 3, 0]);
}

/// Effect-TS/effect-smol#2328
#[test]
fn a_user_limits_only_the_keys_that_are_its_own() {
    let mut f = Field::new();
    f.run("ACL SETUSER ann on nopass ~a* +rl.hit");
    let mut ann = f.primary.connect();
    ann.run("AUTH ann any");
    assert_eq!(ann.hit("a1 5 60")[0], 1);
    assert!(ann.error("RL.HIT b1 5 60").starts_with("NOPERM"));
    assert_eq!(f.c.integer("EXISTS b1"), 0);
    f.run("ACL DELUSER ann");
    f.agree();
}

/// brandur/redis-cell#52
#[test]
fn a_hit_and_a_repair_are_one_change_each_and_a_refusal_is_none() {
    let mut f = Field::new();
    let changes = |f: &mut Field| -> i64 {
        let changes = f.c.info_field("persistence", "rdb_changes_since_last_save");
        changes.unwrap().parse().unwrap()
    };
    f.run("SET leaked 9");
    for (call, want) in [("k 1 600", 1), ("leaked 9 600", 1), ("k 1 600", 0)] {
        let before = changes(&mut f);
        f.hit(call);
        assert_eq!(changes(&mut f) - before, want, "{call}");
    }
    f.agree();
}

/// maxmemory reached, nothing to evict: limiters go on, new ones are what the policy says.
///
/// stefanprodan/AspNetCoreRateLimit#484
#[test]
fn without_memory_nothing_is_half_done() {
    let mut f = Field::new();
    f.hit("old 5 600");
    f.run("CONFIG SET maxmemory-policy noeviction");
    f.run("CONFIG SET maxmemory 1");
    assert_eq!(f.hit("old 5 600")[..3], [1, 5, 3]);
    let text = f.error("RL.HIT new 5 600");
    assert!(text.starts_with("OOM "), "{text}");
    for (policy, allowed) in [("allow", 1), ("refuse", 0)] {
        f.run(&format!("CONFIG SET rl.oom-policy {policy}"));
        assert_eq!(f.hit("new 5 600")[..2], [allowed, 5]);
    }
    assert_eq!(
        verdict(&f.run("RL.PEEK old 5 600")).unwrap()[..3],
        [1, 5, 3]
    );
    assert_eq!(f.c.integer("EXISTS new"), 0);
    f.run("CONFIG SET maxmemory 0");
    assert_eq!(f.hit("old 5 600")[..3], [1, 5, 2]);
    f.agree();
}
