// One name, and one schedule.

import { html, useEffect, useState } from "/vendor/preact.js";
import { live, now, read } from "/live.js";
import { clock, exact, moment, plural, spoken } from "/words.js";
import { askBreak } from "/ask.js";
import { Command, Head, Heads, href, Left, Pill, place, Widths } from "/parts.js";
import { Past, Timeline, useHistory, who } from "/past.js";

const Alive = ({ row }) => row.process && html`, <span class=${{ alive: "t-ok", gone: "t-late", unknown: "soft" }[row.process]}>${row.process === "unknown" ? "unknown here" : row.process}</span>`;

// The value of a grant, and how it stands, are asked for when the name is looked at.
function useDetails(name, token) {
  const [state, set] = useState({});
  useEffect(() => {
    let isOver = false;
    read("/v1/leases", { name }).then((details) => !isOver && set(details), () => !isOver && set({}));
    return () => { isOver = true; };
  }, [name, token, Math.floor(live.asOf / 5000)]);
  return state;
}

const valueText = (value) => (value == null ? null : typeof value === "object" ? `${value.base64.length} characters of base64` : String(value));

export function Name({ route, go }) {
  const name = route.name, row = live.names.get(name), details = useDetails(name, row?.token);
  const past = useHistory({ name, object: "name" }, `${row?.token} ${row?.health} ${Math.floor(live.asOf / 5000)}`);
  const late = past.events?.filter((event) => event.kind === "renewed_late" && event.token === row?.token).length;
  const off = live.status === "lost" || !row;
  return html`<p class="crumb"><a href="/">Overview</a> › <a href=${href({ view: "names" })}>Names</a></p>
    <div class="title"><${Pill} is=${row?.health ?? "ok"} word=${row ? row.health : "free"}/><h1>${name}</h1><span class="soft asof">as of ${clock(live.asOf, now(), true)}</span>
      <span class="acts">${live.key?.operates && row && html`<button type="button" class="danger" disabled=${off} aria-keyshortcuts="b" onClick=${() => askBreak(name)}>Break… <kbd aria-hidden="true">b</kbd></button>`}</span></div>
    ${!row && html`<div class="say ok"><div><h2>It is free</h2><p>Nobody has it. ${details.token ? `Its newest token is ${details.token}.` : "It was never granted."}</p></div></div>`}
    ${row && html`<${Say} row=${row} details=${details}/>
    <div class="wide-left"><section aria-labelledby="h-now"><${Head} id="h-now" title="Who has it"/>
      <dl class="facts"><div><dt>Owner</dt><dd><b>${row.owner}</b></dd></div><div><dt>Host, process</dt><dd>${row.host ? html`${row.host}, pid ${row.pid}` : html`<span class="soft">not told</span>`}<${Alive} row=${row}/></dd></div><div><dt>User</dt><dd>${row.user ?? html`<span class="soft">not told</span>`}</dd></div>
      <div><dt>Held since</dt><dd><b class=${row.health === "stuck" ? "t-stuck" : ""}>${row.since_ms == null ? "–" : spoken(now() - row.since_ms)}</b> <span class="soft">${clock(row.since_ms, now(), true)}</span></dd></div><div><dt>Left unless renewed</dt><dd><${Left} row=${row}/>${row.renewed_at_ms != null && html` of ${spoken(row.expires_at_ms - row.renewed_at_ms)}`}</dd></div><div><dt>Renewed</dt><dd>${row.renewed_at_ms == null ? "–" : row.renewed_at_ms === row.since_ms ? "not yet" : `${spoken(now() - row.renewed_at_ms)} ago`}${late ? `, ${late} late` : ""}</dd></div>
      <div class="wide"><dt>Command</dt><dd title=${row.command}>${row.command ? html`<code>${row.command}</code>` : html`<span class="soft">not told</span>`}</dd></div><div><dt>Token</dt><dd>${row.token}</dd></div>
      <div><dt>Value</dt><dd>${valueText(details.value) != null ? html`<code>${valueText(details.value)}</code>` : html`<span class="soft">none</span>`}</dd></div><div><dt>Request</dt><dd>${row.requester ? `${row.requester} has asked for it` : html`<span class="soft">nobody asked for it</span>`}</dd></div><div><dt>Limits</dt><dd>${row.limits ?? html`<span class="soft">none: it may hang for ever</span>`}</dd></div></dl></section>
      <section aria-labelledby="h-w"><${Head} id="h-w" title="Who waits" note=${row.waiters ? `${row.waiters}, in this order` : "nobody"}/>${row.waiters > 0 && html`<${WaiterTable} row=${row}/>`}</section></div>`}
    ${past.events && past.keeps != null && html`<${Timeline} events=${past.events} row=${row} route=${route} go=${go}/>`}
    <${Past} ...${past}/>`;
}

const WaiterTable = ({ row }) => html`<div class="card"><table class="waiters" role="table" aria-labelledby="h-w"><${Widths} of=${[36, 0, 112, 76]}/><${Heads} columns=${[{ title: "#" }, { title: "Owner, note" }, { title: "Host, process" }, { title: "Since", num: true }]}/><tbody role="rowgroup">${row.waiting.map((one, at) => html`<tr role="row" key=${at}><td role="cell" class="soft">${at + 1}</td><td role="cell" class="m1"><b>${one.owner ?? (one.pid ? `pid ${one.pid}` : "a client")}</b><br/><span class="soft">${one.note ? `“${one.note}”` : "no note"}</span></td><td role="cell" class="m3">${one.host ?? "–"} <br/><span class="soft">${one.pid ? `pid ${one.pid}` : ""}</span></td><td role="cell" class="num m2" title=${exact(one.since_ms)}>${one.since_ms == null ? "–" : spoken(now() - one.since_ms)}<br/><span class="soft">${clock(one.since_ms, now())}</span></td></tr>`)}</tbody></table></div>`;

// Why it is so, and what to do about it.
function Say({ row, details }) {
  if (row.health === "ok" || row.health === "waiting") return null;
  const first = row.waiting?.[0], oldest = Math.min(...(row.waiting ?? []).map((one) => one.since_ms ?? Infinity));
  const steps = [];
  if (row.pid) {
    steps.push(html`Look at it on ${row.host}: <${Command} text=${`ps -o pid,stat,etime,wchan:20,args -p ${row.pid}`}/>`);
    if (row.process !== "gone" && row.health === "stuck") steps.push(html`If it hangs, end it there: <${Command} text=${`kill ${row.pid}`}/> The name comes free when the work has ended; nothing overlaps.`);
  } else steps.push(html`Ask ${row.owner} whether it still works.`);
  if (live.key?.operates) steps.push(html`If you cannot reach ${row.host ?? "it"}: <b>Break</b>. The name is free at once; the old command may still run.`);
  return html`<div class="say ${row.health}"><div><h2>Why it is ${row.health}</h2><p><b>${row.owner} has had it for ${row.since_ms == null ? "some time" : spoken(now() - row.since_ms)}.</b> ${row.why?.replace(/^Held [^.;]*[.;] ?/, "")} ${first && html`<b>${plural(row.waiters, "waits", "wait")}</b>${Number.isFinite(oldest) && `, the longest for ${spoken(now() - oldest)}`}.`} ${row.requester ? `${row.requester} has asked for it.` : ""}</p></div>
    <div><h2>What to do</h2><ol>${steps.map((step, at) => html`<li key=${at}>${step}</li>`)}</ol></div></div>`;
}

export function Tick({ route, data }) {
  const row = data.ticks.find((tick) => tick.name === route.tick), held = live.names.get(route.tick);
  const past = useHistory({ name: route.tick }, `${row?.tick_ms} ${row?.state} ${Math.floor(live.asOf / 5000)}`);
  const owner = who(row?.owner);
  return html`<p class="crumb"><a href="/">Overview</a> › <a href=${href({ view: "ticks" })}>Ticks</a></p>
    <div class="title"><${Pill} is=${row?.health ?? "ok"}/><h1>${route.tick}</h1><span class="soft asof">as of ${clock(live.asOf, now(), true)}</span></div>
    ${!row ? html`<p class="calm soft">There is no such schedule.</p>` : html`${row.why && html`<div class="say ${row.health}"><div><h2>Why it is ${row.health}</h2><p>${row.why} ${row.done_ms != null ? `The last one that was done was ${moment(row.done_ms, now())}.` : "None was ever done."} ${row.owner ? `It was last begun by ${row.owner}.` : ""}</p></div><div><h2>What to do</h2><ol>${row.health === "stuck" ? html`<li>See whether cron or litelease every runs ${row.owner ? `on ${row.owner.split(" ")[0]}` : "anywhere"}: nobody has asked for this tick.</li><li>Run it by hand as its crontab has it, with the same --once-per: it is run once.</li>` : html`<li>Read its log${row.owner ? ` on ${row.owner.split(" ")[0]}` : ""}.</li><li>If it is to be repeated: <b>Run again</b>.</li>`}</ol></div></div>`}
    <section aria-labelledby="h-now"><${Head} id="h-now" title="The newest tick"/><dl class="facts"><div><dt>Schedule</dt><dd><code>${row.schedule ?? "none"}</code></dd></div><div><dt>Tick</dt><dd title=${exact(row.tick_ms)}>${moment(row.tick_ms, now())}</dd></div><div><dt>State</dt><dd>${row.state}${row.ended_ms && row.began_ms ? ` in ${spoken(row.ended_ms - row.began_ms)}` : ""}</dd></div>
      <div><dt>Began</dt><dd title=${exact(row.began_ms)}>${row.began_ms == null ? "–" : `${clock(row.began_ms, now(), true)}, ${spoken(row.began_ms - row.tick_ms)} after its time`}</dd></div><div><dt>By</dt><dd>${row.owner ?? owner.owner ?? "–"}</dd></div><div><dt>Attempt</dt><dd>${row.attempt} of ${row.attempts}</dd></div>
      <div><dt>Last done</dt><dd title=${exact(row.done_ms)}>${moment(row.done_ms, now())}</dd></div><div><dt>Next</dt><dd title=${exact(row.next_ms)}>${row.next_ms == null ? "–" : row.next_ms < now() ? html`<span class="t-late">due for ${spoken(now() - row.next_ms)}</span>` : `${moment(row.next_ms, now())}, in ${spoken(row.next_ms - now())}`}</dd></div><div><dt>Its lease</dt><dd>${held ? html`<a class="n" href=${href({ name: route.tick })}>held for ${spoken(now() - held.since_ms)}</a>` : html`<span class="soft">free</span>`}</dd></div></dl></section>`}
    <${Past} ...${past}/>`;
}

export { place };
