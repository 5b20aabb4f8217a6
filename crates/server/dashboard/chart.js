// A chart of series over time, as SVG: its colours are classes, so it follows the theme. A legend shows the values at the pointer, and a
// table behind the chart has the same numbers for those who cannot see it.

import { clock, hour } from "./format.js";
import { Scroll } from "./parts.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

/** Rows of the table behind a chart. */
const ROWS = 60;
/** Pixels around the plot: labels of the values are on the left, of the times below. */
const EDGE = { left: 50, right: 8, top: 8, bottom: 20 };
/** The least time that the axis shows, in seconds. */
const SHORTEST = 60;
const TIMES = [15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400, 21_600];

/** `lines` are `{ label, tone, fill }`; `data` is a list of times in seconds, and a list of values for each line. */
export function Chart({ label, lines, data, format, height = 200, empty, day = false }) {
  const [box, width] = useWidth();
  const [pointed, point] = useState(null);
  const scale = useMemo(() => scaleOf(data, width, height), [data, width, height]);
  const paths = useMemo(() => lines.map((line, at) => drawn(data[0], data[at + 1], scale, line.fill)), [scale]);
  const times = data[0];
  const at = pointed === null ? times.length - 1 : nearest(times, scale.timeAt(pointed));
  const move = (event) => point(event.clientX - event.currentTarget.getBoundingClientRect().left);
  return html`<figure class="chart" aria-label=${label}>
    <div class="legend"><span class="when">${pointed !== null && times.length > 0 ? clock(times[at] * 1_000) : "now"}</span>${lines.map((line, number) => html`
      <span key=${line.label}><i class=${`swatch ${line.tone}`}></i>${line.label} <b>${format(data[number + 1][at])}</b></span>`)}</div>
    <div class="plot-box" ref=${box}><svg class="plot" width=${width} height=${height} role="img" aria-label=${summary(label, lines, data, format)} onPointerMove=${move} onPointerLeave=${() => point(null)}>
      <${Axes} scale=${scale} width=${width} height=${height} format=${format} />
      ${paths.map(({ line, area }, number) => html`<g key=${lines[number].label} class=${lines[number].tone}>${area && html`<path class="area" d=${area} />`}<path class="curve" d=${line} /></g>`)}
      ${pointed !== null && times.length > 0 && html`<path class="cursor" d=${`M${scale.x(times[at])} ${EDGE.top}V${height - EDGE.bottom}`} />`}
    </svg></div>
    ${times.length < 2 && html`<p class="quiet waiting">${empty}</p>`}
    <${Twin} label=${label} lines=${lines} data=${data} format=${format} day=${day} />
  </figure>`;
}

/** The width of an element, which changes with the window. */
function useWidth() {
  const box = useRef(null);
  const [width, set] = useState(600);
  useEffect(() => {
    const measure = () => set(Math.max(160, Math.floor(box.current.clientWidth)));
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    measure();
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** From times and values to pixels, and back from a pixel to a time. */
function scaleOf([times, ...values], width, height) {
  const last = times.at(-1) ?? 0;
  const first = Math.min(times[0] ?? 0, last - SHORTEST);
  const largest = values.flat().reduce((most, value) => Math.max(most, value ?? 0), 0);
  const step = niceStep(largest > 0 ? largest / 4 : 0.25);
  const high = Math.max(step, Math.ceil(largest / step) * step);
  const [across, up] = [width - EDGE.left - EDGE.right, height - EDGE.top - EDGE.bottom];
  return {
    first, last, high, step,
    x: (time) => Math.round((EDGE.left + ((time - first) / (last - first)) * across) * 10) / 10,
    y: (value) => Math.round((EDGE.top + (1 - value / high) * up) * 10) / 10,
    timeAt: (x) => first + ((x - EDGE.left) / across) * (last - first),
  };
}

/** 1, 2 or 5 times a power of ten, at least `rough`. */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= rough * 0.999);
}

/** The path of a line, with gaps where there is no value; and the area below it. */
function drawn(times, values, scale, fill) {
  const [line, area] = [[], []];
  let start = null;
  const close = (end) => { if (start !== null) area.push(`V${scale.y(0)}H${scale.x(times[start])}Z`); start = end; };
  values.forEach((value, at) => {
    if (value === null) return close(null);
    const place = `${scale.x(times[at])} ${scale.y(value)}`;
    line.push(start === null ? `M${place}` : `L${place}`);
    area.push(start === null ? `M${place}` : `L${place}`);
    start ??= at;
  });
  close(null);
  return { line: line.join(""), area: fill ? area.join("") : "" };
}

function nearest(times, time) {
  let best = 0;
  times.forEach((one, at) => { if (Math.abs(one - time) < Math.abs(times[best] - time)) best = at; });
  return best;
}

function Axes({ scale, width, height, format }) {
  const values = Array.from({ length: Math.round(scale.high / scale.step) + 1 }, (_, at) => at * scale.step);
  const most = Math.max(2, Math.floor(width / 90));
  const every = TIMES.find((step) => (scale.last - scale.first) / step <= most) ?? TIMES.at(-1);
  // Times of a day begin at local midnight.
  const zone = new Date(scale.last * 1_000).getTimezoneOffset() * 60;
  const start = Math.ceil((scale.first - zone) / every) * every + zone;
  const times = [];
  for (let time = start; time <= scale.last; time += every) times.push(time);
  return html`<g class="axes" aria-hidden="true">
    ${values.map((value) => html`<path d=${`M${EDGE.left} ${scale.y(value)}H${width - EDGE.right}`} /><text x=${EDGE.left - 7} y=${scale.y(value) + 4} text-anchor="end">${format(value)}</text>`)}
    ${times.map((time) => html`<text x=${scale.x(time)} y=${height - 4} text-anchor="middle">${(every < 60 ? clock : hour)(time * 1_000)}</text>`)}
  </g>`;
}

/** The numbers of the chart as a table, which exists only while it is open. */
function Twin({ label, lines, data, format, day }) {
  const [open, set] = useState(false);
  const [times, ...values] = data;
  const first = Math.max(0, times.length - ROWS);
  const rows = times.slice(first).map((time, at) => [time, ...values.map((line) => line[first + at])]).reverse();
  return html`<details onToggle=${(event) => set(event.target.open)}><summary>Table</summary>
    ${open && html`<${Scroll} className="tall" label=${`${label}, as a table`}><table>
      <thead><tr><th scope="col">time</th>${lines.map((line) => html`<th scope="col" class="number">${line.label}</th>`)}</tr></thead>
      <tbody>${rows.map(([time, ...row]) => html`<tr key=${time}><th scope="row">${(day ? hour : clock)(time * 1_000)}</th>${row.map((value) => html`<td class="number">${format(value)}</td>`)}</tr>`)}</tbody>
    </table><//>`}</details>`;
}

function summary(label, lines, data, format) {
  const last = lines.map((line, at) => `${line.label} ${format(data[at + 1].at(-1))}`);
  return `${label}. Now: ${last.join(", ")}. The table below has the numbers.`;
}
