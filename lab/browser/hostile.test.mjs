// Names that clients and policies choose are text, wherever they are shown: nothing of them is executed, and the text of the page is what
// was sent, character by character.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browse, Dashboard, Server } from "./rig.mjs";

const HOSTILE = [
  "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<svg/onload=alert(1)>", "\"><img src=x onerror=alert(1)>",
  "'><script>alert(1)</script>", "'+alert(1)+'", "\"-alert(1)-\"", "`${alert(1)}`", "${alert(1)}", "{{7*7}}", "{{constructor.constructor('alert(1)')()}}",
  "javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,<script>alert(1)</script>", "</title><script>alert(1)</script>", "</textarea><script>alert(1)</script>",
  "</style><script>alert(1)</script>", "</script><script>alert(1)</script>", "<!--<script>alert(1)//-->", "]]><script>alert(1)</script>",
  "<iframe srcdoc='<script>alert(1)</script>'>", "<object data=javascript:alert(1)>", "<a href=javascript:alert(1)>x</a>", "<form action=javascript:alert(1)><button>x</form>",
  "<body onload=alert(1)>", "<details open ontoggle=alert(1)>", "<math><mtext><script>alert(1)</script>", "<template><script>alert(1)</script></template>",
  "<style>*{display:none}</style>", "<base href=//evil.example>", "<meta http-equiv=refresh content=0;url=//evil.example>", "<link rel=stylesheet href=//evil.example>",
  "&lt;script&gt;alert(1)&lt;/script&gt;", "%3Cscript%3Ealert(1)%3C/script%3E", "\\u003cscript\\u003e", "\u202eevil\u202c", "\u2028alert(1)\u2029", "\u{1f600}\u200d\u{1f525}",
  "__proto__", "constructor", "=HYPERLINK(\"http://evil.example\")", "#token=stolen", "a".repeat(900),
];

/** Rule names that the policy language accepts are letters, digits and some punctuation; a description and a flag may be any text. */
const POLICY = `
version: 1
rules:
  - name: per-user
    description: ${JSON.stringify(HOSTILE[0])}
    key: [user]
    limits: [2/h]
  - name: in-shadow
    description: ${JSON.stringify(HOSTILE[4])}
    key: [user]
    limits: [1/h]
    shadow: true
`;

let [server, browser] = [];
before(async () => {
  [server, browser] = await Promise.all([Server.start(POLICY), browse()]);
  for (let turn = 0; turn < 3; turn += 1) await server.ask(HOSTILE.map((user) => ({ user })));
  for (const user of HOSTILE.slice(0, 40)) {
    await server.operate("PUT", "/admin/v1/overrides", { rule: "per-user", key: { user }, limits: ["3/h"], reason: user.slice(0, 200), expires: 3_600 });
  }
});
after(async () => { await browser.close(); await server.stop(); });

const names = (board) => board.page.evaluate(() => [...document.querySelectorAll(".name")].map((name) => name.textContent));
const isSound = async (board) => {
  assert.deepEqual(await board.faults(), []);
  const strange = await board.page.evaluate(() => document.querySelectorAll("script:not([src$='main.js']), iframe, object, embed, base, #app img, #app style, [onerror], [onload], [style]").length);
  assert.equal(strange, 0, "an element that the page does not make");
};

test("hostile keys are text among the top keys, in the shadow report and among the refusals", async () => {
  const board = await Dashboard.open(browser, server);
  await board.page.waitForSelector("section[aria-label='Recent refusals'] tbody tr");
  await isSound(board);
  await board.go("top");
  await board.click("label:has-text('100') span");
  await board.page.waitForFunction(() => document.querySelectorAll(".cards tbody tr").length > 20);
  // The server itself cuts long values and replaces characters that cannot be seen; the page shows what the server answers.
  const { rules } = await server.operate("GET", "/admin/v1/top?by=denied&last=100");
  const answered = rules.find(({ rule }) => rule === "per-user").keys.map(({ key }) => key.user);
  assert.ok(HOSTILE.filter((user) => answered.includes(user)).length > 30, answered.join("\n"));
  const shown = new Set(await names(board));
  assert.deepEqual(answered.filter((user) => !shown.has(user)), []);
  await isSound(board);
  await board.go("shadow");
  await board.page.waitForSelector(".cards tbody tr");
  await isSound(board);
  await board.close();
});

test("hostile people are looked up, reset and named as they are", async () => {
  const board = await Dashboard.open(browser, server);
  await board.go("person");
  for (const user of HOSTILE.filter((text) => !/[\u2028\u2029]/.test(text))) {
    await board.lookUp("user", user);
    await board.page.waitForFunction((text) => document.querySelector(".verdict .key .name")?.textContent === text, user);
  }
  await isSound(board);
  assert.equal(new URL(board.page.url()).hash, "#/person");
  await board.close();
});

test("hostile reasons are text in the audit log and among the changes", async () => {
  const board = await Dashboard.open(browser, server);
  await board.go("audit");
  await board.page.waitForSelector("section[aria-label=History] tbody tr");
  await board.page.waitForSelector("section[aria-label='Changes in force'] tbody tr");
  const shown = new Set(await names(board));
  assert.deepEqual(HOSTILE.slice(0, 36).filter((user) => !shown.has(user)), []);
  await isSound(board);
  await board.close();
});

test("a hostile policy is text in both views, in problems and in the difference", async () => {
  const board = await Dashboard.open(browser, server);
  await board.go("policy");
  await board.page.waitForSelector(".code >> text=<script>alert(1)</script>");
  await board.page.fill("textarea", POLICY.replace("limits: [2/h]", `limits: [${JSON.stringify(HOSTILE[1])}]`));
  await board.click("text=Check");
  await board.page.waitForSelector(".problems li");
  await board.page.fill("textarea", POLICY.replace(JSON.stringify(HOSTILE[0]), JSON.stringify(HOSTILE[2])));
  await board.click("text=Check");
  await board.page.waitForSelector("tr.added");
  assert.deepEqual((await board.faults()).filter((fault) => !fault.includes("status of 400")), []);
  await board.close();
});

test("the page cannot be framed, and the policy forbids markup from text", async () => {
  const answer = await fetch(`${server.admin}/dashboard/`);
  assert.match(answer.headers.get("content-security-policy"), /frame-ancestors 'none'/);
  const board = await Dashboard.open(browser, server);
  const refused = await board.page.evaluate(() => { try { document.body.innerHTML = "<b>x</b>"; return false; } catch { return true; } });
  assert.ok(refused, "trusted types are in force");
  const run = await board.page.evaluate(() => { const script = document.createElement("script"); try { script.text = "window.ran = 1"; document.body.append(script); } catch { /* refused */ } return window.ran; });
  assert.equal(run, undefined);
  await board.close();
});
