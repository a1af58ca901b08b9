// Rate limiting by RL.HIT and RL.MHIT of the module redis-rl, over ioredis or node-redis. Copy this file into your
// service; app.js beside it shows it at work (npm ci && ON_FAILURE=open node app.js).

/**
 * The answer for one limiter. `failed` is true where it is no answer of the server but your policy for failures.
 * @typedef {object} Verdict
 * @property {boolean} allowed
 * @property {number} limit what the limiter holds when it is full
 * @property {number} remaining what could still be taken now
 * @property {number | null} retryAfter seconds until this same call would be allowed; null: never, it asks for too much
 * @property {number} resetAfter seconds until the limiter is full again
 * @property {boolean} failed
 *
 * The answer for several limiters together.
 * @typedef {object} JointVerdict
 * @property {boolean} allowed
 * @property {number | null} retryAfter
 * @property {Verdict[]} verdicts one for each rule, in the rules' order
 * @property {boolean} failed
 *
 * @typedef {"FIXED" | "SLIDING" | ["BUCKET", number]} Algorithm
 *
 * @typedef {object} Rule
 * @property {string} key
 * @property {number} limit
 * @property {number} window in seconds
 * @property {number} [cost]
 * @property {Algorithm} [algorithm]
 *
 * What a Limiter needs of a client library.
 * @typedef {object} Connection
 * @property {() => boolean} ready whether a command would be sent now
 * @property {Promise<unknown>} attempted settled once the first attempt to connect has gone well or failed
 * @property {(args: string[]) => Promise<unknown>} send
 * @property {() => string} reason why it isn't ready
 */

/** Longer than this without any reply, and the connection is taken for dead and made anew. */
const HANG_MS = 3000;

/** @param {number} attempts */
const reconnectDelay = (attempts) => Math.min(50 * attempts, 500);

/** What an ioredis client has to be made with: `new Redis({ host, port, ...ioredisOptions })`. */
export const ioredisOptions = {
  // By default a command waits for a connection, and is sent and counted long after its request was answered.
  enableOfflineQueue: false,
  // By default a command that was sent when the connection broke is sent again, up to 20 times, and may count twice.
  // 0 is what rejects it. autoResendUnfulfilledCommands: false alone would leave its promise unsettled for ever.
  maxRetriesPerRequest: 0,
  autoResendUnfulfilledCommands: false,
  // A connection is ready at once: LOADING comes as the answer to a hit, so that the log can name it, and the user of
  // the limiter needs no permission for INFO or CLIENT. In ioredis 5 these two belong together (and allow no
  // connectionName): a connection that breaks during CLIENT SETINFO would be taken for ready, and never made anew.
  enableReadyCheck: false,
  disableClientInfo: true,
  connectTimeout: 2000,
  retryStrategy: reconnectDelay,
};

/**
 * What a node-redis client has to be made with:
 * `createClient({ socket: { host, port, ...nodeRedisSocket }, ...nodeRedisOptions })`.
 */
export const nodeRedisOptions = {
  // By default a command waits for a connection, and is sent and counted long after its request was answered.
  disableOfflineQueue: true,
  // Keeps an idle connection from being closed by socketTimeout.
  pingInterval: 1000,
};

export const nodeRedisSocket = {
  connectTimeout: 2000,
  // Without it, a host that went away without a word is noticed only when TCP gives up, after a quarter of an hour.
  socketTimeout: HANG_MS,
  // The default strategy gives up for good after a socketTimeout.
  /** @param {number} retries */
  reconnectStrategy: (retries) => reconnectDelay(retries + 1),
};

/**
 * @typedef {object} IoredisClient
 * @property {string} status
 * @property {{ enableOfflineQueue?: boolean, maxRetriesPerRequest?: number | null }} options
 * @property {(event: string, listener: (...args: any[]) => void) => unknown} on
 * @property {(command: string, ...args: string[]) => Promise<unknown>} call
 * @property {() => Promise<unknown>} connect
 * @property {(reconnect?: boolean) => void} disconnect
 */

/**
 * @param {IoredisClient} client made with ioredisOptions
 * @returns {Connection}
 */
export function fromIoredis(client) {
  if (client.options.enableOfflineQueue !== false || client.options.maxRetriesPerRequest !== 0) {
    throw new Error("the limiter needs an ioredis client of its own: new Redis({ host, port, ...ioredisOptions })");
  }
  // ioredis has an option socketTimeout for this, but before version 6 its timer outlives the connection that it
  // was set for, and closes the next one.
  let unanswered = 0;
  /** @type {NodeJS.Timeout | undefined} */
  let hang;
  const watch = () => {
    hang ??= setTimeout(() => client.disconnect(true), HANG_MS);
  };
  // Whatever came from the server shows that it lives: what is still unanswered gets the whole time again.
  const alive = () => {
    clearTimeout(hang);
    hang = undefined;
    if (unanswered > 0) watch();
  };
  client.on("connect", watch);
  client.on("ready", alive);
  client.on("close", alive);

  const state = follow(client);
  if (client.status === "wait") client.connect().catch(() => {});
  return {
    ...state,
    ready: () => client.status === "ready",
    async send([command, ...args]) {
      unanswered += 1;
      watch();
      try {
        return await client.call(command, ...args);
      } finally {
        unanswered -= 1;
        alive();
      }
    },
  };
}

/**
 * @typedef {object} NodeRedisClient
 * @property {boolean} isOpen
 * @property {boolean} isReady
 * @property {{ disableOfflineQueue?: boolean }} [options]
 * @property {(event: string, listener: (...args: any[]) => void) => unknown} on
 * @property {(args: string[]) => Promise<unknown>} sendCommand
 * @property {() => Promise<unknown>} connect
 */

/**
 * @param {NodeRedisClient} client made with nodeRedisOptions and nodeRedisSocket
 * @returns {Connection}
 */
export function fromNodeRedis(client) {
  if (client.options?.disableOfflineQueue !== true) {
    throw new Error(
      "the limiter needs a node-redis client of its own: " +
        "createClient({ socket: { host, port, ...nodeRedisSocket }, ...nodeRedisOptions })",
    );
  }
  const state = follow(client);
  // Its promise stays pending as long as there is no server, so nobody should wait for it before serving.
  if (!client.isOpen) client.connect().catch(() => {});
  return { ...state, ready: () => client.isReady, send: (args) => client.sendCommand(args) };
}

/**
 * Keeps the reason for which there is no connection. An "error" that nobody listens to ends the process with
 * node-redis, and fills stderr with ioredis.
 * @param {{ on: (event: string, listener: (...args: any[]) => void) => unknown }} client
 */
function follow(client) {
  let reason = "not connected";
  const attempted = new Promise((resolve) => {
    client.on("ready", () => {
      reason = "connection lost";
      resolve(undefined);
    });
    client.on("error", (error) => {
      // Where a host name has several addresses, the error is an AggregateError without a message.
      reason = error.message || error.code || String(error);
      resolve(undefined);
    });
    client.on("close", resolve);
  });
  return { attempted, reason: () => reason };
}

class DeadlineError extends Error {}

export class Limiter {
  #connection;
  #onFailure;
  #deadlineMs;
  /** Commands whose deadline passed, and which may yet be answered. */
  #overdue = 0;
  #unavailable = false;
  #reported = { reason: "", atMs: -Infinity };

  /**
   * @param {Connection} connection of fromIoredis or fromNodeRedis
   * @param {object} options
   * @param {"open" | "closed"} options.onFailure what a request gets when the server can't be asked: let in, or refused
   * @param {number} options.deadlineMs how long one call may take in all
   */
  constructor(connection, { onFailure, deadlineMs }) {
    if (onFailure !== "open" && onFailure !== "closed") {
      throw new RangeError(`onFailure has to be "open" or "closed", not ${JSON.stringify(onFailure)}`);
    }
    if (!Number.isInteger(deadlineMs) || deadlineMs < 1) {
      throw new RangeError(`deadlineMs has to be an integer of at least 1, not ${deadlineMs}`);
    }
    this.#connection = connection;
    this.#onFailure = onFailure;
    this.#deadlineMs = deadlineMs;
  }

  /**
   * Takes `cost` from the limiter at `key`, or is refused. Rejects only for arguments that no limiter can have,
   * never for a server's trouble.
   * @param {string} key
   * @param {number} limit
   * @param {number} window in seconds
   * @param {number} [cost]
   * @param {Algorithm} [algorithm]
   * @returns {Promise<Verdict>}
   */
  async hit(key, limit, window, cost = 1, algorithm = "FIXED") {
    const rule = ruleArgs({ key, limit, window, cost, algorithm });
    const reply = await this.#ask(["RL.HIT", key, ...rule]);
    return reply ? verdict(/** @type {number[]} */ (reply)) : this.#failure(limit);
  }

  /**
   * Takes from all limiters, or from none of them if one refuses.
   * @param {Rule[]} rules
   * @returns {Promise<JointVerdict>}
   */
  async mhit(rules) {
    const words = rules.flatMap(ruleArgs);
    const keys = rules.map((rule) => rule.key);
    const reply = await this.#ask(["RL.MHIT", String(keys.length), ...keys, ...words]);
    if (!reply) {
      const verdicts = rules.map((rule) => this.#failure(rule.limit));
      const { allowed, retryAfter } = this.#failure(0);
      return { allowed, retryAfter, verdicts, failed: true };
    }
    const [allowed, retryAfter, verdicts] = /** @type {[number, number, number[][]]} */ (reply);
    return {
      allowed: allowed === 1,
      retryAfter: retryAfter < 0 ? null : retryAfter,
      verdicts: verdicts.map(verdict),
      failed: false,
    };
  }

  /**
   * @param {number} limit
   * @returns {Verdict}
   */
  #failure(limit) {
    const allowed = this.#onFailure === "open";
    return { allowed, limit, remaining: 0, retryAfter: allowed ? 0 : 1, resetAfter: 0, failed: true };
  }

  /**
   * @param {string[]} args
   * @returns {Promise<unknown>} the reply, or undefined where there was none
   */
  async #ask(args) {
    try {
      const reply = await this.#send(args);
      if (this.#unavailable) console.error("rate limiter available again");
      this.#unavailable = false;
      return reply;
    } catch (error) {
      this.#report(/** @type {Error} */ (error));
    }
  }

  /** @param {string[]} args */
  async #send(args) {
    const startedMs = performance.now();
    const connection = this.#connection;
    if (!connection.ready()) {
      // Requests may come before the first connection is up. Later there is no sense in waiting.
      await this.#within(connection.attempted, this.#deadlineMs);
      if (!connection.ready()) throw new Error(connection.reason());
    }
    // Replies come in order. Behind a command that is overdue another would be so too, and would count, when the
    // server goes on at last, for a request that was answered long ago.
    if (this.#overdue > 0) throw this.#late();

    const reply = connection.send(args);
    try {
      return await this.#within(reply, this.#deadlineMs - (performance.now() - startedMs));
    } catch (error) {
      if (error instanceof DeadlineError) {
        this.#overdue += 1;
        // Both libraries reject what is on its way when the connection ends, so this always comes to an end.
        const settled = () => {
          this.#overdue -= 1;
        };
        reply.then(settled, settled);
      }
      throw error;
    }
  }

  /**
   * @template T
   * @param {Promise<T>} promise which may settle later: it is listened to, so that it can't end the process
   * @param {number} ms
   * @returns {Promise<T>}
   */
  #within(promise, ms) {
    return new Promise((resolve, reject) => {
      // After a pause of the event loop timers run before sockets are read. setImmediate comes behind both, and so
      // doesn't blame the server for what the process itself was busy with.
      const timer = setTimeout(() => setImmediate(() => reject(this.#late())), ms);
      promise.then(resolve, reject).finally(() => clearTimeout(timer));
    });
  }

  #late() {
    return new DeadlineError(`no answer within ${this.#deadlineMs} ms`);
  }

  /** @param {Error} error */
  #report(error) {
    if (this.#unavailable) return;
    const isReply = /^[A-Z]+ /.test(error.message);
    let reason = isReply || error instanceof DeadlineError ? error.message : this.#connection.reason();
    if (/^ERR unknown command/i.test(reason)) {
      reason = "the server has no RL.HIT: load the module redis-rl on it (loadmodule librl.so)";
    }
    // An error reply may be about one key alone (WRONGTYPE), while hits on others are answered in between: once a
    // minute is enough for the same one.
    const nowMs = performance.now();
    if (isReply && reason === this.#reported.reason && nowMs - this.#reported.atMs < 60_000) return;
    this.#reported = { reason, atMs: nowMs };
    this.#unavailable = true;
    const effect = this.#onFailure === "open" ? "letting requests in" : "refusing requests";
    console.error(`rate limiter unavailable, ${effect}: ${reason}`);
  }
}

/**
 * @param {Rule} rule
 * @returns {string[]}
 */
function ruleArgs({ key, limit, window, cost = 1, algorithm = "FIXED" }) {
  if (typeof key !== "string") throw new TypeError(`key has to be a string, not ${key}`);
  const least = { limit: 0, window: 1, cost: 1 };
  for (const [name, value] of Object.entries({ limit, window, cost })) {
    if (!Number.isSafeInteger(value) || value < least[/** @type {keyof typeof least} */ (name)]) {
      throw new RangeError(`${name} is no integer, or too small: ${value}`);
    }
  }
  return [limit, window, algorithm, "COST", cost].flat().map(String);
}

/**
 * @param {number[]} reply
 * @returns {Verdict}
 */
function verdict([allowed, limit, remaining, retryAfter, resetAfter]) {
  return {
    allowed: allowed === 1,
    limit,
    remaining,
    retryAfter: retryAfter < 0 ? null : retryAfter,
    resetAfter,
    failed: false,
  };
}
