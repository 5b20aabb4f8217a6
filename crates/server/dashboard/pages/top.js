// Top keys: the keys of each rule that were refused, or that asked, most often of late.

import { get } from "../api.js";
import { count, csv, duration, keyText, moment } from "../format.js";
import { Alert, Bar, Choice, Hidden, KeyButton, Name, Panel, save, Table, useEvery, useLoad } from "../parts.js";
import { html, useState } from "../vendor/preact.js";

const BY = [["denied", "Refused"], ["used", "Used"], ["would_deny", "Would refuse"]];
const AGAIN_MS = 10_000;

/** Reads the top keys again and again while the page is visible. */
export function useTop(by, last) {
  const top = useLoad(() => get(`/admin/v1/top?by=${by}&last=${last}`), [by, last]);
  useEvery(AGAIN_MS, top.reload, [by, last]);
  return top;
}

export function Top({ open }) {
  const [by, choose] = useState("denied");
  const [last, setLast] = useState(20);
  const { data, failure } = useTop(by, last);
  const rules = (data?.rules ?? []).filter((rule) => rule.keys.length > 0);
  const download = () => {
    const rows = rules.flatMap(({ rule, keys }) => keys.map(({ key, count: times, error }) => [rule, keyText(key), times, error]));
    save(`tidegate-top-${by}.csv`, "text/csv", csv([["rule", "key", by, "at most too high by"], ...rows]));
  };
  return html`
    <div class="bar-of-tools">
      <${Choice} label="Order by" name="by" options=${BY} value=${by} onChange=${choose} />
      <${Choice} label="Keys of each rule" name="last" options=${[[20, "20"], [100, "100"]]} value=${last} onChange=${setLast} />
      <span class="quiet grow">${data && `${data.nodes > 1 ? `${data.nodes} nodes, ` : ""}since ${moment(data.since_ms)} (${duration(Date.now() - data.since_ms)})`}</span>
      <button type="button" onClick=${download} disabled=${rules.length === 0}>Save as CSV</button>
    </div>
    <${Alert}>${failure}<//>
    <div class="cards">${rules.map(({ rule, keys }) => html`<${Panel} key=${rule} label=${rule || "limits that clients name"} title=${html`<${Name}>${rule || "limits that clients name"}<//>`} scope=${data.scope}>
      <${TopTable} rule=${rule} keys=${keys} tone=${by === "denied" ? "deny" : by === "would_deny" ? "would" : ""} open=${open} /><//>`)}</div>
    ${data && rules.length === 0 && html`<p class="quiet empty">No key was ${by === "used" ? "counted" : "refused"} lately.</p>`}`;
}

export function TopTable({ rule, keys, tone, open }) {
  const largest = Math.max(1, ...keys.map((key) => key.count));
  const rows = keys.map(({ key, count: times, error }) => ({
    key: keyText(key),
    cells: [html`<${KeyButton} of=${key} open=${open} />`, html`<${Bar} part=${times / largest} tone=${tone} />`,
      html`<span>${count(times)}</span>${error > 0 && html` <span class="quiet">± ${count(error)}</span>`}`],
  }));
  return html`<${Table} label=${`Top keys of ${rule}`} columns=${[["key", ""], [html`<${Hidden}>compared<//>`, "wide"], ["times", "number"]]} rows=${rows} empty="None." />`;
}
