// Policy: the rules in force as text; and a candidate: its errors and warnings, and what it would change.

import { ask } from "../api.js";
import { difference, hunks } from "../difference.js";
import { live, useLive } from "../live.js";
import { Alert, Dialog, Name, Outcome, Panel, Scroll, useAction, useLoad } from "../parts.js";
import { html, useRef, useState } from "../vendor/preact.js";

/** As much as the server accepts. */
const MOST_BYTES = 4 * 1024 * 1024;
const YAML = { "content-type": "application/yaml" };

export function PolicyPage({ mayChange }) {
  const { status } = useLive();
  const { data, failure, reload } = useLoad(async () => {
    const [{ data: text, headers }, control] = [await ask("GET", "/admin/v1/policy"), await ask("GET", "/admin/v1/control")];
    return { text, from: headers.get("tidegate-policy-from"), tag: control.headers.get("etag") };
  });
  return html`
    <${Alert}>${failure}<//>
    <div class="columns policy">
      <${Panel} title="In force" scope="this node" tools=${data && html`<span class="quiet">${data.from === "upload" ? "uploaded" : "from the file"} · <code>${status?.policy_hash}</code></span>`}>
        ${data && html`<${Lines} label="The policy in force" text=${data.text} />`}
      <//>
      <${Panel} title="Candidate">${mayChange
        ? html`<${Candidate} current=${data} reload=${reload} />`
        : html`<p class="quiet empty">Checking a candidate needs the operator's token. <code>tidegate policy lint FILE</code> checks a file without a server.</p>`}<//>
    </div>`;
}

const Lines = ({ label, text }) => html`<${Scroll} className="code" label=${label}><table><tbody>${text.replace(/\n$/, "").split("\n").map((line, at) => html`
  <tr key=${at}><td class="line-number" aria-hidden="true">${at + 1}</td><td>${line || " "}</td></tr>`)}</tbody></table><//>`;

function Candidate({ current, reload }) {
  const [text, write] = useState("");
  const [checked, show] = useState(null);
  const [sure, ask_] = useState(false);
  const [state, run] = useAction();
  const field = useRef(null);
  const check = () => run(async () => {
    try {
      const { data } = await ask("PUT", "/admin/v1/policy?dry_run=true", text, YAML);
      show({ text, ...data.difference, problems: [] });
    } catch (error) {
      if (error.status !== 400) throw error;
      show({ text, problems: error.problems, detail: error.message });
    }
  });
  const choose = async (event) => {
    const file = event.target.files[0];
    event.target.value = "";
    if (!file) return;
    if (file.size > MOST_BYTES) return run(() => Promise.reject(new Error("A policy has at most 4 MiB.")));
    write(await file.text());
    show(null);
  };
  const apply = () => run(async () => {
    await ask("PUT", "/admin/v1/policy", text, { ...YAML, "if-match": current.tag });
    ask_(false);
    show(null);
    await Promise.all([reload(), live.refresh()]);
    return "The candidate is in force.";
  });
  const go = ({ line, column }) => {
    const start = text.split("\n").slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0) + column - 1;
    field.current.focus();
    field.current.setSelectionRange(start, start);
  };
  const fresh = checked !== null && checked.text === text;
  return html`<div class="candidate">
    <textarea ref=${field} aria-label="The candidate, in YAML" spellcheck="false" placeholder="Paste a policy here, or choose a file." value=${text} onInput=${(event) => write(event.target.value)}></textarea>
    <div class="buttons">
      <button type="button" class="primary" onClick=${check} disabled=${!text || state.busy}>Check</button>
      <label class="file"><input type="file" accept=".yaml,.yml,.json" onChange=${choose} /><span>Choose a file…</span></label>
      <button type="button" onClick=${() => { write(current.text); show(null); }} disabled=${!current}>Copy the one in force</button>
      ${fresh && checked.problems.length === 0 && current && text !== current.text && html`<button type="button" onClick=${() => ask_(true)} disabled=${state.busy}>Put in force…</button>`}
    </div>
    <${Outcome} of=${state} />
    ${fresh && html`<${Findings} checked=${checked} current=${current} go=${go} />`}
    ${sure && html`<${Dialog} title="Put the candidate in force" onClose=${() => ask_(false)}>
      <p>It replaces the policy on all nodes that share the store, until the policy file changes.</p>
      <${Outcome} of=${state} />
      <div class="buttons"><button type="button" class="primary" onClick=${apply} disabled=${state.busy}>Put in force</button><button type="button" onClick=${() => ask_(false)}>Cancel</button></div>
    <//>`}
  </div>`;
}

function Findings({ checked, current, go }) {
  if (checked.problems.length > 0 || checked.detail) {
    return html`<h3 class="deny">Not valid</h3><ul class="problems">${checked.problems.map((problem) => html`<li>
      <button type="button" class="link" onClick=${() => go(problem)}>line ${problem.line}, column ${problem.column}</button> <${Name}>${problem.text}<//></li>`)}
      ${checked.problems.length === 0 && html`<li><${Name}>${checked.detail}<//></li>`}</ul>`;
  }
  const names = (list) => list.map((name, at) => html`${at > 0 && ", "}<${Name}>${name}<//>`);
  const lines = hunks(difference(current.text.replace(/\n$/, ""), checked.text.replace(/\n$/, "")));
  const changed = checked.changed.map((rule) => rule.rule);
  const parts = [["added", checked.added], ["removed", checked.removed], ["changed", changed], ["also changed", checked.elsewhere]].filter(([, list]) => list.length > 0);
  return html`<h3>Valid${checked.warnings.length === 0 ? ", no warnings" : ""}</h3>
    ${checked.warnings.length > 0 && html`<ul class="problems warn">${checked.warnings.map((warning) => html`<li><${Name}>${warning}<//></li>`)}</ul>`}
    <dl class="facts">${parts.map(([what, list]) => html`<div><dt>${what}</dt><dd>${names(list)}</dd></div>`)}</dl>
    ${parts.length === 0 && html`<p class="quiet">The rules are the same.</p>`}
    ${lines.some((line) => line !== null) && html`<${Scroll} className="code" label="Changed lines"><table><tbody>${lines.map((line) => (line === null
      ? html`<tr class="gap"><td class="line-number" aria-hidden="true"></td><td>⋯</td></tr>`
      : html`<tr class=${{ "+": "added", "-": "removed" }[line.kind] ?? ""}><td class="line-number" aria-hidden="true">${line.kind === "-" ? line.before : line.after}</td>
          <td>${line.kind !== " " && html`<span class="hidden">${line.kind === "+" ? "added: " : "removed: "}</span>`}${`${line.kind} ${line.text}`}</td></tr>`))}</tbody></table><//>`}`;
}
