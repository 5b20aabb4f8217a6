"""redis-py: connects as it does, throttles once and a hundred times at once, and checks."""

import json
import sys

import redis

port, dialect = map(int, sys.argv[1:])
client = redis.Redis(host="127.0.0.1", port=port, protocol=dialect, client_name="py", decode_responses=True)
throttle = ["CL.THROTTLE", "k", 199, 1, 3600]
one = client.execute_command(*throttle)
pipeline = client.pipeline(transaction=False)
for _ in range(100):
    pipeline.execute_command(*throttle)
every = pipeline.execute()
check = client.execute_command("TG.CHECK", 1, "user", "u")
print(json.dumps({"throttle": one, "pipeline": [len(every), every[-1]], "check": check}))
