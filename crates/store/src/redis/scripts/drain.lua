-- token_bucket and leaky_bucket (GCRA): a level that drains over time, stored as the tick at which it reaches zero.
-- See drain.rs, token_bucket.rs and leaky_bucket.rs.
--
--   numbers  ticks per period, period, ticks of a token, full, highest, interval (0 or 1), tag
--   value    the tick of zero, then the tag of its shape in three digits: one integer, which Redis stores
--            without a string; or zero:numbers with the whole shape as its tag, if the shape is not registered

-- Shapes by tag, and by their numbers: the limits of this call, and others that the caller told. Shapes with equal
-- numbers are one shape, whatever their tags.
local shapes, equal = {}, {}

-- Declared in prelude.lua, because plan.lua calls it too.
function shape_of(list, from)
  local shape = {
    per_period = list[from], period = list[from + 1], token = list[from + 2],
    full = list[from + 3], highest = list[from + 4], interval = list[from + 5] == 1,
    tag = list[from + 6],
  }
  local same = {}
  for i = from, from + 5 do
    same[#same + 1] = text(list[i])
  end
  same = table.concat(same, ' ')
  equal[same] = equal[same] or shape
  shapes[shape.tag] = equal[same]
  return equal[same]
end

local function tick(shape, time)
  if shape.interval then
    return div(time, shape.period) * shape.per_period
  end
  return (muldiv(time, shape.per_period, shape.period))
end

-- The time at which a tick begins, in whole microseconds, rounded down and up.
local function micros_around(shape, at)
  if shape.interval then
    local edge = div_up(at, shape.per_period) * shape.period
    return edge, edge
  end
  local down, left = muldiv(at, shape.period, shape.per_period)
  return down, left > 0 and down + 1 or down
end

local function level(shape, zero)
  return less(zero, tick(shape, now))
end

-- Converts ticks of one shape into ticks of another that are as many tokens, rounded up or down. A token has a power
-- of two ticks.
local function convert_up(shape, from, ticks)
  if shape.token >= from.token then
    return ticks * (shape.token / from.token)
  end
  return div_up(ticks, from.token / shape.token)
end

local function convert_down(shape, from, ticks)
  if shape.token >= from.token then
    return ticks * (shape.token / from.token)
  end
  return div(ticks, from.token / shape.token)
end

local drain = { waits = always }

function drain.read(self, value)
  local colon = string.find(value, ':', 1, true)
  if colon then
    local shape = shape_of(numbers(string.sub(value, colon + 1)), 1)
    return { zero = tonumber(string.sub(value, 1, colon - 1)), shape = shape }
  end
  local tag = tonumber(string.sub(value, -3))
  if lost[tag] and not shapes[tag] then
    -- Full, and what nodes may hold beyond that: slices are granted for up to a second ahead.
    return { zero = tick(self.shape, now + 1000000) + self.shape.full, shape = self.shape, lost = true }
  end
  return { zero = tonumber(string.sub(value, 1, -4)), shape = shapes[tag], tag = tag }
end

-- A state matters until the end of the period that its tick of zero is in: then the level is zero, also if tokens arrive only at
-- the end of a period. So the time to live stays the same for many takes, and short.lua need not set it.
function drain.write(self, state)
  local shape = state.shape
  local lasts = (div(state.zero, shape.per_period) + 1) * shape.period - now
  if type(shape.tag) == 'number' then
    return text(state.zero) .. string.format('%03d', shape.tag), lasts
  end
  local list = { shape.per_period, shape.period, shape.token, shape.full, shape.highest, shape.interval and 1 or 0 }
  for i, number in ipairs(list) do
    list[i] = text(number)
  end
  return text(state.zero) .. ':' .. table.concat(list, ' ') .. ' ' .. shape.tag, lasts
end

function drain.mend(self, state)
  local shape = state.shape
  if level(shape, state.zero) > shape.highest then
    return { zero = tick(shape, now) + shape.full, shape = shape }
  end
end

function drain.add(self, state, weight)
  local from = tick(self.shape, now)
  if state then
    from = math.max(from, self.algorithm.adopt(self, state))
  end
  return { zero = from + weight, shape = self.shape }
end

-- Lowers the level; nil if it reaches zero.
local function lower(state, ticks)
  local zero = state.zero - ticks
  if zero > tick(state.shape, now) then
    return { zero = zero, shape = state.shape }
  end
end

-- token_bucket: used tokens stay used when the shape changes.
local token_bucket = setmetatable({}, { __index = drain })

function token_bucket.used(self, state)
  local used = level(state.shape, state.zero)
  if state.shape == self.shape then
    return used
  end
  return convert_up(self.shape, state.shape, used)
end

function token_bucket.adopt(self, state)
  if state.shape == self.shape then
    return state.zero
  end
  return tick(self.shape, now) + token_bucket.used(self, state)
end

-- Tokens that have refilled since the take are not given back again. They refilled at the rate of the take's limit or of
-- the state's limit; the faster one is assumed.
function token_bucket.remove(self, state, mark, ticks)
  local taken, shape = self.shape, state.shape
  if self.slot then
    -- Behind a slot that is not the last one, nodes may hold slices that they have not spent.
    if shape ~= taken or state.zero ~= mark then
      return state
    end
    return lower(state, ticks)
  end
  local left = convert_down(shape, taken, less(ticks, less(tick(taken, now), mark)))
  if shape == taken then
    return lower(state, left)
  end
  local start = micros_around(taken, mark)
  local here = less(convert_down(shape, taken, ticks), less(tick(shape, now), tick(shape, start)))
  return lower(state, math.min(left, here))
end

function token_bucket.reach(self, ahead)
  return tick(self.shape, now + math.min(ahead, TOLERANCE)) - tick(self.shape, now)
end

algorithms.T = token_bucket

-- leaky_bucket: the instant at which the last promised turn is over stays the same when the shape changes.
local leaky_bucket = setmetatable({}, { __index = drain })

local function same_instant(shape, from, at)
  if shape == from then
    return at
  end
  local _, up = micros_around(from, at)
  return muldiv_up(up, shape.per_period, shape.period)
end

function leaky_bucket.adopt(self, state)
  return same_instant(self.shape, state.shape, state.zero)
end

function leaky_bucket.used(self, state)
  return level(self.shape, leaky_bucket.adopt(self, state))
end

-- The caller's turn comes in time iff all promised turns are over within max_wait.
function leaky_bucket.waits(self, state)
  return leaky_bucket.adopt(self, state) <= tick(self.shape, now + max_wait)
end

function leaky_bucket.remove(self, state, mark, ticks)
  local taken, shape = self.shape, state.shape
  local finish = same_instant(shape, taken, mark)
  if state.zero ~= finish then
    return lower(state, 0)
  end
  if shape ~= taken then
    ticks = finish - same_instant(shape, taken, less(mark, ticks))
  end
  return lower(state, ticks)
end

algorithms.Q = leaky_bucket
