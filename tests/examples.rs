//! The applications in examples/, driven over HTTP against real servers: within the limit, at it, with a server
//! that dies, that stands still, that has no module. `make test-examples` installs what they need.

#[allow(dead_code)] // the tests of the module use the rest
mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use common::{free_port, module, server_program, serves, wait_until, Conn, Running};

/// How long a call may take, as the applications are told, and how much more a busy machine may need.
const DEADLINE_MS: u64 = 500;
const SLACK_MS: u64 = 1_500;

#[derive(Clone, Copy)]
struct Example {
    /// In examples/, with PORT where the port stands.
    command: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// A process that forgets between requests tells of each failure, and never that it is over.
    forgets: bool,
}

const PYTHON_ASYNC: Example = Example {
    command: &["python3", "python/app_asgi.py"],
    environment: &[],
    forgets: false,
};
const PYTHON: Example = Example {
    command: &["python3", "python/app_wsgi.py"],
    ..PYTHON_ASYNC
};
const NODE_IOREDIS: Example = Example {
    command: &["node", "node/app.js"],
    environment: &[("CLIENT", "ioredis")],
    forgets: false,
};
const NODE_REDIS: Example = Example {
    environment: &[("CLIENT", "redis")],
    ..NODE_IOREDIS
};
const RUST: Example = Example {
    command: &["../target/examples/rust/debug/rate-limit"],
    ..PYTHON_ASYNC
};
const PHP: Example = Example {
    command: &["php", "-S", "127.0.0.1:PORT", "php/app.php"],
    environment: &[],
    forgets: true,
};
const RUBY: Example = Example {
    command: &["puma", "-b", "tcp://127.0.0.1:PORT", "ruby/config.ru"],
    ..PYTHON_ASYNC
};

macro_rules! tests {
    ($($name:ident: $example:expr;)*) => {$(
        mod $name {
            #[test]
            fn it_limits_and_says_so_in_headers() {
                super::it_limits_and_says_so_in_headers($example);
            }

            #[test]
            fn failing_open_it_lets_all_in_within_the_deadline() {
                super::it_fails_as_it_was_told_to($example, "open");
            }

            #[test]
            fn failing_closed_it_lets_none_in_within_the_deadline() {
                super::it_fails_as_it_was_told_to($example, "closed");
            }

            #[test]
            fn it_says_what_is_wrong_with_a_server_that_has_no_module() {
                super::it_says_what_is_wrong_with_a_server_that_has_no_module($example);
            }

            #[test]
            fn there_is_no_default_for_failures() {
                super::there_is_no_default_for_failures($example);
            }
        }
    )*};
}

tests! {
    python_async: super::PYTHON_ASYNC;
    python: super::PYTHON;
    node_ioredis: super::NODE_IOREDIS;
    node_redis: super::NODE_REDIS;
    rust: super::RUST;
    php: super::PHP;
    ruby: super::RUBY;
}

/// A server that comes back on its port.
struct Redis {
    port: u16,
    running: Option<Running>,
    directory: TempDir,
}

impl Redis {
    fn start(with_module: bool) -> Self {
        let mut redis = Self {
            port: free_port(),
            running: None,
            directory: tempfile::tempdir().unwrap(),
        };
        redis.restart(with_module);
        redis
    }

    fn restart(&mut self, with_module: bool) {
        let mut program = Command::new(server_program());
        program.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        program.args(["--save", ""]);
        if with_module {
            program.arg("--loadmodule").arg(module());
        }
        program.current_dir(self.directory.path());
        let running = self.running.insert(Running::start(&mut program));
        wait_until("the server answers", || {
            // Somebody's connection may have got the port for a moment.
            if running.0.try_wait().unwrap().is_some() {
                *running = Running::start(&mut program);
            }
            serves(running.0.id(), self.port)
        });
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    fn get(&self, key: &str) -> Option<String> {
        Conn(self.client().get_connection().unwrap()).get(key)
    }

    fn kill(&mut self) {
        self.running = None;
    }

    fn signal(&self, signal: &str) {
        let pid = self.running.as_ref().unwrap().0.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }
}

/// A running application.
struct App {
    child: Child,
    port: u16,
    log: PathBuf,
    _directory: TempDir,
    agent: ureq::Agent,
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the log of the application\n{}", self.log());
        }
    }
}

struct Answer {
    status: u16,
    body: String,
    headers: ureq::http::HeaderMap,
    took: Duration,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }

    /// Status, body, and the two headers of the draft.
    fn shown(&self) -> (u16, &str, Option<&str>, Option<&str>) {
        let (policy, limit) = (self.header("ratelimit-policy"), self.header("ratelimit"));
        (self.status, &self.body, policy, limit)
    }

    fn retry_after(&self) -> Option<i64> {
        Some(self.header("retry-after")?.parse().unwrap())
    }
}

impl App {
    fn start(example: Example, redis: &Redis, environment: &[(&str, &str)]) -> Self {
        let (port, directory) = (free_port(), tempfile::tempdir().unwrap());
        let log = directory.path().join("log");
        let mut child = Self::program(example, port, redis, environment);
        let child = child
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap());
        let mut app = Self {
            child: child
                .spawn()
                .unwrap_or_else(|error| panic!("{:?}: {error}", example.command)),
            port,
            log,
            _directory: directory,
            agent: ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(Duration::from_secs(60)))
                .build()
                .into(),
        };
        wait_until("the application listens", || {
            assert_eq!(app.child.try_wait().unwrap(), None, "it has ended");
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        app
    }

    fn program(
        example: Example,
        port: u16,
        redis: &Redis,
        environment: &[(&str, &str)],
    ) -> Command {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let words = example.command.iter();
        let mut words = words.map(|word| word.replace("PORT", &port.to_string()));
        let mut program = Command::new(words.next().unwrap());
        program
            .args(words)
            .env("PORT", port.to_string())
            .env("REDIS_PORT", redis.port.to_string())
            .env("DEADLINE_MS", DEADLINE_MS.to_string())
            .env_remove("ON_FAILURE")
            .env_remove("X_RATELIMIT")
            .envs(example.environment.iter().copied())
            .envs(environment.iter().copied())
            .current_dir(examples)
            .stdin(Stdio::null());
        program
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    fn lines_with(&self, text: &str) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    fn get(&self, path: &str, api_key: &str) -> Answer {
        let started = Instant::now();
        let request = self.agent.get(self.url(path));
        answer(started, request.header("x-api-key", api_key).call())
    }

    fn post(&self, path: &str, api_key: &str) -> Answer {
        let started = Instant::now();
        let request = self.agent.post(self.url(path));
        answer(started, request.header("x-api-key", api_key).send_empty())
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

fn answer(
    started: Instant,
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Answer {
    let mut response = response.unwrap();
    Answer {
        status: response.status().as_u16(),
        body: response.body_mut().read_to_string().unwrap(),
        headers: response.headers().clone(),
        took: started.elapsed(),
    }
}

const REFUSED: &str = "Too many requests\n";

fn it_limits_and_says_so_in_headers(example: Example) {
    let redis = Redis::start(true);
    // So long a deadline that nothing fails however busy the machine is.
    let environment = [
        ("ON_FAILURE", "closed"),
        ("DEADLINE_MS", "20000"),
        ("X_RATELIMIT", "1"),
    ];
    let app = App::start(example, &redis, &environment);
    let policy = Some(r#""api";q=3;w=60"#);
    let first = app.get("/", "ann");
    let limit = r#""api";r=2;t=60"#;
    assert_eq!(first.shown(), (200, "hello\n", policy, Some(limit)));
    assert_eq!(first.header("x-ratelimit-limit"), Some("3"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(first.header("x-ratelimit-reset"), Some("60"));
    assert_eq!(first.retry_after(), None);
    let left = |answer: &Answer| -> (u16, String, String) {
        let limit = answer.header("ratelimit").unwrap();
        let (remaining, _) = limit.split_once(";t=").unwrap();
        (answer.status, answer.body.clone(), remaining.into())
    };
    let want = |status, body: &str, remaining: &str| (status, body.into(), remaining.into());
    assert_eq!(
        left(&app.get("/", "ann")),
        want(200, "hello\n", r#""api";r=1"#)
    );
    // What costs two doesn't fit any more, what costs one does.
    let refused = app.get("/report", "ann");
    assert_eq!(left(&refused), want(429, REFUSED, r#""api";r=1"#));
    assert!((1..=60).contains(&refused.retry_after().unwrap()));
    assert_eq!(refused.header("ratelimit-policy"), policy);
    assert_eq!(
        left(&app.get("/", "ann")),
        want(200, "hello\n", r#""api";r=0"#)
    );
    assert_eq!(
        left(&app.get("/", "ann")),
        want(429, REFUSED, r#""api";r=0"#)
    );
    assert_eq!(
        left(&app.get("/report", "bob")),
        want(200, "report\n", r#""api";r=1"#)
    );
    assert_eq!(redis.get("api:ann").as_deref(), Some("3"));
    assert_eq!(redis.get("api:bob").as_deref(), Some("2"));

    let policies = Some(r#""requests";q=5;w=60, "tokens";q=100;w=60"#);
    let limits = r#""requests";r=4;t=60, "tokens";r=70;t=60"#;
    let both = app.post("/complete?tokens=30", "ann");
    assert_eq!(both.shown(), (200, "completed\n", policies, Some(limits)));
    let refused = app.post("/complete?tokens=71", "ann");
    assert_eq!((refused.status, refused.body.as_str()), (429, REFUSED));
    assert_eq!(refused.header("ratelimit-policy"), policies);
    assert!((1..=60).contains(&refused.retry_after().unwrap()));
    let never = app.post("/complete?tokens=101", "ann");
    assert_eq!((never.status, never.retry_after()), (429, None));
    assert_eq!(redis.get("{ann}:requests").as_deref(), Some("1"));
    assert_eq!(redis.get("{ann}:tokens").as_deref(), Some("30"));
    // What the server would answer with an error must not become a way in.
    for tokens in ["", "0", "-1", "x", "1.5", "99999999999999999999"] {
        let answer = app.post(&format!("/complete?tokens={tokens}"), "ann");
        assert_eq!(answer.status, 400, "{tokens}");
    }

    let at_once: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| usize::from(app.get("/", "many").status == 200)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(at_once, 3);
    assert_eq!(app.lines_with("rate limiter"), 0, "{}", app.log());
}

fn it_fails_as_it_was_told_to(example: Example, on_failure: &str) {
    let mut redis = Redis::start(true);
    let app = App::start(example, &redis, &[("ON_FAILURE", on_failure)]);
    let (hello, completed, unavailable) = match on_failure {
        "open" => (
            (200, "hello\n"),
            (200, "completed\n"),
            "unavailable, letting requests in: ",
        ),
        _ => {
            let refused = (503, "Rate limiter unavailable\n");
            (refused, refused, "unavailable, refusing requests: ")
        }
    };
    let fails = |answer: &Answer, (status, body): (u16, &'static str)| {
        assert_eq!(answer.shown(), (status, body, None, None));
        assert_eq!(answer.retry_after(), (status == 503).then_some(1));
        let most = Duration::from_millis(DEADLINE_MS + SLACK_MS);
        assert!(answer.took < most, "{:?}", answer.took);
    };
    let all_fail = || {
        for n in 0..4 {
            fails(&app.get("/", &format!("during{n}")), hello);
        }
        fails(&app.post("/complete?tokens=1", "during"), completed);
    };
    let limits_again = || {
        wait_until("it limits again", || {
            app.get("/", "after").header("ratelimit").is_some()
        });
    };
    let before = app.get("/", "before");
    assert_eq!(before.header("ratelimit"), Some(r#""api";r=2;t=60"#));
    assert_eq!(before.header("x-ratelimit-limit"), None);
    let lines = |times: usize| {
        if example.forgets {
            return;
        }
        assert_eq!(app.lines_with(unavailable), times, "{}", app.log());
        wait_until("it says that it is over", || {
            app.lines_with("rate limiter available again") == times
        });
    };

    redis.kill();
    all_fail();
    if example.forgets {
        assert_eq!(app.lines_with(unavailable), 5, "{}", app.log());
    }
    redis.restart(true);
    limits_again();
    lines(1);

    redis.signal("-STOP");
    all_fail();
    redis.signal("-CONT");
    limits_again();
    lines(2);
}

fn it_says_what_is_wrong_with_a_server_that_has_no_module(example: Example) {
    let redis = Redis::start(false);
    let app = App::start(example, &redis, &[("ON_FAILURE", "closed")]);
    assert_eq!(app.get("/", "ann").status, 503);
    let wrong =
        "rate limiter unavailable, refusing requests: the server has no RL.HIT: load the module \
                 redis-rl on it (loadmodule librl.so)";
    assert_eq!(app.lines_with(wrong), 1, "{}", app.log());
}

fn there_is_no_default_for_failures(example: Example) {
    let redis = Redis::start(true);
    for environment in [&[][..], &[("ON_FAILURE", "ajar")]] {
        if example.forgets {
            let app = App::start(example, &redis, environment);
            assert_eq!(app.get("/", "ann").status, 500);
            continue;
        }
        let mut program = App::program(example, free_port(), &redis, environment);
        let output = program.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success(), "{said}");
        let named = said.to_lowercase().replace('_', "");
        assert!(named.contains("onfailure"), "{said}");
    }
}

/// What the lines of the page leave to the reader, and a request to what they make of it.
const STARLETTE: (&str, &str) = (
    "from starlette.applications import Starlette\napp = Starlette()\n",
    r#"
import asyncio
async def get():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "client": ("ann", 1)}
    await app(scope, receive, send)
    assert b"ratelimit" in [name.lower() for name, _ in sent[0]["headers"]], sent
asyncio.run(get())
"#,
);
const WSGI: (&str, &str) = (
    r#"
class app:
    def wsgi_app(env, start):
        start("200 OK", [])
        return [b"hello"]
"#,
    r#"
def names(path):
    got = []
    env = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": "ann"}
    list(app.wsgi_app(env, lambda status, headers, *rest: got.extend(name.lower() for name, _ in headers)))
    return got
assert "ratelimit" in names("/"), names("/")
assert names("/healthz") == []
"#,
);
const EXPRESS: &str = r#"
await new Promise((resolve) => server.once("listening", resolve));
const at = `http://127.0.0.1:${server.address().port}`;
const answers = [];
for (const [path, method] of [["/healthz", "GET"], ["/", "GET"], ["/upload", "POST"]]) {
  const answer = await fetch(at + path, { method });
  answers.push(`${answer.status} ${answer.headers.has("ratelimit")} ${await answer.text()}`);
}
console.log(answers);
process.exit(answers.join() === "200 false ok,200 true hello,200 true taken" ? 0 : 1);
"#;

/// The few lines of each language on the page, with what they leave to the reader before and behind them. (Those of
/// Rust are calls of the application, which is compiled.)
#[test]
fn the_lines_of_the_page_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/examples.md")).unwrap();
    let php = "<?php $_SERVER['REMOTE_ADDR'] = 'ann'; $tokens = 30;";
    let ruby = "tokens = 30\ndef use(*) = nil\ndef run(*) = nil\n";
    let python = &["python3", "-"][..];
    let node = &["node", "--input-type=module", "-"][..];
    for (language, nth, program, (before, behind), key, kind) in [
        ("python", 1, python, ("", ""), "upload:42", "b:"),
        ("python", 2, python, STARLETTE, "api:ann", "1"),
        ("python", 3, python, WSGI, "api:ann", "1"),
        ("js", 1, node, ("", EXPRESS), "upload:42", "b:"),
        ("php", 1, &["php"], (php, ""), "upload:42", "b:"),
        ("ruby", 1, &["ruby", "-"], (ruby, ""), "upload:42", "b:"),
    ] {
        let redis = Redis::start(true);
        let block = page.split(&format!("```{language}\n")).nth(nth).unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let block = block.replace("6379", &redis.port.to_string());
        let block = block.replace("app.listen(8000)", "const server = app.listen(0)");
        // Where the files are that it takes in; Ruby looks beside the file that it runs.
        let directory = if language == "js" { "node" } else { language };
        let directory = root.join("examples").join(directory);
        let block = block.replace(
            "require_relative \"",
            &format!("require \"{}/", directory.display()),
        );
        assert!(block.contains(&redis.port.to_string()), "{language}");
        let directory_of_input = tempfile::tempdir().unwrap();
        let input = directory_of_input.path().join("input");
        std::fs::write(&input, [before, "\n", &block, behind].concat()).unwrap();
        let output = Command::new(program[0])
            .args(&program[1..])
            .current_dir(directory)
            .stdin(File::open(input).unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{language}, {nth}: {output:?}");
        let state = redis.get(key);
        assert!(
            state.as_ref().is_some_and(|state| state.starts_with(kind)),
            "{language}, {nth}: {state:?}"
        );
    }
}
