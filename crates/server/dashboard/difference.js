// The lines in which two texts differ: the longest common subsequence of lines, after the equal beginning and end are set aside.

/** Lines in the middle of both texts whose product may be compared; beyond it, all of them count as changed. */
const MOST = 4_000_000;

/** A list of `{ kind: " " | "-" | "+", text, before, after }`; the numbers of lines begin at 1. */
export function difference(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const lines = [];
  const [place, put] = [{ before: 0, after: 0 }, (kind, text) => {
    if (kind !== "+") place.before += 1;
    if (kind !== "-") place.after += 1;
    lines.push({ kind, text, before: place.before, after: place.after });
  }];
  for (const text of a.slice(0, start)) put(" ", text);
  for (const [kind, text] of middle(a.slice(start, a.length - end), b.slice(start, b.length - end))) put(kind, text);
  for (const text of a.slice(a.length - end)) put(" ", text);
  return lines;
}

function middle(a, b) {
  const all = () => [...a.map((text) => ["-", text]), ...b.map((text) => ["+", text])];
  if (a.length * b.length > MOST) return all();
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const [down, right] = [common[(i + 1) * width + j], common[i * width + j + 1]];
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(down, right);
    }
  }
  const out = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push([" ", a[i]]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) { out.push(["-", a[i]]); i += 1; }
    else { out.push(["+", b[j]]); j += 1; }
  }
  return out;
}

/** Only the changed lines, each with up to `around` lines around it; `null` stands for lines that are left out. */
export function hunks(lines, around = 3) {
  const near = new Set();
  lines.forEach((line, at) => {
    if (line.kind === " ") return;
    for (let other = at - around; other <= at + around; other += 1) near.add(other);
  });
  const out = [];
  lines.forEach((line, at) => {
    if (near.has(at)) out.push(line);
    else if (out.at(-1) !== null) out.push(null);
  });
  return out;
}
