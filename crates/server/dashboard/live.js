// The state of the server, read again and again while the page is open.
//
// `/metrics` has the counters from which rates come, `/status` the health. Both are cheap for the server. A page in a background tab
// asks rarely, and a server that does not answer is asked less and less often, up to every 30 s.

import { get } from "./api.js";
import { History } from "./history.js";
import { Growth, quantile, series } from "./metrics.js";
import { useEffect, useState } from "./vendor/preact.js";

const EVERY_MS = 2_000;
const RARELY_MS = 30_000;
/** The rules, the nodes and the refusals change less than the counters: each is read in every fourth reading, in turn. */
const TURNS = ["/admin/v1/rules", "/admin/v1/nodes", "/admin/v1/denials?last=50", "/admin/v1/control"];
const WANTED = [
  "tidegate_decisions_total", "tidegate_decision_seconds_bucket", "tidegate_store_errors_total", "tidegate_breaker_state",
  "tidegate_memory_bytes", "tidegate_states", "tidegate_overflow_total", "tidegate_problem", "tidegate_cluster_nodes",
];
export const OUTCOMES = ["allow", "delay", "deny", "would_deny"];

/** The name of a series in the history: an outcome of one rule, or of all (`""` as rule is a limit that clients name). */
export const seriesOf = (rule, outcome) => `${rule ?? "*"}\n${outcome}`;

class Live {
  history = new History();
  /** Rates for each second by series; `null` before the second reading. */
  rates = null;
  totals = new Map();
  gauges = [];
  status = null;
  rules = [];
  nodes = null;
  denials = null;
  control = null;
  /** Why the last reading failed, and since when the server has not answered. */
  failure = null;
  answeredAt = NaN;
  #growth = new Growth();
  #listeners = new Set();
  #timer = 0;
  #running = false;
  #failures = 0;
  #turn = 0;
  #frame = 0;
  #off = new Set();

  start() {
    if (this.#running) return;
    this.#running = true;
    document.addEventListener("visibilitychange", this.#wake);
    this.#read();
  }

  stop() {
    this.#running = false;
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#wake);
  }

  /** Reads what a change may have altered, at once. */
  async refresh() {
    await Promise.allSettled(TURNS.map((path) => this.#one(path)));
    this.#notify();
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Draws once for each frame at most, and not at all while the page is in the background. */
  #notify() {
    if (this.#frame !== 0) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      for (const listener of this.#listeners) listener();
    });
  }

  #wake = () => {
    if (document.hidden || !this.#running) return;
    clearTimeout(this.#timer);
    this.#read();
  };

  async #read() {
    try {
      const first = this.status === null;
      const paths = first ? TURNS : [TURNS[this.#turn % TURNS.length]];
      this.#turn += 1;
      const [text, status] = await Promise.all([get("/metrics"), get("/admin/v1/status"), ...paths.map((path) => this.#one(path))]);
      if (!this.#running) return;
      this.status = status;
      this.#take(text, Date.now());
      [this.failure, this.#failures, this.answeredAt] = [null, 0, Date.now()];
    } catch (error) {
      if (!this.#running) return;
      this.failure = error.message;
      this.#failures += 1;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#read(), this.#pause());
    this.#notify();
  }

  #pause() {
    const backoff = EVERY_MS * 2 ** Math.min(4, this.#failures);
    return document.hidden ? RARELY_MS : Math.min(RARELY_MS, backoff);
  }

  async #one(path) {
    const name = /v1\/([a-z]+)/.exec(path)[1];
    if (this.#off.has(name)) return;
    try {
      this[name] = await get(path);
    } catch (error) {
      // What the settings turn off has no path: it is not asked for again.
      if (error.status !== 404) throw error;
      this.#off.add(name);
    }
  }

  #take(text, now) {
    const found = series(text, WANTED);
    const counters = new Map();
    const add = (key, value) => counters.set(key, (counters.get(key) ?? 0) + value);
    for (const { name, labels, value } of found) {
      if (name === "tidegate_decisions_total") {
        add(seriesOf(labels.rule, labels.outcome), value);
        add(seriesOf(null, labels.outcome), value);
        add(`by ${labels.decided_by}`, value);
      } else if (name === "tidegate_decision_seconds_bucket") {
        add(`le ${labels.le}`, value);
      } else if (name === "tidegate_store_errors_total") {
        add("store errors", value);
      }
    }
    this.totals = counters;
    this.gauges = found.filter(({ name }) => !name.endsWith("_total") && !name.endsWith("_bucket"));
    const rates = this.#growth.read(counters, now);
    if (rates === null) return;
    const buckets = [...rates].filter(([key]) => key.startsWith("le ")).map(([key, rate]) => [bound(key.slice(3)), rate]);
    rates.set("p50", quantile(buckets, 0.5));
    rates.set("p99", quantile(buckets, 0.99));
    this.rates = rates;
    // What never happened has the rate 0, and not no rate.
    for (const rule of [null, ...this.rules.map((one) => one.rule)]) {
      for (const outcome of OUTCOMES) if (!rates.has(seriesOf(rule, outcome))) rates.set(seriesOf(rule, outcome), 0);
    }
    const kept = [...rates].filter(([key]) => key.includes("\n") || key === "p50" || key === "p99");
    this.history.push(now, new Map(kept));
  }

  /** The rate of an outcome of a rule, or of all rules; 0 if it never happened. */
  rate(rule, outcome) {
    return this.rates === null ? NaN : this.rates.get(seriesOf(rule, outcome)) ?? 0;
  }

  /** How often it happened since this node started. */
  total(rule, outcome) {
    return this.totals.get(seriesOf(rule, outcome)) ?? 0;
  }

  gauge(name, labels = {}) {
    const same = ([label, value], of) => of.labels[label] === value;
    return this.gauges.find((one) => one.name === name && Object.entries(labels).every((pair) => same(pair, one)))?.value;
  }
}

const bound = (le) => (le === "+Inf" ? Infinity : Number(le));

export const live = new Live();

/** Draws a component again after each reading. */
export function useLive() {
  const [, draw] = useState(0);
  useEffect(() => live.subscribe(() => draw((number) => number + 1)), []);
  return live;
}
