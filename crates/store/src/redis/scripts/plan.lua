-- The call itself: reads all states, decides, and writes all or none. See crates/core/src/plan.rs.

local verb = ARGV[1]

-- Parses the numbers of a take: its limit as the algorithm needs it.
--   always   letter, weight (-1 if it never passes), room, deepest, required (0 or 1), charged (0 or 1), mark;
--            then the numbers of the algorithm
--   for give_back, `charged` says whether the mark is the end of a slot; for grant, the weight is that of a cost of 1
local function parse_take(list)
  local self = {
    letter = list[1], algorithm = algorithms[list[1]], weight = list[2], room = list[3], deepest = list[4],
    required = list[5] == 1, charged = list[6] == 1, slot = list[6] == 1, mark = list[7],
  }
  if list[1] == 'T' or list[1] == 'Q' then
    self.shape = shape_of(list, 8)
  elseif list[1] == 'N' then
    self.nothing = true
  elseif list[1] == 'F' then
    self.kind, self.step, self.period, self.start, self.finish = list[8], list[9], list[10], list[11], list[12]
  else
    -- The last number is the count of sub-windows, or for sliding_weighted the limit with its headroom.
    self.step, self.period, self.buckets, self.room_written = list[8], list[9], list[10], list[10]
  end
  return self
end

local count = tonumber(ARGV[6])
local takes = {}
for i = 1, count do
  takes[i] = parse_take(numbers(ARGV[7 + i]))
end
local asked
for i = 8 + count, #ARGV do
  local list = numbers(ARGV[i])
  if list[1] == 'lost' then
    lost[list[2]] = true
  elseif list[1] == 'grant' then
    asked = { most = list[2], least = list[3], parts = list[4], ahead = list[5] }
  elseif shape_of then
    shape_of(list, 1)
  end
end

-- The caller looked up the window of a calendar by its estimate of the time. By now another window may run.
for _, take in ipairs(takes) do
  if take.kind == 2 and (now < take.start or now >= take.finish) then
    return { says('moved'), text(now) }
  end
end

local reply = { says(verb), text(now), 0 }

-- No state is longer than this. A longer value belongs to another program and is not read to its end.
local LONGEST = 65536

-- Read everything before anything is written: if a shape is unknown, the caller must look it up and call again.
for i, take in ipairs(takes) do
  -- An unlimited or blocking limit counts nothing, and its key is not touched.
  local value = not take.nothing and redis.call('GETRANGE', KEYS[i], 0, LONGEST)
  if value == '' then
    value = nil
  elseif value and #value > LONGEST then
    return redis.error_reply('WRONGTYPE the value is longer than any state of tidegate')
  end
  reply[3 + i] = value or ''
  if value then
    take.state = take.algorithm.read(take, value)
    if take.state.tag and not take.state.shape then
      return { says('shape'), text(now), text(take.state.tag) }
    end
    if take.state.lost then
      -- A state whose shape is lost is written back as full, whatever the decision, so that it is full only once.
      take.changed, reply[3 + i] = true, (take.algorithm.write(take, take.state))
    end
    local mended = take.algorithm.mend(take, take.state)
    if mended then
      take.state, take.changed = mended, true
    end
  end
  take.used = take.state and take.algorithm.used(take, take.state) or 0
end
if verb == 'peek' then
  return reply
end

-- A receipt is settled once: it is marked before anything is given back, so that a crash in between gives back too
-- little, never too much. Likewise a charge that is sent again, because its reply was lost, is counted once.
if verb == 'give_back' or verb == 'charge' then
  local over = tonumber(ARGV[5])
  if over > 0 then
    if over <= now then
      return { says('over'), text(now) }
    end
    local lasts = math.min(div_up(over - now, 1000) + 1000, 4000000000000)
    if not redis.call('SET', KEYS[count + 1], '1', 'NX', 'PX', text(lasts)) then
      return { says('already'), text(now) }
    end
  end
end

local passes = true
for _, take in ipairs(takes) do
  local room = take.weight >= 0 and take.used <= take.room - take.weight
  take.fits = room and (take.weight == 0 or not take.state or take.algorithm.waits(take, take.state))
  if take.required and not take.fits then
    passes = false
  end
end
reply[3] = passes and 1 or 0

local function add(take, weight)
  if weight > 0 and not take.nothing then
    take.state, take.changed = take.algorithm.add(take, take.state, weight), true
  end
end

-- How much of a limit is granted as a slice; see Limit::grant in lease.rs.
local function granted(take)
  local reach = take.algorithm.reach and take.algorithm.reach(take, asked.ahead) or 0
  local free = div(less(take.room + reach, take.used), take.weight)
  local amount = math.max(math.min(asked.most, div(free, asked.parts)), asked.least)
  -- Nobody knows when the last window of a calendar ends.
  if amount > free or (take.kind == 2 and take.finish >= 9007199254740992) then
    return 0
  end
  return amount
end

for _, take in ipairs(takes) do
  if verb == 'grant' then
    reply[3] = granted(take)
    add(take, reply[3] * take.weight)
  elseif verb == 'give_back' then
    if take.state then
      take.state, take.changed = take.algorithm.remove(take, take.state, take.mark, take.weight), true
    end
  elseif verb == 'charge' then
    add(take, math.min(take.weight, less(take.deepest, take.used)))
  elseif passes and take.fits then
    add(take, take.weight)
  elseif take.charged and take.weight >= 0 then
    add(take, math.min(take.weight, less(take.deepest, take.used)))
  end
end

-- Value and time to live are set in one command. The time to live only removes garbage, since every value says for
-- itself when it is over. It is a second longer than needed, in case the clock is stepped.
for i, take in ipairs(takes) do
  if take.changed then
    if take.state then
      local value, lasts = take.algorithm.write(take, take.state)
      redis.call('SET', KEYS[i], value, 'PX', text(math.max(math.ceil(lasts / 1000), 0) + 1000))
    else
      redis.call('DEL', KEYS[i])
    end
  end
end
return reply
