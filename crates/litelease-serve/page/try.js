// The page: what is typed goes to the pool, and what the pool tells is shown.

import { Chart } from "/chart.js";
import { freshId, Pool } from "/pool.js";

const MOST_SHOWN = 400;
const at = (id) => document.getElementById(id);
const chart = new Chart(at("chart"));

let pool = null;
let stop = () => {};
let isWatching = false;
let state = null; // as last told, with the time it came
let own = new Map(); // leases that this page has borrowed, by slot
let longest = new Map(); // the most time left that was seen, by slot

at("fresh").addEventListener("click", () => {
  at("pool").value = freshId();
  at("pool").focus();
});

at("open").addEventListener("submit", (event) => {
  event.preventDefault();
  if (choose()) watch();
});

at("register").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!choose()) return;
  attempt(async () => {
    await pool.register(Number(at("count").value));
    if (!isWatching) watch();
  });
});

at("borrow").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!choose()) return;
  borrow(Number(at("ttl").value), Number(at("wait").value), at("note").value.trim());
});

// Makes the pool that is typed the one that this page is about. Answers whether there is one.
function choose() {
  const id = at("pool").value.trim().toLowerCase();
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id)) {
    say("The id of a pool is a UUID.");
    at("pool").focus();
    return false;
  }
  if (pool?.id !== id) {
    stop();
    pool = new Pool(id);
    [state, own, longest, isWatching] = [null, new Map(), new Map(), false];
    chart.clear();
    at("slots").replaceChildren();
  }
  say("");
  return true;
}

function watch() {
  stop();
  isWatching = true;
  stop = pool.watch(onState, onLive);
}

function onState(told) {
  if (told === null) {
    say("There is no such pool any more. Register it to go on.");
    state = { count: 0, in_use: 0, available: 0, waiters: 0, slots: [], time: performance.now() };
  } else {
    state = { ...told, time: performance.now() };
  }
  const lent = new Set(state.slots.map(grant));
  for (const key of longest.keys()) if (!lent.has(key)) longest.delete(key);
  for (const slot of state.slots) longest.set(grant(slot), Math.max(longest.get(grant(slot)) ?? 0, slot.expires_in));
  show();
  sample();
}

function onLive(isLive) {
  const sign = at("live");
  sign.classList.toggle("on", isLive);
  sign.textContent = isLive ? "live" : "not watching";
  if (!isLive && state === null) say("There is no such pool yet. Register it to begin.");
  else if (isLive) say("");
}

async function borrow(ttl, wait, note) {
  const item = document.createElement("li");
  const cancel = new AbortController();
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Give up";
  button.addEventListener("click", () => cancel.abort());
  item.append("waiting for a slot ", button);
  const shown = setTimeout(() => at("mine").append(item), 150);
  const of = pool;
  await attempt(async () => {
    const lent = await pool.borrow(ttl, wait, note, cancel.signal);
    if (of === pool) own.set(grant(lent), lent.lease);
  });
  clearTimeout(shown);
  item.remove();
  show();
}

async function attempt(work) {
  try {
    say("");
    await work();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  }
}

function say(text) {
  at("message").textContent = text;
}

function show() {
  if (state === null) return;
  at("in-use").textContent = state.in_use;
  at("of").textContent = state.count;
  at("free").textContent = state.available;
  at("waiters").textContent = state.waiters;
  const lent = new Map(state.slots.map((slot) => [slot.position, slot]));
  const above = state.slots.filter((slot) => slot.position >= state.count).map((slot) => slot.position);
  const positions = [...Array(Math.min(state.count, MOST_SHOWN)).keys(), ...above];
  const list = at("slots");
  while (list.children.length > positions.length) list.lastChild.remove();
  while (list.children.length < positions.length) list.append(document.createElement("li"));
  positions.forEach((position, index) => draw(list.children[index], position, lent.get(position)));
  at("more").textContent = state.count > MOST_SHOWN ? `and ${state.count - MOST_SHOWN} more slots` : "";
  tick();
}

// A slot is drawn anew only when somebody else has it, so that a focused button stays.
function draw(item, position, slot) {
  const sign = `${position} ${slot?.token} ${isKept(slot)} ${slot && own.has(grant(slot))}`;
  if (item.dataset.sign === sign) return;
  item.dataset.sign = sign;
  item.dataset.position = position;
  item.dataset.token = slot?.token ?? "";
  item.className = slot ? "slot" : "slot free";
  item.replaceChildren(part("b", position));
  if (!slot) return void item.append(part("span", "free", "token"));
  item.classList.toggle("kept", isKept(slot));
  item.append(part("span", "", "left"), part("span", `token ${slot.token}`, "token"));
  if (slot.note) item.append(part("span", slot.note, "note"));
  if (own.has(grant(slot))) {
    item.classList.add("own");
    const button = part("button", "Return");
    button.type = "button";
    button.setAttribute("aria-label", `Return slot ${position}`);
    button.addEventListener("click", () => attempt(() => pool.giveBack(own.get(grant(slot)))));
    item.append(button);
  }
  item.classList.toggle("over", position >= state.count);
  item.append(document.createElement("i"));
}

// A slot that is kept has no time left to tell: it is lent out until it is returned.
function isKept(slot) {
  return slot?.expires_in === null;
}

// A token alone may be larger than a number can tell exactly here.
function grant(slot) {
  return `${slot.position} ${slot.token}`;
}

function part(name, text, kind) {
  const element = document.createElement(name);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function tick() {
  if (state === null) return;
  const passed = (performance.now() - state.time) / 1000;
  const lent = new Map(state.slots.map((slot) => [String(slot.position), slot]));
  for (const item of at("slots").children) {
    const slot = lent.get(item.dataset.position);
    if (!slot) continue;
    if (isKept(slot)) {
      const kept = slot.kept_for === null ? "kept" : `kept for ${clock(slot.kept_for + passed)}`;
      item.querySelector(".left").textContent = kept;
      continue;
    }
    const left = Math.max(0, slot.expires_in - passed);
    const share = left / longest.get(grant(slot));
    item.querySelector(".left").textContent = clock(left);
    item.querySelector("i").style.width = `${share * 100}%`;
    item.classList.toggle("low", share < 0.2);
  }
}

function clock(seconds) {
  const whole = Math.ceil(seconds);
  if (whole < 100) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`;
}

function sample() {
  if (state === null) return;
  chart.add({ time: performance.now(), count: state.count, inUse: state.in_use, waiters: state.waiters });
}

setInterval(tick, 250);
setInterval(sample, 1000);
window.addEventListener("resize", () => chart.draw());
