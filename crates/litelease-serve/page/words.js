// Times and numbers in words, and the filter that is typed.

// 12 s, 41 min, 7 h 42, 3 d 4 h: as the server says them.
export function spoken(ms) {
  const s = Math.floor(Math.max(0, ms) / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (m < 1) return `${s} s`;
  if (h < 1) return `${m} min`;
  if (d < 1) return h < 10 && m % 60 ? `${h} h ${String(m % 60).padStart(2, "0")}` : `${h} h`;
  return d < 10 && h % 24 ? `${d} d ${h % 24} h` : `${d} d`;
}

const DAY = 86_400_000;
const two = (number) => String(number).padStart(2, "0");
const days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// The time of day; beside another day that day, and beside a far one its date.
export function clock(ms, now, seconds = false) {
  if (ms == null) return "–";
  const at = new Date(ms), today = new Date(now);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
  if (at.toDateString() === today.toDateString()) return time;
  const day = Math.abs(now - ms) < 6 * DAY ? days[at.getDay()] : `${at.getDate()} ${months[at.getMonth()]}`;
  return seconds ? `${day} ${time}` : day;
}

// The same, with the time of day for another day too.
export function moment(ms, now) {
  if (ms == null) return "–";
  const short = clock(ms, now);
  return short.includes(":") ? short : Math.abs(now - ms) < 6 * DAY ? `${short} ${clock(ms, ms)}` : short;
}

// A text as one word of a shell: clients choose the names that an operator is shown in commands.
export const quoted = (text) => (/^[\w.:@%+,/][\w.:@%+,/=-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
export const exact = (ms) => (ms == null ? "" : new Date(ms).toLocaleString());
export const grouped = (number) => Number(number).toLocaleString("en");
export const plural = (count, one, many = `${one}s`) => `${grouped(count)} ${count === 1 ? one : many}`;
export const RANK = { stuck: 0, late: 1, paused: 2, waiting: 3, ok: 4 };

// A filter as it is typed: words that a name or an owner contains, and state:, owner:, note:, host:.
export function matcher(text) {
  const terms = text.toLowerCase().split(/\s+/).filter(Boolean).map((term) => {
    const [, field, value] = /^(state|owner|note|host):(.*)$/.exec(term) ?? [null, "", term];
    return { field, value };
  });
  const has = (text, value) => (text ?? "").toLowerCase().includes(value);
  return (row) => terms.every(({ field, value }) => {
    if (field === "state") return has(row.health, value) || has(row.state, value);
    if (field === "owner") return has(row.owner, value) || has(row.user, value);
    if (field === "host") return has(row.host, value);
    if (field === "note") return (row.waiting ?? []).some((waiter) => has(waiter.note, value)) || has(row.note, value);
    return [row.name, row.queue, row.label, row.group, row.owner, row.host].some((text) => has(text, value));
  });
}

// Numbers in notes are taken as equal, so that one cause is one group.
export const alike = (note) => (note ?? "").replace(/\d+([.:]\d+)*/g, "…").replace(/\b(?=\w*…)\S+/g, "…").trim() || "no note";
