// Playground: the six algorithms on one trace, which the operator draws. The server decides it with the algorithms that also decide
// requests; time is a number there.

import { post } from "../api.js";
import { count, duration, figure } from "../format.js";
import { Alert, Field, Panel, Table } from "../parts.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const STEPS = 48;
/** Periods that the trace lasts. */
const PERIODS = 4;
const EDGE = (STEPS / PERIODS) * 2;

const TRACES = {
  boundary: (amount) => fill({ [EDGE - 1]: amount, [EDGE]: amount }),
  steady: (amount) => Array.from({ length: STEPS }, (_, at) => share(amount * PERIODS * 1.25, at)),
  burst: (amount) => fill({ 3: amount * 3, [EDGE + STEPS / 8]: amount * 3 }),
  greedy: (amount) => Array.from({ length: STEPS }, (_, at) => share(amount * PERIODS * 2, at)),
  nothing: () => fill({}),
};
const WORDS = { boundary: "At a boundary", steady: "Steady", burst: "Bursts", greedy: "Greedy", nothing: "Clear" };

const fill = (some) => Array.from({ length: STEPS }, (_, at) => some[at] ?? 0);
/** How many of `all` requests that arrive evenly are in a step. */
const share = (all, at) => Math.floor((all * (at + 1)) / STEPS) - Math.floor((all * at) / STEPS);

export function Playground() {
  const [amount, setAmount] = useState(6);
  const [seconds, setSeconds] = useState(12);
  const [trace, draw] = useState(() => TRACES.boundary(6));
  const [played, show] = useState(null);
  const [failure, fail] = useState("");
  useEffect(() => {
    let current = true;
    // A drag changes the trace many times; only where it rests is played.
    const timer = setTimeout(async () => {
      const body = { amount, period_ms: seconds * 1_000, step_ms: Math.max(1, Math.round((seconds * 1_000 * PERIODS) / STEPS)), requests: trace };
      try {
        const data = await post("/admin/v1/playground", body);
        if (current) { show(data); fail(""); }
      } catch (error) {
        if (current) fail(error.message);
      }
    }, 120);
    return () => { current = false; clearTimeout(timer); };
  }, [amount, seconds, trace]);
  const rows = played?.algorithms ?? [];
  const most = Math.max(amount, ...trace, ...rows.flatMap((row) => (row.passed_by_step ?? []).map((passed, at) => passed + (row.refused_by_step[at] ?? 0))));
  const number = (low, high, set) => (event) => { const value = Math.round(Number(event.target.value)); if (value >= low && value <= high) set(value); };
  return html`
    <div class="bar-of-tools">
      <${Field} label="Requests"><input class="short" type="number" min="1" max="200" value=${amount} onInput=${number(1, 200, setAmount)} /><//>
      <${Field} label="per seconds"><input class="short" type="number" min="1" max="3600" value=${seconds} onInput=${number(1, 3_600, setSeconds)} /><//>
      <div class="buttons" role="group" aria-label="Traces">${Object.keys(TRACES).map((name) => html`<button type="button" key=${name} onClick=${() => draw(TRACES[name](amount))}>${WORDS[name]}</button>`)}</div>
    </div>
    <${Alert}>${failure}<//>
    <${Panel} title="Requests" tools=${html`<span class="quiet">${count(trace.reduce((sum, some) => sum + some, 0))} in all; draw with the mouse, or with the arrow keys</span>`}>
      <${Drawing} trace=${trace} draw=${draw} most=${most} seconds=${seconds} />
    <//>
    <${Panel} title="What passes">
      <div class="strips">${rows.map((row) => html`<${Strip} key=${row.algorithm} row=${row} most=${most} />`)}</div>
      <p class="legend"><span><i class="swatch allow"></i>passed</span><span><i class="swatch deny hollow"></i>refused</span><span class="quiet">fixed windows begin at the lines; requests wait for at most one period</span></p>
      <details><summary>Table</summary><${Table} label="What passes, as a table" empty="" rows=${rows.map((row) => ({ key: row.algorithm, cells: [row.algorithm, ...(row.error ? [row.error, "", "", "", ""] : [count(row.passed), count(row.refused), count(row.delayed), row.delayed > 0 ? duration(row.longest_wait_ms) : "–", count(row.most_in_a_period)])] }))}
        columns=${[["algorithm", ""], ["passed", "number"], ["refused", "number"], ["delayed", "number"], ["longest wait", "number"], ["most in a period", "number"]]} /></details>
    <//>`;
}

const WIDTH = 10;
const HEIGHT = 100;

/** A bar for each step. The chosen step is moved with left and right, its bar with up and down. */
function Drawing({ trace, draw, most, seconds }) {
  const [chosen, choose] = useState(EDGE);
  const drawing = useRef(false);
  const top = Math.max(10, most);
  const set = (at, value) => draw((before) => before.map((old, step) => (step === at ? Math.max(0, Math.min(200, value)) : old)));
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = Math.max(0, Math.min(STEPS - 1, Math.floor(((event.clientX - box.left) / box.width) * STEPS)));
    choose(at);
    set(at, Math.round((1 - (event.clientY - box.top) / box.height) * top));
  };
  const keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], PageUp: [0, 5], PageDown: [0, -5] };
  const press = (event) => {
    const [along, up] = keys[event.key] ?? [0, 0];
    if (along === 0 && up === 0) return;
    event.preventDefault();
    choose((before) => Math.max(0, Math.min(STEPS - 1, before + along)));
    if (up !== 0) set(chosen, trace[chosen] + up);
  };
  const start = (seconds * PERIODS * chosen) / STEPS;
  return html`<svg class="drawing" viewBox=${`0 0 ${STEPS * WIDTH} ${HEIGHT}`} preserveAspectRatio="none" tabindex="0" role="slider"
      aria-label="Requests of one step; left and right choose the step" aria-valuemin="0" aria-valuemax="200" aria-valuenow=${trace[chosen]}
      aria-valuetext=${`${trace[chosen]} requests from ${figure(start)} s on`} onKeyDown=${press}
      onPointerDown=${(event) => { drawing.current = true; event.currentTarget.setPointerCapture(event.pointerId); point(event); }}
      onPointerMove=${(event) => { if (drawing.current) point(event); }} onPointerUp=${() => { drawing.current = false; }} onPointerCancel=${() => { drawing.current = false; }}>
    <rect class="paper" width=${STEPS * WIDTH} height=${HEIGHT} />
    <rect class="chosen" x=${chosen * WIDTH} width=${WIDTH} height=${HEIGHT} />
    <${Windows} />
    ${trace.map((requests, at) => html`<rect key=${at} class="all" x=${at * WIDTH + 1} width=${WIDTH - 2} y=${HEIGHT - (requests / top) * HEIGHT} height=${(requests / top) * HEIGHT} />`)}
  </svg>
  <div class="periods" aria-hidden="true">${Array.from({ length: PERIODS + 1 }, (_, at) => html`<span key=${at}>${duration(at * seconds * 1_000).replace("0 ms", "0 s")}</span>`)}</div>`;
}

/** A line where each period begins. */
const Windows = () => html`${Array.from({ length: PERIODS + 1 }, (_, at) => html`<path key=${`w${at}`} class="window" d=${`M${(STEPS / PERIODS) * at * WIDTH} 0V${HEIGHT}`} />`)}`;

function Strip({ row, most }) {
  const [passed, refused] = [row.passed_by_step ?? [], row.refused_by_step ?? []];
  const height = (requests) => (requests / most) * HEIGHT;
  const words = row.error ?? `${count(row.passed)} pass, at most ${count(row.most_in_a_period)} in a period${row.delayed > 0 ? `; ${count(row.delayed)} wait, up to ${duration(row.longest_wait_ms)}` : ""}`;
  return html`<div class="strip"><span class="what"><b>${row.algorithm.replaceAll("_", " ")}</b> <span class="quiet">${words}</span></span>
    <svg viewBox=${`0 0 ${STEPS * WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true"><${Windows} />
      ${passed.slice(0, STEPS).map((requests, at) => requests > 0 && html`<rect key=${`p${at}`} class="pass" x=${at * WIDTH + 1} width=${WIDTH - 2} y=${HEIGHT - height(requests)} height=${height(requests)} />`)}
      ${refused.slice(0, STEPS).map((requests, at) => requests > 0 && html`<rect key=${`r${at}`} class="refuse" x=${at * WIDTH + 1.5} width=${WIDTH - 3} y=${HEIGHT - height((passed[at] ?? 0) + requests) + 1} height=${Math.max(1, height(requests) - 2)} />`)}
    </svg></div>`;
}
