-- What all scripts share: exact whole numbers, time, and the keys of a call.
--
-- Lua counts in doubles, which are exact up to 2^53. Every number here stays below that: times are
-- microseconds since the epoch (2^51), periods at most 400 days (2^45), ticks at least half a
-- microsecond long (2^52). Where a product would not fit, it is divided as it is built: muldiv.
--
--   KEYS     a state each; for give_back of a receipt, or a charge that has one, then the mark of the receipt
--   ARGV[1]  the verb: take, charge, give_back, peek
--   ARGV[2]  the time in microseconds, for tests; or nothing, then the server's own
--   ARGV[3]  the deadline in microseconds of the server's time, or 0: who comes later does nothing
--   ARGV[4]  how long the caller can wait, in microseconds
--   ARGV[5]  for give_back and charge when the receipt's time is over, in microseconds, or 0
--   ARGV[6]  how many states there are
--   ARGV[7]  a number that the reply must show, so that no caller takes another's reply for its own
--   ARGV[8…] for each state its numbers, separated by spaces; the first is the algorithm's letter
--   behind   for each tag of a shape that the caller knows besides its own, its numbers;
--            for each tag that nobody knows, `lost` and the tag
--
-- Nothing is decided twice: the reply holds the time and the states as they were, and the caller computes
-- from them, with the same functions that decide in memory, what it tells its own caller.

-- ⌊a / b⌋ for whole a, b: the remainder of doubles is exact, the quotient is not.
local function div(a, b)
  return (a - a % b) / b
end

-- ⌈a / b⌉
local function div_up(a, b)
  return div(a + b - 1, b)
end

-- ⌊a · p / q⌋ and the remainder, for a < 2^53, p and q ≤ 2^46, result < 2^53.
-- The rest of a by q is multiplied by p digit by digit, six bits each, and divided on the way: what is carried
-- stays below 127 · q, which is exact.
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

-- a − b, but never less than nothing.
local function less(a, b)
  return a > b and a - b or 0
end

-- A whole number as text: tostring() would write 1e+15.
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

-- The first word of a reply.
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

-- Each algorithm is a table of functions on a state (nil when nothing is remembered):
--   read(self, value)                   the state that a value says
--   write(self, state)                  the value that says a state, and for how many microseconds it matters
--   mend(self, state)                   what a clock since put back makes of a state, or nil
--   used(self, state)                   what is used
--   waits(self, state)                  whether the caller can wait for its turn
--   add(self, state, weight)            the state with more
--   remove(self, state, mark, weight)   the state with less
-- `self` holds the numbers of the limit that asks.
local algorithms = {}

-- A state that lies further ahead of now than this was written by a clock that has since been put back.
local TOLERANCE = SECOND

local function always()
  return true
end
