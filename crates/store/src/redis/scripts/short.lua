-- The short path: decides plans of the common kind, many in one call, without a table per state.
--
-- It handles takes whose states were written under the same shape. Whatever else it meets (another shape, a clock that was set
-- back, a value that is too long for its usual form), it writes nothing of that plan and says `long`: then the caller sends this
-- plan to plan.lua, which handles everything. Both decide alike, and write the same values.
--
--   keys     of all takes, plan after plan
--   args[1]  the time in microseconds, for tests; if empty, the server's own time is used
--   args[2…] one for each plan, packed as little-endian integers of eight bytes:
--            echo, deadline, max_wait, number of takes; then for each take
--            algorithm, weight (-1 if it never passes), room, required (0 or 1), and seven numbers of the algorithm
--
-- The reply is the time, and then for each plan its echo, its result, and a string for each take. The result is 1 or 0 (it
-- passes or not), and the strings are the values before the call; or the result is a word, and the first string of `error` is
-- its text.

local LIMB, LIMBS = 67108864, 4503599627370496 -- 2^26, 2^52
local SECOND = 1000000

-- a · b modulo 2^52, for a and b below 2^46.
local function low(a, b)
  local a0, b0 = a % LIMB, b % LIMB
  local middle = ((a - a0) / LIMB * b0 + a0 * ((b - b0) / LIMB)) % LIMB
  return (a0 * b0 + middle * LIMB) % LIMBS
end

-- ⌊a · p / q⌋ for a < 2^53, p and q ≤ 2^46, result < 2^53. The quotient of doubles is off by at most one, and the remainder says
-- by which. The remainder is small, so the low limbs of both products are enough to compute it.
local function muldiv(a, p, q)
  local rest = a % q
  local whole = (a - rest) / q * p
  local product = rest * p
  local quotient = product / q
  quotient = quotient - quotient % 1
  if product < LIMBS then
    return whole + quotient
  end
  local left = low(rest, p) - low(quotient, q)
  if left >= LIMBS / 2 then
    left = left - LIMBS
  elseif left < -LIMBS / 2 then
    left = left + LIMBS
  end
  if left < 0 then
    quotient = quotient - 1
  elseif left >= q then
    quotient = quotient + 1
  end
  return whole + quotient
end

-- One function for each algorithm. It looks at the value of a state, and returns
--   nothing                     if this plan must take the long path
--   false                       if the take does not fit
--   true, value, lasts, keeps   if it fits: the new value, for how many microseconds it matters, and whether the one that was
--                               found matters exactly as long; then the time to live is kept, which is cheaper

-- token_bucket and leaky_bucket, see drain.lua. A caller of token_bucket cannot wait: max_wait is -1.
local function drain(value, now, max_wait, weight, room, per_period, period, highest, interval, tag)
  local tick
  if interval == 1 then
    tick = (now - now % period) / period * per_period
  else
    tick = muldiv(now, per_period, period)
  end
  local zero, ends = tick
  if value ~= '' then
    if tonumber(string.sub(value, -3)) ~= tag then
      return
    end
    local found = tonumber(string.sub(value, 1, -4))
    if not found or found - tick > highest then
      return
    end
    if found > tick then
      zero, ends = found, found - found % per_period
    end
    if max_wait >= 0 and weight > 0 and found > muldiv(now + max_wait, per_period, period) then
      return false
    end
  end
  if weight < 0 or zero - tick > room - weight then
    return false
  end
  zero = zero + weight
  -- The level is zero at the end of the period that the tick of zero is in, see drain.lua.
  local last = zero - zero % per_period
  return true, string.format('%d%03d', zero, tag), (last / per_period + 1) * period - now, last == ends
end

-- fixed_window, see fixed_window.lua.
local function fixed_window(value, now, weight, room, kind, step, period, start, finish)
  local opened
  if kind == 0 then
    opened = (now - now % step) / step
  elseif kind == 1 then
    opened = now + step - 1
    opened = (opened - opened % step) / step
  elseif now < start or now >= finish then
    return
  else
    opened, step = start / (60 * SECOND), 60 * SECOND
  end
  local number, count = opened, 0
  if value ~= '' then
    local found_count = tonumber(string.sub(value, -9))
    local digits = string.sub(value, 1, -10)
    local found = digits == '' and 0 or tonumber(digits)
    if not found or not found_count or found_count < 0 then
      return
    end
    local running = found >= opened
    if kind == 1 then
      running = now < found * step + period
    end
    if running then
      if found * step - now > SECOND + (kind == 1 and step or 0) then
        return
      end
      number, count = found, found_count
    end
  end
  if weight < 0 or count > room - weight then
    return false
  end
  if count + weight >= 1000000000 or number >= 9000000000 then
    return
  end
  local ends = kind == 2 and math.max(finish, number * step + 60 * SECOND) or number * step + period
  return true, string.format('%d%09d', number, count + weight), ends - now, count > 0 and kind < 2
end

-- sliding_weighted, see sliding_weighted.lua.
local function sliding_weighted(value, now, weight, room, period, room_written)
  local elapsed = now % period
  local number = (now - elapsed) / period
  local cur, prev, keeps = 0, 0, false
  if value ~= '' then
    local found, found_cur, found_prev = string.match(value, '^(%d+):(%d+):(%d+):%d+$')
    if not found then
      return
    end
    found = tonumber(found)
    if found > number then
      if found * period - now > SECOND then
        return
      end
      number, elapsed = found, 0
    end
    if found == number then
      cur, prev, keeps = tonumber(found_cur), tonumber(found_prev), true
    elseif found == number - 1 then
      prev = tonumber(found_cur)
    end
  end
  local used = cur
  if prev > 0 then
    used = cur + muldiv(prev, period - elapsed, period)
  end
  if weight < 0 or used > room - weight then
    return false
  end
  return true, string.format('%d:%d:%d:%d', number, cur + weight, prev, room_written),
    (number + 2) * period - now, keeps
end

-- sliding_buckets, see sliding_buckets.lua.
local function sliding_buckets(value, now, weight, room, period, buckets)
  local newest = muldiv(now, buckets, period)
  local total, first, rest, keeps = 0, 0, '', false
  if value ~= '' then
    local colon = string.find(value, ':', 1, true)
    local found = colon and tonumber(string.sub(value, 1, colon - 1))
    if not found then
      return
    end
    if found > newest then
      if found > muldiv(now + SECOND, buckets, period) then
        return
      end
      newest = found
    end
    local shift = newest - found
    local kept, n = shift > 0 and {}, 0
    keeps = shift == 0
    for age, count in string.gmatch(value, '(%d+),(%d+)') do
      age = age + shift
      if age <= buckets then
        total = total + count
        if age == 0 then
          first = tonumber(count)
        elseif kept then
          n = n + 1
          kept[n] = string.format(';%d,%s', age, count)
        end
      end
    end
    if kept then
      rest = table.concat(kept)
    else
      -- The other sub-windows are as they were.
      local semicolon = string.find(value, first > 0 and ';' or ':', 1, true)
      rest = semicolon and ';' .. string.sub(value, semicolon + 1) or ''
    end
  end
  if weight < 0 or total > room - weight then
    return false
  end
  return true, string.format('%d:0,%d', newest, first + weight) .. rest,
    (newest + buckets + 1) / buckets * period - now, keeps
end

-- Looks at one take. Returns the value that was found, or an error reply; then what the functions above return.
local function look(key, now, max_wait, algorithm, weight, room, a, b, c, d, e, f, g)
  if algorithm == 0 then
    return '', weight >= 0 and 0 <= room - weight
  end
  local value = redis.pcall('GETRANGE', key, '0', '65536') -- strings, because numbers would be formatted for each call
  if type(value) == 'table' or #value > 4096 then
    return value
  end
  if algorithm == 1 then
    return value, drain(value, now, -1, weight, room, a, b, e, f, g)
  elseif algorithm == 2 then
    return value, drain(value, now, max_wait, weight, room, a, b, e, f, g)
  elseif algorithm == 3 then
    return value, fixed_window(value, now, weight, room, a, b, c, d, e)
  elseif algorithm == 4 then
    return value, sliding_weighted(value, now, weight, room, b, c)
  end
  return value, sliding_buckets(value, now, weight, room, b, c)
end

-- Writes a state. The time to live only removes garbage; it is a second longer than needed, in case the clock is stepped.
local function write(key, value, lasts, keeps)
  if keeps then
    redis.call('SET', key, value, 'KEEPTTL')
  else
    redis.call('SET', key, value, 'PX', string.format('%d', math.max(math.ceil(lasts / 1000), 0) + 1000))
  end
end

local HEAD, TAKE = '<i8i8i8i8', '<i8i8i8i8i8i8i8i8i8i8i8'
local TAKE_BYTES, HEAD_BYTES = 88, 32

-- The reply about a plan that was not decided: because of an error reply of the engine, or because it needs the long path.
local function undecided(reply, at, takes, found)
  for i = 1, takes do
    reply[at + i] = ''
  end
  if type(found) == 'table' then
    reply[at], reply[at + 1] = 'error', found.err
  else
    reply[at] = 'long'
  end
end

-- A plan of one take: nothing has to be kept until the others are read.
local function single(plan, key, now, max_wait, reply, at, by_server)
  local algorithm, weight, room, required, a, b, c, d, e, f, g = struct.unpack(TAKE, plan, HEAD_BYTES + 1)
  local found, fits, value, lasts, keeps = look(key, now, max_wait, algorithm, weight, room, a, b, c, d, e, f, g)
  if fits == nil then
    return undecided(reply, at, 1, found)
  end
  if fits and weight > 0 and algorithm > 0 then
    write(key, value, lasts, keeps and by_server)
  end
  reply[at], reply[at + 1] = (fits or required == 0) and 1 or 0, found
end

local function several(plan, keys, first, takes, now, max_wait, reply, at, by_server)
  local passes = 1
  local values, lasting, keeping = {}, {}, {}
  for i = 1, takes do
    local algorithm, weight, room, required, a, b, c, d, e, f, g =
      struct.unpack(TAKE, plan, HEAD_BYTES + 1 + (i - 1) * TAKE_BYTES)
    local found, fits, value, lasts, keeps =
      look(keys[first + i], now, max_wait, algorithm, weight, room, a, b, c, d, e, f, g)
    if fits == nil then
      return undecided(reply, at, takes, found)
    end
    if not fits and required == 1 then
      passes = 0
    elseif fits and weight > 0 and algorithm > 0 then
      values[i], lasting[i], keeping[i] = value, lasts, keeps and by_server
    end
    reply[at + i] = found
  end
  reply[at] = passes
  if passes == 1 then
    for i = 1, takes do
      if lasting[i] then
        write(keys[first + i], values[i], lasting[i], keeping[i])
      end
    end
  end
end

local function decide(keys, args)
  local now, by_server
  if args[1] ~= '' then
    now = tonumber(args[1])
  else
    local time = redis.call('TIME')
    now, by_server = time[1] * SECOND + time[2], true
  end
  local reply, first, at = { now }, 0, 2
  for i = 2, #args do
    local plan = args[i]
    local echo, deadline, max_wait, takes = struct.unpack(HEAD, plan)
    reply[at] = echo
    if deadline > 0 and now > deadline then
      undecided(reply, at + 1, takes)
      reply[at + 1] = 'late'
    elseif takes == 1 then
      single(plan, keys[first + 1], now, max_wait, reply, at + 1, by_server)
    else
      several(plan, keys, first, takes, now, max_wait, reply, at + 1, by_server)
    end
    first, at = first + takes, at + 2 + takes
  end
  return reply
end
