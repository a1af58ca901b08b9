//! Rate limits in an axum application: a layer for two routes, and two limits together in a handler.
//!
//!     ON_FAILURE=open cargo run        # PORT=8000 REDIS_PORT=6379 DEADLINE_MS=100 X_RATELIMIT=0
//!     curl -i -H 'X-Api-Key: alice' localhost:8000/

use std::env::{self, VarError};
use std::error::Error;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::Router;
use http::request::Parts;
use http::{Response, StatusCode};
use rate_limit::layer::{self, RateLimitLayer};
use rate_limit::{Limiter, OnFailure, Rule};
use serde::Deserialize;
use tokio::net::TcpListener;

type Answer = Response<axum::body::Body>;

/// Who asks. Take such a header only after a check that the key is one of yours: who may invent keys has as many
/// limits as they like.
fn api_key(request: &Parts) -> Option<String> {
    let key = request.headers.get("x-api-key");
    match key.and_then(|key| key.to_str().ok()) {
        Some(key) if !key.is_empty() => Some(key.to_owned()),
        _ => layer::peer_address(request),
    }
}

#[derive(Deserialize)]
struct Completion {
    tokens: u64,
}

#[derive(Clone)]
struct Budgets {
    limiter: Limiter,
    requests: Rule,
    tokens: Rule,
}

/// Takes a request and its tokens, or neither of them.
async fn complete(
    State(budgets): State<Budgets>,
    Query(completion): Query<Completion>,
    request: Parts,
) -> Result<Answer, (StatusCode, String)> {
    let key = api_key(&request).ok_or((StatusCode::INTERNAL_SERVER_ERROR, String::new()))?;
    let tokens = budgets
        .tokens
        .cost(completion.tokens)
        .map_err(|mistake| (StatusCode::BAD_REQUEST, format!("{mistake}\n")))?;
    // The braces keep both limiters in one slot of a cluster.
    let limits = [
        (format!("{{{key}}}:requests"), budgets.requests),
        (format!("{{{key}}}:tokens"), tokens),
    ];
    let verdicts = budgets
        .limiter
        .mhit(&limits)
        .await
        .map_err(|mistake| (StatusCode::INTERNAL_SERVER_ERROR, format!("{mistake}\n")))?;
    if verdicts.failed && !verdicts.allowed {
        return Ok(layer::unavailable());
    }
    let mut response = if verdicts.allowed {
        Answer::new("completed\n".into())
    } else {
        layer::too_many_requests(verdicts.retry_after)
    };
    if let ([requests, tokens], false) = (verdicts.each.as_slice(), verdicts.failed) {
        let headers = response.headers_mut();
        let limits = [
            ("requests", &budgets.requests, requests),
            ("tokens", &budgets.tokens, tokens),
        ];
        layer::add_headers(headers, &limits);
    }
    Ok(response)
}

/// A number or word from the environment.
fn setting<T>(name: &str, default: Option<T>) -> Result<T, String>
where
    T: FromStr<Err: Display>,
{
    match (env::var(name), default) {
        (Ok(word), _) => word
            .parse()
            .map_err(|error| format!("{name}={word}: {error}")),
        (Err(VarError::NotPresent), Some(default)) => Ok(default),
        (Err(error), _) => Err(format!("{name}: {error}")),
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let port: u16 = setting("PORT", Some(8000))?;
    let redis_port: u16 = setting("REDIS_PORT", Some(6379))?;
    let on_failure: OnFailure = setting("ON_FAILURE", None)?;
    let deadline = Duration::from_millis(setting("DEADLINE_MS", Some(100))?);
    let x_ratelimit = setting("X_RATELIMIT", Some(String::new()))? == "1";

    let client = redis::Client::open((Ipv4Addr::LOCALHOST.to_string(), redis_port))?;
    let limiter = Limiter::new(client, on_failure, deadline)?;
    let api = RateLimitLayer::new(limiter.clone(), "api", Rule::new(3, 60)?)
        .key(api_key)
        .x_ratelimit(x_ratelimit);
    let budgets = Budgets {
        limiter,
        requests: Rule::new(5, 60)?,
        tokens: Rule::new(100, 60)?,
    };
    // route_layer, not layer: a request that no route answers takes nothing.
    let report = get(async || "report\n").route_layer(api.clone().cost(|_| 2));
    let hello = get(async || "hello\n").route_layer(api);
    let app = Router::new()
        .route("/", hello)
        .route("/report", report)
        .route("/complete", post(complete))
        .with_state(budgets)
        .into_make_service_with_connect_info::<SocketAddr>();

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    tracing::info!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
