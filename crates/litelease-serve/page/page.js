// The page: its address is its state, and one render draws it.

import { html, render } from "/vendor/preact.js";
import { hold, live, now, open, start, unlock, watch } from "/live.js";
import { clock, grouped, matcher, spoken } from "/words.js";
import { askBreak, isAsking, outcome } from "/ask.js";
import { href } from "/parts.js";
import { AllNames, Overview, Pool, Pools, Queues, resortNow, Sessions, Shards, Ticks } from "/overview.js";
import { Name, Tick } from "/name.js";
import { Queue } from "/queue.js";
import { AllPast } from "/past.js";

const route = () => Object.fromEntries(new URLSearchParams(location.search));

// A step that the back button takes back; typing replaces the step before.
function go(query, replace = false) {
  const address = href(query);
  if (address === `${location.pathname}${location.search}`) return;
  history[replace ? "replaceState" : "pushState"]({}, "", address);
  if (!replace) scrollTo(0, 0);
  draw();
}

const kindOf = (route) => (route.name ? "names" : route.queue ? "queues" : route.pool ? "pools" : route.tick ? "ticks" : route.view ?? "overview");

function Header({ here }) {
  const data = live.data, bad = (rows) => rows.filter((row) => row.health === "stuck").length;
  const names = [...live.names.values()];
  const tabs = data && [["overview", "Overview"], ["names", "Names", names], ["queues", "Queues", data.queues], ["pools", "Pools", data.pools], ["ticks", "Ticks", data.ticks], ["sessions", "Sessions", data.sessions], ["shards", "Shards", data.shards], ["history", "History"]];
  const current = route(), held = live.held;
  const type = (event) => go({ ...current, q: event.target.value }, true);
  return html`<header class="top"><a class="skip" href="#main">Skip to the tables</a><div class="in">
    <a class="brand" href="/" aria-label="Litelease, overview"><img src="/icon.svg" alt="" width="24" height="24"/><span>Litelease</span></a>
    <span class="place" title="this server">${location.host}</span>
    ${tabs && html`<nav class="tabs" aria-label="Views">${tabs.map(([view, title, rows]) => html`<a key=${view} href=${href({ view: view === "overview" ? "" : view })} aria-current=${view === here ? "page" : undefined}>${title}${rows && html` <small>${grouped(rows.length)}</small>`}${rows && bad(rows) > 0 && html`<span class="bad" title=${`${bad(rows)} stuck`}>${bad(rows)}<span class="visually-hidden"> stuck</span></span>`}</a>`)}</nav>
    <div class="search" role="search"><input type="search" id="q" aria-label="Filter all tables" placeholder="Filter names, owners…" title="Text in a name or owner, or owner: state: note: host:. The address of this page keeps it." value=${current.q ?? ""} onInput=${type} autocomplete="off" spellcheck=${false}/><kbd aria-hidden="true">/</kbd></div>
    <button type="button" class="live ${live.status}" aria-pressed=${String(held)} title="Hold the page still (p)" onClick=${() => hold(!held)}>${held ? `Held${live.news ? ` · ${live.news} new` : ""}` : live.status === "resting" ? "Resting" : "Live"}</button>
    <span class="key" title="access key and its scope">${live.key ? (live.key.name ? `${live.key.name} · ${live.key.operates ? "operate" : "observe"}` : "open to all") : ""}</span>`}
    <div class="alarm" role="alert">${live.status === "lost" && html`<b>No connection for ${spoken(Date.now() - live.lostSince)}.</b><span>${live.data ? `Everything below is as it was at ${clock(live.asOf, now(), true)}. ` : ""}${live.nextTry > Date.now() ? `Next try in ${Math.ceil((live.nextTry - Date.now()) / 1000)} s` : "Trying now"}; it comes back by itself.</span><button type="button" onClick=${open}>Try now</button>`}</div>
  </div></header>`;
}

function Main({ query, here }) {
  const data = live.data;
  if (live.status === "locked") return html`<${Unlock}/>`;
  if (!data) return html`<div class="verdict"><h1>${live.status === "lost" ? "Unknown: the server does not answer" : "Reading…"}</h1></div>`;
  const filter = matcher(query.q ?? ""), props = { data, filter, route: query, go };
  if (query.name) return html`<${Name} key=${query.name} ...${props}/>`;
  if (query.queue) return html`<${Queue} key=${query.queue} ...${props}/>`;
  if (query.pool) return html`<${Pool} ...${props}/>`;
  if (query.tick) return html`<${Tick} key=${query.tick} ...${props}/>`;
  const lists = { queues: Queues, pools: Pools, ticks: Ticks, sessions: Sessions, shards: Shards };
  if (here === "names") return html`<${AllNames} ...${props}/>`;
  if (here === "history") return html`<${AllPast} ...${props}/>`;
  if (lists[here]) return html`<h1 class="visually-hidden">${here}</h1><${lists[here]} ...${props} whole=${true}/>`;
  return html`<${Overview} ...${props}/>`;
}

function Unlock() {
  const submit = (event) => {
    event.preventDefault();
    unlock(new FormData(event.target).get("key"));
  };
  return html`<div class="unlock card"><form onSubmit=${submit}><h1>Access key</h1><p>This server shows what it holds to those who have an access key. It stays in this tab, and in no address.</p>
    <label>Key<input name="key" type="password" autocomplete="off" required autofocus/></label>${live.said && html`<p class="t-stuck" role="alert">${live.said}</p>`}<div class="acts"><button class="main">Open</button></div>
    <p class="soft">The one of the user who runs the server is a file in ~/.local/state/litelease/access. Another is made by: <code>litelease access add on-call --allow 'operate:*' --allow 'observe:*'</code></p></form></div>`;
}

const keys = [["/", "filter"], ["j k", "next and previous row"], ["Enter", "open the row"], ["b", "break the lease of this name"], ["p", "hold the page still"], ["s", "sort again"], ["o", "overview"], ["Esc", "leave the filter, close"], ["?", "these keys"]];
let showsKeys = false;
const Keys = () => showsKeys && html`<dialog open class="keys-list" aria-label="Keys"><form method="dialog"><h2>Keys</h2><dl>${keys.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl><div class="acts"><button type="button" onClick=${() => { showsKeys = false; draw(); }}>Close</button></div></form></dialog>`;

function title(query, here) {
  if (live.status === "lost") return "NO CONNECTION · Litelease";
  const of = query.name ?? query.queue ?? query.pool ?? query.tick;
  const row = query.name ? live.names.get(of) : live.data?.queues.find((row) => row.queue === of) ?? live.data?.ticks.find((row) => row.name === of);
  if (of) return `${row && row.health !== "ok" ? `${row.health}: ` : ""}${of} · Litelease`;
  const stuck = live.data?.attention.filter((row) => row.health === "stuck").length;
  const view = here === "overview" ? "" : `${here[0].toUpperCase()}${here.slice(1)} · `;
  return `${stuck ? `${stuck} stuck · ` : ""}${view}Litelease`;
}

function draw() {
  const query = route(), here = kindOf(query), said = outcome() || (live.status === "live" ? live.said : "");
  document.title = title(query, here);
  document.body.classList.toggle("lost", live.status === "lost");
  render(html`<${Header} here=${here}/><main id="main" tabindex="-1" class=${here === "names" && !query.name ? "all" : ""}>${said && html`<p class="said card" role="status">${said}</p>`}<${Main} query=${query} here=${here}/></main><${Keys}/>`, document.body);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.origin !== location.origin || link.pathname !== "/" || link.hash || "leave" in link.dataset) return;
  event.preventDefault();
  go(Object.fromEntries(link.searchParams ?? new URL(link.href).searchParams));
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isAsking()) return;
  const isTyping = event.target.matches?.("input, textarea");
  if (event.key === "Escape") {
    showsKeys = false;
    if (isTyping) event.target.blur();
    return draw();
  }
  if (isTyping) return;
  const links = () => [...document.querySelectorAll("tbody a.n")].filter((link) => link.offsetParent);
  const step = (by) => {
    const all = links(), at = all.indexOf(document.activeElement);
    (all[at + by] ?? (at < 0 ? all[0] : null))?.focus();
  };
  const acts = {
    "/": () => document.getElementById("q")?.focus(),
    j: () => step(1), k: () => step(-1),
    b: () => {
      const name = route().name ?? new URLSearchParams(document.activeElement?.search ?? "").get("name");
      if (name) askBreak(name);
    },
    p: () => hold(!live.held), s: resortNow, o: () => go({}),
    "?": () => { showsKeys = !showsKeys; draw(); },
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
});

addEventListener("popstate", draw);
addEventListener("redraw", draw);
let frame = 0;
watch(() => {
  if (live.status === "live" && live.said) setTimeout(() => { live.said = ""; }, 10_000);
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
});
draw();
start();
