-- fixed_window: a window's number and its count. See fixed_window.rs.
--
--   numbers  kind (0 epoch, 1 first, 2 calendar), period or step, period; for a calendar also start and end
--   value    the number, then nine digits of count: one integer; or number:count, if that would be too long

local fixed_window = { waits = always }

local MOST_DIGITS = 1000000000
local MOST_NUMBER = 9000000000

function fixed_window.read(self, value)
  local colon = string.find(value, ':', 1, true)
  if colon then
    return { number = tonumber(string.sub(value, 1, colon - 1)), count = tonumber(string.sub(value, colon + 1)) }
  end
  return { number = tonumber(string.sub(value, 1, -10)) or 0, count = tonumber(string.sub(value, -9)) }
end

-- The number of the window that a hit at this time opens.
local function opened(self)
  if self.kind == 1 then
    return div_up(now, self.step)
  elseif self.kind == 2 then
    return self.start / (60 * SECOND)
  end
  return div(now, self.step)
end

local function starts(self, number)
  return number * (self.kind == 2 and 60 * SECOND or self.step)
end

-- When a window ends. For a calendar only the end of the running window is known; a later window lasts for at least a
-- minute.
local function ends(self, number)
  if self.kind == 2 then
    return math.max(self.finish, starts(self, number) + 60 * SECOND)
  end
  return starts(self, number) + self.period
end

function fixed_window.write(self, state)
  local lasts = ends(self, state.number) - now
  if state.count < MOST_DIGITS and state.number < MOST_NUMBER then
    return text(state.number) .. string.format('%09d', state.count), lasts
  end
  return text(state.number) .. ':' .. text(state.count), lasts
end

local function running(self, state)
  if self.kind == 1 then
    return now < ends(self, state.number)
  end
  return state.number >= opened(self)
end

-- A receipt whose calendar begins in the future was issued before the server's clock was set back. Mending would move the
-- count to a window that no other calendar has, so give_back leaves such a state where it is.
function fixed_window.mend(self, state)
  if ARGV[1] == 'give_back' and self.kind == 2 and self.start == 0 then
    return
  end
  local tolerance = TOLERANCE + (self.kind == 1 and self.step or 0)
  if running(self, state) and starts(self, state.number) - now > tolerance then
    -- A calendar limit counts to at most `deepest`, see fixed_window.rs. A receipt does not say how much that is.
    local clamped = self.kind == 2 and ARGV[1] ~= 'give_back'
    return { number = opened(self), count = clamped and math.min(state.count, self.deepest) or state.count }
  end
end

function fixed_window.used(self, state)
  return running(self, state) and state.count or 0
end

function fixed_window.add(self, state, hits)
  if state and running(self, state) then
    return { number = state.number, count = state.count + hits }
  end
  return { number = opened(self), count = hits }
end

function fixed_window.remove(self, state, mark, hits)
  if not running(self, state) or state.number ~= mark then
    return state
  end
  if state.count > hits then
    return { number = mark, count = state.count - hits }
  end
end

algorithms.F = fixed_window
