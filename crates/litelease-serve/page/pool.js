// A pool over HTTP. Its id is in memory only, never in the address of the page.

export class Pool {
  constructor(id) {
    this.id = id;
    this.path = `/l/${encodeURIComponent(id)}`;
  }

  register(count) {
    return this.#ask("PUT", "", { count });
  }

  borrow(ttl, wait, note, signal) {
    return this.#ask("POST", "/borrow", note ? { ttl, wait, note } : { ttl, wait }, signal);
  }

  giveBack(lease) {
    return this.#ask("POST", "/return", { lease });
  }

  // Calls back with the state, whenever it changes, and with null if there is no such pool. A tab
  // that is hidden has no stream: a browser opens at most six connections to a host.
  watch(onState, onLive) {
    let source;
    let timer;
    let closed = false;
    const open = () => {
      if (document.hidden) return;
      source = new EventSource(`${this.path}/events`);
      source.onopen = () => onLive(true);
      source.onmessage = (event) => onState(JSON.parse(event.data));
      source.addEventListener("gone", () => {
        source.close();
        onState(null);
        again(1000);
      });
      source.onerror = () => {
        onLive(false);
        source.close();
        again(1500);
      };
    };
    const again = (ms) => {
      if (!closed) timer = setTimeout(open, ms);
    };
    const onVisibility = () => {
      clearTimeout(timer);
      source?.close();
      if (!closed) open();
    };
    document.addEventListener("visibilitychange", onVisibility);
    open();
    return () => {
      closed = true;
      document.removeEventListener("visibilitychange", onVisibility);
      onVisibility();
    };
  }

  async #ask(method, path, body, signal) {
    const response = await fetch(this.path + path, {
      method,
      signal,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      referrerPolicy: "no-referrer",
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }
}

// A random UUID, also where the page is not in a secure context.
export function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}
