// Confirmations: each names and counts what it hits before it does it.

import { html, render } from "/vendor/preact.js";
import { ask, live, now, read } from "/live.js";
import { clock, grouped, moment, plural, spoken } from "/words.js";
import { place } from "/parts.js";

let dialog = null, said = "";
export const outcome = () => said;
export function say(text) {
  said = text;
  dispatchEvent(new Event("redraw"));
  setTimeout(() => { if (said === text) { said = ""; dispatchEvent(new Event("redraw")); } }, 12_000);
}

export const isAsking = () => dialog !== null;

// Opens a dialog whose Cancel has the focus. `run` gets the reason, and answers what was done.
function confirm({ title, hits, follows, reason, foot, button, isDanger, count, run }) {
  if (dialog || !live.key?.operates) return;
  const before = document.activeElement;
  dialog = document.body.appendChild(document.createElement("dialog"));
  dialog.setAttribute("aria-labelledby", "ask-title");
  const close = () => {
    dialog?.remove();
    dialog = null;
    before?.focus?.();
  };
  dialog.addEventListener("close", close);
  let isBusy = false, problem = "", typed = "";
  const needed = count > 100 ? String(count) : "";
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy || (needed && typed !== needed)) return;
    const why = new FormData(event.target).get("why")?.trim() || undefined;
    [isBusy, problem] = [true, ""];
    draw();
    try {
      const done = await run(why);
      dialog?.close();
      say(done);
    } catch (error) {
      [isBusy, problem] = [false, error.message];
      draw();
    }
  };
  const draw = () => dialog && render(html`<form onSubmit=${submit}><h2 id="ask-title">${title}</h2>
    <dl class="hit">${hits.filter(([, what]) => what).map(([name, what]) => html`<dt>${name}</dt><dd>${what}</dd>`)}</dl>
    <ul>${follows.filter(Boolean).map((one) => html`<li>${one}</li>`)}</ul>
    ${needed && html`<label>These are many. Type ${needed} to go on<input name="count" autocomplete="off" inputmode="numeric" onInput=${(event) => { typed = event.target.value.replace(/\D/g, ""); draw(); }}/></label>`}
    <label>${reason}<input name="why" maxlength="200" autocomplete="off"/></label>
    ${problem && html`<p class="t-stuck" role="alert">${problem}</p>`}
    <div class="acts"><span class="soft">${foot}</span><button type="button" class="cancel" onClick=${() => dialog.close()}>Cancel</button><button class=${isDanger ? "solid" : "main"} disabled=${isBusy || (needed && typed !== needed)}>${button}</button></div></form>`, dialog);
  draw();
  dialog.showModal();
  dialog.querySelector(".cancel").focus();
}

const kept = () => `Why (kept in the history${live.key?.name ? ` with the name of your key, ${live.key.name}` : ""})`;
const since = (ms) => (ms == null ? "" : `${spoken(now() - ms)}, since ${clock(ms, now(), true)}`);

export function askBreak(name) {
  const row = live.names.get(name);
  if (!row) return say(`${name} is free already.`);
  const next = row.waiting?.[0], where = place(row).replace(" ", ", pid ");
  const alive = { alive: ", alive", gone: "", unknown: "" }[row.process] ?? "";
  const process = row.pid ? `pid ${row.pid}${row.host ? ` on ${row.host}` : ""}` : "the old command";
  confirm({
    title: `Break the lease on ${name}?`,
    hits: [
      ["Hits", html`<b>1 lease</b>, token ${row.token}, nothing else`],
      ["Taken from", html`<b>${row.owner}</b>${where && ` on ${where}`}${alive}`],
      ["Held for", since(row.since_ms)],
      ["Goes to", next ? html`<b>${next.owner ?? next.note ?? "a client"}</b>${place(next) && ` on ${place(next).replace(" ", ", pid ")}`}, first of ${row.waiters} who ${row.waiters === 1 ? "waits" : "wait"}` : "nobody: the name is free then"],
    ],
    follows: [
      `The name is free at once. Whatever still presents token ${row.token} is refused.`,
      html`<b>The old command may run on for a while.</b> litelease run ends it when it notices, within the grace that it was given; a command that hangs does not end. Until then both may work.`,
      row.process !== "gone" && `If that would do harm, cancel, and end ${process} first.`,
    ],
    reason: kept(),
    foot: `Only if token ${row.token} still has it.`,
    button: `Break ${name}`,
    isDanger: true,
    async run(why) {
      try {
        await ask("POST", "/v1/break", { name, token: row.token, ...(why && { reason: why }) });
        return `The lease on ${name} is broken; token ${row.token} is refused from now on.`;
      } catch (error) {
        if (error.status === 409) return `It changed hands; nothing was broken. (${error.answer.reason})`;
        throw error;
      }
    },
  });
}

export function askFree(pool, slot) {
  const next = pool.waiting?.[0];
  confirm({
    title: `Free slot ${slot.position} of ${pool.label} (token ${slot.token})?`,
    hits: [
      ["Hits", html`<b>1 slot</b>, token ${slot.token}, nothing else`],
      ["Taken from", slot.note ?? "a client that left no note"],
      ["Goes to", next ? `${next.note ?? next.owner ?? "a client"}, first of ${pool.waiters}` : "nobody: the slot is free then"],
    ],
    follows: ["The slot is free at once. Its holder is told at its next renewal.", "Until then both may use what the slot stands for."],
    reason: kept(),
    foot: `Only if token ${slot.token} still has it.`,
    button: `Free slot ${slot.position}`,
    isDanger: true,
    async run(why) {
      const { returned } = await ask("POST", "/v1/slot/break", { name: pool.label, position: slot.position, token: slot.token, ...(why && { reason: why }) });
      return returned ? `Slot ${slot.position} of ${pool.label} is free.` : "It changed hands; nothing was freed.";
    },
  });
}

const queueOf = (name) => live.data?.queues.find((row) => row.queue === name);

export function askPause(queue) {
  const row = queueOf(queue);
  if (!row) return;
  confirm({
    title: `Pause ${queue}?`,
    hits: [["Hits", html`<b>1 queue</b>, ${grouped(row.visible)} visible, ${grouped(row.delayed)} delayed`], ["Workers", `${plural(row.leased, "item")} ${row.leased === 1 ? "is" : "are"} worked on now; they may be finished`]],
    follows: ["Receive answers none until an operator resumes it. Sending goes on.", "The overview shows it as paused, with your note, until then."],
    reason: "Why (shown on the overview)",
    foot: "",
    button: `Pause ${queue}`,
    async run(why) {
      await ask("POST", "/v1/queue/pause", { queue, ...(why && { reason: why }) });
      return `${queue} is paused.`;
    },
  });
}

export function askResume(queue) {
  const row = queueOf(queue);
  if (!row) return;
  confirm({
    title: `Resume ${queue}?`,
    hits: [["Hits", html`<b>1 queue</b>`], ["Paused", row.paused && [row.paused.by && `by ${row.paused.by}`, row.paused.reason && `“${row.paused.reason}”`, since(row.paused.since_ms)].filter(Boolean).join(", ")]],
    follows: [`${grouped(row.visible)} become receivable.`],
    reason: kept(),
    foot: "",
    button: `Resume ${queue}`,
    async run(why) {
      await ask("POST", "/v1/queue/resume", { queue, ...(why && { reason: why }) });
      return `${queue} goes on.`;
    },
  });
}

// Redrives or discards exactly these dead items.
export function askDead(verb, queue, items, filter, all, done) {
  const count = items.length, ids = items.map((item) => item.id), isRedrive = verb === "redrive";
  const Verb = isRedrive ? "Redrive" : "Discard", row = queueOf(queue);
  const range = count === 1 ? `id ${ids[0]}` : `ids ${Math.min(...ids)} to ${Math.max(...ids)}`;
  confirm({
    title: `${Verb} ${plural(count, "dead item")} of ${queue}?`,
    hits: [["Hits", html`<b>${grouped(count)} of ${plural(all, "dead item")}</b>, ${range}`], ["Filter", filter || "none: all that are shown"], [isRedrive ? "Stay dead" : "Stay", all > count ? `${grouped(all - count)} others` : "none"]],
    follows: isRedrive
      ? [`They become visible now, with attempt 0${row?.max_attempts ? ` and ${row.max_attempts} attempts to come` : ""}.`, "Those whose key is in use by then are left out, and you are told how many.", row && row.leased === 0 && row.visible > 0 && `Nobody works on ${queue} at present: they will wait with ${grouped(row.visible)} others.`]
      : [html`<b>This cannot be undone.</b> The items and their bodies are deleted.`],
    reason: kept(),
    foot: `Exactly these ${grouped(count)}; what dies from now on is not touched.`,
    button: `${Verb} ${plural(count, "item")}`,
    isDanger: !isRedrive,
    count,
    async run(why) {
      let changed = 0;
      for (let at = 0; at < ids.length; at += 1000) {
        const answer = await ask("POST", `/v1/queue/${verb}`, { queue, ids: ids.slice(at, at + 1000), ...(why && { reason: why }) });
        changed += answer.redriven ?? answer.discarded;
      }
      done();
      const left = count - changed;
      return `${plural(changed, "item")} of ${queue} ${changed === 1 ? "is" : "are"} ${isRedrive ? "visible again" : "discarded"}${left ? `; ${grouped(left)} left out` : ""}.`;
    },
  });
}

export function askCancel(queue, item, done) {
  confirm({
    title: `Cancel item ${item.id} of ${queue}?`,
    hits: [["Hits", html`<b>1 item</b>${item.key ? `, key ${item.key}` : ""}`], ["State", item.state]],
    follows: ["It is deleted and delivered to nobody. This cannot be undone.", "If a worker has received it by then, nothing happens, and you are told."],
    reason: kept(),
    foot: "",
    button: `Cancel item ${item.id}`,
    isDanger: true,
    async run() {
      await ask("POST", "/v1/queue/cancel", { queue, id: item.id });
      done();
      return `Item ${item.id} of ${queue} is cancelled.`;
    },
  });
}

export function askTick(verb, row) {
  const isSkip = verb === "skip", when = moment(isSkip ? now() : row.tick_ms, now());
  confirm({
    title: isSkip ? `Skip the ticks of ${row.name} up to now?` : `Run the tick ${when} of ${row.name} again?`,
    hits: [["Hits", html`<b>1 schedule</b>, ${row.schedule ?? row.name}`], ["Newest", `${moment(row.tick_ms, now())}, ${row.state}`]],
    follows: isSkip ? ["Every tick up to now counts as taken; the next one is run as planned."] : ["The next process that has the schedule runs it once more, with all its attempts."],
    reason: kept(),
    foot: "",
    button: isSkip ? `Skip up to now` : `Run again`,
    async run(why) {
      await ask("POST", `/v1/ticks/${verb}`, { name: row.name, ...(why && { reason: why }) });
      return isSkip ? `The ticks of ${row.name} up to now are skipped.` : `The tick ${when} of ${row.name} is to be run again.`;
    },
  });
}

export { read };
