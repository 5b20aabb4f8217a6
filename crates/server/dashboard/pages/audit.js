// Audit: the changes that are in force, and who changed what and when.

import { get, put } from "../api.js";
import { csv, keyText, moment } from "../format.js";
import { live, useLive } from "../live.js";
import { Alert, Hidden, Key, Name, Outcome, Panel, save, Table, useAction, useLoad } from "../parts.js";
import { html, useState } from "../vendor/preact.js";

const LINES = 500;

export function Audit({ mayChange }) {
  const { data, failure, reload } = useLoad(() => get(`/admin/v1/audit?last=${LINES}`));
  const [filter, setFilter] = useState("");
  const lines = [...(data ?? [])].reverse().map((line) => ({ ...line, text: detailsText(line.details), reason: line.reason ?? line.details?.reason ?? "" }));
  const wanted = filter.trim().toLowerCase();
  const shown = lines.filter((line) => !wanted || `${line.who} ${line.what} ${line.peer} ${line.text} ${line.reason}`.toLowerCase().includes(wanted));
  const rows = shown.map((line, at) => ({
    key: line.chain ?? `${line.at_ms} ${at}`,
    cells: [moment(line.at_ms), html`<${Name}>${line.who}<//> <span class="quiet">${line.peer === "0.0.0.0" ? "" : line.peer}</span>`, line.what, html`<span class="details"><${Name}>${line.text}<//></span>`, html`<${Name}>${line.reason}<//>`],
  }));
  const download = () => save("tidegate-audit.csv", "text/csv", csv([["time", "who", "peer", "what", "details", "reason"],
    ...shown.map((line) => [new Date(line.at_ms).toISOString(), line.who, line.peer, line.what, line.text, line.reason])]));
  return html`
    <${InForce} mayChange=${mayChange} reload=${reload} />
    <${Alert}>${failure}<//>
    <${Panel} title="History" scope="this node" tools=${html`
        <input type="search" aria-label="Only lines with" placeholder="Only lines with…" value=${filter} onInput=${(event) => setFilter(event.target.value)} />
        <button type="button" onClick=${reload}>Read again</button><button type="button" onClick=${download} disabled=${shown.length === 0}>Save as CSV</button>`}>
      <${Table} label="Audit log" columns=${[["when", "time"], ["who", ""], ["what", ""], ["details", ""], ["reason", ""]]} rows=${rows} empty=${wanted ? "No line has it." : "No change was made yet."} />
    <//>`;
}

/** What a line says, as text. The version of the control document and empty parts are left out. */
function detailsText(details) {
  const shown = Object.entries(details ?? {}).filter(([name, value]) => !["version", "reason"].includes(name) && value !== null && !(Array.isArray(value) && value.length === 0));
  return shown.map(([name, value]) => `${name} ${valueText(name, value)}`).join(" · ");
}

function valueText(name, value) {
  if (name.endsWith("_at_ms") && typeof value === "number") return moment(value);
  if (typeof value !== "object") return String(value);
  if (Array.isArray(value)) return value.every((one) => typeof one !== "object") ? value.join(", ") : JSON.stringify(value);
  return Object.values(value).every((one) => typeof one !== "object") ? keyText(value) : JSON.stringify(value);
}

/** The changes by operators that are in force. Each can be removed. */
function InForce({ mayChange, reload }) {
  const { control } = useLive();
  const [state, run] = useAction();
  const remove = (path, body) => run(async () => {
    await put(path, body);
    await Promise.all([live.refresh(), reload()]);
    return "The change was removed.";
  });
  const row = (entry, name, what, path, body) => ({
    key: `${path} ${name} ${JSON.stringify(body)}`,
    cells: [html`<${Name}>${name}<//>`, what, entry.expires_at_ms ? moment(entry.expires_at_ms) : "until changed", html`<${Name}>${entry.by ?? ""}<//>`, html`<${Name}>${entry.reason ?? ""}<//>`,
      ...(mayChange ? [html`<button type="button" aria-label=${`Remove the change of ${name}`} disabled=${state.busy} onClick=${() => remove(path, body)}>Remove</button>`] : [])],
  });
  const switched = (rule) => [rule.enabled === false && "off", rule.enabled === true && "on", rule.shadow === true && "shadow", rule.shadow === false && "in force"].filter(Boolean).join(", ");
  const rows = control === null ? [] : [
    ...control.rules.map((one) => row(one, one.rule, switched(one), "/admin/v1/rules", { rule: one.rule, enabled: null, shadow: null })),
    ...control.overrides.map((one) => row(one, one.rule, html`<${Key} of=${one.key} /> ${[one.limits].flat().join(", ")}`, "/admin/v1/overrides", { rule: one.rule, key: one.key, limits: null })),
    ...control.tiers.map((one) => row(one, `${one.attribute}=${one.value}`, `tier ${one.tier}`, "/admin/v1/tiers", { attribute: one.attribute, value: one.value, tier: null })),
  ];
  return html`<${Panel} title="Changes in force" scope="all nodes">
    <${Outcome} of=${state} />
    <${Table} label="Changes in force" columns=${[["of", ""], ["change", ""], ["until", ""], ["by", ""], ["reason", ""], ...(mayChange ? [[html`<${Hidden}>remove<//>`, "number"]] : [])]} rows=${rows} empty="Only the policy decides." />
    ${control?.policy && html`<p class="note">A policy was uploaded. It is in force until the policy file changes.</p>`}
  <//>`;
}
