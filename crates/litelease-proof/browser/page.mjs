// The operators' page in a real browser: node page.mjs LITELEASE DATABASE SCREENSHOTS. The database was filled before. Says
// what it has seen, and fails at the first thing that is not so.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { spawn, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

const [litelease, db, folder] = process.argv.slice(2);
const { chromium } = createRequire(`${process.cwd()}/target/browser/`)("playwright-core");
const axe = readFileSync(`${process.cwd()}/target/browser/node_modules/axe-core/axe.min.js`, "utf8");
const env = { ...process.env, XDG_STATE_HOME: `${db}.state` };
const run = (...args) => {
  const { status, stdout, stderr } = spawnSync(litelease, args, { env });
  assert.equal(status, 0, `${args}: ${stderr}`);
  return stdout.toString().trim();
};

// --- the server, which can be stopped and started again ------------------------------------------------------

let server, address;
async function serve(listen) {
  const limits = ["--stuck-wait", "1s", "--stuck-item", "1m"];
  server = spawn(litelease, ["serve", "--listen", listen, "--db", db, ...limits], { env, stdio: ["ignore", "pipe", "ignore"] });
  const line = await new Promise((done) => server.stdout.once("data", (data) => done(data.toString())));
  address = /http:\/\/\S+/.exec(line)[0];
}
await serve("127.0.0.1:0");
process.on("exit", () => server.kill("SIGKILL"));
const allow = (name, ...scopes) => run("access", "add", name, "--db", db, ...scopes.flatMap((scope) => ["--allow", scope])).split(/\s+/).at(-1);
const key = allow("on-call", "observe:*", "operate:*", "claim:*"), board = allow("board", "observe:*");
const ask = async (path, body) => {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const answer = await fetch(`${address}${path}`, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  return answer.json();
};

// --- the browser -----------------------------------------------------------------------------------------------

const executablePath = spawnSync("which", ["chromium"]).stdout.toString().trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const errors = [], requests = [];
let mayFail = false;
async function visit(path, secret, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on("console", (message) => !mayFail && ["error", "warning"].includes(message.type()) && !/status of 401/.test(message.text()) && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push({ url: request.url(), referer: request.headers().referer }));
  const response = await page.goto(`${address}${path}`);
  const policy = response.headers()["content-security-policy"];
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.getByRole("button", { name: "Open" }).click();
  await page.locator(".figures, .title, .facets").first().waitFor();
  return page;
}
async function eventually(what, isSo) {
  for (const start = Date.now(); Date.now() - start < 20_000; ) {
    if (await isSo()) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail(`not so: ${what}`);
}
const seen = (page, text) => eventually(`the page says ${text}`, async () => (await page.locator("body").innerText()).includes(text));
async function accessible(page, what) {
  // In the console's own world: the policy of the page allows no other script.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run({ resultTypes: ["violations"] }));
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], `axe-core, ${what}`);
}

// A client waits for a name, longer than it may.
const waiting = ask("/v1/claim", { name: "import-orders", owner: "report-eu", ttl: 60, wait: 60, note: "monthly close" });

// The overview answers whether anything is stuck, within one look.
const page = await visit("/", key);
assert.ok(!page.url().includes(key) && !page.url().includes("key"), "no key in the address");
await eventually("something is stuck", async () => /are? stuck|is stuck/.test(await page.locator("h1").innerText()));
assert.equal(await page.locator(".figures a").count(), 6);
await seen(page, "report-eu waits for import-orders; the limit is 1 s");
const attention = page.locator(".attention tbody tr");
await eventually("a name and a queue need attention", async () => (await attention.count()) >= 2);
assert.match(await attention.first().innerText(), /stuck[\s\S]*import-orders[\s\S]*Held 41 min[\s\S]*worker-3[\s\S]*report-eu/);
assert.match(await page.title(), /stuck · Litelease/);
assert.equal(await page.locator("#names tbody tr").count(), 9, "the worst nine");
await page.getByLabel(/1 wait for import-orders/).click();
await seen(page, "“monthly close”");
await page.screenshot({ path: `${folder}/page.png` });
await accessible(page, "overview, light");
console.log("the overview says what is stuck");

// A search is in the address; a reload and the back button show the same.
await page.keyboard.press("/");
await page.keyboard.type("customer/40 owner:sync");
await eventually("the address has the filter", () => new URL(page.url()).searchParams.get("q") === "customer/40 owner:sync");
await page.keyboard.press("Escape");
await page.getByRole("link", { name: "All names" }).click();
await eventually("the list is filtered", async () => (await page.locator(".verdict .soft").innerText()).startsWith("111 live of 10,001"));
await page.reload();
await eventually("it still is", async () => (await page.locator(".verdict .soft").innerText()).startsWith("111 live of 10,001"));
await page.goBack();
await eventually("the overview is back", async () => (await page.locator(".figures").count()) === 1 && (await page.locator("#q").inputValue()) === "customer/40 owner:sync");
await page.locator("#q").fill("");
console.log("searched, reloaded and gone back");

// 10,000 names scroll: about 45 rows are in the document, and no task is long.
await page.getByRole("link", { name: /^Names 10,001/ }).click();
await seen(page, "10,001 live");
await page.evaluate(() => {
  window.long = [];
  new PerformanceObserver((list) => window.long.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
});
const height = await page.evaluate(() => document.documentElement.scrollHeight);
assert.ok(height > 10_000 * 32, `${height} px`);
for (let step = 1; step <= 60; step += 1) {
  await page.evaluate((top) => new Promise((done) => { scrollTo(0, top); requestAnimationFrame(() => requestAnimationFrame(done)); }), (height * step) / 61);
  const rows = await page.locator("#names tbody tr").count();
  assert.ok(rows < 60, `${rows} rows in the document`);
}
await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
await eventually("the last row is drawn", async () => (await page.locator('tr[aria-rowindex="10002"]').count()) === 1);
const long = await page.evaluate(() => window.long.filter((ms) => ms > 100).length);
console.log(`10,001 names scrolled in 60 steps with ${long} tasks over 100 ms`);
await page.evaluate(() => scrollTo(0, 0));
await page.screenshot({ path: `${folder}/page-names.png` });

// One name: why it is stuck, and a break that says what it hits. A token that is not the newest ends nothing.
await page.goto(`${address}/?name=import-orders`);
await seen(page, "Why it is stuck");
await seen(page, "worker-3 has had it for 41 min.");
assert.equal(await ask("/v1/break", { name: "import-orders", token: 999 }).then((answer) => answer.reason), "superseded");
await page.keyboard.press("b");
const dialog = page.locator("dialog");
assert.match(await dialog.innerText(), /Break the lease on import-orders\?[\s\S]*1 lease, token \d+, nothing else[\s\S]*worker-3[\s\S]*report-eu, first of 1 who waits[\s\S]*with the name of your key, on-call/);
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel");
await page.screenshot({ path: `${folder}/page-break.png` });
await page.keyboard.press("Escape");
await eventually("nothing was broken", async () => (await dialog.count()) === 0);
await page.getByRole("button", { name: /^Break/ }).click();
await dialog.getByLabel(/^Why/).fill("hangs on NFS");
await dialog.getByRole("button", { name: "Break import-orders" }).click();
await seen(page, "is broken; token");
assert.equal((await waiting).owner, "report-eu", "the waiter is served");
await eventually("it has a new owner", async () => (await page.locator(".facts").innerText()).includes("report-eu"));
await accessible(page, "a name");
console.log("broke a lease after counting what it hits");

// Its history has who broke it and why, and the timeline draws it.
await eventually("the break is in the history", async () => /broken[\s\S]*on-call[\s\S]*hangs on NFS/.test(await page.locator("table.hist").innerText()));
await seen(page, "1 broken");
assert.equal(await page.locator(".timeline .bar.broken").count(), 1);

// A queue: dead items by note, and exactly those that the filter shows are redriven.
await page.goto(`${address}/?queue=mail`);
await seen(page, "Dead items by note");
await seen(page, "5 in 2 groups");
assert.match(await page.locator(".grp").innerText(), /SMTP … try again later[\s\S]*3[\s\S]*no such user[\s\S]*2/);
await page.getByLabel(/Show the 3 items/).click();
await page.getByRole("button", { name: "Show body" }).first().click();
await seen(page, "body of");
await page.locator("#q").fill("try again");
await seen(page, "3 of 5 in 1 group");
await accessible(page, "a queue");
await page.screenshot({ path: `${folder}/page-queue.png` });
await page.getByRole("button", { name: "Redrive all 3…" }).click();
assert.match(await dialog.innerText(), /Redrive 3 dead items of mail\?[\s\S]*3 of 5 dead items, ids \d+ to \d+[\s\S]*“try again”[\s\S]*2 others/);
await dialog.getByRole("button", { name: "Redrive 3 items" }).click();
await seen(page, "3 items of mail are visible again.");
await page.locator("#q").fill("");
await seen(page, "2 in 1 group");
assert.equal((await ask("/v1/queues?queue=mail")).queues[0].dead, 2);
console.log("redrove exactly what the filter showed");

// Held still, nothing moves until it is let go.
await page.goto(`${address}/`);
await seen(page, "Needs attention");
await page.keyboard.press("p");
await ask("/v1/claim", { name: "aaa-new", owner: "late-comer", ttl: 60 });
await eventually("it counts what is new", async () => /Held · \d+ new/.test(await page.locator(".top .live").innerText()));
assert.equal(await page.getByRole("link", { name: /^Names 10,001/ }).count(), 1);
await page.keyboard.press("p");
await eventually("it moves again", async () => (await page.getByRole("link", { name: /^Names 10,002/ }).count()) === 1);

// A key that may only observe sees no buttons that change anything.
const watcher = await visit("/?queue=mail", board, { colorScheme: "dark" });
await seen(watcher, "Dead items by note");
await seen(watcher, "board · observe");
for (const word of ["Redrive", "Discard", "Pause", "Break", "Show body"]) {
  assert.equal(await watcher.getByRole("button", { name: word }).count(), 0, word);
}
await watcher.goto(`${address}/`);
await seen(watcher, "Needs attention");
await accessible(watcher, "overview, dark");
await watcher.screenshot({ path: `${folder}/page-dark.png` });
console.log("a key that observes sees no buttons");

// A phone.
const phone = await visit("/", key, { viewport: { width: 390, height: 800 }, colorScheme: "dark", hasTouch: true });
await seen(phone, "Needs attention");
const overflow = await phone.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
assert.equal(overflow, 0, "nothing sticks out");
await accessible(phone, "a phone");
await phone.screenshot({ path: `${folder}/page-phone.png` });

// The server is gone: an alarm across the page. It is back: so is the page, by itself.
mayFail = true;
server.kill("SIGKILL");
await eventually("the alarm is raised", async () => (await page.title()) === "NO CONNECTION · Litelease");
await seen(page, "Unknown: the server does not answer");
await seen(page, "No connection for");
await page.screenshot({ path: `${folder}/page-lost.png` });
await serve(new URL(address).host);
await page.getByRole("button", { name: "Try now" }).click();
await seen(page, "Connected again");
assert.doesNotMatch(await page.title(), /NO CONNECTION/);
console.log("lost the server and came back");

// Keys at rest: only in the tab, and nothing goes to another host.
assert.deepEqual(await page.evaluate(() => [Object.keys(localStorage), document.cookie, Object.keys(sessionStorage)]), [[], "", ["litelease-key"]]);
for (const { url, referer } of requests) {
  assert.ok(url.startsWith(address), `a request to ${url}`);
  assert.ok(!url.includes(key) && !(referer ?? "").includes(key), "no key in an address");
}
assert.deepEqual(errors, [], "the console is quiet");
await browser.close();
server.kill("SIGTERM");
