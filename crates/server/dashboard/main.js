// The dashboard: signing in, the pages and the bar above them.
//
// The token comes in the fragment of the address (`#token=…`, which browsers do not send) and is erased from it at once, or is pasted.
// The pages are `#/now`, `#/top` and so on. What an operator looks up is never part of the address.

import { ask, session } from "./api.js";
import { duration } from "./format.js";
import { live, useLive } from "./live.js";
import { Alert } from "./parts.js";
import { Audit } from "./pages/audit.js";
import { Now } from "./pages/now.js";
import { Person } from "./pages/person.js";
import { Playground } from "./pages/playground.js";
import { PolicyPage } from "./pages/policy.js";
import { Shadow } from "./pages/shadow.js";
import { Top } from "./pages/top.js";
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";

const PAGES = [
  ["now", "Now", Now], ["top", "Top keys", Top], ["person", "Person", Person], ["shadow", "Shadow", Shadow],
  ["policy", "Policy", PolicyPage], ["playground", "Playground", Playground], ["audit", "Audit", Audit],
];

/** The token of the address, which is erased. */
function tokenOfAddress() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (!token) return "";
  history.replaceState(null, "", "#/now");
  try { return decodeURIComponent(token); } catch { return token; }
}

const pageOfAddress = () => PAGES.find(([name]) => location.hash === `#/${name}`) ?? PAGES[0];

function App({ token }) {
  const [user, setUser] = useState(null);
  const [failure, fail] = useState("");
  const leave = (why = "") => { live.stop(); session.forget(); setUser(null); fail(why); };
  const enter = async (text) => {
    session.use(text);
    try {
      setUser((await ask("GET", "/admin/v1/whoami")).data);
      fail("");
      live.start();
    } catch (error) {
      session.forget();
      fail(error.status === 401 ? "This token is not valid." : error.message);
    }
  };
  useEffect(() => {
    session.onUnauthorized(() => leave("This token is no longer valid."));
    // A link with a token, opened in this tab, signs in again.
    const follow = () => { const text = tokenOfAddress(); if (text) enter(text); };
    addEventListener("hashchange", follow);
    if (token) enter(token);
  }, []);
  return user ? html`<${Pages} user=${user} leave=${() => leave()} />` : html`<${SignIn} enter=${enter} failure=${failure} />`;
}

function SignIn({ enter, failure }) {
  const field = useRef(null);
  useEffect(() => field.current?.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    const text = field.current.value.trim();
    field.current.value = "";
    if (text) enter(text);
  };
  return html`<main class="signin">
    <h1><${Mark} /> tidegate</h1>
    <form onSubmit=${submit}>
      <label class="field"><span>Token</span><input ref=${field} type="password" name="token" autocomplete="off" spellcheck="false" required /></label>
      <button type="submit" class="primary">Open the dashboard</button>
    </form>
    <${Alert}>${failure}<//>
    <p class="quiet">The file <code>reader-token</code> in the data directory has a token for looking, <code>operator-token</code> one for changes, too.
      <code>tidegate admin dashboard</code> prints a link that needs no pasting. The token stays in the memory of this page.</p>
  </main>`;
}

const Mark = () => html`<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><path d="M2 8c3.3-3.2 6.7-3.2 10 0s6.7 3.2 10 0" /><path class="low" d="M2 16c3.3-3.2 6.7-3.2 10 0s6.7 3.2 10 0" /><path d="M12 2.5v19" /></svg>`;

function Pages({ user, leave }) {
  const [[name, title, Page], turn] = useState(pageOfAddress);
  const [person, look] = useState(null);
  const heading = useRef(null);
  useEffect(() => {
    const changed = () => turn(pageOfAddress());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => { document.title = `${title} · tidegate`; }, [title]);
  const open = (attributes) => { look({ attributes }); location.hash = "#/person"; heading.current?.focus(); };
  return html`
    <header class="top">
      <a class="skip" href=${`#/${name}`} onClick=${(event) => { event.preventDefault(); heading.current?.focus(); }}>Skip to the page</a>
      <span class="brand"><${Mark} /><b>tidegate</b></span>
      <nav aria-label="Pages">${PAGES.map(([page, text]) => html`<a key=${page} href=${`#/${page}`} aria-current=${page === name ? "page" : null}>${text}</a>`)}</nav>
      <${State} />
      <span class="user"><span class="role">${user.name === user.role || !user.name ? user.role : `${user.name} · ${user.role}`}</span>
        <${ThemeButton} /><button type="button" onClick=${leave}>Leave</button></span>
    </header>
    <main>
      <h1 class="hidden" tabindex="-1" ref=${heading}>${title}</h1>
      <${Problems} />
      <${Page} key=${name} user=${user} mayChange=${user.role === "operator"} open=${open} person=${person} look=${look} />
    </main>`;
}

/** Whether what the page shows is current. */
function State() {
  const { failure, answeredAt, status } = useLive();
  if (failure) {
    const since = Number.isFinite(answeredAt) ? ` for ${duration(Date.now() - answeredAt)}` : "";
    return html`<span class="state bad" role="status"><i class="dot"></i>no answer${since}</span>`;
  }
  return html`<span class="state" role="status"><i class="dot"></i>${status ? "live" : "reading"}</span>`;
}

function Problems() {
  const { failure, status } = useLive();
  const reasons = status?.health?.reasons ?? [];
  return html`${failure && html`<${Alert}>No answer from the server: ${failure}. The figures are the last ones.<//>`}
    ${reasons.length > 0 && html`<${Alert} tone="warn">${reasons.map((reason) => html`<span class="line">${reasonText(reason)}</span>`)}<//>`}`;
}

const reasonText = (reason) => (typeof reason === "string" ? reason : Object.values(reason).join(": "));

const THEMES = [["", "Auto"], ["light", "Light"], ["dark", "Dark"]];

function ThemeButton() {
  const [at, set] = useState(0);
  const next = () => {
    const to = (at + 1) % THEMES.length;
    document.documentElement.dataset.theme = THEMES[to][0];
    set(to);
  };
  return html`<button type="button" onClick=${next} aria-label=${`Theme: ${THEMES[at][1]}`}><span aria-hidden="true">◐</span> <span class="word">${THEMES[at][1]}</span></button>`;
}

render(html`<${App} token=${tokenOfAddress()} />`, document.getElementById("app"));
