// node-redis: connects as it does, throttles once and a hundred times at once, and checks.

import { createRequire } from "node:module";

const [library, port, dialect] = process.argv.slice(2);
const { createClient } = createRequire(import.meta.url)(library);
const client = createClient({ url: `redis://127.0.0.1:${port}`, RESP: Number(dialect), name: "node" });
client.on("error", (error) => { throw error; });
await client.connect();
const throttle = ["CL.THROTTLE", "k", "199", "1", "3600"];
const one = await client.sendCommand(throttle);
// What is sent before anything is awaited goes out together.
const every = await Promise.all(Array.from({ length: 100 }, () => client.sendCommand(throttle)));
const check = await client.sendCommand(["TG.CHECK", "1", "user", "u"]);
console.log(JSON.stringify({ throttle: one, pipeline: [every.length, every.at(-1)], check }));
await client.close();
