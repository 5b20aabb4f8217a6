-- sliding_buckets: counts of sub-windows, the running one and n complete ones. See sliding_buckets.rs.
--
--   numbers  period, period, sub-windows in a period
--   value    newest:age,count;age,count… of the sub-windows that counted something, newest first

local sliding_buckets = { waits = always }

function sliding_buckets.read(self, value)
  local colon = string.find(value, ':', 1, true)
  local state = { newest = tonumber(string.sub(value, 1, colon - 1)), counts = {} }
  for age, count in string.gmatch(string.sub(value, colon + 1), '(%d+),(%d+)') do
    state.counts[#state.counts + 1] = { number = state.newest - tonumber(age), count = tonumber(count) }
  end
  return state
end

function sliding_buckets.write(self, state)
  local parts = {}
  for i, bucket in ipairs(state.counts) do
    parts[i] = text(state.newest - bucket.number) .. ',' .. text(bucket.count)
  end
  local lasts = (state.newest + self.buckets + 1) / self.buckets * self.period - now
  return text(state.newest) .. ':' .. table.concat(parts, ';'), lasts
end

local function running(self, time)
  return (muldiv(time, self.buckets, self.period))
end

-- The state with the running sub-window as its newest one, and without the sub-windows that no longer count.
local function advanced(self, state)
  local current = running(self, now)
  local newest = state and math.max(state.newest, current) or current
  local kept = { newest = newest, counts = {} }
  for _, bucket in ipairs(state and state.counts or {}) do
    if bucket.number >= newest - self.buckets and bucket.count > 0 then
      kept.counts[#kept.counts + 1] = { number = bucket.number, count = bucket.count }
    end
  end
  return kept
end

local function sum(state)
  local total = 0
  for _, bucket in ipairs(state.counts) do
    total = total + bucket.count
  end
  return total
end

function sliding_buckets.mend(self, state)
  if state.newest > running(self, now + TOLERANCE) then
    local current = running(self, now)
    return { newest = current, counts = { { number = current, count = sum(state) } } }
  end
end

function sliding_buckets.used(self, state)
  return sum(advanced(self, state))
end

function sliding_buckets.add(self, state, hits)
  local kept = advanced(self, state)
  local first = kept.counts[1]
  if first and first.number == kept.newest then
    first.count = first.count + hits
  else
    table.insert(kept.counts, 1, { number = kept.newest, count = hits })
  end
  return kept
end

function sliding_buckets.remove(self, state, mark, hits)
  local kept = advanced(self, state)
  for i, bucket in ipairs(kept.counts) do
    if bucket.number == mark then
      bucket.count = less(bucket.count, hits)
      if bucket.count == 0 then
        table.remove(kept.counts, i)
      end
      break
    end
  end
  return #kept.counts > 0 and kept or nil
end

algorithms.B = sliding_buckets
