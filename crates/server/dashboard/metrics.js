// Reads the OpenMetrics text of `/metrics`: only the series that the dashboard shows, of which most are counters.

const LINE = /^([a-z_]+)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** The series whose names begin with one of `wanted`, as `{ name, labels, value }`. */
export function series(text, wanted) {
  const found = [];
  for (const line of text.split("\n")) {
    if (!wanted.some((name) => line.startsWith(name))) continue;
    const [, name, inside, value] = LINE.exec(line) ?? [];
    if (name) found.push({ name, labels: labels(inside ?? ""), value: Number(value) });
  }
  return found;
}

function labels(inside) {
  const found = {};
  for (const [, name, value] of inside.matchAll(LABEL)) {
    found[name] = value.replace(/\\[n"\\]/g, (escape) => ESCAPES[escape]);
  }
  return found;
}

/** How much counters grew since the last reading, by key and for each second. A counter that fell has begun again at 0. */
export class Growth {
  #before = new Map();
  #at = NaN;

  /** `now` is in milliseconds. The first reading has no growth: it returns `null`. */
  read(counters, now) {
    const seconds = (now - this.#at) / 1_000;
    const rates = new Map();
    for (const [key, value] of counters) {
      const before = this.#before.get(key) ?? 0;
      rates.set(key, (value >= before ? value - before : value) / seconds);
    }
    const first = !(seconds > 0);
    this.#before = counters;
    this.#at = now;
    return first ? null : rates;
  }
}

/** The quantile of a histogram, from pairs of an upper bound and a count up to it. */
export function quantile(buckets, part) {
  const sorted = [...buckets].sort(([a], [b]) => a - b);
  const all = sorted.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return NaN;
  let [low, below] = [0, 0];
  for (const [bound, upTo] of sorted) {
    if (upTo >= all * part) {
      return Number.isFinite(bound) ? low + ((bound - low) * (all * part - below)) / (upTo - below) : low;
    }
    [low, below] = [bound, upTo];
  }
  return low;
}
