-- Gives a shape its tag, the same to whoever asks, so that a state can say in three digits what it was
-- written under.
--
--   KEYS[1]  the registry: from shapes to tags and back
--   ARGV[1]  the shape as text
--   ARGV[2]  for how many seconds the registry is kept: longer than any state

local tag = redis.call('HGET', KEYS[1], 's:' .. ARGV[1])
if not tag then
  tag = redis.call('HINCRBY', KEYS[1], 'last', 1)
  if tag > 999 then
    redis.call('HINCRBY', KEYS[1], 'last', -1)
    return 0
  end
  redis.call('HSET', KEYS[1], 's:' .. ARGV[1], tag, 't:' .. tag, ARGV[1])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return tonumber(tag)
