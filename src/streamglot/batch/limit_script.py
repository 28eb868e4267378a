"""The count of calls that all workers make to one account of an upstream: a script that Valkey runs as a whole.

A worker sends how many calls it has in flight, what the upstream reported since the last time, and how many calls it wants to
start. The script answers how many may start, and when to ask again.

- ``left`` is what remains of a limit: a grant lowers it, and a report of the upstream lowers it if other traffic used more.
- A window ends at the earliest end that was reported for it: a report is already old when it arrives, so every reported end is
  too late.
- After its end the limit is full, except for the calls in flight, which may be counted in either window.
- Until a limit is known, ``left`` is what was reported, without the calls in flight: it is not known which are counted.
- Grants are spread over the window. A refusal of the upstream pauses all workers.

Times are milliseconds of the server's clock, so the clocks of workers do not matter.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "streamglot:limits:"
KEEP_SECONDS: Final = 600
"""Seconds after which an account that nobody uses is forgotten."""
LOST_MS: Final = 15_000
"""Milliseconds without a message after which the calls of a worker no longer count: it has died."""
AHEAD_MS: Final = 50
"""Milliseconds. Grants that are due within this time are made together, so that a fast account needs few messages."""
RECHECK_MS: Final = 250
"""Milliseconds until a worker asks again if only the end of other calls makes room."""

SCRIPT: Final = f"""
local state, flights = KEYS[1], KEYS[2]
local worker, flying, wanted, capacity = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local size, pause, ahead = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[13])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local total = flying
local known = redis.call('HGETALL', flights)
for i = 1, #known, 2 do
  local count, seen = string.match(known[i + 1], '^(%d+):(%d+)$')
  if now - tonumber(seen) > {LOST_MS} then
    redis.call('HDEL', flights, known[i])
  elseif known[i] ~= worker then
    total = total + tonumber(count)
  end
end

local function number(field)
  return tonumber(redis.call('HGET', state, field) or '')
end

local function store(field, value)
  if value then redis.call('HSET', state, field, string.format('%.3f', value)) else redis.call('HDEL', state, field) end
end

local function unit(name, each, reported, ends_in, new_limit)
  local left, ends, limit = number(name .. ':left'), number(name .. ':ends'), number(name .. ':limit')
  if ends and ends <= now then
    left = limit and limit - total * each or nil
    ends = nil
  end
  if reported >= 0 then
    left = left and math.min(left, reported) or reported - total * each
    ends = math.min(ends or now + ends_in, now + ends_in)
    if new_limit > 0 then limit = new_limit end
    store(name .. ':limit', limit)
  end
  return left, ends
end

local left, ends = unit('requests', 1, tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
local tokens, tokens_end = unit('tokens', size, tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]))
local paused = math.max(number('paused') or 0, pause > 0 and now + pause or 0)
local interval, next_start = number('interval') or 0, number('next') or 0
local granted, wait, rests, free = 0, 0, 0, 0

local budget = math.huge
if left then budget = math.floor(left) end
if tokens then budget = math.min(budget, math.floor(tokens / size)) end
if budget >= 1 then
  local spread = 0
  if left and ends then spread = math.max(spread, (ends - now) / left) end
  if tokens and tokens_end then spread = math.max(spread, (tokens_end - now) * size / tokens) end
  if ends or tokens_end then interval = spread end
end

if paused > now then
  wait, rests = paused - now, 1
elseif not left and not tokens then
  if wanted > 0 or flying > 0 then
    free = 1
    flying = math.max(flying, capacity)  -- until its next message the worker may start as many
  end
elseif budget < 1 then
  local until_end = 0
  if left and left < 1 and ends then until_end = math.max(until_end, ends - now) end
  if tokens and tokens < size and tokens_end then until_end = math.max(until_end, tokens_end - now) end
  wait, rests = until_end, 1
  if until_end == 0 then wait, rests = {RECHECK_MS}, 0 end
elseif next_start > now + ahead then
  wait = next_start - now - ahead
else
  next_start = math.max(now, next_start)
  granted = math.min(wanted, budget)
  if interval > 0 then granted = math.min(granted, 1 + math.floor((now + ahead - next_start) / interval)) end
  next_start = next_start + granted * interval
  if granted < wanted then wait = math.max(1, next_start - now - ahead) end
  if left then left = left - granted end
  if tokens then tokens = tokens - granted * size end
end

store('requests:left', left)
store('requests:ends', ends)
store('tokens:left', tokens)
store('tokens:ends', tokens_end)
store('paused', paused)
store('interval', interval)
store('next', next_start)
if flying + granted > 0 then
  redis.call('HSET', flights, worker, string.format('%d:%d', flying + granted, now))
else
  redis.call('HDEL', flights, worker)
end
redis.call('EXPIRE', state, {KEEP_SECONDS})
redis.call('EXPIRE', flights, {KEEP_SECONDS})
return {{granted, math.ceil(wait), rests, free}}
"""
