//! A tower layer for HTTP: axum, hyper, and whatever else has services of `http` requests.

use std::future::Future;
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tower::{Layer, Service};

use crate::{Limiter, Rule, Verdict};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

type Key = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;

/// Limits what passes through it. Made once, and cloned by each route that shares the limit.
#[derive(Clone)]
pub struct RateLimitLayer {
    limiter: Limiter,
    policy: Arc<str>,
    rule: Rule,
    key: Arc<Key>,
    cost: Option<Arc<Cost>>,
    x_ratelimit: bool,
}

impl RateLimitLayer {
    /// `policy` stands in the keys and in the headers. Clients are told apart by the peer's address.
    pub fn new(limiter: Limiter, policy: &str, rule: Rule) -> RateLimitLayer {
        RateLimitLayer {
            limiter,
            policy: policy.into(),
            rule,
            key: Arc::new(peer_address),
            cost: None,
            x_ratelimit: false,
        }
    }

    /// Who the client is. None is an answer of 500: a key that all such requests share would lock them all out.
    pub fn key(
        mut self,
        key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.key = Arc::new(key);
        self
    }

    /// What a request takes, at least 1; without it, the rule's cost.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> RateLimitLayer {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// The older headers X-RateLimit-* besides.
    pub fn x_ratelimit(mut self, x_ratelimit: bool) -> RateLimitLayer {
        self.x_ratelimit = x_ratelimit;
        self
    }

    async fn ask(&self, request: &Parts) -> Result<Verdict, &'static str> {
        let key = (self.key)(request).ok_or("no key: is the service made with connect info?")?;
        let rule = match &self.cost {
            Some(cost) => self
                .rule
                .cost(cost(request))
                .map_err(|_| "no cost: 0, or more than 63 bits")?,
            None => self.rule,
        };
        let key = format!("{}:{key}", self.policy);
        Ok(self.limiter.hit(key, &rule).await)
    }

    fn add_headers(&self, headers: &mut HeaderMap, verdict: &Verdict) {
        add_headers(headers, &[(&self.policy, &self.rule, verdict)]);
        if self.x_ratelimit {
            headers.insert(X_LIMIT, verdict.limit.into());
            headers.insert(X_REMAINING, verdict.remaining.into());
            headers.insert(X_RESET, verdict.reset_after.into());
        }
    }
}

/// The address at the other end of the connection, where axum serves with
/// `into_make_service_with_connect_info::<SocketAddr>()`; with hyper alone, put a ConnectInfo into the extensions.
///
/// Behind a proxy this is the proxy's: take the address that YOUR proxy sets then, never a header that clients can
/// send (the first entry of X-Forwarded-For is theirs), or they are somebody else with each request.
pub fn peer_address(request: &Parts) -> Option<String> {
    let ConnectInfo(address) = request.extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(address.ip().to_string())
}

/// RateLimit-Policy and RateLimit, of one limit or of several that hold together.
pub fn add_headers(headers: &mut HeaderMap, limits: &[(&str, &Rule, &Verdict)]) {
    let list = |item: &dyn Fn(&(&str, &Rule, &Verdict)) -> String| {
        HeaderValue::try_from(limits.iter().map(item).collect::<Vec<_>>().join(", "))
    };
    // {:?} quotes a name as the headers want it, with a backslash before quotes and backslashes.
    let policies = list(&|(policy, rule, verdict)| {
        format!("{policy:?};q={};w={}", verdict.limit, rule.window)
    });
    let states = list(&|(policy, _, verdict)| {
        format!(
            "{policy:?};r={};t={}",
            verdict.remaining, verdict.reset_after
        )
    });
    // Append, not insert: a route may have a limit of its own inside that of all.
    if let (Ok(policies), Ok(states)) = (policies, states) {
        headers.append(RATE_LIMIT_POLICY, policies);
        headers.append(RATE_LIMIT, states);
    }
}

/// The answer to a request that was refused. `retry_after` is None where waiting doesn't help.
pub fn too_many_requests<B: From<&'static str>>(retry_after: Option<u64>) -> Response<B> {
    answer(
        StatusCode::TOO_MANY_REQUESTS,
        "Too many requests\n",
        retry_after,
    )
}

/// The answer where the limiter failed and is closed: not the client's fault, hence no 429.
pub fn unavailable<B: From<&'static str>>() -> Response<B> {
    answer(
        StatusCode::SERVICE_UNAVAILABLE,
        "Rate limiter unavailable\n",
        Some(1),
    )
}

fn answer<B: From<&'static str>>(
    status: StatusCode,
    text: &'static str,
    retry_after: Option<u64>,
) -> Response<B> {
    let mut response = Response::new(B::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit {
            inner,
            limits: self.clone(),
        }
    }
}

#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    limits: RateLimitLayer,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RateLimit<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send,
    RequestBody: Send + 'static,
    ResponseBody: From<&'static str>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // The service that was found ready is the one to call; its clone may not be, and is left in its place.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let limits = self.limits.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let verdict = match limits.ask(&parts).await {
                Ok(verdict) => verdict,
                Err(mistake) => {
                    tracing::error!("rate limit {:?}: {mistake}", limits.policy);
                    return Ok(answer(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "Internal server error\n",
                        None,
                    ));
                }
            };
            if verdict.failed && !verdict.allowed {
                return Ok(unavailable());
            }
            let mut response = if verdict.allowed {
                inner.call(Request::from_parts(parts, body)).await?
            } else {
                too_many_requests(verdict.retry_after)
            };
            if !verdict.failed {
                limits.add_headers(response.headers_mut(), &verdict);
            }
            Ok(response)
        })
    }
}
