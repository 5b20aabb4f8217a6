-- sliding_log: every take with its time, in steps of a millionth of the period, rounded up. See sliding_log.rs.
--
--   numbers  step, period
--   value    distance,cost;distance,cost… oldest first; a distance is the number of steps since the take before; a cost
--            of 1 is left out

local sliding_log = { waits = always }

function sliding_log.read(self, value)
  local entries, step = {}, 0
  for distance, cost in string.gmatch(value, '(%d+),?(%d*)') do
    step = step + tonumber(distance)
    entries[#entries + 1] = { step = step, cost = tonumber(cost) or 1 }
  end
  return { entries = entries }
end

function sliding_log.write(self, state)
  local parts, step = {}, 0
  for i, entry in ipairs(state.entries) do
    parts[i] = text(entry.step - step) .. (entry.cost == 1 and '' or ',' .. text(entry.cost))
    step = entry.step
  end
  return table.concat(parts, ';'), step * self.step + self.period - now
end

-- The oldest step that still counts.
local function first_kept(self)
  return now < self.period and 0 or div(now - self.period, self.step) + 1
end

local function settled(self, state)
  local first, kept = first_kept(self), {}
  for _, entry in ipairs(state and state.entries or {}) do
    if entry.step >= first then
      kept[#kept + 1] = entry
    end
  end
  return { entries = kept }
end

function sliding_log.mend(self, state)
  local newest = state.entries[#state.entries].step * self.step
  if newest - now <= TOLERANCE + self.step then
    return nil
  end
  local step, ahead, kept = div_up(now, self.step), 0, {}
  for _, entry in ipairs(state.entries) do
    if entry.step < step then
      kept[#kept + 1] = entry
    else
      ahead = ahead + entry.cost
    end
  end
  kept[#kept + 1] = { step = step, cost = ahead }
  return { entries = kept }
end

function sliding_log.used(self, state)
  local total = 0
  for _, entry in ipairs(settled(self, state).entries) do
    total = total + entry.cost
  end
  return total
end

function sliding_log.add(self, state, cost)
  local kept = settled(self, state)
  local newest = kept.entries[#kept.entries]
  local step = math.max(div_up(now, self.step), newest and newest.step or 0)
  kept.entries[#kept.entries + 1] = { step = step, cost = cost }
  return kept
end

-- Out of the entries of one step, the newest first: they expire together. If they have less than the cost, the take that is
-- given back is not among them, and nothing is removed.
function sliding_log.remove(self, state, mark, cost)
  local kept = settled(self, state)
  local stays = -cost
  for _, entry in ipairs(kept.entries) do
    stays = stays + (entry.step == mark and entry.cost or 0)
  end
  if stays < 0 then
    return #kept.entries > 0 and kept or nil
  end
  local rest = {}
  for _, entry in ipairs(kept.entries) do
    if entry.step == mark then
      entry.cost = math.min(entry.cost, stays)
      stays = stays - entry.cost
    end
    if entry.cost > 0 then
      rest[#rest + 1] = entry
    end
  end
  return #rest > 0 and { entries = rest } or nil
end

algorithms.L = sliding_log
