// Express middleware over the Limiter of redis-rl.js, and what a handler needs to answer as the middleware does.
// For Express 4 and 5.

/**
 * @typedef {import("express").Request} Request
 * @typedef {import("express").Response} Response
 * @typedef {import("./redis-rl.js").Verdict} Verdict
 */

/**
 * @param {object} options
 * @param {import("./redis-rl.js").Limiter} options.limiter
 * @param {string} options.policy a name: limits of the same policy and key are one
 * @param {number} options.limit
 * @param {number} options.window in seconds
 * @param {(req: Request) => string} [options.key] by default the peer's address
 * @param {(req: Request) => number} [options.cost]
 * @param {import("./redis-rl.js").Algorithm} [options.algorithm]
 * @param {boolean} [options.xRateLimit] whether to send the older X-RateLimit-* headers too
 * @returns {import("express").RequestHandler}
 */
export function rateLimit({
  limiter,
  policy,
  limit,
  window,
  // Behind a proxy this is the proxy's address, and all users share one limit: app.set("trust proxy", "10.0.0.7") with
  // the address of YOUR proxy makes it the client's. With `true`, or read from a header yourself, it would be whatever
  // a client writes into X-Forwarded-For.
  key = (req) => req.ip ?? "",
  cost = () => 1,
  algorithm,
  xRateLimit = false,
}) {
  return async (req, res, next) => {
    try {
      const verdict = await limiter.hit(`${policy}:${key(req)}`, limit, window, cost(req), algorithm);
      if (verdict.failed) return verdict.allowed ? next() : sendUnavailable(res);
      setRateLimit(res, [{ policy, window, verdict }]);
      if (xRateLimit) {
        res.set("X-RateLimit-Limit", String(verdict.limit));
        res.set("X-RateLimit-Remaining", String(verdict.remaining));
        res.set("X-RateLimit-Reset", String(verdict.resetAfter));
      }
      if (!verdict.allowed) return sendRefused(res, verdict.retryAfter);
    } catch (error) {
      // Express 4 doesn't take a rejected promise: it would be unhandled, and end the process.
      return next(error);
    }
    next();
  };
}

/**
 * The headers of the IETF draft "RateLimit header fields for HTTP". Both are lists: what another limiter on the same
 * route has set stays.
 * @param {Response} res
 * @param {{ policy: string, window: number, verdict: Verdict }[]} entries
 */
export function setRateLimit(res, entries) {
  const policies = entries.map(({ policy, window, verdict }) => `"${policy}";q=${verdict.limit};w=${window}`);
  const states = entries.map(({ policy, verdict }) => `"${policy}";r=${verdict.remaining};t=${verdict.resetAfter}`);
  res.append("RateLimit-Policy", policies.join(", "));
  res.append("RateLimit", states.join(", "));
}

/**
 * @param {Response} res
 * @param {number | null} retryAfter in seconds; null: it makes no sense to try again
 */
export function sendRefused(res, retryAfter) {
  if (retryAfter !== null) res.set("Retry-After", String(retryAfter));
  res.status(429).type("text/plain").send("Too many requests\n");
}

/** @param {Response} res */
export function sendUnavailable(res) {
  res.status(503).set("Retry-After", "1").type("text/plain").send("Rate limiter unavailable\n");
}
