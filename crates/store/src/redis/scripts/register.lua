-- Writes down which shape a tag stands for, unless it stands for another. A tag is computed from its shape, so
-- it is the same on every node, also after the registry was lost.
--
--   KEYS[1]  the registry
--   ARGV[1]  the tag
--   ARGV[2]  the shape as text
--   ARGV[3]  for how many seconds the registry is kept from now on

local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
elseif known ~= ARGV[2] then
  return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
