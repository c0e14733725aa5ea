// The overview, and the lists that it shows the worst of.

import { html, useEffect, useRef, useState } from "/vendor/preact.js";
import { live, now } from "/live.js";
import { clock, exact, grouped, matcher, moment, plural, RANK, spoken } from "/words.js";
import { askBreak, askFree, askResume } from "/ask.js";
import { Command, Heads, Head, href, Icon, Left, Mark, Pill, place, Since, Spark, Widths, Zero } from "/parts.js";

// --- order -----------------------------------------------------------------------------------

const nameColumns = [
  { key: "state", title: "State" }, { key: "name", title: "Name" }, { key: "owner", title: "Owner, host, process" },
  { key: "command", title: "Command" }, { key: "user", title: "User" }, { key: "token", title: "Token", num: true },
  { key: "held", title: "Held, since", num: true }, { key: "left", title: "Left", num: true }, { key: "waiting", title: "Waiting", num: true },
];
const values = {
  state: (row) => -RANK[row.health],
  name: (row) => row.name ?? row.queue ?? row.label ?? row.group,
  owner: (row) => row.owner ?? "", command: (row) => row.command ?? "", user: (row) => row.user ?? "",
  token: (row) => row.token, held: (row) => -(row.since_ms ?? Infinity), left: (row) => row.expires_at_ms,
  waiting: (row) => row.waiters ?? 0, visible: (row) => row.visible, delayed: (row) => row.delayed,
  leased: (row) => row.leased, dead: (row) => row.dead, oldest: (row) => -(row.oldest_since_ms ?? Infinity),
  used: (row) => row.in_use, names: (row) => row.names, when: (row) => row.tick_ms, next: (row) => row.next_ms ?? Infinity,
  done: (row) => row.done_ms ?? 0,
};

// Sorts by a column; ties by how long it has been so, then by name.
export function sorted(rows, sort = "-state") {
  const down = sort.startsWith("-"), value = values[sort.replace("-", "")] ?? values.state, name = values.name;
  const keyed = rows.map((row) => ({ row, value: value(row), since: row.since_ms ?? row.oldest_since_ms ?? Infinity, name: name(row) }));
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  keyed.sort((a, b) => (down ? -1 : 1) * order(a.value, b.value) || order(a.since, b.since) || order(a.name, b.name));
  return keyed.map(({ row }) => row);
}

// Rows keep their place until they are sorted again. Answers the rows, and how many would move.
const places = new Map();
export function resort() { places.clear(); }
function settled(id, rows, sort, most = Infinity) {
  const ideal = sorted(rows, sort), key = values.name, known = new Map(rows.map((row) => [key(row), row]));
  const before = places.get(`${id} ${sort}`) ?? [];
  const kept = before.filter((name) => known.has(name)).slice(0, most);
  const has = new Set(kept);
  const shown = [...kept, ...ideal.map(key).filter((name) => !has.has(name)).slice(0, Math.max(0, most - kept.length))];
  // Sooner or later all rows are new: then nothing keeps its place.
  const order = before.length === 0 || kept.length === 0 ? ideal.map(key).slice(0, most) : shown;
  places.set(`${id} ${sort}`, order);
  const moved = order.filter((name, at) => ideal[at] && key(ideal[at]) !== name).length;
  return { rows: order.map((name) => known.get(name)), moved, all: ideal.length };
}

const Moved = ({ count }) => count > 0 && html`<button type="button" class="quiet" title="Rows keep their place until you sort again (s)" onClick=${resortNow}>${count} would move: sort again</button>`;
export function resortNow() { resort(); dispatchEvent(new Event("redraw")); }

// --- the answer in the first second ----------------------------------------------------------------

const links = {
  live: { view: "names" }, waiting: { view: "names", sort: "-waiting", state: "waiting" }, oldest_wait: { view: "names", sort: "-waiting" },
  oldest_item: { view: "queues", sort: "-oldest" }, dead: { view: "queues", sort: "-dead" }, late_ticks: { view: "ticks", sort: "-state" },
};

export function Verdict({ data }) {
  const lost = live.status === "lost";
  const health = lost ? "unknown" : data.health === "late" || data.health === "paused" ? data.health : data.health === "stuck" ? "stuck" : "ok";
  const [first, ...rest] = data.verdict.split(", ");
  const verdict = lost ? "Unknown: the server does not answer"
    : data.health === "stuck" ? html`<span class="s">${first}</span>${rest.map((one) => `, ${one}`)}` : data.verdict;
  const calm = data.health === "ok" || lost ? "" : "everything else moves · ";
  const asOf = lost ? `last known: ${data.verdict}, at ${clock(live.asOf, now(), true)}` : `${calm}as of ${clock(live.asOf, now(), true)}`;
  return html`<div class="verdict"><span class="vi ${lost ? "soft" : `t-${health}`}"><${Icon} is=${health}/></span><h1><span role="status">${verdict}</span></h1><span class="asof">${asOf}</span></div>`;
}

export const Figures = ({ data }) => html`<nav class="figures" aria-label="Is anything stuck?">${data.figures.map((one) => {
  const bad = one.health === "stuck" || one.health === "late";
  const kind = bad ? `is-${one.health}` : one.value === "0" || one.value === "–" ? "zero" : "";
  return html`<a key=${one.kind} class=${kind} href=${href({ ...links[one.kind], state: one.kind === "live" && bad ? one.health : links[one.kind].state })}><span class="t">${one.title}${bad && html`<${Icon} is=${one.health}/><span class="visually-hidden">${one.health}</span>`}</span><b class=${one.kind === "live" ? "plain" : ""}>${one.value}</b><span class="why" title=${one.why}>${one.why}</span></a>`;
})}</nav>`;

// --- needs attention --------------------------------------------------------------------------------

let attentionOrder = [];
function Attention() {
  const all = live.wellAgain, ids = [...all.keys()];
  attentionOrder = attentionOrder.filter((id) => all.has(id));
  for (const id of ids.filter((id) => !attentionOrder.includes(id))) {
    const rank = RANK[all.get(id).health];
    const worse = attentionOrder.filter((other) => RANK[all.get(other).health] <= rank).length;
    attentionOrder.splice(worse, 0, id);
  }
  const rows = attentionOrder.map((id) => all.get(id));
  return html`<section aria-labelledby="h-att"><${Head} id="h-att" title="Needs attention" hint=${rows.length ? "worst first; a thing stays here until it is well again" : ""}/>
    ${rows.length === 0 ? html`<div class="card"><p class="calm"><span class="t-ok"><${Icon} is="ok"/></span><span>Nothing needs you.</span></p></div>`
    : html`<div class="card"><table class="attention" role="table" aria-labelledby="h-att"><${Widths} of=${[92, 154, 0, 180, 78, 180, 152]}/>
      <${Heads} columns=${["State", "What", "Why", "Who has it", "Since", "Who waits", "What to do"].map((title) => ({ title }))}/>
      <tbody role="rowgroup">${rows.map((row) => html`<${AttentionRow} key=${`${row.kind} ${row.name}`} row=${row}/>`)}</tbody></table></div>`}</section>`;
}

function AttentionRow({ row }) {
  const waits = row.waits === "–" || row.waits === "nobody" ? "" : ` · waiting: ${row.waits}`;
  const state = row.isWell ? html`<${Pill} is="ok" word="well again"/>` : html`<${Pill} is=${row.health}/>`;
  return html`<tr role="row" class=${row.isWell ? "is-well" : `is-${row.health}`}><td role="cell">${state}</td><td role="cell"><a class="n" href=${href({ [row.kind]: row.name })}>${row.name}</a><br/><span class="soft"> ${row.kind}</span></td>
    <td role="cell">${row.why}</td><td role="cell">${row.who}<br/><span class="soft"> ${row.place}</span><span class="only-phone soft">${waits}</span></td>
    <td role="cell" title=${exact(row.since_ms)}>${row.since_ms == null ? "–" : spoken(now() - row.since_ms)}<br/><span class="soft">${clock(row.since_ms, now())}</span></td><td role="cell">${row.waits}</td><td role="cell">${!row.isWell && html`<${Act} row=${row}/>`}</td></tr>`;
}

function Act({ row }) {
  const off = live.status !== "live" && live.status !== "resting";
  if (row.act === "break" && live.key?.operates) return html`<button type="button" class="danger" disabled=${off} onClick=${() => askBreak(row.name)}>Break…</button>`;
  if (row.act === "resume" && live.key?.operates) return html`<button type="button" disabled=${off} onClick=${() => askResume(row.name)}>Resume…</button>`;
  const died = /^([\d,]+) died/.exec(row.why);
  const words = row.kind === "queue" ? (row.health === "stuck" ? "Start a worker ›" : died ? `See the ${died[1]} ›` : "Look at it ›")
    : row.kind === "name" && row.place ? `Look at ${row.place.split(" ")[0]} ›` : "Look at it ›";
  return html`<a class="go" href=${href({ [row.kind]: row.name })}>${words}</a>`;
}

// --- names --------------------------------------------------------------------------------------------

const nameWidths = [92, 182, 206, 0, 76, 62, 120, 118, 80];

export function NameCells({ row, isOpen, onOpen, narrow }) {
  const stuck = row.health === "stuck";
  const waiting = row.waiters === 0 ? html`<span class="zero not-phone">0</span><span class="only-phone">${live.status === "lost" ? "–" : `${spoken(row.expires_at_ms - now())} left`}</span>`
    : onOpen ? html`<button type="button" class="chev" aria-expanded=${String(isOpen)} aria-label=${`${row.waiters} wait for ${row.name}; show them`} onClick=${onOpen}>${row.waiters}<span class="only-phone"> wait</span></button>` : html`${grouped(row.waiters)}<span class="only-phone"> wait</span>`;
  return html`<td role="cell"><${Pill} is=${row.health}/></td><td role="cell" class="m1" title=${row.name}><${Mark} is=${row.health}/><a class="n" href=${href({ name: row.name })}>${row.name}</a></td>
    <td role="cell" class="m3" title=${`${row.owner} ${place(row)}`}>${row.owner} <span class="soft">${place(row)}</span></td><td role="cell" class="soft mono" title=${row.command}>${row.command ?? "–"}</td><td role="cell" class="soft">${row.user ?? "–"}</td><td role="cell" class="num soft">${row.token}</td>
    <td role="cell" class="num m2"><${Since} ms=${row.since_ms}/></td><td role="cell" class="num"><${Left} row=${row}/></td><td role="cell" class="num m4 ${stuck && row.waiters ? "t-stuck" : ""}">${waiting}</td>`;
}

export const Waiters = ({ row }) => html`<ol aria-label=${`waiting for ${row.name}, in order`}>${(row.waiting ?? []).map((one, at) => html`<li key=${at}><span class="soft">${at + 1}</span><b>${one.owner ?? one.note ?? "a client"}</b><span>${place(one)}</span><span title=${exact(one.since_ms)}>${one.since_ms == null ? "" : spoken(now() - one.since_ms)}</span><span class="soft">${one.note ? `“${one.note}”` : "no note"}</span></li>`)}</ol>`;

function Names({ data, filter, route, go }) {
  const [open, setOpen] = useState(null);
  const all = [...live.names.values()].filter(filter), sort = route.sort ?? "-state";
  const { rows, moved } = settled(`names ${route.q ?? ""}`, all, sort, 9);
  return html`<section id="names" aria-labelledby="h-names"><${Head} id="h-names" title="Names" note=${`${grouped(all.length)} live, ${grouped(data.free)} free`} hint=${all.length > rows.length ? ` · ${rows.length} shown, worst first` : ""}><${Moved} count=${moved}/><a href=${href({ view: "names", q: route.q })}>All names</a><//>
    <div class="card">${rows.length === 0 ? html`<p class="calm soft">${route.q ? "no live name matches the filter" : "nobody has anything"}</p>` : html`<table role="table" aria-labelledby="h-names" aria-rowcount=${all.length + 1}><${Widths} of=${nameWidths}/><${Heads} columns=${nameColumns} sort=${sort} onSort=${(sort) => go({ ...route, sort })}/>
      <tbody role="rowgroup">${rows.map((row) => html`<tr role="row" key=${row.name} class=${`is-${row.health}`}><${NameCells} row=${row} isOpen=${open === row.name} onOpen=${() => setOpen(open === row.name ? null : row.name)}/></tr>${open === row.name && html`<tr role="row" class="under" key=${`${row.name} waiters`}><td role="cell" colspan="9"><${Waiters} row=${row}/></td></tr>`}`)}</tbody></table>`}</div></section>`;
}

// All names: a fixed set of rows is filled again while one scrolls.
export function AllNames({ data, filter, route, go }) {
  const body = useRef(null), [top, setTop] = useState(0), [height, setHeight] = useState(innerHeight);
  useEffect(() => {
    let frame = 0;
    const look = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        if (!body.current) return;
        setHeight(innerHeight);
        setTop(Math.max(0, 48 - body.current.getBoundingClientRect().top));
      });
    };
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => { removeEventListener("scroll", look); removeEventListener("resize", look); };
  }, []);
  const sort = route.sort ?? "-state", all = [...live.names.values()];
  const matching = all.filter((row) => filter(row) && (!route.prefix || (route.prefix === "no prefix" ? !row.name.includes("/") : row.name.startsWith(route.prefix))));
  const chosen = route.state ? matching.filter((row) => (route.state === "waiting" ? row.waiters > 0 : row.health === route.state)) : matching;
  const { rows, moved } = settled(`all ${route.q ?? ""} ${route.prefix ?? ""} ${route.state ?? ""}`, chosen, sort);
  const line = innerWidth <= 900 ? 57 : 32, size = Math.min(rows.length, Math.ceil(height / line) + 16);
  const from = Math.max(0, Math.min(rows.length - size, Math.floor(top / line) - 8));
  return html`<div class="verdict slim"><h1>Names</h1><span class="soft">${grouped(chosen.length)} live${chosen.length < all.length ? ` of ${grouped(all.length)}` : ""}; the address of this page keeps filter and order</span><${Moved} count=${moved}/><span class="asof">as of ${clock(live.asOf, now(), true)}</span></div>
    <${Facets} all=${all} route=${route}/>
    <section id="names" class="flush" aria-label="All names"><div class="card"><table role="table" aria-label="All names" aria-rowcount=${rows.length + 1}><${Widths} of=${nameWidths}/><${Heads} columns=${nameColumns} sort=${sort} onSort=${(sort) => go({ ...route, sort })}/>
      <tbody role="rowgroup" ref=${body}><tr class="space" aria-hidden="true"><td colspan="9" style=${{ height: `${from * line}px` }}></td></tr>
        ${rows.slice(from, from + size).map((row, at) => html`<tr role="row" key=${`slot ${at}`} aria-rowindex=${from + at + 2} class=${`is-${row.health}`}><${NameCells} row=${row}/></tr>`)}
        <tr class="space" aria-hidden="true"><td colspan="9" style=${{ height: `${(rows.length - from - size) * line}px` }}></td></tr></tbody></table></div></section>`;
}

function Facets({ all, route }) {
  const states = {}, prefixes = {};
  for (const row of all) {
    states[row.health] = (states[row.health] ?? 0) + 1;
    const at = row.name.indexOf("/"), prefix = at < 0 ? "no prefix" : row.name.slice(0, at + 1);
    prefixes[prefix] = (prefixes[prefix] ?? 0) + 1;
  }
  const top = Object.entries(prefixes).sort((a, b) => b[1] - a[1]).slice(0, 6);
  const chip = (text, count, query, is, mono) => html`<a class=${mono ? "mono" : ""} href=${href({ ...route, ...query })} aria-current=${is ? "true" : undefined}>${text} <small>${grouped(count)}</small></a>`;
  return html`<nav class="facets" aria-label="Filters">${chip("all", all.length, { state: "", prefix: "" }, !route.state && !route.prefix)}
    ${["stuck", "late", "waiting", "ok"].filter((state) => states[state] || state === route.state).map((state) => chip(state, states[state] ?? 0, { state: state === route.state ? "" : state }, state === route.state))}
    ${top.length > 1 && html`<span class="sep"></span>`}${top.length > 1 && top.map(([prefix, count]) => chip(prefix, count, { prefix: prefix === route.prefix ? "" : prefix }, prefix === route.prefix, true))}</nav>`;
}

// --- queues, pools, ticks, sessions, shards --------------------------------------------------------------

const queueColumns = [
  { key: "state", title: "State" }, { key: "name", title: "Queue" }, { key: "visible", title: "Visible", num: true }, { key: "delayed", title: "Delayed", num: true },
  { key: "leased", title: "Leased", num: true }, { key: "dead", title: "Dead", num: true }, { key: "oldest", title: "Oldest", num: true },
  { title: "In / done a min", num: true }, { title: "Wait p95", num: true }, { title: "Done, last hour" },
];

export function Queues({ data, filter, route, go, whole }) {
  const sort = route.sort && whole ? route.sort : "-state", found = data.queues.filter(filter);
  const { rows, moved, all } = settled(`queues ${route.q ?? ""}`, found, sort, whole ? Infinity : 9);
  const sum = (field) => grouped(found.reduce((sum, row) => sum + row[field], 0));
  const color = { stuck: "var(--stuck)", paused: "var(--paused)" };
  return html`<section id="queues" aria-labelledby="h-q"><${Head} id="h-q" title="Queues" note=${`${grouped(all)} · ${sum("visible")} visible, ${sum("leased")} leased, ${sum("dead")} dead`}><${Moved} count=${moved}/>${!whole && html`<a href=${href({ view: "queues", q: route.q })}>All queues</a>`}<//>
    <div class="card">${rows.length === 0 ? html`<p class="calm soft">no queue</p>` : html`<table role="table" aria-labelledby="h-q"><${Widths} of=${[92, 0, 92, 84, 84, 76, 100, 120, 100, 200]}/><${Heads} columns=${queueColumns} sort=${sort} onSort=${whole && ((sort) => go({ ...route, sort }))}/>
    <tbody role="rowgroup">${rows.map((row) => {
      const oldest = row.oldest_since_ms == null ? html`<span class="zero">–</span>` : html`<span class=${row.health === "stuck" ? "t-stuck" : row.health === "paused" ? "t-paused" : ""} title=${exact(row.oldest_since_ms)}>${spoken(now() - row.oldest_since_ms)}</span>`;
      const flow = row.flow;
      return html`<tr role="row" key=${row.queue} class=${`is-${row.health}`}><td role="cell"><${Pill} is=${row.health}/></td><td role="cell" class="m1" title=${row.queue}><${Mark} is=${row.health}/><a class="n" href=${href({ queue: row.queue })}>${row.queue}</a></td>
      <td role="cell" class="num m3"><span class="only-phone">visible </span><${Zero} of=${row.visible}/></td><td role="cell" class="num"><${Zero} of=${row.delayed}/></td><td role="cell" class="num"><${Zero} of=${row.leased}/></td><td role="cell" class="num m4"><span class="only-phone">dead </span>${row.dead ? html`<span class="t-late">${grouped(row.dead)}</span>` : html`<${Zero} of=${0}/>`}</td>
      <td role="cell" class="num m2"><span class="only-phone soft">oldest </span>${oldest}</td><td role="cell" class="num">${flow ? html`${grouped(flow.sent)} / <span class=${flow.done === 0 && row.health === "stuck" ? "t-stuck" : ""}>${grouped(flow.done)}</span>` : html`<span class="zero">–</span>`}</td><td role="cell" class="num">${flow?.wait_ms != null ? spoken(flow.wait_ms) : html`<span class="zero">–</span>`}</td><td role="cell">${flow?.hour?.length > 1 && html`<${Spark} points=${flow.hour} color=${color[row.health]}/>`}</td></tr>`;
    })}</tbody></table>`}</div></section>`;
}

const few = (whole) => (whole ? Infinity : 4);
const shown = (rows, all) => (rows.length < all ? `${grouped(all)}, of which ${rows.length} shown` : grouped(all));
const Small = ({ id, title, view, whole, rows, all, widths, columns, sort, onSort, children }) => html`<section id=${id} aria-labelledby=${`h-${id}`}><${Head} id=${`h-${id}`} title=${title} note=${shown(rows, all)}>${!whole && rows.length < all && html`<a href=${href({ view })}>All ${view}</a>`}<//>
  <div class="card">${rows.length === 0 ? html`<p class="calm soft">none</p>` : html`<table role="table" aria-labelledby=${`h-${id}`}><${Widths} of=${widths}/><${Heads} columns=${columns} sort=${sort} onSort=${onSort}/><tbody role="rowgroup">${children}</tbody></table>`}</div></section>`;
const sorting = ({ whole, route, go }) => ({ sort: whole ? route.sort ?? "-state" : "-state", onSort: whole && ((sort) => go({ ...route, sort })) });

export function Pools(props) {
  const { data, filter, whole, route } = props, { sort, onSort } = sorting(props);
  // Two pools without a name may have the same label.
  const named = data.pools.filter(filter).map((row, at) => ({ ...row, name: `${row.label} ${at}` }));
  const { rows, all } = settled(`pools ${route.q ?? ""}`, named, sort, few(whole));
  const columns = [{ key: "name", title: "Label" }, { title: "Slots" }, { key: "used", title: "In use", num: true }, { key: "waiting", title: "Waiting", num: true }, { title: "Oldest wait", num: true }, { title: "Longest held" }];
  return html`<${Small} id="pools" title="Pools" view="pools" whole=${whole} rows=${rows} all=${all} widths=${[150, 0, 66, 62, 86, 132]} columns=${columns} sort=${sort} onSort=${onSort}>${rows.map((row) => {
    const oldest = Math.min(...(row.waiting ?? []).map((one) => one.since_ms ?? Infinity));
    const held = [...row.slots].filter((slot) => slot.since_ms != null).sort((a, b) => a.since_ms - b.since_ms)[0] ?? row.slots[0];
    return html`<tr role="row" key=${row.name} class=${`is-${row.health}`}><td role="cell" class="m1"><${Icon} is=${row.health} tinted=${true}/> <a class="n" href=${href({ pool: row.label })}>${row.label}</a></td><td role="cell" class="m3"><span class="slots" role="img" aria-label=${`${row.in_use} of ${row.count}`}>${Array.from({ length: Math.min(row.count, 12) }, (_, at) => html`<i class=${at < Math.round((row.in_use / Math.max(1, row.count)) * Math.min(row.count, 12)) ? "on" : ""}></i>`)}</span></td>
      <td role="cell" class="num m2">${row.in_use} <span class="soft">of ${row.count}</span></td><td role="cell" class="num m4"><${Zero} of=${row.waiters}/><span class="only-phone"> wait</span></td><td role="cell" class="num">${Number.isFinite(oldest) ? spoken(now() - oldest) : "–"}</td><td role="cell">${held ? html`${held.note ?? `slot ${held.position}`} <span class="soft">${held.since_ms != null ? spoken(now() - held.since_ms) : ""}</span>` : html`<span class="zero">–</span>`}</td></tr>`;
  })}<//>`;
}

export const tickState = (row) => (row.health === "stuck" && row.next_ms < now() ? "not begun" : row.state === "done" && row.began_ms && row.ended_ms ? `done in ${spoken(row.ended_ms - row.began_ms)}` : row.state === "running" ? `running, ${row.owner ?? ""}` : row.state);

export function Ticks(props) {
  const { data, filter, whole, route } = props, { sort, onSort } = sorting(props);
  const { rows, all } = settled(`ticks ${route.q ?? ""}`, data.ticks.filter(filter), sort, few(whole));
  const columns = [{ key: "name", title: "Name" }, { title: "Schedule" }, { title: "Newest tick" }, { key: "when", title: "When", num: true }, { key: "done", title: "Last done", num: true }, { key: "next", title: "Next", num: true }];
  return html`<${Small} id="ticks" title="Ticks" view="ticks" whole=${whole} rows=${rows} all=${all} widths=${[150, 84, 0, 96, 92, 84]} columns=${columns} sort=${sort} onSort=${onSort}>${rows.map((row) => {
    const late = row.health === "stuck" && row.next_ms < now();
    return html`<tr role="row" key=${row.name} class=${`is-${row.health}`}><td role="cell" class="m1" title=${row.name}><${Icon} is=${row.health} tinted=${true}/> <a class="n" href=${href({ tick: row.name })}>${row.name}</a></td><td role="cell" class="mono soft m3" title=${row.schedule}>${row.schedule ?? "–"}</td><td role="cell" class="m4" title=${row.why}>${tickState(row)}</td>
      <td role="cell" class="num m2" title=${exact(late ? row.next_ms : row.tick_ms)}>${late ? html`<span class="t-stuck">${spoken(now() - row.next_ms)} late</span>` : moment(row.tick_ms, now())}</td><td role="cell" class="num soft" title=${exact(row.done_ms)}>${moment(row.done_ms, now())}</td><td role="cell" class="num soft" title=${exact(row.next_ms)}>${late ? "–" : moment(row.next_ms, now())}</td></tr>`;
  })}<//>`;
}

export function Sessions(props) {
  const { data, filter, whole, route } = props, { sort, onSort } = sorting(props);
  const { rows, all } = settled(`sessions ${route.q ?? ""}`, data.sessions.filter(filter), sort, few(whole));
  const columns = [{ key: "name", title: "Session" }, { key: "owner", title: "Host, process" }, { key: "names", title: "Names", num: true }, { key: "held", title: "Held", num: true }, { key: "left", title: "Left", num: true }];
  return html`<${Small} id="sessions" title="Sessions" view="sessions" whole=${whole} rows=${rows} all=${all} widths=${[0, 140, 70, 84, 120]} columns=${columns} sort=${sort} onSort=${onSort}>${rows.map((row) => html`<tr role="row" key=${row.name}><td role="cell" class="m1"><a class="n" href=${href({ name: row.name })}>${row.name}</a></td><td role="cell" class="soft m3">${place(row) || row.owner}</td><td role="cell" class="num m4">${row.names}<span class="only-phone"> names</span></td><td role="cell" class="num m2"><${Since} ms=${row.since_ms} both=${false}/></td><td role="cell" class="num"><${Left} row=${row}/></td></tr>`)}<//>`;
}

export function Shards(props) {
  const { data, filter, whole, route } = props, { sort, onSort } = sorting(props);
  const { rows, all } = settled(`shards ${route.q ?? ""}`, data.shards.filter(filter), sort, few(whole));
  const columns = [{ key: "name", title: "Group" }, { title: "Held", num: true }, { title: "Members", num: true }, { title: "Shards of each" }, { title: "Requests" }];
  return html`<${Small} id="shards" title="Shards" view="shards" whole=${whole} rows=${rows} all=${all} widths=${[0, 90, 90, 110, 110]} columns=${columns} sort=${sort} onSort=${onSort}>${rows.map((row) => html`<tr role="row" key=${row.group}><td role="cell" class="m1"><${Icon} is=${row.health} tinted=${true}/> <a class="n" href=${href({ view: "names", prefix: `${row.group}/` })}>${row.group}</a></td><td role="cell" class="num m2">${row.held} of ${row.count}</td><td role="cell" class="num m3">${row.each.length}<span class="only-phone"> members</span></td><td role="cell" class="m4 soft">${row.each.join(", ")}</td><td role="cell">${row.requests ? `${row.requests} asked for` : "–"}</td></tr>`)}<//>`;
}

// --- the page --------------------------------------------------------------------------------------------

export function Overview(props) {
  const { data, route } = props;
  const isEmpty = !live.names.size && !data.queues.length && !data.pools.length && !data.ticks.length;
  if (isEmpty) return html`<${Empty} data=${data}/>`;
  return html`<${Verdict} data=${data}/><div class="fade"><${Figures} data=${data}/><${Attention}/><${Names} ...${props}/><${Queues} ...${props}/>
    <div class="two"><${Pools} ...${props}/><${Ticks} ...${props}/><${Sessions} ...${props}/><${Shards} ...${props}/></div>
    <p class="foot"><span>${data.rule}</span><span>The playground for pools is at <a href="/try" data-leave>/try</a>, all calls at <a href="/docs" data-leave>/docs</a>.</span><span class="keys"><kbd>/</kbd> filter <kbd>j</kbd> <kbd>k</kbd> rows <kbd>Enter</kbd> open <kbd>b</kbd> break <kbd>p</kbd> hold still <kbd>?</kbd> keys</span></p></div>`;
}

function Empty({ data }) {
  const server = `--server ${location.origin}`;
  const lessons = [
    ["Hold a name", "One at a time, on all machines. Start it twice: the second one waits, and you see who waits for whom.", `litelease run \\\n  ${server} \\\n  nightly -- sleep 60`],
    ["Send to a queue", "Items are delivered to one worker at a time, and again if it dies. Nobody works on it yet, so its age grows here.", `litelease queue send \\\n  ${server} \\\n  mail 'to: alice'`],
    ["Share a few slots", "At most three at once. Start a fourth one: it gets the first slot that comes free.", `litelease run --slots 3 \\\n  ${server} \\\n  importers -- sleep 60`],
  ];
  return html`<${Verdict} data=${data}/><${Figures} data=${data}/>
    <section aria-labelledby="h-try"><${Head} id="h-try" title="Try one of these in a terminal" note="each shows up here within a second; no reload"/>
    <div class="teach">${lessons.map(([title, text, command]) => html`<div class="card"><h3>${title}</h3><p>${text}</p><pre tabindex="0"><${CopyBlock} text=${command}/></pre></div>`)}</div></section>
    <p class="foot"><span>Expected to see something? This page looks at ${location.host}. A command without --server uses a file of its own; litelease doctor says which.</span><span>The playground for pools is at <a href="/try" data-leave>/try</a>.</span></p>`;
}

function CopyBlock({ text }) {
  return html`<code>${text}</code><button type="button" onClick=${() => navigator.clipboard?.writeText(text)}>Copy</button>`;
}

// --- one pool ---------------------------------------------------------------------------------------------

export function Pool({ data, route }) {
  const row = data.pools.find((pool) => pool.label === route.pool);
  const acts = live.key?.operates && row?.is_named;
  return html`<p class="crumb"><a href="/">Overview</a> › <a href=${href({ view: "pools" })}>Pools</a></p>
    <div class="title">${row && html`<${Pill} is=${row.health}/>`}<h1>${route.pool}</h1><span class="soft asof">as of ${clock(live.asOf, now(), true)}</span></div>
    ${!row ? html`<p class="calm soft">There is no such pool.</p>` : html`<section aria-labelledby="h-slots"><${Head} id="h-slots" title="Slots" note=${`${row.in_use} of ${row.count} in use; the first 20 are shown`}/><div class="card">${row.slots.length === 0 ? html`<p class="calm soft">all are free</p>` : html`<table role="table" aria-labelledby="h-slots"><${Widths} of=${[80, 0, 90, 120, 120]}/><${Heads} columns=${[{ title: "Slot", num: true }, { title: "Who has it" }, { title: "Token", num: true }, { title: "Left", num: true }, { title: "Actions", hidden: true }]}/><tbody role="rowgroup">${row.slots.map((slot) => html`<tr role="row" key=${slot.position}><td role="cell" class="num m1">${slot.position}</td><td role="cell" class="m3">${slot.note ?? html`<span class="soft">no note</span>`}</td><td role="cell" class="num soft">${slot.token}</td><td role="cell" class="num m2">${slot.expires_at_ms == null ? "kept" : spoken(slot.expires_at_ms - now())}</td><td role="cell" class="num m4">${acts && html`<button type="button" class="quiet danger" onClick=${() => askFree(row, slot)}>Free…</button>`}</td></tr>`)}</tbody></table>`}</div></section>
    <section aria-labelledby="h-w"><${Head} id="h-w" title="Who waits" note=${row.waiters ? `${row.waiters}, in this order` : "nobody"}/>${row.waiters > 0 && html`<div class="card under-list"><${Waiters} row=${{ ...row, name: row.label }}/></div>`}</section>`}`;
}

export { Command, plural };
