// The playground for pools in a real browser: node try.mjs ADDRESS POOL SCREENSHOTS. Says what it has seen, and fails at the first
// thing that is not so.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { spawnSync } from "node:child_process";

const [address, pool, folder] = process.argv.slice(2);
const { chromium } = createRequire(`${process.cwd()}/target/browser/`)("playwright-core");
const executablePath = spawnSync("which", ["chromium"]).stdout.toString().trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

const errors = [];
const requests = [];

async function visit(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push({ url: request.url(), referer: request.headers().referer }));
  const response = await page.goto(`${address}/try`);
  const policy = response.headers()["content-security-policy"];
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  page.setDefaultTimeout(20_000);
  return page;
}

const text = (page, id) => page.locator(`#${id}`).textContent();
async function eventually(what, isSo) {
  for (const start = Date.now(); Date.now() - start < 20_000; ) {
    if (await isSo()) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail(`not so: ${what}`);
}

const page = await visit({ viewport: { width: 1100, height: 800 }, colorScheme: "light" });

// Register, by keyboard alone.
await page.locator("#pool").focus();
await page.keyboard.type(pool);
await page.locator("#count").focus();
await page.keyboard.type("2");
await page.locator("#count").fill("2");
await page.keyboard.press("Enter");
await eventually("two slots are drawn", async () => (await page.locator(".slot").count()) === 2);
await eventually("it is live", async () => (await text(page, "live")) === "live");

// Borrow until full: the third waits, and is served when the first is returned.
await page.locator("#ttl").fill("40");
await page.locator("#note").fill("seen in the browser");
await page.locator("#borrow button").click();
await eventually("one is in use", async () => (await text(page, "in-use")) === "1");
assert.equal(await page.locator('.slot[data-position="0"] .note').textContent(), "seen in the browser");
await page.locator("#borrow button").click();
await eventually("two are in use", async () => (await text(page, "in-use")) === "2");
await page.locator("#borrow button").click();
await eventually("one waits", async () => (await text(page, "waiters")) === "1");
await eventually("the page says so", async () => (await page.locator("#mine li").count()) === 1);
await page.screenshot({ path: `${folder}/try-light.png`, fullPage: true });
await page.locator('.slot[data-position="0"] button').click();
await eventually("it is served", async () => (await text(page, "waiters")) === "0");
await eventually("slot 0 has token 3", async () => (await page.locator('.slot[data-position="0"]').getAttribute("data-token")) === "3");
await eventually("it is no longer said to wait", async () => (await page.locator("#mine li").count()) === 0);
console.log("borrowed until full, and a waiter was served");

// A bar drains, and the slot is free when it is empty.
await page.locator('.slot[data-position="1"] button').click();
await eventually("slot 1 is free", async () => (await page.locator('.slot[data-position="1"].free').count()) === 1);
await page.locator("#ttl").fill("3");
await page.locator("#borrow button").click();
const bar = page.locator('.slot[data-position="1"] i');
await bar.waitFor({ state: "attached" });
const width = async () => (await bar.evaluate((element) => parseFloat(element.style.width)));
await eventually("the bar is drawn", async () => (await width()) > 0);
const first = await width();
await eventually("the bar drains", async () => (await width()) < first);
await eventually("the slot is free by itself", async () => (await page.locator('.slot[data-position="1"].free').count()) === 1);
console.log("a bar has drained");

// Resize, up and down.
await page.locator("#count").fill("12");
await page.locator("#register button").click();
await eventually("twelve slots", async () => (await page.locator(".slot").count()) === 12);
await page.locator("#count").fill("0");
await page.locator("#register button").click();
await eventually("what is lent out stays", async () => (await page.locator(".slot").count()) === 1 && (await text(page, "of")) === "0");
await page.locator("#count").fill("6");
await page.locator("#register button").click();
await eventually("six slots", async () => (await page.locator(".slot").count()) === 6);
console.log("resized");

// A slot that is kept says since when, and has no time left.
const ask = async (verb, body) => {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(`${address}/l/${pool}/${verb}`, { method: "POST", headers, body: JSON.stringify(body) });
  return answer.json();
};
const kept = await ask("borrow", { ttl: 2, note: "paid" });
assert.deepEqual(await ask("keep", { lease: kept.lease }), { kept: true });
const seat = page.locator(`.slot.kept[data-position="${kept.position}"]`);
await eventually("the slot is shown as kept", async () => (await seat.count()) === 1);
await eventually("it says for how long", async () => /^kept for [1-9]\d* s$/.test(await seat.locator(".left").textContent()));
assert.equal(await seat.locator(".note").textContent(), "paid");
await new Promise((done) => setTimeout(done, 2_500));
assert.equal(await seat.count(), 1, "it does not expire");
await ask("return", { lease: kept.lease });
await eventually("it is free again", async () => (await seat.count()) === 0);
console.log("kept a slot");

// The chart moves.
const points = async () => Number(await page.locator("#chart").getAttribute("data-points"));
const before = await points();
await eventually("the chart moves", async () => (await points()) > before);
const inked = await page.locator("#chart").evaluate((canvas) =>
  canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte > 0));
assert.ok(inked, "the chart is drawn");

// What is typed by others is shown as text.
assert.equal(await page.locator("#slots script, #slots img").count(), 0);
// The id stays in the page.
assert.ok(!page.url().includes(pool));
assert.equal(await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.cookie])), '[{},{},""]');

// In the dark, on a phone, of a pool that somebody else has made.
const phone = await visit({ viewport: { width: 380, height: 780 }, colorScheme: "dark", deviceScaleFactor: 2, hasTouch: true });
await phone.locator("#pool").fill(pool);
await phone.locator("#open button[type=submit]").tap();
await eventually("the phone sees six slots", async () => (await phone.locator(".slot").count()) === 6);
assert.equal(await phone.locator(".slot.own").count(), 0, "nobody else's slot can be returned");
const overflow = await phone.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
assert.equal(overflow, 0, "nothing sticks out");
await phone.screenshot({ path: `${folder}/try-dark-phone.png`, fullPage: true });
const [light, dark] = await Promise.all([page, phone].map((page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor)));
assert.notEqual(light, dark);

// The list of calls.
await phone.goto(`${address}/docs`);
const { paths } = await (await fetch(`${address}/openapi.json`)).json();
const methods = Object.values(paths).flatMap((path) => Object.keys(path));
const calls = methods.filter((method) => method !== "parameters").length;
assert.ok(calls > 30, `${calls} calls`);
await eventually("the calls are listed", async () => (await phone.locator("h2").count()) === calls);

assert.deepEqual(errors, [], "the console is quiet");
for (const { url, referer } of requests) {
  assert.ok(url.startsWith(`${address}/`), `a request to ${url}`);
  assert.ok(!(referer ?? "").includes(pool), `a referer ${referer}`);
}
console.log(`${requests.length} requests, none to another host; no error in the console`);

// A pool that is not there, and an id that is none, are told in words.
await page.locator("#pool").fill("not a uuid");
await page.locator("#open button[type=submit]").click();
assert.match(await text(page, "message"), /is a UUID/);
await page.locator("#fresh").click();
await page.locator("#open button[type=submit]").click();
await eventually("it is told", async () => /no such pool/.test(await text(page, "message")));
await browser.close();
