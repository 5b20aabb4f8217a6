// Parts that several pages share: panels, tables, keys, bars, dialogs, messages.
//
// Everything that a client or an operator named is put into the page as a text node, never as markup.

import { pairs } from "./format.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

/** Whose figures these are: of the node that serves the page, or of all nodes that share its store. */
export const Scope = ({ of }) => (of ? html`<span class="scope">${of}</span>` : null);

/** `label` is the title as text, if the title is a name. */
export const Panel = ({ title, label = title, scope, tools, children }) => html`
  <section class="panel" aria-label=${label}>
    <header><h2>${title}</h2><${Scope} of=${scope} /><div class="tools">${tools}</div></header>
    ${children}
  </section>`;

/** A name or value that somebody else chose: isolated, so that right-to-left text in it does not reorder the page. */
export const Name = ({ children }) => html`<bdi class="name">${children}</bdi>`;

/** Words for those who hear the page, such as the title of a column of buttons. */
export const Hidden = ({ children }) => html`<span class="hidden">${children}</span>`;

/** The attributes of a key. */
export const Key = ({ of }) => html`<span class="key">${pairs(of).map(([name, value], at) => html`${at > 0 && " "}<span class="pair"><span class="attribute">${name}</span> <${Name}>${value}<//></span>`)}</span>`;

/** A key that leads to the view of the person. */
export const KeyButton = ({ of, open }) => (pairs(of).length === 0
  ? html`<span class="quiet">not shown</span>`
  : html`<button type="button" class="link" aria-label=${`${pairs(of).flat().join(" ")}: look up`} onClick=${() => open(Object.fromEntries(pairs(of)))}><${Key} of=${of} /></button>`);

/** What may be wider or higher than its place. Only then the keyboard can reach it, to scroll it. */
export function Scroll({ label, className = "", children }) {
  const box = useRef(null);
  const [over, set] = useState(false);
  useEffect(() => {
    const measure = () => set(box.current.scrollWidth > box.current.clientWidth + 1 || box.current.scrollHeight > box.current.clientHeight + 1);
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    watch.observe(box.current.firstElementChild);
    return () => watch.disconnect();
  }, []);
  return html`<div ref=${box} class=${`scroll ${className}`} tabindex=${over ? 0 : null} role="group" aria-label=${label}>${children}</div>`;
}

/** `columns` are `[title, "" or "number"]`; `rows` are lists of cells, with a `key` of their own. */
export function Table({ label, columns, rows, empty }) {
  if (rows.length === 0) return html`<p class="quiet empty">${empty}</p>`;
  return html`<${Scroll} label=${label}><table>
    <thead><tr>${columns.map(([title, kind]) => html`<th scope="col" class=${kind}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.className ?? ""}>${row.cells.map((cell, at) => html`
      <td class=${columns[at][1]}>${cell}</td>`)}</tr>`)}</tbody>
  </table><//>`;
}

/** A bar for a part between 0 and 1. The number is beside it, so it is hidden from screen readers. */
export const Bar = ({ part, tone = "" }) => html`
  <svg class=${`bar ${tone}`} viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
    <rect class="back" width="100" height="6" /><rect class="front" width=${Math.max(0, Math.min(1, part || 0)) * 100} height="6" />
  </svg>`;

/** The last readings as a line, without axes. */
export function Sparkline({ values, tone }) {
  const largest = Math.max(1e-9, ...values.filter(Number.isFinite));
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(19 - ((value ?? 0) / largest) * 18).toFixed(1)}`);
  const flat = !values.some((value) => value > 0);
  return html`<svg class=${`spark ${flat ? "flat" : tone}`} viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true">
    <polyline points=${flat ? "0,19 100,19" : points.join(" ")} /></svg>`;
}

/** One of several choices, as radio buttons that look like one control. */
export const Choice = ({ label, name, options, value, onChange }) => html`
  <fieldset class="choice"><legend class="hidden">${label}</legend>${options.map(([option, text]) => html`
    <label key=${option}><input type="radio" name=${name} checked=${option === value} onChange=${() => onChange(option)} /><span>${text}</span></label>`)}
  </fieldset>`;

export const Field = ({ label, hint, children }) => html`
  <label class="field"><span>${label}</span>${children}${hint && html`<small class="quiet">${hint}</small>`}</label>`;

/** For how long a change is in force, in seconds; 0 is until somebody changes it. */
export const EXPIRIES = [[900, "15 min"], [3_600, "1 h"], [28_800, "8 h"], [86_400, "1 day"], [604_800, "7 days"], [0, "until changed"]];

export const Expiry = ({ value, onChange }) => html`<${Field} label="For">
  <select value=${value} onChange=${(event) => onChange(Number(event.target.value))}>
    ${EXPIRIES.map(([seconds, text]) => html`<option key=${seconds} value=${seconds} selected=${seconds === value}>${text}</option>`)}
  </select><//>`;

export const Reason = ({ value, onInput }) => html`<${Field} label="Reason">
  <input type="text" maxlength="200" placeholder="for the audit log" value=${value} onInput=${(event) => onInput(event.target.value)} /><//>`;

/** What a change says besides itself: when it ends, and why it was made. */
export const terms = (seconds, reason) => ({ ...(seconds > 0 && { expires: seconds }), ...(reason.trim() && { reason: reason.trim() }) });

/** A dialog that takes the keyboard; Escape closes it. */
export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  useEffect(() => { box.current?.showModal(); }, []);
  return html`<dialog ref=${box} onClose=${onClose} aria-label=${title}><h2>${title}</h2>${children}</dialog>`;
}

export const Alert = ({ children, tone = "bad" }) => (children ? html`<p class=${`alert ${tone}`} role="alert">${children}</p>` : null);

/** Runs an action of the operator, and shows that it runs, what it did or why it failed: `[state, run]`. */
export function useAction() {
  const [state, set] = useState({ busy: false, done: "", failed: "" });
  const run = async (action) => {
    set({ busy: true, done: "", failed: "" });
    try {
      const done = await action();
      set({ busy: false, done: done ?? "", failed: "" });
    } catch (error) {
      set({ busy: false, done: "", failed: error.message });
    }
  };
  return [state, run];
}

export const Outcome = ({ of }) => html`<div class="outcome" aria-live="polite">
  ${of.busy && html`<p class="quiet">…</p>`}
  ${of.done && html`<p class="good">${of.done}</p>`}
  ${of.failed && html`<p class="bad">${of.failed}</p>`}</div>`;

/** Loads something when the page opens, and again on `reload`: `{ data, failure, reload }`. */
export function useLoad(load, inputs = []) {
  const [state, set] = useState({ data: null, failure: null });
  const turn = useRef(0);
  const reload = async () => {
    const mine = (turn.current += 1);
    try {
      const data = await load();
      if (mine === turn.current) set({ data, failure: null });
    } catch (error) {
      if (mine === turn.current) set((before) => ({ data: before.data, failure: error.message }));
    }
  };
  useEffect(() => { reload(); return () => { turn.current += 1; }; }, inputs);
  return { ...state, reload };
}

/** Calls again and again while the page is visible. */
export function useEvery(ms, act, inputs = []) {
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) act(); }, ms);
    return () => clearInterval(timer);
  }, inputs);
}

/** Saves text as a file. */
export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  [link.href, link.download] = [address, name];
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1_000);
}
