-- Announces a node (heartbeat), and returns how many nodes were announced within the last five seconds.
--
--   KEYS[1]  sorted set of the nodes, scored by the time of their last announcement in milliseconds
--   ARGV[1]  the name of the node
--   ARGV[2]  the time in milliseconds, if scripts cannot read it; if empty, the server's own time is used

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
-- Announcements in the future are removed too: the clock may have been set back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 5000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 1, '+inf')
redis.call('PEXPIRE', KEYS[1], 10000)
return redis.call('ZCARD', KEYS[1])
