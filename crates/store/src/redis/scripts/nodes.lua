-- Writes down that a node is there, and answers how many were within the last five seconds.
--
--   KEYS[1]  the nodes, each with the time of its last call in milliseconds
--   ARGV[1]  the name of a node
--   ARGV[2]  the time in milliseconds, where scripts cannot read it; or nothing, then the server's own

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
-- Those of the future too: the clock may have been put back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 5000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 1, '+inf')
redis.call('PEXPIRE', KEYS[1], 10000)
return redis.call('ZCARD', KEYS[1])
