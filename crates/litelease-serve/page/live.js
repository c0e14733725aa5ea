// The connection to the server: one stream of events, which comes back by itself.

const SILENCE = 5000; // The server sends a heartbeat every 2 seconds.
const CONNECTS = 10_000;
const PAUSES = [1000, 2000, 4000, 8000, 15_000];

export const live = {
  status: "connecting", // or "live", "lost", "resting", "locked"
  data: null,           // the overview as it is shown
  names: new Map(),
  asOf: 0,              // the newest time of the server
  lostSince: 0,
  nextTry: 0,
  held: false,          // the page is held still
  news: 0,              // how much has come since
  said: "",             // what the connection says once
  key: null,
  wellAgain: new Map(), // things that needed attention since the page was loaded
};

let newest = { data: null, names: new Map() };
let offset = 0, heard = 0, tries = 0, stream = null, timer = 0, before = null, onChange = () => {};

export const now = () => Date.now() + offset;
export const watch = (callback) => { onChange = callback; };

const secret = () => { try { return sessionStorage.getItem("litelease-key") ?? ""; } catch { return ""; } };
const headers = () => (secret() ? { Authorization: `Bearer ${secret()}` } : {});

// The key stays in this tab, and in no address.
export function unlock(key) {
  try { sessionStorage.setItem("litelease-key", key.trim()); } catch { /* it is asked for again */ }
  live.status = "connecting";
  open();
}

export async function ask(method, path, body) {
  const response = await fetch(path, {
    method,
    headers: { ...headers(), ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body && JSON.stringify(body),
    referrerPolicy: "no-referrer",
  });
  const answer = await response.json().catch(() => ({ error: `the server has answered ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status, answer });
  return answer;
}

export const read = (path, query = {}) => {
  const known = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return ask("GET", `${path}${known.length ? `?${new URLSearchParams(known)}` : ""}`);
};

export function hold(still) {
  live.held = still;
  live.news = 0;
  if (!still) show();
  onChange();
}

export function open() {
  clearTimeout(timer);
  stream?.abort();
  const own = stream = new AbortController();
  if (document.hidden && live.data) return void rest();
  heard = Date.now();
  connect(own).then(() => failed(own), (error) => failed(own, error));
}

function rest() {
  live.status = "resting";
  onChange();
}

async function connect(own) {
  const key = await withTimeout(own, fetch("/v1/key", { headers: headers(), signal: own.signal, referrerPolicy: "no-referrer" }));
  if (key.status === 401) return locked(own, secret() ? "This key is not known, or has expired." : "");
  if (!key.ok) throw new Error(`the server has answered ${key.status}`);
  const { name, allow } = await key.json();
  // Without any name the server asks for no key, and everybody may do everything.
  const may = (scope) => name === null || allow.some((one) => one.startsWith(`${scope}:`));
  live.key = { name, operates: may("operate"), observes: may("observe") };
  const whole = name === null || allow.includes("observe:*");
  const prefix = whole ? "" : (allow.find((one) => one.startsWith("observe:"))?.slice(8) ?? "").replace(/\*.*$/, "");
  const query = prefix ? `?prefix=${encodeURIComponent(prefix)}` : "";
  const response = await withTimeout(own, fetch(`/v1/overview/events${query}`, { headers: headers(), signal: own.signal, referrerPolicy: "no-referrer" }));
  if (response.status === 401 || response.status === 403) {
    return locked(own, "This key may not see what is held: it needs the scope observe.");
  }
  if (!response.ok) throw new Error(`the server has answered ${response.status}`);
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || own !== stream) return;
    heard = Date.now();
    text += decoder.decode(value, { stream: true });
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) take(text.slice(0, end));
  }
}

function withTimeout(own, work) {
  const late = setTimeout(() => own === stream && own.abort(), CONNECTS);
  return work.finally(() => clearTimeout(late));
}

function locked(own, text) {
  if (own !== stream) return;
  own.abort();
  Object.assign(live, { status: "locked", said: text, data: null });
  onChange();
}

function failed(own) {
  if (own !== stream || live.status === "locked" || live.status === "resting") return;
  own.abort();
  if (live.status !== "lost") {
    before = newest;
    Object.assign(live, { status: "lost", lostSince: Date.now() });
  }
  const pause = PAUSES[Math.min(tries++, PAUSES.length - 1)];
  live.nextTry = Date.now() + pause;
  clearTimeout(timer);
  timer = setTimeout(open, pause);
  onChange();
}

function take(event) {
  const kind = /^event: (.*)$/m.exec(event)?.[1], data = /^data: (.*)$/m.exec(event)?.[1];
  if (!data) return;
  const news = JSON.parse(data);
  offset = news.at_ms - Date.now();
  if (kind === "state") {
    const { names, ...rest } = news;
    newest = { data: rest, names: new Map(names.map((row) => [row.name, row])) };
  } else if (kind === "change" && newest.data) {
    const { names, gone, ...rest } = news;
    const copy = new Map(newest.names);
    gone.forEach((name) => copy.delete(name));
    names.forEach((row) => copy.set(row.name, row));
    newest = { data: { ...newest.data, ...rest }, names: copy };
  }
  const back = live.status === "lost";
  tries = 0;
  live.status = "live";
  if (back) live.said = `Connected again, ${changes(before, newest)}.`;
  if (kind !== "beat" && live.held) live.news += 1;
  if (!live.held || back) show();
  else onChange();
}

function changes(before, after) {
  if (!before?.data) return "with everything new";
  let count = 0;
  for (const [name, row] of after.names) if (before.names.get(name)?.token !== row.token) count += 1;
  for (const name of before.names.keys()) if (!after.names.has(name)) count += 1;
  for (const part of ["queues", "pools", "ticks"]) {
    const known = new Set((before.data[part] ?? []).map((row) => JSON.stringify(row)));
    count += (after.data[part] ?? []).filter((row) => !known.has(JSON.stringify(row))).length;
  }
  return count === 1 ? "1 change" : `${count} changes`;
}

// What needs attention stays until the page is loaded again, and says when it is well.
function show() {
  live.data = newest.data;
  live.names = newest.names;
  live.asOf = newest.data ? now() : 0;
  const open = new Set();
  for (const row of live.data?.attention ?? []) {
    open.add(`${row.kind} ${row.name}`);
    live.wellAgain.set(`${row.kind} ${row.name}`, row);
  }
  for (const [id, row] of live.wellAgain) if (!open.has(id) && !row.isWell) live.wellAgain.set(id, { ...row, isWell: true });
  onChange();
}

export function start() {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) { if (live.status !== "locked") open(); return; }
    // A tab that nobody looks at needs no stream.
    setTimeout(() => {
      if (!document.hidden || live.status !== "live") return;
      live.status = "resting";
      stream?.abort();
    }, 30_000);
  });
  setInterval(() => {
    if (live.status === "live" && Date.now() - heard > SILENCE) failed(stream);
    if (!document.hidden) onChange();
  }, 1000);
  open();
}
