// The parts of all views: states as shapes and words, tables, bars, charts.

import { html, useState } from "/vendor/preact.js";
import { live, now } from "/live.js";
import { clock, exact, grouped, spoken } from "/words.js";

const shapes = {
  ok: html`<circle cx="7" cy="7" r="4" fill="currentColor"/>`,
  waiting: html`<circle cx="7" cy="7" r="4.5" fill="none" stroke="currentColor" stroke-width="2"/>`,
  late: html`<path d="M7 1.2 13.4 12.6H.6Z" fill="currentColor"/>`,
  stuck: html`<path d="M4.2.5h5.6l3.7 3.7v5.6l-3.7 3.7H4.2L.5 9.8V4.2Z" fill="currentColor"/>`,
  paused: html`<path d="M2.5 1.5h3v11h-3zM8.5 1.5h3v11h-3z" fill="currentColor"/>`,
  unknown: html`<circle cx="7" cy="7" r="5.5" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="3 2.2"/>`,
};
const tone = (health) => (health === "waiting" ? "t-wait" : `t-${health}`);

export const Icon = ({ is, tinted }) => html`<svg class="icon ${tinted ? tone(is) : ""}" viewBox="0 0 14 14" aria-hidden="true">${shapes[is]}</svg>`;
export const Pill = ({ is, word = is }) => html`<span class="pill ${is}"><${Icon} is=${is}/>${word}</span>`;
// On a phone the column of states is gone: shape and hidden word go before the name.
export const Mark = ({ is }) => (is === "ok" ? null : html`<span class="only-phone ${tone(is)}"><${Icon} is=${is}/><span class="visually-hidden">${is}</span> </span>`);
export const Zero = ({ of }) => (of === 0 ? html`<span class="zero">0</span>` : grouped(of));
export const Since = ({ ms, both = true }) => html`<span class="held" title=${exact(ms)}><span>${ms == null ? "–" : spoken(now() - ms)}</span>${both && html`<span class="soft">${clock(ms, now())}</span>`}</span>`;

// The time left, and its share of the whole. Of an unknown state nothing is said.
export function Left({ row }) {
  const left = row.expires_at_ms - now(), whole = row.expires_at_ms - (row.renewed_at_ms ?? row.since_ms ?? now());
  const lost = live.status === "lost";
  const low = !lost && row.health === "late";
  const share = lost || whole <= 0 ? 0 : Math.max(0, Math.min(100, Math.round((left / whole) * 20) * 5));
  return html`<span class="left ${low ? "low" : ""}" title=${exact(row.expires_at_ms)}><i style=${{ "--p": `${share}%` }}></i><span>${lost ? "–" : spoken(left)}</span></span>`;
}

export function Copy({ text, children }) {
  const [done, set] = useState(false);
  const copy = () => {
    navigator.clipboard?.writeText(text);
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`${children}<button type="button" onClick=${copy}>${done ? "Copied" : "Copy"}</button>`;
}
export const Command = ({ text }) => html`<span class="cmd"><${Copy} text=${text}><code>${text}</code><//></span>`;

// Links within the page: the address keeps the view.
export const href = (query) => {
  const known = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return known.length ? `/?${new URLSearchParams(known)}` : "/";
};

export const Head = ({ id, title, note, hint, children }) => html`<div class="head"><h2 id=${id}>${title}</h2><span class="soft">${note}${hint && html`<span class="hint">${hint}</span>`}</span>${children}</div>`;

// The heads of a table. A first click sorts numbers downwards and texts upwards.
export function Heads({ columns, sort, onSort }) {
  return html`<thead role="rowgroup"><tr role="row">${columns.map(({ key, title, num, hidden, text }) => {
    const by = key && sort?.replace("-", "") === key;
    const direction = by ? (sort.startsWith("-") ? "descending" : "ascending") : undefined;
    const next = by ? (sort.startsWith("-") ? key : `-${key}`) : num || key === "state" ? `-${key}` : key;
    const label = hidden ? html`<span class="visually-hidden">${title}</span>` : title;
    return html`<th role="columnheader" class=${num ? "num" : ""} aria-sort=${direction || undefined}>${key && onSort ? html`<button type="button" onClick=${() => onSort(next)}>${label}</button>` : label}</th>`;
  })}</tr></thead>`;
}
export const Widths = ({ of }) => html`<colgroup>${of.map((width) => html`<col style=${width ? { width: `${width}px` } : {}}/>`)}</colgroup>`;

export function Spark({ points, color = "var(--ok)" }) {
  const most = Math.max(...points, 1), step = 100 / Math.max(1, points.length - 1);
  const path = points.map((value, at) => `${(at * step).toFixed(1)} ${(19 - (value / most) * 17).toFixed(1)}`).join("L");
  return html`<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path d="M${path}" fill="none" style=${{ stroke: color }} stroke-width="1.5" vector-effect="non-scaling-stroke"/></svg>`;
}

const nice = (value) => {
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((top) => top >= value);
};

// A small chart: two lines at most, whose newest values are in words in its caption.
export function Chart({ title, series, from, to }) {
  const W = 380, H = 92, L = 34, B = 16, T = 6, most = nice(Math.max(1, ...series.flatMap((one) => one.points)));
  const x = (at, count) => L + (at * (W - L)) / Math.max(1, count - 1), y = (value) => T + (H - T - B) * (1 - value / most);
  const line = (points) => `M${points.map((value, at) => `${x(at, points.length).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`;
  const words = series.map((one) => `${one.name} ${one.say ?? grouped(one.points.at(-1) ?? 0)}`);
  return html`<div class="card chart"><div class="cap"><b>${title}</b><span class="key-line">${series.map((one, at) => html`<i style=${{ borderColor: one.color, borderTopStyle: one.dashed ? "dashed" : "solid" }}></i>${words[at]}`)}</span></div>
    <svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${title}: now ${words.join(", ")}">
    ${[0, 0.5, 1].map((part) => html`<line x1=${L} x2=${W} y1=${y(most * part)} y2=${y(most * part)} style=${{ stroke: "var(--line)" }}/><text x=${L - 5} y=${y(most * part) + 4} text-anchor="end">${grouped(most * part)}</text>`)}
    ${[0, 1, 2, 3].map((at) => html`<text x=${L + (at * (W - L)) / 3} y=${H - 1} text-anchor=${at === 3 ? "end" : at ? "middle" : "start"}>${at === 3 ? "now" : clock(from + (at * (to - from)) / 3, to)}</text>`)}
    ${series.map((one) => html`${one.filled && html`<path d="${line(one.points)}L${W} ${y(0)}L${L} ${y(0)}Z" style=${{ fill: one.color }} opacity=".13"/>`}<path d=${line(one.points)} fill="none" style=${{ stroke: one.color }} stroke-width="1.75" stroke-dasharray=${one.dashed ? "4 3" : undefined}/>`)}</svg></div>`;
}

export const Spans = ({ label, of, is, onPick }) => html`<span class="seg" role="group" aria-label=${label}>${of.map((span) => html`<button type="button" aria-pressed=${String(span === is)} onClick=${() => onPick(span)}>${span}</button>`)}</span>`;

// Where a process runs: host and number, as far as that is known.
export const place = (row) => [row.host, row.pid, row.process === "gone" && "gone"].filter(Boolean).join(" ").replace(" gone", ", gone");
