-- Registers the shape of a tag, unless the tag belongs to another shape. A tag is a hash of its shape, so it is the same on
-- every node. Returns whether the tag belongs to this shape, and the epoch of the registry, which changes when the
-- registry is lost and created again.
--
--   KEYS[1]  the registry, a hash
--   ARGV[1]  the tag
--   ARGV[2]  the shape as text
--   ARGV[3]  time to live of the registry, in seconds
--   ARGV[4]  the field that holds the epoch
--   ARGV[5]  the epoch, if the registry is created now

local epoch = redis.call('HGET', KEYS[1], ARGV[4])
if not epoch then
  epoch = ARGV[5]
  redis.call('HSET', KEYS[1], ARGV[4], epoch)
end
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
elseif known ~= ARGV[2] then
  return { 0, epoch }
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return { 1, epoch }
