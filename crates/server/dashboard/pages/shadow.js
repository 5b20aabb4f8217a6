// Shadow report: what rules in shadow mode would have refused, by rule and key.

import { count, figure, percent } from "../format.js";
import { OUTCOMES, seriesOf, useLive } from "../live.js";
import { Alert, Hidden, Name, Panel, Sparkline, Table } from "../parts.js";
import { html, useState } from "../vendor/preact.js";
import { RuleDialog } from "./now.js";
import { TopTable, useTop } from "./top.js";

export function Shadow({ mayChange, open }) {
  const now = useLive();
  const [changing, change] = useState(null);
  const { data, failure } = useTop("would_deny", 20);
  const shown = now.rules.filter((rule) => (rule.enabled && rule.shadow) || now.total(rule.rule, "would_deny") > 0);
  const columns = [["rule", ""], ["state", ""], ["would refuse/s", "number"], ["would have refused", "number"], ["of its decisions", "number"], ["last 2 min", ""], ...(mayChange ? [[html`<${Hidden}>change<//>`, "number"]] : [])];
  const rows = shown.map((rule) => {
    const [total, all] = [now.total(rule.rule, "would_deny"), OUTCOMES.reduce((sum, outcome) => sum + now.total(rule.rule, outcome), 0)];
    return {
      key: rule.rule,
      cells: [html`<${Name}>${rule.rule}<//>`, html`<span class=${`tag ${rule.shadow ? "would" : ""}`}>${rule.shadow ? "shadow" : "in force"}</span>`,
        figure(now.rate(rule.rule, "would_deny")), count(total), percent(all > 0 ? total / all : NaN),
        html`<${Sparkline} values=${now.history.recent(seriesOf(rule.rule, "would_deny"), 60)} tone="would" />`,
        ...(mayChange ? [html`<button type="button" aria-label=${`${rule.shadow ? "Enforce…" : "Change…"} ${rule.rule}`} onClick=${() => change(rule)}>${rule.shadow ? "Enforce…" : "Change…"}</button>`] : [])],
    };
  });
  const keys = (data?.rules ?? []).filter((rule) => rule.keys.length > 0);
  return html`
    <${Panel} title="What would have been refused" scope="this node, since it started">
      <${Table} label="Rules in shadow mode" columns=${columns} rows=${rows}
        empty="No rule is in shadow mode. On the page Now, put a rule into shadow mode to see here what it would refuse." />
    <//>
    <${Alert}>${failure}<//>
    <div class="cards">${keys.map(({ rule, keys: list }) => html`<${Panel} key=${rule} label=${rule} title=${html`<${Name}>${rule}<//>`} scope=${data.scope}>
      <${TopTable} rule=${rule} keys=${list} tone="would" open=${open} /><//>`)}</div>
    ${changing && html`<${RuleDialog} rule=${changing} onClose=${() => change(null)} />`}`;
}
