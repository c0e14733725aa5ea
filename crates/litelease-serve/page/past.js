// The history: its rows in words, and the timeline of a name.

import { html, useEffect, useRef, useState } from "/vendor/preact.js";
import { live, now, read } from "/live.js";
import { clock, exact, grouped, moment, spoken } from "/words.js";
import { Head, Heads, href, Icon, Spans, Widths } from "/parts.js";

// An owner text for people: host and process, without the parts that only programs compare.
export function who(owner) {
  const found = /^(\S+) pid (\d+) (?:start .* )?[0-9a-f]{32}$/.exec(owner ?? "");
  return found ? { host: found[1], pid: found[2], owner: null } : { host: null, pid: null, owner };
}

// Reads the history of a thing, and again when the thing has changed.
export function useHistory(query, sign, limit = 500) {
  const [state, set] = useState({ events: null, keeps: null });
  useEffect(() => {
    let isOver = false;
    const take = async () => {
      if (live.data?.history == null) return set({ events: [], keeps: null });
      try {
        const { events, keeps, next } = await read("/v1/history", { ...query, limit });
        if (!isOver) set({ events, keeps, hasMore: next != null });
      } catch (error) {
        if (!isOver) set({ events: [], keeps: null, problem: error.status === 404 ? "" : error.message });
      }
    };
    take();
    return () => { isOver = true; };
  }, [JSON.stringify(query), sign]);
  return state;
}

const WORDS = {
  granted: ["granted", ""], renewed_late: ["renewed late", "late"], released: ["released", ""], expired: ["lost", "late"], died: ["died", "late"],
  transferred: ["transferred", "wait"], handed_over: ["handed over", "wait"], taken_over: ["taken over", "wait"], broken: ["broken", "stuck"], raised: ["token raised", ""],
  tick_claimed: ["tick begun", ""], tick_done: ["tick done", "ok"], tick_failed: ["tick failed", "late"], tick_skipped: ["tick skipped", ""], tick_again: ["to run again", "wait"], tick_forgotten: ["forgotten", ""],
  item_died: ["item died", "late"], redriven: ["redriven", "wait"], discarded: ["discarded", "stuck"], cancelled: ["cancelled", ""], queue_deleted: ["deleted", "stuck"], paused: ["paused", "paused"], resumed: ["resumed", "ok"],
};

function happened(event) {
  const by = event.actor && html`by key <b>${event.actor}</b>`, note = event.note && `“${event.note}”`;
  const held = event.held_for != null && `held ${spoken(event.held_for * 1000)}`;
  const number = event.kind.startsWith("tick") && event.number != null ? `tick ${moment(event.number, now())}` : event.kind.includes("item") || event.kind === "cancelled" ? event.number != null && `item ${event.number}` : event.object === "pool" && event.number != null && `slot ${event.number}`;
  const result = event.result == null ? null : ["redriven", "discarded"].includes(event.kind) ? `${grouped(event.result)} items` : `exit code ${event.result}`;
  const more = { expired: "not renewed in time", died: "its process had ended" }[event.kind];
  const parts = [by, number, note, held, result, more].filter(Boolean);
  return parts.map((part, at) => (at ? html`; ${part}` : part));
}

export function Past({ id = "h-ev", title = "History", events, keeps, hasMore, all, withNames, problem }) {
  if (events === null) return html`<section><${Head} id=${id} title=${title} note="being read"/></section>`;
  if (keeps === null) return html`<${Off} id=${id} problem=${problem}/>`;
  const columns = [{ title: "Time" }, { title: "Event" }, ...(withNames ? [{ title: "Of" }] : []), { title: "Owner" }, { title: "Token", num: true }, { title: "What happened" }];
  return html`<section aria-labelledby=${id}><${Head} id=${id} title=${title} note=${events.length ? `newest first${hasMore ? `; the newest ${grouped(events.length)}` : ""}` : "nothing yet"}>${all}<//>
    ${events.length > 0 && html`<div class="card"><table class="hist" role="table" aria-labelledby=${id}><${Widths} of=${[110, 124, ...(withNames ? [180] : []), 210, 70, 0]}/><${Heads} columns=${columns}/>
    <tbody role="rowgroup">${events.map((event) => {
      const [word, tone] = WORDS[event.kind] ?? [event.kind, ""], owner = who(event.owner);
      return html`<tr role="row" key=${event.id}><td role="cell" class="soft m2" title=${exact(event.at_unix_ms)}>${clock(event.at_unix_ms, now(), true)}</td><td role="cell" class="m1 ${tone && `t-${tone}`}">${word}${withNames && html`<span class="only-phone"> ${event.name}</span>`}</td>${withNames && html`<td role="cell"><a class="n" href=${href({ [event.object]: event.name })}>${event.name}</a></td>`}<td role="cell" class="m3" title=${event.owner}>${owner.owner} <span class="soft">${[owner.host, owner.pid].filter(Boolean).join(" ")}</span></td><td role="cell" class="num soft m4">${event.token ?? ""}</td><td role="cell">${happened(event)}</td></tr>`;
    })}</tbody></table></div>`}</section>`;
}

const Off = ({ id, problem }) => html`<section aria-labelledby=${id}><${Head} id=${id} title=${problem ? "History cannot be read" : "History is off"}/><div class="card calm">${problem || "With it, every name has a timeline: who had it, when it was lost, who broke it. Start the server without --history 0."}</div></section>`;

// --- the timeline ------------------------------------------------------------------------------------------

const HOUR = 3_600_000;
const spans = { "1 h": HOUR, "4 h": 4 * HOUR, "24 h": 24 * HOUR, "7 d": 168 * HOUR };
const ends = { released: "released", expired: "lost-lease", died: "lost-lease", transferred: "handed", handed_over: "handed", taken_over: "handed", broken: "broken" };
const said = { released: "released", "lost-lease": "lost", handed: "handed over", broken: "broken", now: "still held", held: "still held" };

export function Timeline({ events, row, route, go }) {
  const span = spans[route.span] ? route.span : "4 h", to = now(), from = to - spans[span];
  const [at, setAt] = useState(-1), [tip, setTip] = useState(""), box = useRef(null);
  const bars = [], marks = [];
  for (const event of events) {
    const owner = who(event.owner), lane = owner.host ?? owner.owner ?? "–";
    if (ends[event.kind] && event.held_for != null) bars.push({ lane, owner, from: event.at_unix_ms - event.held_for * 1000, to: event.at_unix_ms, kind: ends[event.kind], token: event.token, by: event.actor });
    if (event.kind === "broken") marks.push({ lane, at: event.at_unix_ms, kind: "broken", title: `broken${event.actor ? ` by key ${event.actor}` : ""} at ${clock(event.at_unix_ms, to)}` });
    if (event.kind === "renewed_late") marks.push({ lane, at: event.at_unix_ms, kind: "late", title: `renewed late at ${clock(event.at_unix_ms, to)}` });
  }
  if (row?.since_ms != null) bars.push({ lane: row.host ?? row.owner, owner: { owner: row.owner }, from: row.since_ms, to, kind: row.health === "stuck" ? "now" : "held", token: row.token, label: `${row.owner}, ${spoken(to - row.since_ms)}` });
  const seen = bars.filter((bar) => bar.to > from && bar.from < to).sort((a, b) => a.from - b.from);
  const lanes = [...new Set(seen.map((bar) => bar.lane))].sort().slice(-8);
  const x = (ms) => Math.max(0, Math.min(100, ((ms - from) / (to - from)) * 100));
  const describe = (bar) => `${bar.label ?? bar.lane}, ${said[bar.kind]}${bar.kind === "now" || bar.kind === "held" ? "" : ` after ${spoken(bar.to - bar.from)}`}, token ${bar.token}, from ${clock(bar.from, to, true)}${bar.by ? `, by key ${bar.by}` : ""}`;
  const move = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !seen.length) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(seen.length - 1, at < 0 ? seen.length - 1 : at + step));
    setAt(next);
    setTip(describe(seen[next]));
  };
  const count = (kind) => seen.filter((bar) => bar.kind === kind).length;
  const counts = [["released", "released"], ["handed", "handed over"], ["lost-lease", "lost"], ["broken", "broken"]].map(([kind, word]) => [count(kind), word]).filter(([count]) => count).map(([count, word]) => `${count} ${word}`);
  return html`<section aria-labelledby="h-tl"><${Head} id="h-tl" title="Timeline" hint=${`a lane per host; ${seen.length} ${seen.length === 1 ? "grant" : "grants"}${counts.length ? `: ${counts.join(", ")}` : ""}`}><${Spans} label="Span" of=${Object.keys(spans)} is=${span} onPick=${(span) => go({ ...route, span })}/><//>
    <div class="card"><div class="timeline" ref=${box} tabindex="0" role="group" aria-label=${`Timeline of the last ${span}: ${seen.length} grants. Arrow keys move from grant to grant; the table below says the same.`} onKeyDown=${move}>
      ${lanes.length === 0 && html`<p class="calm soft">not held in this time</p>`}
      ${lanes.map((lane) => html`<div class="lane" key=${lane}><span class="who" title=${lane}>${lane}</span><div class="track">
        ${seen.filter((bar) => bar.lane === lane).map((bar) => html`<span key=${`${bar.token} ${bar.kind}`} class="bar ${bar.kind} ${seen[at] === bar ? "is-chosen" : ""}" title=${describe(bar)} style=${{ left: `${x(bar.from)}%`, width: `${x(bar.to) - x(bar.from)}%` }}>${bar.label && x(bar.to) - x(bar.from) > 14 && html`<span>${bar.label}</span>`}</span>`)}
        ${marks.filter((mark) => mark.lane === lane && mark.at > from).map((mark) => html`<span class="ev" title=${mark.title} style=${{ left: `${x(mark.at)}%` }}>${mark.kind === "broken" ? html`<svg viewBox="0 0 14 14" aria-hidden="true"><path class="cross" d="M2 2l10 10M12 2 2 12"/></svg>` : html`<svg viewBox="0 0 14 14" aria-hidden="true"><path class="warn" d="M7 2 13 12H1Z"/></svg>`}</span>`)}</div></div>`)}
      <div class="axis" aria-hidden="true"><b></b><div>${Array.from({ length: 9 }, (_, at) => html`<span style=${{ left: `${at * 12.5}%` }}>${at === 8 ? "now" : spans[span] > 24 * HOUR ? moment(from + (at * (to - from)) / 8, to) : clock(from + (at * (to - from)) / 8, from + (at * (to - from)) / 8)}</span>`)}</div></div></div>
      <p class="legend"><span><i class="bar released"></i>held, then released</span><span><i class="bar handed"></i>handed over</span><span><i class="bar lost-lease"></i>lost: not renewed in time</span><span><i class="bar broken"></i>stuck or broken</span><span>▲ renewed late</span><span>✕ broken by an operator</span><span role="status">${tip || "Point at a bar, or move with ← →, for owner, token and times."}</span></p></div></section>`;
}

export function AllPast({ route }) {
  const state = useHistory({ ...(route.q && { prefix: route.q }), object: route.object, kind: route.kind }, Math.floor((live.asOf ?? 0) / 5000), 200);
  return html`<div class="verdict slim"><h1>History</h1><span class="soft">${state.keeps != null ? `the newest ${grouped(state.keeps)} rows are kept` : ""}</span></div><${Past} id="h-all" title="What happened" ...${state} withNames=${true}/>`;
}

export { Icon };
