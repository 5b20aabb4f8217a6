// What operators do at night: the ten questions, counted in clicks; reset and override to their effect; a policy; and what is saved.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import { after, before, test } from "node:test";
import { browse, Dashboard, Server } from "./rig.mjs";

let [server, browser] = [];
before(async () => {
  [server, browser] = await Promise.all([Server.start(), browse()]);
  await server.traffic();
});
after(async () => { await browser.close(); await server.stop(); });

const ALICE = { ip: "203.0.113.250", user: "alice", method: "GET", path: "/urls" };
const isAllowed = async (attributes) => (await server.ask([attributes]))[0].allowed;

/** Clicks on alice in the list of recent refusals. */
async function openAlice(board) {
  await board.click("section[aria-label='Recent refusals'] tr:has-text('per-user') button[aria-label='user alice: look up']");
  await board.page.waitForSelector(".verdict");
}

const QUESTIONS = {
  "Why is alice refused?": async (board) => { await openAlice(board); assert.match(await board.text(".verdict"), /5 of 5 used/); },
  "By which rule?": async (board) => { await openAlice(board); assert.match(await board.text(".verdict h2"), /Refused by .*per-user/); },
  "Since when?": async (board) => { await openAlice(board); assert.match(await board.text(".verdict"), /since \d\d:\d\d:\d\d/); },
  "Raise her limit for an hour": async (board) => {
    await openAlice(board);
    await board.page.selectOption("form.override select >> nth=0", "per-user");
    await board.page.fill("form.override input >> nth=0", "500/min");
    await board.page.fill("form.override input >> nth=1", "launch day");
    await board.click("text=Set override");
    await board.page.waitForSelector("text=The override 500/min of per-user is in force.");
    const { overrides } = await server.operate("GET", "/admin/v1/control");
    assert.deepEqual(overrides.map(({ key, limits, reason }) => ({ key, limits, reason })), [{ key: { user: "alice" }, limits: ["500/min"], reason: "launch day" }]);
    const hour = overrides[0].expires_at_ms - Date.now();
    assert.ok(hour > 3_500_000 && hour <= 3_600_000, `${hour}`);
    assert.ok(await isAllowed(ALICE));
    await board.click("text=Remove override");
    await board.page.waitForSelector("text=The override of per-user was removed.");
    board.clicks -= 1;
  },
  "Reset her": async (board) => {
    await openAlice(board);
    await board.click("text=Reset all");
    await board.page.waitForSelector("text=/Reset \\d+ counters? of .*per-user/");
    assert.ok(await isAllowed(ALICE));
    await server.traffic();
  },
  "Who are the top offenders?": async (board) => {
    await board.click("nav >> text=Top keys");
    await board.page.waitForSelector("section[aria-label='per-user'] tbody tr:first-child >> text=alice");
  },
  "Put a rule in shadow mode": async (board) => {
    await board.click("button[aria-label='Shadow… per-user']");
    await board.click("dialog >> text=Change >> nth=-1");
    await board.page.waitForSelector("section[aria-label=Rules] tr:has-text('per-user') >> text=shadow");
    assert.ok(await isAllowed(ALICE));
  },
  "What would it refuse?": async (board) => {
    await board.click("nav >> text=Shadow");
    await board.page.waitForSelector("section[aria-label='What would have been refused'] tr:has-text('per-user')");
    await board.page.waitForSelector("section[aria-label='search'] tbody tr >> text=alice");
  },
  "Which policy does each node have?": async (board) => {
    const { policy_hash: hash } = await server.operate("GET", "/admin/v1/status");
    await board.page.waitForSelector(`section[aria-label=Nodes] >> text=${hash}`);
  },
  "How is the store?": async (board) => { await board.page.waitForSelector("dl.figures >> text=answers"); await board.page.waitForSelector("section[aria-label=Store] >> text=memory"); },
};

for (const [question, answer] of Object.entries(QUESTIONS)) {
  test(`${question} At most two clicks`, async () => {
    await server.traffic();
    const board = await Dashboard.open(browser, server);
    await answer(board);
    console.log(`${board.clicks} ${board.clicks === 1 ? "click " : "clicks"}  ${question}`);
    assert.ok(board.clicks <= 2);
    assert.deepEqual(await board.faults(), []);
    await board.close();
  });
}

test("one rule is reset alone, and the answer names what it does not cover", async () => {
  await server.operate("PUT", "/admin/v1/rules", { rule: "per-user", enabled: null, shadow: null });
  await server.traffic();
  const board = await Dashboard.open(browser, server);
  await board.go("person");
  await board.lookUp("user", "alice");
  assert.match(await board.text("section[aria-label='Not complete']"), /per-device needs device/);
  await board.click("button[aria-label='Reset writes']");
  await board.page.waitForSelector("text=/Reset \\d+ counters?/");
  assert.ok(!(await isAllowed(ALICE)), "per-user was not reset");
  await board.click("text=Reset all");
  await board.page.waitForSelector("text=/Not covered: .*per-device/");
  assert.ok(await isAllowed(ALICE));
  await board.close();
});

test("a policy is checked, compared and put in force; a wrong one leads to its line", async () => {
  const board = await Dashboard.open(browser, server);
  await board.go("policy");
  await board.click("text=Copy the one in force");
  const text = await board.page.inputValue("textarea");
  await board.page.fill("textarea", text.replace("key: [ip]", "key: [ip"));
  await board.click("text=Check");
  await board.page.waitForSelector("text=Not valid");
  await board.click(".problems button");
  assert.equal(await board.page.evaluate(() => document.activeElement.tagName), "TEXTAREA");
  await board.page.fill("textarea", text.replace("40/s", "41/s"));
  await board.click("text=Check");
  await board.page.waitForSelector("tr.removed >> text=40/s");
  await board.page.waitForSelector("tr.added >> text=41/s");
  await board.click("text=Put in force…");
  await board.click("dialog >> text=Put in force >> nth=-1");
  await board.page.waitForSelector("text=The candidate is in force.");
  assert.match(await (await fetch(`${server.admin}/admin/v1/policy`, { headers: { authorization: `Bearer ${server.reader}` } })).text(), /41\/s/);
  await board.go("audit");
  await board.page.waitForSelector("section[aria-label=History] tr:has-text('policy')");
  assert.deepEqual(await board.faults().then((faults) => faults.filter((fault) => !fault.includes("status of 400"))), []);
  await board.close();
});

test("the playground shows what the server decides about a drawn trace", async () => {
  const board = await Dashboard.open(browser, server);
  await board.go("playground");
  await board.page.waitForSelector(".strip >> text=12 pass, at most 12 in a period");
  await board.click("text=Clear");
  await board.page.waitForSelector(".strip >> text=0 pass");
  const box = await board.page.locator(".drawing").boundingBox();
  await board.page.mouse.move(box.x + 50, box.y + box.height / 2);
  await board.page.mouse.down();
  await board.page.mouse.move(box.x + 200, box.y + box.height / 2, { steps: 10 });
  await board.page.mouse.up();
  await board.page.waitForFunction(() => document.querySelectorAll(".strip .refuse").length > 0);
  assert.deepEqual(await board.faults(), []);
  await board.close();
});

test("a saved file has no formulas", async () => {
  await server.ask(Array.from({ length: 9 }, () => ({ user: '=HYPERLINK("http://evil.example")' })));
  const board = await Dashboard.open(browser, server);
  await board.go("top");
  await board.page.waitForSelector(".cards tbody tr");
  const [download] = await Promise.all([board.page.waitForEvent("download"), board.click("text=Save as CSV")]);
  const saved = await fs.readFile(await download.path(), "utf8");
  const cells = saved.split("\r\n").flatMap((line) => line.match(/"(?:[^"]|"")*"/g) ?? []);
  assert.ok(saved.includes("HYPERLINK"), saved);
  assert.deepEqual(cells.filter((cell) => /^"[=+\-@]/.test(cell)), []);
  await board.close();
});

test("a server that stops is noticed, and noticed again when it is back", async () => {
  const board = await Dashboard.open(browser, server);
  await board.page.waitForSelector(".state >> text=live");
  await board.page.context().setOffline(true);
  await board.page.waitForSelector(".state.bad");
  await board.page.context().setOffline(false);
  await board.page.waitForSelector(".state:not(.bad) >> text=live", { timeout: 60_000 });
  await board.close();
});
