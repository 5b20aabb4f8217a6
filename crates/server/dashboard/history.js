// What the charts draw: series of numbers over time, in rings that never grow.
//
//   every 2 s ──► 450 readings: 15 minutes
//            └──► the mean of each minute ──► 1,440 readings: a day

const NAMES = 400;

/** Readings at equal distances. The oldest is overwritten. */
class Ring {
  constructor(capacity) {
    this.capacity = capacity;
    this.times = new Float64Array(capacity);
    this.series = new Map();
    this.next = 0;
    this.length = 0;
  }

  push(time, values) {
    this.times[this.next] = time;
    for (const name of values.keys()) this.#make(name);
    for (const [name, readings] of this.series) readings[this.next] = values.get(name) ?? NaN;
    this.next = (this.next + 1) % this.capacity;
    this.length = Math.min(this.length + 1, this.capacity);
  }

  /** A client cannot create series, but a long policy can have many rules: further ones are not kept. */
  #make(name) {
    if (this.series.has(name) || this.series.size >= NAMES) return;
    this.series.set(name, new Float32Array(this.capacity).fill(NaN));
  }

  /** The last readings of a series, the oldest first. `times` is a series, too. */
  last(readings, most) {
    const length = Math.min(most, this.length);
    const out = new Array(length);
    for (let at = 0; at < length; at += 1) {
      const value = readings?.[(this.next - length + at + this.capacity) % this.capacity];
      out[at] = Number.isFinite(value) ? value : null;
    }
    return out;
  }
}

const MINUTE_MS = 60_000;

export class History {
  #fine = new Ring(450);
  #coarse = new Ring(1_440);
  #minute = { number: NaN, sums: new Map() };

  /** Adds the readings of one instant: `values` is a map from names to numbers. */
  push(time, values) {
    this.#fine.push(time / 1_000, values);
    const number = Math.floor(time / MINUTE_MS);
    if (number !== this.#minute.number) this.#closeMinute(number);
    for (const [name, value] of values) {
      if (!Number.isFinite(value)) continue;
      const sum = this.#minute.sums.get(name) ?? { sum: 0, readings: 0 };
      this.#minute.sums.set(name, { sum: sum.sum + value, readings: sum.readings + 1 });
    }
  }

  #closeMinute(number) {
    const means = new Map();
    for (const [name, { sum, readings }] of this.#minute.sums) means.set(name, sum / readings);
    if (means.size > 0) this.#coarse.push(this.#minute.number * 60, means);
    this.#minute = { number, sums: new Map() };
  }

  /** Times in seconds and one list for each name: 15 minutes, or the minutes of a day. */
  read(names, day) {
    const ring = day ? this.#coarse : this.#fine;
    return [ring.last(ring.times, ring.capacity), ...names.map((name) => ring.last(ring.series.get(name), ring.capacity))];
  }

  /** The last readings of one series, for a sparkline. */
  recent(name, most) {
    return this.#fine.last(this.#fine.series.get(name), most);
  }
}
