# frozen_string_literal: true

# A service with rate limits by redis_rl.rb:
#
#     REDIS_PORT=6379 ON_FAILURE=open puma -b tcp://127.0.0.1:8000 config.ru
#
# More of its environment: DEADLINE_MS (100), X_RATELIMIT=1.

require "rack"
require_relative "redis_rl"

limiter = RedisRl::Limiter.new(
  on_failure: ENV["ON_FAILURE"]&.to_sym,
  deadline_ms: Integer(ENV.fetch("DEADLINE_MS", "100")),
  host: "127.0.0.1",
  port: Integer(ENV.fetch("REDIS_PORT", "6379"))
)

# A real service looks the API key up before it counts: an invented one would have limits of its own.
client = ->(env) { env["HTTP_X_API_KEY"] || env["REMOTE_ADDR"] }

text = ->(status, body, headers = {}) { [status, { "content-type" => "text/plain", **headers }, [body]] }

map "/complete" do
  run(lambda do |env|
    request = Rack::Request.new(env)
    return text.(404, "Not found\n") unless request.post?

    # A number above 64 bits would be an error of the server, and an error is let in where the policy is open.
    tokens = Integer(request.GET["tokens"], 10, exception: false)
    return text.(400, "tokens must be a positive integer\n") unless (1...2**63).cover?(tokens)

    # What is in braces decides the slot: in a cluster, the keys of one RL.MHIT have to share theirs.
    tag = "{#{client.call(env)}}"
    verdict = limiter.mhit([["#{tag}:requests", 5, 60], ["#{tag}:tokens", 100, 60, tokens]])
    headers = {}
    unless verdict.failed?
      requests, of_tokens = verdict.verdicts
      headers = RedisRl.headers("requests" => [requests, 60], "tokens" => [of_tokens, 60])
    end
    verdict.allowed? ? text.(200, "completed\n", headers) : RedisRl.refusal(verdict, headers)
  end)
end

map "/" do
  use RedisRl::Middleware,
      limiter: limiter, policy: "api", limit: 3, window: 60, key: client,
      cost: ->(env) { env["PATH_INFO"] == "/report" ? 2 : 1 },
      x_ratelimit: ENV["X_RATELIMIT"] == "1"

  run(lambda do |env|
    case [env["REQUEST_METHOD"], env["PATH_INFO"]]
    when ["GET", "/"] then text.(200, "hello\n")
    when ["GET", "/report"] then text.(200, "report\n")
    else text.(404, "Not found\n")
    end
  end)
end
