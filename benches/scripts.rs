//! What people have instead: the usual scripts.

/// The rules and the verdict of RL.HIT in fixed windows: refused hits don't count, a counter without
/// expiry gets one, times are rounded up.
pub const FIXED: &str = r"
local limit, window_ms = tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
local allowed = count + 1 <= limit
if allowed then
    count = redis.call('INCR', KEYS[1])
end
local left_ms = redis.call('PTTL', KEYS[1])
if left_ms == -1 then
    redis.call('PEXPIRE', KEYS[1], window_ms)
    left_ms = window_ms
end
local left = math.ceil(left_ms / 1000)
return {allowed and 1 or 0, limit, math.max(0, limit - count), allowed and 0 or left, left}
";

/// The same as a function.
pub fn fixed_library() -> String {
    let body = FIXED.replace("KEYS[", "keys[").replace("ARGV[", "args[");
    format!(
        "#!lua name=limits\nredis.register_function('fixed', function(keys, args)\n{body}\nend)"
    )
}

/// The usual token bucket: a hash of tokens and time, read, reckoned and written back.
pub const BUCKET: &str = r"
local capacity, limit, window_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]) * 1000
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(bucket[1]) or capacity
local elapsed_ms = math.max(0, now_ms - (tonumber(bucket[2]) or now_ms))
tokens = math.min(capacity, tokens + elapsed_ms * limit / window_ms)
local allowed = tokens >= 1
if allowed then
    tokens = tokens - 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now_ms)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity * window_ms / limit))
return {allowed and 1 or 0, capacity, math.floor(tokens)}
";

/// The usual sliding window of two counters, the previous one weighted; a key for each window.
pub const SLIDING: &str = r"
local limit, window_ms = tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local window = math.floor(now_ms / window_ms)
local current_key = KEYS[1] .. ':' .. window
local current = tonumber(redis.call('GET', current_key) or 0)
local previous = tonumber(redis.call('GET', KEYS[1] .. ':' .. (window - 1)) or 0)
local weight = 1 - (now_ms % window_ms) / window_ms
local taken = math.floor(previous * weight) + current
if taken + 1 > limit then
    return {0, limit, math.max(0, limit - taken)}
end
redis.call('INCR', current_key)
redis.call('PEXPIRE', current_key, window_ms * 2)
return {1, limit, limit - taken - 1}
";
