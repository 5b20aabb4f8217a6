// Writes the pictures of docs/dashboard.md: `make test-browser PICTURES=docs/pictures`.
//
// Two minutes of traffic from forty users, of whom a few ask far more than the others.

import path from "node:path";
import { browse, Dashboard, Server } from "./rig.mjs";

const FOLDER = process.argv[2];
const SECONDS = Number(process.env.SECONDS ?? 120);
const POLICY = `version: 1
identity: { user: "header:x-user-id", trusted: [10.0.0.0/8] }
tiers: { default: free, known: [free, pro] }
rules:
  - { name: per-client, key: [ip], limits: [40/s, 2000/min] }
  - { name: per-user, key: [user], limits: [5/s], tiers: { pro: { scale: 10 } } }
  - { name: writes, match: { method: [POST, PUT] }, key: [user], limits: [{ rate: 20/min, algorithm: sliding_weighted }] }
  - { name: per-device, key: [user, device], limits: [{ rate: 3/s, algorithm: leaky_bucket }] }
  - { name: search-new, match: { path: /search/** }, key: [user], limits: [1/s], shadow: true }
`;

const [server, browser] = await Promise.all([Server.start(POLICY), browse()]);

/** The traffic of a tenth of a second. `turn` makes it swell and ebb. */
function requests(turn) {
  const many = Math.round(8 + 5 * Math.sin(turn / 70) + 3 * Math.sin(turn / 11));
  return Array.from({ length: many }, (_, number) => {
    const user = Math.floor(Math.random() ** 3 * 40);
    return {
      ip: `203.0.113.${user}`, user: user === 0 ? "alice" : `user-${user}`, method: (turn + number) % 5 ? "GET" : "POST",
      path: (turn + number) % 4 ? "/urls" : "/search/x", ...(number % 3 ? {} : { device: "phone" }),
    };
  });
}

await server.operate("PUT", "/admin/v1/overrides", { rule: "writes", key: { user: "alice" }, limits: ["60/min"], expires: 3_600, reason: "import of her address book" });
const boards = await Promise.all(["light", "dark"].map((scheme) => Dashboard.open(browser, server, { scheme, height: 980 })));
let turn = 0;
const traffic = setInterval(() => server.ask(requests((turn += 1))), 100);
const pause = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1_000); });
await pause(SECONDS);

const [light, dark] = boards;
const shoot = (board, name) => board.page.screenshot({ path: path.join(FOLDER, `dashboard-${name}.png`) });
await shoot(light, "now-light");
await shoot(dark, "now-dark");
await light.go("top");
await light.page.waitForSelector(".cards tbody tr");
await shoot(light, "top-light");
await light.go("person");
await light.lookUp("user", "alice");
await shoot(light, "person-light");
await light.go("policy");
await light.click("text=Copy the one in force");
const text = await light.page.inputValue("textarea");
await light.page.fill("textarea", `${text.replace("[5/s]", "[8/s]")}  - { name: at-night, key: [ip], limits: [100/h] }\n`);
await light.click("text=Check");
await light.page.waitForSelector("tr.added");
await shoot(light, "policy-light");
await light.go("playground");
await light.click("text=Bursts");
await light.page.waitForSelector(".strip .refuse");
await pause(1);
await shoot(light, "playground-light");

clearInterval(traffic);
await browser.close();
await server.stop();
