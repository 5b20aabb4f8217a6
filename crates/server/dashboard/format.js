// Numbers, times and keys as people write them; and CSV.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const NONE = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 12,345 */
export const count = (value) => (isNumber(value) ? grouped.format(value) : NONE);

/** 0.25, 12.3, 345, 1.2K: a rate or another figure with three digits that matter. */
export function figure(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.01) return "< 0.01";
  if (size >= 10_000) return short.format(value);
  if (size >= 100) return grouped.format(value);
  return String(Number(value.toFixed(size >= 10 ? 1 : 2)));
}

/** 0 %, 0.4 %, 12 % of a part between 0 and 1. */
export function percent(part) {
  if (!isNumber(part)) return NONE;
  const value = part * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${Number(value.toFixed(value < 10 ? 1 : 0))} %`;
}

/** 850 ms, 15 s, 3 min 20 s, 2 h 5 min, 3 d */
export function duration(ms) {
  if (!isNumber(ms)) return NONE;
  if (ms < 1_000) return `${Math.ceil(ms)} ms`;
  const s = Math.ceil(ms / 1_000);
  const parts = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
  const words = [];
  let rest = s;
  for (const [size, unit] of parts) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole > 0) words.push(`${whole} ${unit}`);
    if (words.length === 2 || (words.length === 1 && whole === 0)) break;
  }
  return words.join(" ");
}

/** 85 µs, 1.3 ms, 2 s: times of decisions. */
export function fine(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 0.001) return `${figure(seconds * 1e6)} µs`;
  if (seconds < 1) return `${figure(seconds * 1e3)} ms`;
  return `${figure(seconds)} s`;
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  return `${figure(value / 1024 ** power)} ${units[power]}`;
}

const two = (value) => String(value).padStart(2, "0");
export const clock = (ms) => { const at = new Date(ms); return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`; };
export const hour = (ms) => clock(ms).slice(0, 5);

/** 14:03:09 today, otherwise 2026-11-19 14:03:09, in the time zone of the browser. */
export function moment(ms) {
  if (!isNumber(ms)) return NONE;
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return at.toDateString() === new Date().toDateString() ? clock(ms) : `${day} ${clock(ms)}`;
}

export function ago(ms) {
  if (!isNumber(ms)) return NONE;
  const past = Date.now() - ms;
  return past < 1_000 ? "now" : `${duration(past)} ago`;
}

/** The attributes of a key: an object, or a list of pairs. */
export const pairs = (key) => (Array.isArray(key) ? key : Object.entries(key ?? {}));

/** The attributes of a rule's key: `[user, ip/48]` is user and ip, `[user|ip]` either of them. */
export const attributesOf = (key) => key.replace(/[[\]\s]/g, "").split(/[,|]/).map((part) => part.split("/")[0]).filter(Boolean);

/** user=alice, ip=203.0.113.7 */
export const keyText = (key) => pairs(key).map(([name, value]) => `${name}=${value}`).join(", ");

/** Rows as CSV. A spreadsheet must not take a cell for a formula, so such a cell gets a `'` before it. */
export function csv(rows) {
  const cell = (value) => {
    const text = String(value ?? "");
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}
