// Now: what the rules decide at this moment, how fast, and whether the store and the other nodes are well.

import { put } from "../api.js";
import { Chart } from "../chart.js";
import { ago, bytes, count, duration, figure, fine, moment, percent } from "../format.js";
import { live, OUTCOMES, seriesOf, useLive } from "../live.js";
import { Bar, Choice, Dialog, Expiry, Hidden, KeyButton, Name, Outcome, Panel, Reason, Sparkline, Table, terms, useAction } from "../parts.js";
import { html, useMemo, useState } from "../vendor/preact.js";

const LINES = [
  { label: "allowed", tone: "allow", fill: true }, { label: "delayed", tone: "delay" },
  { label: "refused", tone: "deny", fill: true }, { label: "would refuse", tone: "would" },
];
const LATENCY = [{ label: "median", tone: "allow", fill: true }, { label: "99 %", tone: "delay" }];
const READINGS = 60;

export function Now({ mayChange, open }) {
  const now = useLive();
  const [rule, choose] = useState(null);
  const [day, setDay] = useState(false);
  const [changing, change] = useState(null);
  const reading = now.history.read(["p50"], day)[0].at(-1);
  const decisions = useMemo(() => now.history.read(OUTCOMES.map((outcome) => seriesOf(rule, outcome)), day), [reading, rule, day]);
  const latency = useMemo(() => now.history.read(["p50", "p99"], day), [reading, day]);
  const range = html`<${Choice} label="Time shown" name="range" options=${[[false, "15 min"], [true, "1 day"]]} value=${day} onChange=${setDay} />`;
  return html`
    <${Figures} now=${now} />
    <div class="charts">
      <${Panel} title="Decisions per second" scope="this node" tools=${html`${rule !== null && html`
          <button type="button" class="chip" onClick=${() => choose(null)} aria-label=${`Show all rules, not only ${rule}`}><${Name}>${rule || "limits that clients name"}<//> ✕</button>`}${range}`}>
        <${Chart} label="Decisions per second" lines=${LINES} data=${decisions} format=${figure} height=${220} day=${day} empty="The first readings come within seconds." />
      <//>
      <${Panel} title="Time to decide" scope="this node">
        <${Chart} label="Time to decide" lines=${LATENCY} data=${latency} format=${fine} height=${220} day=${day} empty="Nothing was decided yet." />
      <//>
    </div>
    <${Panel} title="Rules" scope="this node">
      <${Rules} now=${now} rule=${rule} choose=${choose} change=${mayChange ? change : null} />
    <//>
    <div class="columns">
      <${Panel} title="Recent refusals" scope=${now.denials?.scope ?? "this node"}><${Refusals} denials=${now.denials} open=${open} /><//>
      <div>
        <${Panel} title="Store" scope="this node"><${Store} now=${now} /><//>
        <${Panel} title="Nodes" scope="all nodes"><${Nodes} nodes=${now.nodes} /><//>
      </div>
    </div>
    ${changing && html`<${RuleDialog} rule=${changing} onClose=${() => change(null)} />`}`;
}

/** The line of figures at the top. */
function Figures({ now }) {
  const rates = OUTCOMES.map((outcome) => now.rate(null, outcome));
  const [, delay, deny, would] = rates;
  const all = rates.reduce((sum, rate) => sum + rate, 0);
  const hashes = new Set((now.nodes?.nodes ?? []).map((node) => node.policy_hash));
  const fallback = now.rates?.get("by fallback") ?? 0;
  return html`<dl class="figures">
    <div><dt>decisions</dt><dd>${figure(all)}<small>/s</small></dd></div>
    <div class=${deny > 0 ? "deny" : ""}><dt>refused</dt><dd>${figure(deny)}<small>/s · ${percent(all > 0 ? deny / all : 0)}</small></dd></div>
    <div class=${delay > 0 ? "delay" : ""}><dt>delayed</dt><dd>${figure(delay)}<small>/s</small></dd></div>
    <div class=${would > 0 ? "would" : ""}><dt>would refuse</dt><dd>${figure(would)}<small>/s</small></dd></div>
    <div><dt>median · 99 %</dt><dd>${fine(now.rates?.get("p50"))}<small> · ${fine(now.rates?.get("p99"))}</small></dd></div>
    <div class=${fallback > 0 ? "deny" : ""}><dt>store</dt><dd>${fallback > 0 ? "does not answer" : "answers"}<small>${fallback > 0 ? ` · ${figure(fallback)}/s without it` : ""}</small></dd></div>
    <div class=${hashes.size > 1 ? "deny" : ""}><dt>nodes · policy</dt><dd>${count(now.nodes?.count ?? now.nodes?.nodes?.length)}<small> · ${hashes.size > 1 ? `${hashes.size} different` : html`<code>${[...hashes][0] ?? "–"}</code>`}</small></dd></div>
    <div><dt>up${now.status ? ` · version ${now.status.tidegate}` : ""}</dt><dd>${now.status ? duration(now.status.uptime_s * 1_000) : "–"}</dd></div>
  </dl>`;
}

function Rules({ now, rule, choose, change }) {
  const columns = [["rule", ""], ["counts by", ""], ["limits", ""], ["state", ""], ["allowed/s", "number"], ["delayed/s", "number"],
    ["refused/s", "number"], ["would refuse/s", "number"], ["refused, 2 min", ""], ...(change ? [[html`<${Hidden}>change<//>`, "number"]] : [])];
  const rows = now.rules.map((one) => {
    const shadow = one.enabled && one.shadow;
    const [state, tone] = one.enabled ? (shadow ? ["shadow", "would"] : ["in force", ""]) : ["off", "quiet"];
    const rate = (outcome, tone) => { const value = now.rate(one.rule, outcome); return html`<span class=${value > 0 ? tone : "quiet"}>${figure(value)}</span>`; };
    const [chosen, word] = [rule === one.rule, one.enabled && !shadow ? "Shadow…" : "Change…"];
    return {
      key: one.rule, className: chosen ? "chosen" : "",
      cells: [
        html`<button type="button" class="link" aria-pressed=${chosen} onClick=${() => choose(chosen ? null : one.rule)}><${Name}>${one.rule}<//></button>`,
        html`<${Name}>${one.key === "[]" ? "all requests" : one.key.slice(1, -1)}<//>`,
        one.limits.length > 0 ? one.limits.map((limit) => html`<span class="limit" key=${limit.id}>${limit.rate}</span>`) : "unlimited",
        html`<span class=${`tag ${tone}`}>${state}</span>`,
        rate("allow", ""), rate("delay", "delay"), rate("deny", "deny"), rate("would_deny", "would"),
        html`<${Sparkline} values=${now.history.recent(seriesOf(one.rule, shadow ? "would_deny" : "deny"), READINGS)} tone=${shadow ? "would" : "deny"} />`,
        ...(change ? [html`<button type="button" aria-label=${`${word} ${one.rule}`} onClick=${() => change(one)}>${word}</button>`] : []),
      ],
    };
  });
  return html`<${Table} label="Rules" columns=${columns} rows=${rows} empty="The policy has no rules." />`;
}

const STATES = [["force", "In force"], ["shadow", "Shadow"], ["off", "Off"], ["policy", "As the policy says"]];
const SWITCHES = {
  force: { enabled: true, shadow: false }, shadow: { enabled: true, shadow: true }, off: { enabled: false, shadow: null }, policy: { enabled: null, shadow: null },
};
const MEANING = {
  force: "The rule refuses what exceeds its limits.", shadow: "The rule counts and reports, and refuses nothing.",
  off: "The rule neither counts nor refuses.", policy: "The change by operators is removed.",
};

/** Puts a rule in shadow mode, in force, or off. */
export function RuleDialog({ rule, onClose }) {
  const [to, choose] = useState(rule.enabled && !rule.shadow ? "shadow" : "force");
  const [seconds, setSeconds] = useState(0);
  const [reason, setReason] = useState("");
  const [state, run] = useAction();
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      await put("/admin/v1/rules", { rule: rule.rule, ...SWITCHES[to], ...(to === "policy" ? {} : terms(seconds, reason)) });
      await live.refresh();
      onClose();
    });
  };
  return html`<${Dialog} title="Change a rule" onClose=${onClose}><form onSubmit=${submit}>
    <p><${Name}>${rule.rule}<//></p>
    <${Choice} label="State" name="state" options=${STATES} value=${to} onChange=${choose} />
    <p class="quiet">${MEANING[to]} On all nodes that share the store, from the next request on.</p>
    ${to !== "policy" && html`<div class="row"><${Expiry} value=${seconds} onChange=${setSeconds} /><${Reason} value=${reason} onInput=${setReason} /></div>`}
    <${Outcome} of=${state} />
    <div class="buttons"><button type="submit" class="primary" disabled=${state.busy}>Change</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </form><//>`;
}

function Refusals({ denials, open }) {
  const list = denials?.denials ?? denials?.keys ?? (Array.isArray(denials) ? denials : []);
  const columns = [["last", "time"], ["rule", ""], ["key", ""], ["times", "number"], ["since", "time"], ["passes again in", "number"]];
  const rows = list.map((one) => ({
    key: `${one.rule} ${JSON.stringify(one.key)}`,
    cells: [html`<span title=${moment(one.last_ms)}>${ago(one.last_ms)}</span>`,
      html`<${Name}>${one.rule || "–"}<//>${one.would_deny && html` <span class="tag would">shadow</span>`}`, html`<${KeyButton} of=${one.key} open=${open} />`,
      count(one.denials), moment(one.first_ms), one.retry_after_ms === null ? "never" : duration(one.retry_after_ms)],
  }));
  return html`<${Table} label="Recent refusals" columns=${columns} rows=${rows} empty=${denials === null ? "They are not kept: the setting top_keys.memory is 0." : "No client was refused lately."} />`;
}

/** Health of the store: who decides, errors, memory, circuit breakers. */
function Store({ now }) {
  const deciders = ["store", "cache", "lease", "fallback", "policy"].map((by) => [by, now.rates?.get(`by ${by}`) ?? 0]);
  const all = deciders.reduce((sum, [, rate]) => sum + rate, 0);
  const [used, budget] = [now.gauge("tidegate_memory_bytes", { kind: "used" }), now.gauge("tidegate_memory_bytes", { kind: "budget" })];
  const breakers = now.gauges.filter(({ name }) => name === "tidegate_breaker_state");
  const [errors, states] = [now.rates?.get("store errors") ?? 0, now.gauge("tidegate_states")];
  return html`<dl class="facts">
    <div><dt>decided by</dt><dd>${deciders.filter(([, rate]) => rate > 0).map(([by, rate]) => html`<span class=${by === "fallback" ? "deny pad" : "pad"}>${by} ${percent(rate / all)}</span>`)}${all > 0 ? "" : html`<span class="quiet">nothing is decided now</span>`}</dd></div>
    <div><dt>errors</dt><dd class=${errors > 0 ? "deny" : ""}>${figure(errors)}/s · ${count(now.status?.store_errors)} since the start</dd></div>
    ${budget > 0 && html`<div><dt>memory</dt><dd>${bytes(used)} of ${bytes(budget)} <${Bar} part=${used / budget} /></dd></div>`}
    ${states !== undefined && html`<div><dt>counters</dt><dd>${count(states)}${now.gauge("tidegate_overflow_total") > 0 ? " · some were evicted" : ""}</dd></div>`}
    ${breakers.map(({ labels, value }) => html`<div key=${labels.node}><dt><${Name}>${labels.node}<//></dt><dd class=${value > 0 ? "deny" : ""}>${value > 0 ? "does not answer" : "answers"}</dd></div>`)}
  </dl>`;
}

function Nodes({ nodes }) {
  const list = nodes?.nodes ?? [];
  const own = list.find((node) => node.this)?.policy_hash;
  const rows = list.map((node, at) => ({
    key: node.node ?? at,
    cells: [html`<${Name}>${node.node ?? "this node"}<//>${node.this && node.node ? html` <span class="tag">this</span>` : ""}`,
      html`<code>${node.policy_hash}</code>${node.policy_hash !== own ? html` <span class="tag deny">differs</span>` : ""}`,
      node.this ? "now" : `${duration(node.silent_ms)} ago`],
  }));
  return html`<${Table} label="Nodes" columns=${[["node", ""], ["policy", ""], ["heard", "number"]]} rows=${rows} empty="–" />`;
}
