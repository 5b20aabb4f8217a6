// Requests to the admin API. The token is in this module's memory and nowhere else: no cookie, no storage, no address.

let token = "";

/** An answer that is not a success. `status` is 0 if there was no answer. */
export class ApiError extends Error {
  constructor(status, detail, problems = []) {
    super(detail);
    this.status = status;
    this.problems = problems;
  }
}

/** The server answers within a second; after this time it does not answer. */
const TIMEOUT_MS = 10_000;

let onUnauthorized = () => {};

export const session = {
  use(text) { token = text; },
  forget() { token = ""; },
  onUnauthorized(react) { onUnauthorized = react; },
};

/** Sends a request. A body that is not a string is sent as JSON. Returns `{ data, headers }`; throws an ApiError. */
export async function ask(method, path, body, extra = {}) {
  const headers = { authorization: `Bearer ${token}`, ...extra };
  const options = { method, headers, credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    options.body = typeof body === "string" ? body : JSON.stringify(body);
    headers["content-type"] ??= "application/json";
  }
  const answer = await fetch(path, options).catch((error) => {
    const late = error.name === "TimeoutError";
    throw new ApiError(0, late ? "the server did not answer within 10 s" : "the server cannot be reached");
  });
  const text = await answer.text();
  const data = read(text, answer.headers.get("content-type") ?? "");
  if (answer.ok) return { data, headers: answer.headers };
  if (answer.status === 401) onUnauthorized();
  throw new ApiError(answer.status, data?.detail ?? `status ${answer.status}`, data?.problems ?? []);
}

function read(text, type) {
  if (!/[/+]json/.test(type)) return text;
  try { return JSON.parse(text); } catch { throw new ApiError(0, "the answer is not valid JSON"); }
}

export const get = async (path) => (await ask("GET", path)).data;
export const post = async (path, body) => (await ask("POST", path, body)).data;
export const put = async (path, body) => (await ask("PUT", path, body)).data;
