// One queue: its items by state, dead ones by note.

import { html, useEffect, useState } from "/vendor/preact.js";
import { live, now, read } from "/live.js";
import { alike, clock, exact, grouped, matcher, plural, quoted, spoken } from "/words.js";
import { askCancel, askDead } from "/ask.js";
import { Chart, Head, Heads, href, Pill, Spans, Widths, Zero } from "/parts.js";
import { Past, useHistory } from "/past.js";

// How many items the page reads: dead ones come first.
const MOST = 10_000;

async function items(queue, stop) {
  const all = [];
  for (let after = null; ; ) {
    const page = await read("/v1/queue/items", { queue, after, limit: 1000 });
    all.push(...page.items);
    if (page.next === null || all.length >= MOST || stop()) return { all, isWhole: page.next === null };
    after = page.next;
  }
}

export function Queue({ route, go, data }) {
  const name = route.queue, row = data.queues.find((queue) => queue.queue === name);
  const [found, set] = useState(null), [round, setRound] = useState(0);
  const sign = row && [row.visible, row.delayed, row.leased, row.dead].join();
  useEffect(() => {
    let isOver = false;
    items(name, () => isOver).then((found) => !isOver && set(found), (error) => !isOver && set({ all: [], problem: error.message }));
    return () => { isOver = true; };
  }, [name, sign, round]);
  const past = useHistory({ name, object: "queue" }, `${sign} ${round} ${row?.health}`, 200);
  const again = () => setRound((round) => round + 1);
  if (!row) return html`<p class="crumb"><a href="/">Overview</a> › <a href=${href({ view: "queues" })}>Queues</a></p><div class="title"><h1>${name}</h1></div><p class="calm soft">There is no such queue.</p>`;
  const state = ["visible", "delayed", "leased", "dead"].includes(route.state) ? route.state : "dead";
  const deaths = new Map((past.events ?? []).filter((event) => event.kind === "item_died").map((event) => [event.number, event]).reverse());
  const chosen = (found?.all ?? []).filter((item) => item.state === state);
  return html`<p class="crumb"><a href="/">Overview</a> › <a href=${href({ view: "queues" })}>Queues</a></p>
    <div class="title"><${Pill} is=${row.health}/><h1>${name}</h1><span class="soft asof">as of ${clock(live.asOf, now(), true)}</span></div>
    <${Say} row=${row}/>
    <section aria-labelledby="h-st"><${Head} id="h-st" title="Items by state" note=${row.max_attempts ? `${row.max_attempts} attempts each` : "any number of attempts"}/><nav class="split" aria-label="Items by state">${[["visible", row.oldest_since_ms != null ? `oldest ${spoken(now() - row.oldest_since_ms)}` : "none waits"], ["delayed", "not yet visible"], ["leased", row.leased ? "with a worker" : "no worker"], ["dead", row.dead ? "by note below" : "none"]].map(([kind, note]) => html`<a href=${href({ ...route, state: kind })} aria-current=${kind === state ? "true" : undefined}><span>${kind}</span><b class=${kind === "dead" && row.dead ? "t-late" : row[kind] === 0 ? "zero" : ""}>${grouped(row[kind])}</b><span>${note}</span></a>`)}</nav></section>
    <${Charts} row=${row} route=${route} go=${go}/>
    ${found === null ? html`<section><${Head} id="h-d" title="Items" note="being read"/></section>` : found.problem ? html`<section><${Head} id="h-d" title="Items cannot be read" note=${found.problem}/></section>`
    : state === "dead" ? html`<${Dead} queue=${name} all=${chosen} whole=${row.dead} deaths=${deaths} filter=${route.q ?? ""} again=${again}/>` : html`<${Living} queue=${name} state=${state} items=${chosen} again=${again} isWhole=${found.isWhole}/>`}
    <${Past} ...${past}/>`;
}

function Say({ row }) {
  if (!row.why) return null;
  const steps = row.health === "stuck" ? ["Find out why its workers have ended: the history below may say where they ran.", html`Start one again, as its service has it; by hand: <span class="cmd"><code>${`litelease work ${quoted(row.queue)} --server ${location.origin} -- COMMAND`}</code></span>`]
    : row.health === "paused" ? ["Resume it when the reason is gone. Sending goes on meanwhile."] : ["Read the notes below: items with one note have one cause.", "Redrive them when the cause is gone."];
  if (row.dead && row.health === "stuck") steps.push("The dead ones below need a decision of their own; redrive after the cause is gone.");
  return html`<div class="say ${row.health}"><div><h2>Why it is ${row.health}</h2><p>${row.why} ${row.health === "stuck" ? "No item is lost." : ""}</p></div><div><h2>What to do</h2><ol>${steps.map((step) => html`<li>${step}</li>`)}</ol></div></div>`;
}

const spans = { "1 h": 60, "6 h": 360, "24 h": 1440 };
function Charts({ row, route, go }) {
  const span = spans[route.span] ? route.span : "1 h", [flow, set] = useState(null);
  useEffect(() => {
    let isOver = false;
    if (!row.flow) return undefined;
    read("/v1/queue/flow", { queue: row.queue, minutes: spans[span] }).then((flow) => !isOver && set(flow), () => !isOver && set(null));
    return () => { isOver = true; };
  }, [row.queue, span, Math.floor(live.asOf / 60_000)]);
  if (!flow) return null;
  const to = now(), from = to - spans[span] * 60_000, minutes = flow.minutes;
  const of = (field) => minutes.map((one) => one[field] ?? 0), wait = (field) => minutes.map((one) => (one[field] ?? 0) / 1000);
  const last = (field) => minutes.at(-1)?.[field];
  return html`<section aria-labelledby="h-ch"><${Head} id="h-ch" title=${`The last ${span}`} note=${flow.begun_ms > from ? `a point a minute, since the server was started ${spoken(to - flow.begun_ms)} ago` : "a point a minute"}><${Spans} label="Span" of=${Object.keys(spans)} is=${span} onPick=${(span) => go({ ...route, span })}/><//>
    <div class="charts"><${Chart} title="Items a minute" from=${from} to=${to} series=${[{ name: "sent", points: of("sent"), color: "var(--wait)", dashed: true }, { name: "done", points: of("done"), color: "var(--ok)", filled: true }]}/>
    <${Chart} title="Wait, seconds" from=${from} to=${to} series=${[{ name: "p50", points: wait("wait_p50_ms"), color: "var(--soft)", say: spoken(last("wait_p50_ms") ?? 0) }, { name: "p95", points: wait("wait_p95_ms"), color: "var(--late)", filled: true, say: spoken(last("wait_p95_ms") ?? 0) }]}/>
    <${Chart} title="Died a minute" from=${from} to=${to} series=${[{ name: "died", points: of("died"), color: "var(--late)", filled: true }]}/></div></section>`;
}

function Dead({ queue, all, whole, deaths, filter, again }) {
  const [open, setOpen] = useState(null), matches = matcher(filter);
  const shown = filter ? all.filter((item) => matches({ ...item, name: `${item.key ?? ""} ${item.note ?? ""}` })) : all;
  const groups = new Map();
  for (const item of shown) {
    const kind = alike(item.note), died = deaths.get(item.id)?.at_unix_ms;
    const group = groups.get(kind) ?? { kind, note: item.note ?? "no note", items: [], first: Infinity, last: -Infinity, attempts: 0 };
    group.items.push(item);
    if (died) [group.first, group.last] = [Math.min(group.first, died), Math.max(group.last, died)];
    group.attempts = Math.max(group.attempts, item.attempt);
    groups.set(kind, group);
  }
  const rows = [...groups.values()].sort((a, b) => b.items.length - a.items.length || (a.kind < b.kind ? -1 : 1)), acts = live.key?.operates;
  const title = (group) => (group.items.every((item) => item.note === group.items[0].note) ? group.note : group.kind);
  const when = (ms) => (Number.isFinite(ms) ? clock(ms, now()) : "–");
  const said = (group) => [filter && `“${filter}”`, `note like “${title(group)}”`].filter(Boolean).join(", ");
  return html`<section aria-labelledby="h-d"><${Head} id="h-d" title="Dead items by note" note=${`${filter ? `${grouped(shown.length)} of ` : ""}${grouped(whole)} in ${plural(rows.length, "group")}`} hint="; numbers in notes are taken as equal">${acts && shown.length > 0 && html`<button type="button" onClick=${() => askDead("redrive", queue, shown, filter && `“${filter}”`, whole, again)}>Redrive all ${grouped(shown.length)}…</button>`}<//>
    ${rows.length === 0 ? html`<div class="card"><p class="calm soft">${filter ? "no dead item matches the filter" : "none is dead"}</p></div>` : html`<div class="card"><table class="grp" role="table" aria-labelledby="h-d"><${Widths} of=${[36, 0, 70, 120, 120, 90, 214]}/><${Heads} columns=${[{ title: "Open", hidden: true }, { title: "Note" }, { title: "Items", num: true }, { title: "First died", num: true }, { title: "Last died", num: true }, { title: "Attempts", num: true }, { title: "Actions", hidden: true }]}/>
    <tbody role="rowgroup">${rows.map((group) => html`<tr role="row" key=${group.kind}><td role="cell"><button type="button" class="chev" aria-expanded=${String(open === group.kind)} aria-label=${`Show the ${group.items.length} items: ${title(group)}`} onClick=${() => setOpen(open === group.kind ? null : group.kind)}></button></td><td role="cell" class="m1" title=${group.note}><span class="n">${title(group)}</span></td><td role="cell" class="num m2">${grouped(group.items.length)}</td><td role="cell" class="num soft" title=${exact(Number.isFinite(group.first) ? group.first : null)}>${when(group.first)}</td><td role="cell" class="num soft m3" title=${exact(Number.isFinite(group.last) ? group.last : null)}><span class="only-phone">last </span>${when(group.last)}</td><td role="cell" class="num soft">${group.attempts}</td>
      <td role="cell" class="num m4">${acts && html`<button type="button" onClick=${() => askDead("redrive", queue, group.items, said(group), whole, again)}>Redrive ${grouped(group.items.length)}…</button> <button type="button" class="quiet danger not-phone act" onClick=${() => askDead("discard", queue, group.items, said(group), whole, again)}>Discard…</button>`}</td></tr>
      ${open === group.kind && html`<tr role="row" class="under flat" key=${`${group.kind} items`}><td role="cell" colspan="7"><${ItemTable} queue=${queue} items=${group.items} deaths=${deaths}/></td></tr>`}`)}</tbody></table></div>`}</section>`;
}

function ItemTable({ queue, items, deaths, cancel }) {
  const [most, setMost] = useState(20);
  return html`<table role="table" aria-label="Items"><${Widths} of=${[80, 150, 90, 90, 190, 0, 120]}/><tbody role="rowgroup">${items.slice(0, most).map((item) => html`<${ItemRow} key=${item.id} queue=${queue} item=${item} death=${deaths?.get(item.id)} cancel=${cancel}/>`)}</tbody></table>
    <p class="under-note soft">A body is fetched when you ask for it. ${items.length > most && html`<button type="button" class="quiet" onClick=${() => setMost(most + 200)}>${grouped(items.length - most)} more</button>`}</p>`;
}

function ItemRow({ queue, item, death, cancel }) {
  const [body, set] = useState(null);
  const show = () => (body !== null ? set(null) : read("/v1/queue/item", { queue, id: item.id }).then(({ body }) => set(typeof body === "string" ? body : JSON.stringify(body)), (error) => set(`cannot be shown: ${error.message}`)));
  const died = death ? clock(death.at_unix_ms, now()) : item.visible_in == null ? "" : item.visible_in > 0 ? `in ${spoken(item.visible_in * 1000)}` : "";
  return html`<tr role="row"><td role="cell" class="mono m1">${item.id}</td><td role="cell" class="m3" title=${item.key}>${item.key ?? html`<span class="soft">no key</span>`}</td><td role="cell" class="soft">${plural(item.attempt, "attempt")}</td><td role="cell" class="soft m2">${died}</td><td role="cell" class="soft">sent ${spoken(item.age * 1000)} ago</td><td role="cell" class="soft" title=${item.note}>${item.note ?? ""}</td><td role="cell" class="num m4">${live.key?.operates && html`<button type="button" class="quiet" aria-expanded=${String(body !== null)} onClick=${show}>${body !== null ? "Hide body" : "Show body"}</button>${cancel && html`<button type="button" class="quiet danger" onClick=${() => cancel(item)}>Cancel…</button>`}`}</td></tr>
    ${body !== null && html`<tr role="row" class="body"><td role="cell" colspan="7" class="m1"><pre tabindex="0" aria-label=${`Body of item ${item.id}`}>${body}</pre></td></tr>`}`;
}

const Living = ({ queue, state, items, again, isWhole }) => html`<section aria-labelledby="h-d"><${Head} id="h-d" title=${`${state[0].toUpperCase()}${state.slice(1)} items`} note=${`${grouped(items.length)}${isWhole === false ? ", of the first 10,000 of the queue" : ""}`}/>${items.length > 0 && html`<div class="card items-card"><${ItemTable} queue=${queue} items=${items} cancel=${state === "leased" ? null : (item) => askCancel(queue, item, again)}/></div>`}</section>`;

export { exact, Zero };
