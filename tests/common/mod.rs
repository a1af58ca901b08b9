//! A server for one test: its own directory, port and log; killed and cleaned up at the end.

pub mod stream;

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::{Client, Connection, ConnectionLike, RedisResult, Value};
use tempfile::TempDir;

/// How long any condition may take to come true, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// The version since which a module can put its commands into the server's ACL categories.
pub const WITH_CATEGORIES: [u32; 3] = [7, 2, 0];

/// That since which it can have one of its own: Redis 7.4, and Valkey 8.
pub const WITH_OWN_CATEGORY: [u32; 3] = [7, 4, 0];

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Raises a flag when it goes out of scope: threads that work until then end also when the test fails, which
/// would wait for them for ever.
pub struct RaiseAtEnd<'a>(pub &'a AtomicBool);

impl Drop for RaiseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often the long form (`make soak`) repeats what depends on chance; `None` in the usual one.
pub fn soak() -> Option<u64> {
    std::env::var("SOAK").ok()?.parse().ok()
}

/// The server under test: `SERVER`, or the `redis-server` on PATH.
pub fn server_program() -> String {
    std::env::var("SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// The module under test: `RL_MODULE`, or what `scripts/build` made.
pub fn module() -> PathBuf {
    std::env::var_os("RL_MODULE").map_or_else(|| built("librl.so"), PathBuf::from)
}

/// A file that `scripts/build` made.
pub fn built(name: &str) -> PathBuf {
    // This program is target/debug/deps/NAME.
    let program = std::env::current_exe().unwrap();
    let path = program
        .ancestors()
        .nth(3)
        .unwrap()
        .join("release")
        .join(name);
    assert!(path.exists(), "{path:?} is missing: use `make test`");
    path
}

/// The version as MODULE LIST has it: 10203 for 1.2.3.
pub fn module_version() -> u32 {
    let parts = env!("CARGO_PKG_VERSION").split('.');
    parts.fold(0, |version, part| {
        version * 100 + part.parse::<u32>().unwrap()
    })
}

pub struct Server {
    child: Child,
    port: u16,
    directory: TempDir,
    /// Another program that runs the server, with its arguments; or nothing.
    under: Vec<String>,
    arguments: Vec<String>,
}

impl Server {
    /// A server with the module and nothing else out of the ordinary.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with more configuration: `["--appendonly", "yes"]`.
    pub fn start_with(more: &[&str]) -> Self {
        let module = module();
        let mut arguments = vec!["--loadmodule", module.to_str().unwrap()];
        arguments.extend(more);
        Self::start_bare(&arguments)
    }

    /// A server by a configuration file.
    pub fn start_from(file: &Path) -> Self {
        Self::start_bare(&[file.to_str().unwrap()])
    }

    /// A server without the module.
    pub fn start_bare(arguments: &[&str]) -> Self {
        Self::start_under(&[], arguments)
    }

    /// A server that another program runs, as valgrind does.
    pub fn start_under(under: &[&str], arguments: &[&str]) -> Self {
        let owned =
            |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };
        let (under, arguments) = (owned(under), owned(arguments));
        let directory = tempfile::tempdir().unwrap();
        let (child, port) = spawn(directory.path(), &under, &arguments);
        Self {
            child,
            port,
            directory,
            under,
            arguments,
        }
    }

    /// Kills the server as `kill -9` does, and starts it on the same files.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        (self.child, self.port) = spawn(self.directory.path(), &self.under, &self.arguments);
    }

    /// The same, without the module.
    pub fn kill_and_restart_without_module(&mut self) {
        let module = self.arguments.iter().position(|a| a == "--loadmodule");
        let module = module.expect("it has the module");
        self.arguments.drain(module..module + 2);
        self.kill_and_restart();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn log(&self) -> String {
        read_log(self.directory.path())
    }

    pub fn connect(&self) -> Conn {
        self.connect_by("")
    }

    /// A connection that speaks RESP3.
    pub fn connect_resp3(&self) -> Conn {
        self.connect_by("?protocol=resp3")
    }

    fn connect_by(&self, query: &str) -> Conn {
        let connection = self.client(query).get_connection().unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        Conn(connection)
    }

    fn client(&self, query: &str) -> Client {
        let url = format!("redis://127.0.0.1:{}/{query}", self.port);
        Client::open(url).unwrap()
    }

    /// That the server answers, and is still the same process.
    pub fn assert_alive(&mut self) {
        let pid = self.connect().info_field("server", "process_id");
        assert_eq!(pid, Some(self.child.id().to_string()));
    }

    /// Makes this server a replica of `primary`, and waits until the primary counts it as online.
    pub fn replicate(&self, primary: &Server) {
        self.connect()
            .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
        let mut primary = primary.connect();
        let this = format!("port={},state=online", self.port);
        wait_until("the replica is online", || {
            primary.info("replication").contains(&this)
        });
    }

    /// Waits until `replica` has all that was sent to it.
    pub fn wait_for(&self, replica: &Server) {
        let (mut here, mut there) = (self.connect(), replica.connect());
        wait_until("the replica has caught up", || {
            let sent = here.info_field("replication", "master_repl_offset");
            let got = there.info_field("replication", "slave_repl_offset");
            // Before it has loaded the data set, it has already said where that ends.
            let link = there.info_field("replication", "master_link_status");
            sent == got && link.as_deref() == Some("up")
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the log of the server on port {}", self.port);
            eprintln!("{}", tail(&self.log(), 40));
        }
    }
}

/// A program that says nothing, and is killed when it goes out of scope.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server and waits until it answers. A port that somebody else took in between is
/// replaced by another.
fn spawn(directory: &Path, under: &[String], arguments: &[String]) -> (Child, u16) {
    for _ in 0..5 {
        let port = free_port();
        let log = File::options()
            .create(true)
            .append(true)
            .open(directory.join("log"))
            .unwrap();
        let is_file = |argument: &&String| !argument.starts_with("--");
        let file = arguments.first().filter(is_file);
        let server = server_program();
        let mut program = under.iter().chain([&server]);
        let mut child = Command::new(program.next().expect("a program"))
            .args(program)
            .args(file)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--repl-diskless-sync-delay", "0"])
            .args(["--enable-debug-command", "yes"])
            .args(["--enable-module-command", "yes"])
            .args(&arguments[usize::from(file.is_some())..])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", server_program()));
        if answers(&mut child, port) {
            return (child, port);
        }
        let log = read_log(directory);
        assert!(
            log.contains("Address already in use"),
            "the server doesn't start:\n{}",
            tail(&log, 40)
        );
    }
    panic!("no free port in five tries");
}

/// Whether this process, and no other test's server that got the port, has loaded its data and answers there.
pub fn serves(process: u32, port: u16) -> bool {
    let client = Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let info: RedisResult<String> = client
        .get_connection()
        .and_then(|mut connection| redis::cmd("INFO").query(&mut connection));
    let this = format!("process_id:{process}\r");
    info.is_ok_and(|info| info.contains(&this) && info.contains("\nloading:0\r"))
}

fn answers(child: &mut Child, port: u16) -> bool {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if serves(child.id(), port) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    false
}

pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port()
}

fn read_log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A connection that takes commands as one types them.
pub struct Conn(pub Connection);

impl Conn {
    /// The reply to a command, words separated by blanks. An error reply is a value as well:
    /// its text starts with `-`.
    pub fn run(&mut self, line: &str) -> Value {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.run_words(&words)
    }

    /// The same, for words of any bytes.
    pub fn run_words<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Value {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word.as_ref());
        }
        match self.0.req_command(&command) {
            Ok(value) => value,
            Err(error) => Value::SimpleString(error_text(&error)),
        }
    }

    /// The reply to a hit, which must be a verdict.
    pub fn hit(&mut self, arguments: &str) -> [i64; 5] {
        let reply = self.run(&format!("RL.HIT {arguments}"));
        verdict(&reply).unwrap_or_else(|| panic!("RL.HIT {arguments} answers {reply:?}"))
    }

    /// The text of an error reply.
    pub fn error(&mut self, line: &str) -> String {
        let reply = self.run(line);
        error(&reply).unwrap_or_else(|| panic!("{line} answers {reply:?}"))
    }

    pub fn integer(&mut self, line: &str) -> i64 {
        match self.run(line) {
            Value::Int(value) => value,
            other => panic!("{line} answers {other:?}"),
        }
    }

    /// A string, or `None` for a missing key.
    pub fn string(&mut self, line: &str) -> Option<String> {
        match self.run(line) {
            Value::BulkString(bytes) => Some(String::from_utf8(bytes).unwrap()),
            Value::SimpleString(text) => Some(text),
            Value::Okay => Some("OK".into()),
            Value::VerbatimString { text, .. } => Some(text),
            Value::Nil => None,
            other => panic!("{line} answers {other:?}"),
        }
    }

    pub fn get(&mut self, key: &str) -> Option<String> {
        self.string(&format!("GET {key}"))
    }

    pub fn pttl(&mut self, key: &str) -> i64 {
        self.integer(&format!("PTTL {key}"))
    }

    /// A setting of the server's.
    pub fn setting(&mut self, name: &str) -> String {
        match self.run(&format!("CONFIG GET {name}")) {
            Value::Array(words) => text(&words[1]),
            other => panic!("{other:?}"),
        }
    }

    pub fn info(&mut self, section: &str) -> String {
        self.string(&format!("INFO {section}")).unwrap()
    }

    pub fn info_field(&mut self, section: &str, field: &str) -> Option<String> {
        let prefix = format!("{field}:");
        let info = self.info(section);
        let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map(ToString::to_string)
    }

    /// The version of the server: for Valkey its own, and not that of the Redis it is compatible with.
    pub fn version(&mut self) -> [u32; 3] {
        let version = self
            .info_field("server", "valkey_version")
            .or_else(|| self.info_field("server", "redis_version"))
            .expect("a version");
        let parts: Vec<u32> = version
            .split('.')
            .map(|part| part.parse().unwrap())
            .collect();
        parts.try_into().unwrap()
    }

    /// Whether CONFIG REWRITE writes such a setting so that it is read as it was. Valkey 8.1.0 and 8.1.1 escape no quote
    /// and no backslash, also in their own settings.
    pub fn rewrites_as_it_was(&mut self, setting: &[u8]) -> bool {
        let escapes = !([8, 1, 0]..[8, 1, 2]).contains(&self.version());
        escapes || !setting.iter().any(|byte| b"\"\\".contains(byte))
    }

    /// A figure of INFO rl, by its name without the prefix.
    pub fn figure(&mut self, name: &str) -> u64 {
        let figure = self.info_field("rl", &format!("rl_{name}"));
        figure.expect("a figure").parse().expect("a number")
    }

    /// The server's clock.
    pub fn now_ms(&mut self) -> i64 {
        let script = "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)";
        match self.run_words(&["EVAL", script, "0"]) {
            Value::Int(now_ms) => now_ms,
            other => panic!("{other:?}"),
        }
    }

    pub fn keys(&mut self) -> Vec<Vec<u8>> {
        let Value::Array(keys) = self.run("KEYS *") else {
            panic!("no keys");
        };
        let bytes = |key| match key {
            Value::BulkString(key) => key,
            other => panic!("{other:?}"),
        };
        keys.into_iter().map(bytes).collect()
    }

    /// Names, values and ends of all keys that end after this time.
    pub fn data(&mut self, after_ms: i64) -> Vec<(String, Option<String>, i64)> {
        let mut keys = self.keys();
        keys.sort();
        let describe = |key: Vec<u8>| {
            let key = String::from_utf8(key).unwrap();
            let end_ms = self.integer(&format!("PEXPIRETIME {key}"));
            (key.clone(), self.get(&key), end_ms)
        };
        let mut data: Vec<_> = keys.into_iter().map(describe).collect();
        data.retain(|(_, _, end_ms)| *end_ms > after_ms);
        data
    }

    /// What replicas and the AOF get of a key as it stands.
    pub fn effect(&mut self, key: &str) -> String {
        let value = self.get(key).unwrap();
        let end_ms = self.integer(&format!("PEXPIRETIME {key}"));
        format!("SET {key} {value} PXAT {end_ms}")
    }

    /// All there is to see of a key: type, value, expiry, and how many keys there are.
    pub fn picture(&mut self, key: &str) -> (Value, Value, i64, i64) {
        (
            self.run(&format!("TYPE {key}")),
            self.run(&format!("DUMP {key}")),
            self.integer(&format!("PEXPIRETIME {key}")),
            self.integer("DBSIZE"),
        )
    }

    /// Whether the server has the command.
    pub fn has(&mut self, command: &str) -> bool {
        self.run(&format!("COMMAND INFO {command}")) != Value::Array(vec![Value::Nil])
    }
}

/// The keyspace events of these keys (`event key`) while `body` runs, on a server that sends them.
pub fn events(server: &Server, keys: &[&str], body: impl FnOnce()) -> Vec<String> {
    let mut listener = server.connect();
    let mut listener = listener.0.as_pubsub();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    listener.psubscribe("__keyspace@0__:*").unwrap();
    body();
    server.connect().run("DEL mark-of-the-end");
    server.connect().run("SETEX mark-of-the-end 60 x");
    let mut heard = Vec::new();
    loop {
        let message = listener.get_message().unwrap();
        let event: String = message.get_payload().unwrap();
        let channel = message.get_channel_name();
        let key = channel.split_once(':').unwrap().1;
        if key == "mark-of-the-end" {
            return heard;
        }
        if keys.contains(&key) {
            heard.push(format!("{event} {key}"));
        }
    }
}

/// A reply that is a text.
pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

/// The five integers of a verdict.
pub fn verdict(reply: &Value) -> Option<[i64; 5]> {
    let Value::Array(fields) = reply else {
        return None;
    };
    let fields: Vec<i64> = fields
        .iter()
        .map_while(|field| match field {
            Value::Int(value) => Some(*value),
            _ => None,
        })
        .collect();
    fields.try_into().ok()
}

pub fn error(reply: &Value) -> Option<String> {
    match reply {
        Value::SimpleString(text) => Some(text.strip_prefix('-')?.to_string()),
        Value::ServerError(error) => Some(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_string(),
        }),
        _ => None,
    }
}

/// `-CODE text`, as it was on the wire.
fn error_text(error: &redis::RedisError) -> String {
    let code = error.code().unwrap_or("(no code)");
    let detail = error.detail().unwrap_or_default();
    format!("-{code} {detail}").trim_end().to_string()
}
