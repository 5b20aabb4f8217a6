// Person: what one client has used of its limits, since when it is refused and by which rule; reset and override.
//
// The attributes are in the memory of the page and in the body of requests, never in the address.

import { post, put } from "../api.js";
import { ago, attributesOf, count, duration, keyText, moment } from "../format.js";
import { live, useLive } from "../live.js";
import { Alert, Bar, Expiry, Field, Hidden, Key, KeyButton, Name, Outcome, Panel, Reason, Table, terms, useAction, useEvery, useLoad } from "../parts.js";
import { html, useState } from "../vendor/preact.js";

const AGAIN_MS = 5_000;

export function Person({ mayChange, open, person, look }) {
  const { data, failure, reload } = useLoad(() => (person ? post("/admin/v1/who", { attributes: person.attributes }) : null), [person]);
  useEvery(AGAIN_MS, () => { if (person) reload(); }, [person]);
  return html`
    <${Lookup} person=${person} look=${look} />
    <${Alert}>${failure}<//>
    ${person === null && html`<p class="quiet empty">Name what you know of the client, such as its user or its address. The answer is exact for every rule that counts by these attributes.</p>`}
    ${data && html`<${View} who=${data} attributes=${person.attributes} mayChange=${mayChange} open=${open} reload=${reload} />`}`;
}

/** Attributes that rules count by, and one whose name is free. */
function Lookup({ person, look }) {
  const { rules } = useLive();
  const known = [...new Set(["user", "ip", ...rules.flatMap((rule) => attributesOf(rule.key))])];
  const others = Object.keys(person?.attributes ?? {}).filter((name) => !known.includes(name));
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target);
    const typed = [...known, ...others].map((name) => [name, fields.get(`of ${name}`)]);
    const pairs = [...typed, [fields.get("name"), fields.get("value")]];
    const given = pairs.map(([name, value]) => [name?.trim(), value]).filter(([name, value]) => name && value);
    if (given.length > 0) look({ attributes: Object.fromEntries(given) });
  };
  return html`<form class="lookup" onSubmit=${submit} aria-label="Look up a client" key=${JSON.stringify(person?.attributes ?? null)}>
    ${[...known, ...others].map((name) => html`<${Field} key=${name} label=${name}>
      <input type="text" name=${`of ${name}`} autocomplete="off" spellcheck="false" defaultValue=${person?.attributes?.[name] ?? ""} /><//>`)}
    <${Field} label="another"><span class="pair-of-fields"><input type="text" name="name" autocomplete="off" spellcheck="false" aria-label="Name of another attribute" placeholder="name" />
      <input type="text" name="value" autocomplete="off" spellcheck="false" aria-label="Its value" placeholder="value" /></span><//>
    <button type="submit" class="primary">Look up</button>
  </form>`;
}

function View({ who, attributes, mayChange, open, reload }) {
  const refused = who.rules.filter((rule) => isRefused(rule));
  const [state, run] = useAction();
  const reset = (body) => run(async () => {
    const done = await post("/admin/v1/reset", { attributes, ...body });
    await reload();
    return resetText(done);
  });
  return html`
    <div class="verdict ${refused.length > 0 ? "deny" : "allow"}">
      <h2>${refused.length > 0 ? html`Refused by ${refused.map((rule, at) => html`${at > 0 && ", "}<${Name}>${rule.rule}<//>`)}` : "Not refused by these rules"}</h2>
      <p>${refused.map((rule) => html`<span class="line">${reason(rule)}</span>`)}
        <span class="line quiet"><${Key} of=${attributes} /> · ${who.tier ? html`tier <b><${Name}>${who.tier.name}<//></b>${who.tier.from === "operator" ? ", set by an operator" : ""}${ends(who.tier)}` : "no tier"} · policy <code>${who.policy_hash}</code> · <span class="scope">${who.scope}</span>${who.denials_scope && who.denials_scope !== who.scope && html` · refusals of <span class="scope">${who.denials_scope}</span>`}</span></p>
      ${mayChange && html`<button type="button" onClick=${() => reset({})} disabled=${state.busy}>Reset all</button>`}
    </div>
    <${Outcome} of=${state} />
    <${Panel} title="Limits" scope=${who.scope}>
      <${Limits} rules=${who.rules} reset=${mayChange ? reset : null} busy=${state.busy} />
      ${mayChange && who.rules.length > 0 && html`<${OverrideForm} rules=${who.rules} first=${refused[0] ?? who.rules[0]} reload=${reload} />`}
    <//>
    <${Gaps} who=${who} open=${open} />`;
}

/** A refusal is news for so long: a limit per second is unused again sooner than an operator can look. */
const LATELY_MS = 60_000;
const isRefused = (rule) => rule.enabled && !rule.shadow && (rule.limits.some((limit) => limit.allowed === false) || Date.now() - (rule.denied?.last_ms ?? -Infinity) < LATELY_MS);
const ends = (entry) => (entry.expires_at_ms ? `, until ${moment(entry.expires_at_ms)}` : "");

/** Why and since when a rule refuses. */
function reason(rule) {
  const limit = rule.limits.find((one) => one.allowed === false) ?? rule.limits[0];
  const since = rule.denied ? ` It has refused ${count(rule.denied.denials)} requests since ${moment(rule.denied.first_ms)}, the last ${ago(rule.denied.last_ms)}.` : "";
  const wait = rule.denied?.retry_after_ms;
  const use = limit ? ` ${count(limit.used)} of ${count(limit.limit)} used (${limit.rate}).` : "";
  return `${rule.rule}:${use}${since}${wait > 0 ? ` A request passes in ${duration(wait)}.` : ""}`;
}

function resetText(done) {
  const counters = (states) => `${count(states)} ${states === 1 ? "counter" : "counters"}`;
  const rules = (done.rules ?? []).filter((rule) => rule.states > 0).map((rule) => rule.rule);
  const left = (done.not_covered ?? []).map((rule) => rule.rule);
  return `Reset ${counters(done.states)}${rules.length > 0 ? ` of ${rules.join(", ")}` : ""}.${left.length > 0 ? ` Not covered: ${left.join(", ")}.` : ""}`;
}

/** What the answer cannot say, because attributes are missing. */
function Gaps({ who, open }) {
  if (who.complete) return null;
  const rows = (who.seen ?? []).map((one) => ({
    key: `${one.rule} ${keyText(one.key)}`,
    cells: [html`<${Name}>${one.rule}<//>`, html`<${KeyButton} of=${one.key} open=${open} />`, count(one.denied?.denials), moment(one.denied?.first_ms), ago(one.denied?.last_ms)],
  }));
  return html`<${Panel} title="Not complete" scope=${who.scope}>
    <p>These rules count by more than what was given: ${(who.not_covered ?? []).map((rule, at) => html`${at > 0 && "; "}<${Name}>${rule.rule}<//> needs ${(rule.needs ?? []).join(", ")}`)}.</p>
    ${rows.length > 0 && html`<p class="quiet">Keys among the recent refusals that agree with it:</p>
      <${Table} label="Matching keys" columns=${[["rule", ""], ["key", ""], ["refused", "number"], ["since", "time"], ["last", "time"]]} rows=${rows} empty="" />`}
  <//>`;
}

/** A row for each limit of each rule. */
function Limits({ rules, reset, busy }) {
  const columns = [["rule", ""], ["key", ""], ["limit", ""], [html`<${Hidden}>part<//>`, "wide"], ["used", "number"], ["remaining", "number"], ["unused again in", "number"], ...(reset ? [[html`<${Hidden}>reset<//>`, "number"]] : [])];
  const rows = rules.flatMap((rule) => (rule.limits.length > 0 ? rule.limits : [null]).map((limit, at) => ({
    key: `${rule.rule} ${limit?.id}`,
    cells: [at === 0 && html`<${RuleCell} rule=${rule} />`, at === 0 && html`<${Key} of=${rule.key} />`, ...limitCells(rule, limit),
      ...(reset ? [at === 0 && html`<button type="button" aria-label=${`Reset ${rule.rule}`} disabled=${busy} onClick=${() => reset({ rule: rule.rule })}>Reset</button>`] : [])],
  })));
  return html`<${Table} label="Limits" columns=${columns} rows=${rows} empty="No rule counts by these attributes alone." />`;
}

function limitCells(rule, limit) {
  if (limit === null) return ["unlimited", "", "", "", ""];
  const tone = limit.allowed === false ? (rule.shadow ? "would" : "deny") : "";
  return [html`<span class="limit">${limit.rate}</span>`, html`<${Bar} part=${limit.limit > 0 ? limit.used / limit.limit : 0} tone=${tone} />`,
    html`<span class=${tone}>${count(limit.used)} of ${count(limit.limit)}</span>`, count(limit.remaining), limit.reset_ms > 0 ? duration(limit.reset_ms) : "now"];
}

/** The name of a rule, what is special about it for this client, and since when it refuses. */
function RuleCell({ rule }) {
  const tags = [[isRefused(rule) && "refuses", "deny"], [rule.from === "override" && "override", "accent"], [rule.from === "tier" && "by tier", ""], [rule.shadow && "shadow", "would"], [!rule.enabled && "off", "quiet"]];
  const { denied, override } = rule;
  return html`<${Name}>${rule.rule}<//> ${tags.filter(([text]) => text).map(([text, tone]) => html`<span class=${`tag ${tone}`}>${text}</span> `)}
    ${rule.only_when && html`<small class="line quiet">only when <${Name}>${rule.only_when}<//></small>`}
    ${denied && html`<small class="line quiet">${rule.shadow ? "would have refused" : "refused"} ${count(denied.denials)} times since ${moment(denied.first_ms)}, last ${ago(denied.last_ms)}</small>`}
    ${override && html`<small class="line quiet">override ${limitsText(override.limits)}${override.by ? ` by ${override.by}` : ""}${override.since_ms ? ` since ${moment(override.since_ms)}` : ""}${ends(override)}${override.reason && html`: “<${Name}>${override.reason}<//>”`}</small>`}`;
}

const limitsText = (limits) => (Array.isArray(limits) ? limits.join(", ") : String(limits ?? "none"));

/** Sets other limits for the key of one rule, for a time. The form is open, so it takes one click. */
function OverrideForm({ rules, first, reload }) {
  const [name, choose] = useState(first.rule);
  const [limits, setLimits] = useState("");
  const [seconds, setSeconds] = useState(3_600);
  const [why, setWhy] = useState("");
  const [state, run] = useAction();
  const rule = rules.find((one) => one.rule === name) ?? first;
  const set = (value) => run(async () => {
    const body = { rule: rule.rule, key: rule.key, limits: value, ...(value === null ? {} : terms(seconds, why)) };
    await put("/admin/v1/overrides", body);
    await Promise.all([reload(), live.refresh()]);
    return value === null ? `The override of ${rule.rule} was removed.` : `The override ${limitsText(value)} of ${rule.rule} is in force.`;
  });
  const submit = (event) => {
    event.preventDefault();
    const text = limits.trim();
    if (text) set(text === "unlimited" ? text : text.split(",").map((limit) => limit.trim()).filter(Boolean));
  };
  const example = rule.limits[0] ? `${rule.limits[0].rate.split(" ")[0]}, or unlimited` : "100/s";
  return html`<form class="override row" onSubmit=${submit} aria-label="Override">
    <${Field} label="Other limits of the rule"><select value=${rule.rule} onChange=${(event) => choose(event.target.value)}>${rules.map((one) => html`<option key=${one.rule} value=${one.rule} selected=${one === rule}>${one.rule}</option>`)}</select><//>
    <${Field} label="Limits"><input type="text" required placeholder=${example} value=${limits} onInput=${(event) => setLimits(event.target.value)} spellcheck="false" autocomplete="off" /><//>
    <${Expiry} value=${seconds} onChange=${setSeconds} /><${Reason} value=${why} onInput=${setWhy} />
    <button type="submit" class="primary" disabled=${state.busy}>Set override</button>
    ${rule.override && html`<button type="button" disabled=${state.busy} onClick=${() => set(null)}>Remove override</button>`}
    <${Outcome} of=${state} />
  </form>`;
}
