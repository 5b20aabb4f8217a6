-- Writes down which shape a tag stands for, unless it stands for another. A tag is computed from its shape, so
-- it is the same on every node. Answers whether the tag is the shape's, and the name of the registry, which changes
-- when it is lost and begun anew.
--
--   KEYS[1]  the registry
--   ARGV[1]  the tag
--   ARGV[2]  the shape as text
--   ARGV[3]  for how many seconds the registry is kept from now on
--   ARGV[4]  the field with the name of the registry
--   ARGV[5]  its name, if it is begun now

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
