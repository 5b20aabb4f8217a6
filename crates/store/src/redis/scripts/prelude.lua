-- The part that all algorithms share: exact integer arithmetic, the time, and the arguments of a call.
--
-- Lua counts in doubles, which are exact up to 2^53. Every number here stays below that: times are
-- microseconds since the epoch (2^51), periods are at most 400 days (2^45), ticks are at least half a
-- microsecond long (2^52). Where a product would not fit, muldiv divides it while it is being built.
--
--   KEYS     the key of each state; then the mark of the receipt, if give_back or charge has one
--   ARGV[1]  the verb: take, charge, give_back, peek, grant
--   ARGV[2]  the time in microseconds, for tests; if empty, the server's own time is used
--   ARGV[3]  the deadline in microseconds of the server's time, or 0: a call that arrives later does nothing
--   ARGV[4]  how long the caller can wait for its turn, in microseconds
--   ARGV[5]  for give_back and charge: when the receipt expires, in microseconds, or 0
--   ARGV[6]  how many states there are
--   ARGV[7]  the echo: a number that the reply repeats, so that a caller notices the reply to another call
--   ARGV[8…] for each state its numbers, separated by spaces; the first one is the letter of the algorithm
--   then     for each further shape that the caller knows, its numbers, which end with its tag;
--            for each tag that is not in the registry, `lost` and the tag;
--            for the verb grant, `grant`, the most and the least that is asked for, into how many parts what is free is
--            divided, and how far a slice may reach beyond a full bucket, in microseconds
--
-- The reply holds the time and the states before the call. The caller computes everything else of its answer
-- from them, with the same functions that decide in memory.

-- ⌊a / b⌋ for integers a, b: the remainder of two doubles is exact, their quotient is not.
local function div(a, b)
  return (a - a % b) / b
end

-- ⌈a / b⌉
local function div_up(a, b)
  return div(a + b - 1, b)
end

-- ⌊a · p / q⌋ and the remainder, for a < 2^53, p and q ≤ 2^46, result < 2^53.
-- Long multiplication: a mod q is multiplied by p digit by digit, six bits each, and divided after each digit.
-- The carry stays below 127 · q, which is exact.
local function muldiv(a, p, q)
  local rest = a % q
  local whole = (a - rest) / q * p
  local digits, n = {}, 0
  while p > 0 do
    n = n + 1
    digits[n] = p % 64
    p = (p - p % 64) / 64
  end
  local quotient, left = 0, 0
  for i = n, 1, -1 do
    left = left * 64 + rest * digits[i]
    local over = left % q
    quotient = quotient * 64 + (left - over) / q
    left = over
  end
  return whole + quotient, left
end

-- ⌈a · p / q⌉
local function muldiv_up(a, p, q)
  local quotient, left = muldiv(a, p, q)
  return left > 0 and quotient + 1 or quotient
end

-- max(a − b, 0)
local function less(a, b)
  return a > b and a - b or 0
end

-- An integer as text: tostring() would write 1e+15.
local function text(n)
  return string.format('%.0f', n)
end

local function numbers(list)
  local found, n = {}, 0
  for word in string.gmatch(list, '%S+') do
    n = n + 1
    found[n] = tonumber(word) or word
  end
  return found
end

local SECOND = 1000000

-- The first word of a reply, with the echo.
local function says(word)
  return word .. '#' .. ARGV[7]
end

local now
if ARGV[2] ~= '' then
  now = tonumber(ARGV[2])
else
  local time = redis.call('TIME')
  now = tonumber(time[1]) * SECOND + tonumber(time[2])
end

local deadline = tonumber(ARGV[3])
if deadline > 0 and now > deadline then
  return { says('late'), text(now) }
end
local max_wait = tonumber(ARGV[4])

-- Each algorithm is a table of functions on a state (nil if there is none):
--   read(self, value)                   parses a value into a state
--   write(self, state)                  the value of a state, and for how many microseconds it matters
--   mend(self, state)                   the repaired state, if it was written before the clock was set back; else nil
--   used(self, state)                   how much is in use
--   waits(self, state)                  whether the caller can wait for its turn
--   add(self, state, weight)            the state after a take
--   remove(self, state, mark, weight)   the state after a take is given back
--   reach(self, ahead)                  how much further a slice may reach, if it may
-- `self` holds the numbers of the current limit.
local algorithms = {}

-- A state further in the future than this was written before the server's clock was set back.
local TOLERANCE = SECOND

local function always()
  return true
end

-- Whether a take of this call has one of these letters. Redis runs the whole script for every call, so only the
-- algorithms of the call are built.
local function uses(letters)
  for i = 8, 7 + tonumber(ARGV[6]) do
    if string.find(letters, string.sub(ARGV[i], 1, 1), 1, true) then
      return true
    end
  end
end

-- For token_bucket and leaky_bucket, see drain.lua: builds a shape from its numbers; and the tags that are not in the
-- registry any more: nothing is known of their states, so they count as full.
local shape_of
local lost = {}
