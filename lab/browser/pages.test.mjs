// Every page, in light and dark, wide and narrow: no error, nothing that the security policy forbids, no violation of an accessibility
// rule, nothing wider than the window. And how large the page is, and that it keeps the token out of the address.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browse, Dashboard, Server } from "./rig.mjs";

const PAGES = ["now", "top", "person", "shadow", "policy", "playground", "audit"];
let [server, browser] = [];
before(async () => {
  [server, browser] = await Promise.all([Server.start(), browse()]);
  await server.traffic();
  await server.operate("PUT", "/admin/v1/overrides", { rule: "per-user", key: { user: "bob" }, limits: ["50/min"] });
});
after(async () => { await browser.close(); await server.stop(); });

/** Fills a page with something to see. */
async function fill(board, page) {
  if (page === "now") await board.page.waitForFunction(() => document.querySelectorAll(".chart .curve[d*=L]").length > 0);
  if (page === "top" || page === "shadow") await board.page.waitForSelector(".cards tbody tr, .empty");
  if (page === "person") await board.lookUp("user", "alice");
  if (page === "playground") await board.page.waitForSelector(".strip .pass");
  if (page === "audit") await board.page.waitForSelector("text=bob");
  if (page === "policy") {
    await board.click("text=Copy the one in force");
    const text = await board.page.inputValue("textarea");
    await board.page.fill("textarea", `${text.replace("5/min", "8/min")}  - { name: night, key: [ip], limits: [100/h] }\n`);
    await board.click("text=Check");
    await board.page.waitForSelector("tr.added");
  }
}

for (const [scheme, width] of [["light", 1360], ["dark", 1360], ["light", 320]]) {
  test(`every page is accessible and within its bounds: ${scheme}, ${width} px`, async () => {
    const board = await Dashboard.open(browser, server, { scheme, width });
    for (const page of PAGES) {
      await board.go(page);
      await server.traffic();
      await fill(board, page);
      assert.deepEqual(await board.axe(), [], `${page}: axe`);
      assert.equal(await board.page.evaluate(() => document.documentElement.scrollWidth), width, `${page}: wider than the window`);
    }
    assert.deepEqual(await board.faults(), []);
    await board.close();
  });
}

test("the dialog and the tables behind the charts are accessible", async () => {
  const board = await Dashboard.open(browser, server);
  await board.click("button[aria-label='Shadow… per-user']");
  assert.deepEqual(await board.axe(), []);
  await board.page.keyboard.press("Escape");
  await fill(board, "now");
  await board.click("details summary");
  await board.page.waitForSelector("details table tbody tr");
  assert.deepEqual(await board.axe(), []);
  assert.deepEqual(await board.faults(), []);
  await board.close();
});

test("every page can be reached and used by the keyboard", async () => {
  const board = await Dashboard.open(browser, server);
  const focused = () => board.page.evaluate(() => document.activeElement.textContent.trim());
  for (const title of ["Top keys", "Person", "Playground"]) {
    await board.page.evaluate(() => document.activeElement.blur());
    for (let steps = 0; steps < 12 && (await focused()) !== title; steps += 1) await board.page.keyboard.press("Tab");
    assert.equal(await focused(), title);
    await board.page.keyboard.press("Enter");
    await board.page.waitForFunction((page) => document.title.startsWith(page), title);
  }
  await board.page.focus(".drawing");
  const requests = () => board.page.getAttribute(".drawing", "aria-valuenow");
  const before = Number(await requests());
  await board.page.keyboard.press("ArrowUp");
  assert.equal(Number(await requests()), before + 1);
  await board.page.keyboard.press("ArrowRight");
  await board.page.keyboard.press("PageUp");
  assert.equal(Number(await requests()), 5);
  await board.close();
});

test("the token is neither in the address nor in any storage, and a wrong one opens nothing", async () => {
  const board = await Dashboard.open(browser, server);
  const kept = await board.page.evaluate(() => [location.href, JSON.stringify({ ...localStorage, ...sessionStorage }), document.cookie, history.length].join(" "));
  assert.ok(!kept.includes(server.operator), kept);
  const requests = [];
  board.page.on("request", (request) => requests.push(request.url()));
  await board.go("person");
  await board.lookUp("user", "alice");
  assert.ok(requests.length > 0 && !requests.some((url) => url.includes("alice") || url.includes(server.operator)), requests.join("\n"));
  await board.page.reload();
  await board.page.waitForSelector("input[name=token]");
  assert.deepEqual(await board.axe(), []);
  await board.page.fill("input[name=token]", `${server.reader}x`);
  await board.page.keyboard.press("Enter");
  await board.page.waitForSelector("text=This token is not valid.");
  await board.page.fill("input[name=token]", server.reader);
  await board.page.keyboard.press("Enter");
  await board.page.waitForSelector("nav");
  await board.close();
});

test("a reader sees everything and is offered no change", async () => {
  const board = await Dashboard.open(browser, server, { token: server.reader });
  for (const page of PAGES) {
    await board.go(page);
    if (page !== "policy") await fill(board, page);
    const offered = await board.page.locator("main button:visible").allInnerTexts();
    const changes = offered.filter((text) => /Shadow…|Change…|Enforce…|Reset|override|Remove|Put in force/.test(text));
    assert.deepEqual(changes, [], page);
  }
  assert.deepEqual(await board.faults(), []);
  await board.close();
});

test("the files of the page have at most 60 kB, compressed", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  const sizes = new Map();
  page.on("response", async (answer) => sizes.set(new URL(answer.url()).pathname, Number((await answer.allHeaders())["content-length"])));
  await page.goto(`${server.admin}/dashboard/`);
  await page.waitForSelector("input[name=token]");
  const all = [...sizes.values()].reduce((sum, size) => sum + size, 0);
  console.log(`dashboard: ${(all / 1_000).toFixed(1)} kB in ${sizes.size} files, compressed`);
  assert.ok(sizes.size > 10 && all < 60_000, `${all}`);
  await context.close();
});
