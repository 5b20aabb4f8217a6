-- sliding_weighted: the count of this window, plus the count of the last window weighted by the part that still overlaps.
-- See sliding_weighted.rs.
--
--   numbers  period, period, the limit with its headroom
--   value    number:cur:prev:room; room is the capacity of the limit that wrote the value

local sliding_weighted = { waits = always }

function sliding_weighted.read(self, value)
  local number, cur, prev, room = string.match(value, '^(%d+):(%d+):(%d+):(%d+)$')
  return { number = tonumber(number), cur = tonumber(cur), prev = tonumber(prev), room = tonumber(room) }
end

function sliding_weighted.write(self, state)
  local lasts = (state.number + 2) * self.period - now
  return table.concat({ text(state.number), text(state.cur), text(state.prev), text(state.room) }, ':'), lasts
end

-- The state at this time. A state in the future is read as at the beginning of its own window.
local function reading(self, state)
  local current = div(now, self.period)
  local room = state and state.room or self.room_written
  local fresh = { number = current, cur = 0, prev = 0, room = room, elapsed = now - current * self.period }
  if not state or current - state.number > 1 then
    return fresh
  elseif current == state.number then
    fresh.cur, fresh.prev = state.cur, state.prev
    return fresh
  elseif current > state.number then
    fresh.prev = state.cur
    return fresh
  end
  return { number = state.number, cur = state.cur, prev = state.prev, room = room, elapsed = 0 }
end

local function unless_nothing(state)
  return (state.cur > 0 or state.prev > 0) and state or nil
end

function sliding_weighted.mend(self, state)
  if state.number * self.period - now > TOLERANCE then
    local both = math.min(state.cur + state.prev, state.room)
    return { number = div(now, self.period), cur = math.max(both, state.cur), prev = 0, room = state.room }
  end
end

function sliding_weighted.used(self, state)
  local r = reading(self, state)
  if r.prev == 0 then
    return r.cur
  end
  return r.cur + (muldiv(r.prev, self.period - r.elapsed, self.period))
end

function sliding_weighted.add(self, state, hits)
  local r = reading(self, state)
  r.cur, r.room = r.cur + hits, self.room_written
  return r
end

function sliding_weighted.remove(self, state, mark, hits)
  local r = reading(self, state)
  if mark == r.number then
    r.cur = less(r.cur, hits)
  elseif mark + 1 == r.number then
    r.prev = less(r.prev, hits)
  end
  return unless_nothing(r)
end

algorithms.W = sliding_weighted
