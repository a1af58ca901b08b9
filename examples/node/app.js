// An HTTP service with limits, on Express and the module redis-rl. To run it (Node 18.19 or later):
//   npm ci && ON_FAILURE=open node app.js
// Environment: ON_FAILURE (open or closed), PORT (8000), REDIS_PORT (6379), CLIENT (ioredis or redis),
// DEADLINE_MS (100), X_RATELIMIT (1: the older headers too).

import express from "express";
import { Redis } from "ioredis";
import { createClient } from "redis";
import {
  fromIoredis,
  fromNodeRedis,
  ioredisOptions,
  Limiter,
  nodeRedisOptions,
  nodeRedisSocket,
} from "./redis-rl.js";
import { rateLimit, sendRefused, sendUnavailable, setRateLimit } from "./redis-rl-express.js";

const { ON_FAILURE, CLIENT = "ioredis", DEADLINE_MS = "100", X_RATELIMIT } = process.env;
const { PORT = "8000", REDIS_PORT = "6379" } = process.env;

const address = { host: "127.0.0.1", port: Number(REDIS_PORT) };
// A connection of its own: behind the slow commands of others, a hit would miss its deadline.
const connections = {
  ioredis: () => fromIoredis(new Redis({ ...address, ...ioredisOptions })),
  redis: () => fromNodeRedis(createClient({ socket: { ...address, ...nodeRedisSocket }, ...nodeRedisOptions })),
};
if (CLIENT !== "ioredis" && CLIENT !== "redis") {
  throw new RangeError(`CLIENT has to be ioredis or redis, not ${CLIENT}`);
}
const limiter = new Limiter(connections[CLIENT](), {
  onFailure: /** @type {"open" | "closed"} */ (ON_FAILURE),
  deadlineMs: Number(DEADLINE_MS),
});

// A real service checks the key first: to whoever may invent keys, each new one is a new limit.
/** @param {express.Request} req */
const apiKey = (req) => req.get("X-Api-Key") || (req.ip ?? "");

const api = { limiter, policy: "api", limit: 3, window: 60, key: apiKey, xRateLimit: X_RATELIMIT === "1" };

const app = express();

app.get("/", rateLimit(api), (req, res) => {
  res.type("text/plain").send("hello\n");
});

app.get("/report", rateLimit({ ...api, cost: () => 2 }), (req, res) => {
  res.type("text/plain").send("report\n");
});

app.post("/complete", async (req, res) => {
  const tokens = Number(req.query.tokens);
  if (!Number.isSafeInteger(tokens) || tokens < 1) {
    res.status(400).type("text/plain").send("tokens has to be an integer of at least 1\n");
    return;
  }
  // The braces keep both keys in one slot of a cluster, as RL.MHIT needs it.
  const user = apiKey(req);
  const requests = { key: `{${user}}:requests`, limit: 5, window: 60 };
  const budget = { key: `{${user}}:tokens`, limit: 100, window: 60, cost: tokens };
  const { allowed, retryAfter, verdicts, failed } = await limiter.mhit([requests, budget]);
  if (!failed) {
    setRateLimit(res, [
      { policy: "requests", window: requests.window, verdict: verdicts[0] },
      { policy: "tokens", window: budget.window, verdict: verdicts[1] },
    ]);
  }
  if (allowed) {
    res.type("text/plain").send("completed\n");
  } else if (failed) {
    sendUnavailable(res);
  } else {
    sendRefused(res, retryAfter);
  }
});

app.listen(Number(PORT), "127.0.0.1", (error) => {
  // Express 5 hands an address in use to this callback, and would go on without a server.
  if (error) throw error;
});
