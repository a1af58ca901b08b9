# frozen_string_literal: true

# Rate limiting by the server module redis-rl: a limiter on the gem redis (4.8), and a Rack middleware.
# Copy this file and require it; config.ru beside it shows it at work.

require "logger"
require "redis"
require "timeout"

module RedisRl
  # retry_after is nil where waiting doesn't help: the cost is above what the limiter can hold.
  # failed: there is no answer of the server, and of the other fields only allowed means something.
  Verdict = Struct.new(:allowed, :limit, :remaining, :retry_after, :reset_after, :failed) do
    alias_method :allowed?, :allowed
    alias_method :failed?, :failed
  end

  MultiVerdict = Struct.new(:allowed, :retry_after, :verdicts, :failed) do
    alias_method :allowed?, :allowed
    alias_method :failed?, :failed
  end

  # One for all threads of a process.
  class Limiter
    # The largest integer of the server.
    MOST = 2**63 - 1

    # Servers, proxies and firewalls close connections that nobody uses, and the next command on one is lost.
    IDLE_SECONDS = 30

    # on_failure: :open or :closed, whether a request gets in that the server can't answer for.
    # deadline_ms: how long one call may take in all.
    # redis: what Redis.new takes (host, port, path, username, password, db, ssl). Give an address, not a name:
    # Ruby can't interrupt the resolving of names.
    #
    # It makes its clients itself. Threads that share one wait for each other, so when the server stalls, the
    # tenth would wait ten times the deadline. Here a thread takes an idle client or makes one.
    def initialize(on_failure:, deadline_ms:, logger: Logger.new($stderr), **redis)
      unless %i[open closed].include?(on_failure)
        raise ArgumentError, "on_failure must be :open or :closed, not #{on_failure.inspect}"
      end
      unless deadline_ms.is_a?(Integer) && deadline_ms.positive?
        raise ArgumentError, "deadline_ms must be a positive integer, not #{deadline_ms.inspect}"
      end

      @open = on_failure == :open
      @seconds = deadline_ms / 1000.0
      # By default the gem sends a command again when its reply was late, and the hit would count twice.
      @options = redis.merge(
        connect_timeout: @seconds, read_timeout: @seconds, write_timeout: @seconds, reconnect_attempts: 0
      )
      @idle = Queue.new
      @idle << [Redis.new(@options), now] # connects when it is used, but complains of wrong options here
      @logger = logger
      @mutex = Mutex.new
      @available = true
      @changed_at = now
    end

    # algorithm: "SLIDING" or ["BUCKET", 10]; FIXED if left out.
    def hit(key, limit, window, cost = 1, algorithm = nil)
      reply = call("RL.HIT", key, *rule(limit, window, cost, algorithm))
      reply ? verdict(reply) : failed(limit)
    end

    # Takes from all of several limiters, or from none. Each rule is an array of what hit takes.
    def mhit(rules)
      words = rules.flat_map { |_key, *rest| rule(*rest) }
      reply = call("RL.MHIT", rules.size, *rules.map(&:first), *words)
      return MultiVerdict.new(@open, 0, rules.map { |rule| failed(rule[1]) }, true) unless reply

      allowed, retry_after, verdicts = reply
      MultiVerdict.new(allowed == 1, never(retry_after), verdicts.map { |each| verdict(each) }, false)
    end

    private

    def rule(limit, window, cost = 1, algorithm = nil)
      # What the server would answer with an error is raised here: as a failure it would be let in under :open, and
      # a client may have chosen the cost.
      possible = [[limit, 0], [window, 1], [cost, 1]].all? do |number, least|
        number.is_a?(Integer) && number.between?(least, MOST)
      end
      raise ArgumentError, "not possible: #{[limit, window, cost].inspect}" unless possible

      [limit, window, *algorithm, "COST", cost]
    end

    def verdict(reply)
      allowed, limit, remaining, retry_after, reset_after = reply
      Verdict.new(allowed == 1, limit, remaining, never(retry_after), reset_after, false)
    end

    def failed(limit)
      Verdict.new(@open, limit, 0, 0, 0, true)
    end

    def never(retry_after)
      retry_after == -1 ? nil : retry_after
    end

    # The reply, or nil if there is none.
    def call(*command)
      began = now
      redis = client
      # To connect is several steps (TCP, TLS, AUTH, SELECT), and the gem's timeout holds for each of them, not for
      # their sum. Timeout does no harm here, as what it interrupts is thrown away.
      reply = Timeout.timeout(redis.connected? ? nil : @seconds) { redis.call(*command) }
      @idle << [redis, now]
      note(began, nil)
      reply
    rescue StandardError => e # sockets, TLS and the gem have no common class
      # A connection on which a reply was late has to go, and what failed for one failed for all that are idle.
      redis&.close
      @idle.clear
      note(began, e)
      nil
    end

    def client
      redis, since = @idle.pop(true)
      redis.close if now - since > IDLE_SECONDS
      redis
    rescue ThreadError # none is idle
      Redis.new(@options)
    end

    # A line when the trouble begins, and one when it is over. What was under way at the last change says nothing
    # about the time after it.
    def note(began, error)
      @mutex.synchronize do
        return if @available == error.nil? || began < @changed_at

        @available = error.nil?
        @changed_at = now
        if @available
          @logger.info("rate limiter available again")
        else
          meanwhile = @open ? "letting requests in" : "refusing requests"
          @logger.error("rate limiter unavailable, #{meanwhile}: #{reason(error)}")
        end
      end
    end

    def reason(error)
      late = [Redis::TimeoutError, Timeout::Error].any? { |type| error.is_a?(type) }
      return "no reply within #{(@seconds * 1000).round} ms" if late
      return error.message unless error.message.match?(/\AERR unknown command/i)

      "the server has no RL.HIT: load the module redis-rl on it (loadmodule librl.so)"
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end

  # The headers of draft-ietf-httpapi-ratelimit-headers, for limits that hold together: the policies' names, each with
  # a verdict and its window. In lower case, as Rack 3 wants them.
  def self.headers(limits)
    policies = limits.map { |name, (verdict, window)| %("#{name}";q=#{verdict.limit};w=#{window}) }
    states = limits.map { |name, (verdict, _)| %("#{name}";r=#{verdict.remaining};t=#{verdict.reset_after}) }
    { "ratelimit-policy" => policies.join(", "), "ratelimit" => states.join(", ") }
  end

  # The response for a verdict that isn't allowed.
  def self.refusal(verdict, headers = {})
    status, body, retry_after =
      verdict.failed? ? [503, "Rate limiter unavailable\n", 1] : [429, "Too many requests\n", verdict.retry_after]
    headers = { "content-type" => "text/plain", **headers }
    headers["retry-after"] = retry_after.to_s if retry_after
    [status, headers, [body]]
  end

  # use RedisRl::Middleware, limiter: limiter, policy: "api", limit: 3, window: 60
  #
  # key and cost are called with the request's env. Behind a proxy, take the address that YOUR proxy sets as the key,
  # never a header that clients can send: whoever invents one gets a limit of his own. That goes for Rack's
  # request.ip as well, which believes X-Forwarded-For from any peer with a private address.
  class Middleware
    def initialize(app, limiter:, policy:, limit:, window:,
                   key: ->(env) { env["REMOTE_ADDR"] }, cost: ->(_env) { 1 }, algorithm: nil, x_ratelimit: false)
      @app = app
      @limiter = limiter
      @policy = policy
      @limit = limit
      @window = window
      @key = key
      @cost = cost
      @algorithm = algorithm
      @x_ratelimit = x_ratelimit
    end

    def call(env)
      verdict = @limiter.hit("#{@policy}:#{@key.call(env)}", @limit, @window, @cost.call(env), @algorithm)
      ours = verdict.failed? ? {} : headers(verdict)
      return RedisRl.refusal(verdict, ours) unless verdict.allowed?

      status, headers, body = @app.call(env)
      [status, headers.merge(ours), body]
    end

    private

    def headers(verdict)
      headers = RedisRl.headers(@policy => [verdict, @window])
      return headers unless @x_ratelimit

      headers.merge(
        "x-ratelimit-limit" => verdict.limit.to_s,
        "x-ratelimit-remaining" => verdict.remaining.to_s,
        "x-ratelimit-reset" => verdict.reset_after.to_s
      )
    end
  end
end
