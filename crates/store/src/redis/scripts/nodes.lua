-- Announces a node (heartbeat), and returns the nodes that were announced within the last five seconds.
--
--   KEYS[1]  hash of the nodes: the name of each, and `time process state policy`
--   ARGV[1]  the name of the node, which it keeps when it restarts
--   ARGV[2]  the process, which differs after a restart
--   ARGV[3]  the time of the last announcement of this process under this name, in milliseconds; 0 for the first one
--   ARGV[4]  `here`, or `left` for a node that shuts down
--   ARGV[5]  the hash of its policy; may be empty
--   ARGV[6]  the time in milliseconds, if scripts cannot read it; if empty, the server's own time is used
--
-- The reply begins with 0 and the time, and has a name, a state and a policy for each node. It is 1 alone if another process
-- has announced itself under this name since: its data directory is a copy of this node's. Then nothing is written.

local entry = '^(%d+) (%S+) (%S+) ?(%S*)$'
local now = tonumber(ARGV[6])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local at, process = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', entry)
local before = tonumber(ARGV[3])
if before > 0 and process and process ~= ARGV[2] and tonumber(at) > before then
  return { 1 }
end
local value = string.format('%.0f %s %s %s', now, ARGV[2], ARGV[4], ARGV[5])
redis.call('HSET', KEYS[1], ARGV[1], value)
redis.call('PEXPIRE', KEYS[1], 10000)
local reply = { 0, now }
local nodes = redis.call('HGETALL', KEYS[1])
for i = 1, #nodes, 2 do
  local at, _, state, policy = string.match(nodes[i + 1], entry)
  -- Announcements in the future are removed too: the clock may have been set back.
  if not at or tonumber(at) <= now - 5000 or tonumber(at) > now then
    redis.call('HDEL', KEYS[1], nodes[i])
  else
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = nodes[i], state, policy
  end
end
return reply
