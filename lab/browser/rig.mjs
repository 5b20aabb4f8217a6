// What the tests of the dashboard are made of: a server with some traffic, a browser, and pages that note every error.

import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs/promises";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";

const modules = createRequire(path.resolve("target/browser/node_modules/x.js"));
export const { chromium } = modules("playwright-core");
const AXE = await fs.readFile(modules.resolve("axe-core/axe.min.js"), "utf8");
const PROGRAM = process.env.TIDEGATE ?? "target/first/tidegate";
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

export const POLICY = `
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: per-client, key: [ip], limits: [40/s, 2000/min] }
  - { name: per-user, key: [user], limits: [5/min], tiers: { pro: { scale: 10 } } }
  - { name: writes, match: { method: [POST, PUT] }, key: [user], limits: [{ rate: 20/min, algorithm: sliding_weighted }] }
  - { name: per-device, key: [user, device], limits: [{ rate: 3/s, algorithm: leaky_bucket }] }
  - { name: search, match: { path: /search/** }, key: [user], limits: [2/min], shadow: true }
`;

/** A running tidegate. */
export class Server {
  static async start(policy = POLICY, flags = []) {
    const server = new Server();
    server.folder = await fs.mkdtemp(path.join(os.tmpdir(), "tidegate-browser-"));
    await fs.writeFile(path.join(server.folder, "policy.yaml"), policy);
    const listeners = ["--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--grpc-listen", "off", "--resp-listen", "off"];
    const data = path.join(server.folder, "data");
    const own = ["serve", "--policy", path.join(server.folder, "policy.yaml"), "--data-dir", data, "--log-format", "json"];
    server.process = spawn(PROGRAM, [...own, ...listeners, ...flags], { stdio: ["ignore", "ignore", "pipe"] });
    server.log = [];
    const lines = createInterface({ input: server.process.stderr });
    const place = new Promise((resolve, reject) => {
      lines.on("line", (line) => {
        server.log.push(line);
        const said = line.startsWith("{") ? JSON.parse(line) : {};
        if (said.message === "serving") resolve(said);
      });
      server.process.on("error", reject);
      server.process.on("exit", () => reject(new Error(server.log.join("\n"))));
    });
    const { http: asks, admin } = await place;
    server.asks = Number(asks.split(":").at(-1));
    server.admin = `http://${admin}`;
    server.operator = (await fs.readFile(path.join(data, "operator-token"), "utf8")).trim();
    server.reader = (await fs.readFile(path.join(data, "reader-token"), "utf8")).trim();
    return server;
  }

  /** Asks for decisions about requests with these attributes, all in one call; returns the answers. */
  async ask(list) {
    const body = JSON.stringify(list.map((attributes) => ({ attributes })));
    const answer = await fetch(`http://127.0.0.1:${this.asks}/v1/check`, { method: "POST", headers: { "content-type": "application/json" }, body });
    const answers = await answer.json();
    if (!Array.isArray(answers)) throw new Error(JSON.stringify(answers));
    return answers;
  }

  /** Some traffic of some users, of whom `alice` is refused. */
  async traffic() {
    const list = [];
    for (let user = 0; user < 12; user += 1) {
      for (let number = 0; number < 24 - user * 2; number += 1) {
        list.push({
          ip: `203.0.113.${user}`, user: user === 0 ? "alice" : `user-${user}`, method: number % 3 ? "GET" : "POST",
          path: number % 2 ? "/urls" : "/search/x", ...(number % 4 ? {} : { device: "phone" }),
        });
      }
    }
    return this.ask(list);
  }

  /** Sends a request to the admin API. */
  async operate(method, where, body) {
    const headers = { authorization: `Bearer ${this.operator}`, ...(body && { "content-type": "application/json" }) };
    const answer = await fetch(this.admin + where, { method, headers, body: body && JSON.stringify(body) });
    return answer.json();
  }

  /** Processor time so far, in seconds. */
  async cpu() {
    const stat = (await fs.readFile(`/proc/${this.process.pid}/stat`, "utf8")).split(") ")[1].split(" ");
    return (Number(stat[11]) + Number(stat[12])) / 100;
  }

  async stop() {
    this.process.removeAllListeners("exit");
    if (this.process.exitCode === null) {
      this.process.kill("SIGTERM");
      await once(this.process, "exit");
    }
    await fs.rm(this.folder, { recursive: true });
  }
}

export const browse = () => chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--enable-precise-memory-info"] });

/** A page of the dashboard that counts clicks, and notes what must not happen: errors, and what the security policy forbids. */
export class Dashboard {
  static async open(browser, server, { token = server.operator, width = 1360, height = 900, scheme = "light", first } = {}) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true });
    const board = new Dashboard();
    board.page = await context.newPage();
    board.wrong = [];
    board.clicks = 0;
    board.page.on("console", (message) => { if (message.type() !== "debug") board.wrong.push(`console: ${message.text()}`); });
    board.page.on("pageerror", (error) => board.wrong.push(`error: ${error.stack}`));
    board.page.on("dialog", (dialog) => { board.wrong.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
    await board.page.addInitScript(() => {
      globalThis.violations = [];
      addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.violatedDirective} ${event.sourceFile}:${event.lineNumber}`));
    });
    if (first) await first(board.page);
    await board.page.goto(`${server.admin}/dashboard/#token=${token}`);
    await board.page.waitForSelector("nav");
    return board;
  }

  /** Goes to a page without a click, as a bookmark does. */
  async go(name) {
    await this.page.evaluate((page) => { location.hash = `#/${page}`; }, name);
    await this.page.waitForSelector(`nav a[aria-current=page][href="#/${name}"]`);
  }

  async click(what) {
    this.clicks += 1;
    await this.page.locator(what).first().click();
  }

  /** Looks a client up on the page Person, which is open. */
  async lookUp(attribute, value) {
    await this.page.fill(`input[name="of ${attribute}"]`, value);
    await this.page.keyboard.press("Enter");
    await this.page.waitForSelector(".verdict");
  }

  text(what = "main") { return this.page.locator(what).first().innerText(); }

  /** Violations of accessibility rules, as axe-core finds them. axe runs by the debugger, which the security policy does not bind. */
  async axe() {
    await this.page.evaluate(AXE);
    const { violations } = await this.page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
    return violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`));
  }

  /** Everything that went wrong. */
  async faults() {
    return [...this.wrong, ...(await this.page.evaluate(() => globalThis.violations)).map((text) => `csp: ${text}`)];
  }

  async close() { await this.page.context().close(); }
}

/** Sends `count` checks over a few connections, many in flight on each; returns the processor time of each in microseconds. */
export async function load(server, count) {
  const body = JSON.stringify({ attributes: { ip: "203.0.113.200", user: "load", method: "GET", path: "/urls" } });
  const request = `POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
  const net = await import("node:net");
  const before = await server.cpu();
  const one = () => new Promise((resolve, reject) => {
    const socket = net.connect(server.asks, "127.0.0.1");
    let [sent, answered] = [0, 0];
    const more = (many) => { many = Math.min(many, count / 4 - sent); sent += many; if (many > 0) socket.write(request.repeat(many)); };
    socket.on("connect", () => more(64));
    socket.on("error", reject);
    socket.on("data", (bytes) => {
      let [found, at] = [0, -1];
      while ((at = bytes.indexOf("HTTP/1.1 ", at + 1)) >= 0) found += 1;
      answered += found;
      if (answered >= count / 4) { socket.destroy(); resolve(); } else more(found);
    });
  });
  await Promise.all([one(), one(), one(), one()]);
  return ((await server.cpu()) - before) * 1e6 / count;
}
