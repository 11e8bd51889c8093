// The secret that goes with a login. The cookie is shared by all ports of a host, so it alone proves nothing: each tab
// holds the secret too. A new tab asks the others for it; they are of the same origin, which no other port is.

const NAME = 'moltis.secret';
const CHANNEL = 'moltis.login';

/** Time that other tabs have to answer, in milliseconds. */
const PATIENCE = 250;

type Message = { kind: 'ask' } | { kind: 'have'; secret: string } | { kind: 'ended' };

function stored(): string | null {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    // A browser may forbid storage: then a login lasts until the tab is reloaded.
    return null;
  }
}

function store(secret: string | null) {
  try {
    if (secret === null) sessionStorage.removeItem(NAME);
    else sessionStorage.setItem(NAME, secret);
  } catch {
    // As above.
  }
}

export class Secret {
  #value: string | null;
  #channel: BroadcastChannel | null;
  #listeners = new Set<() => void>();

  constructor() {
    this.#value = stored();
    this.#channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(CHANNEL);
    this.#channel?.addEventListener('message', ({ data }: MessageEvent<Message>) => {
      switch (data.kind) {
        case 'ask':
          if (this.#value !== null) this.#tell({ kind: 'have', secret: this.#value });
          break;
        case 'have':
          if (typeof data.secret === 'string') this.#put(data.secret);
          break;
        case 'ended':
          this.#put(null);
          break;
      }
    });
  }

  get value(): string | null {
    return this.#value;
  }

  /** Somebody has logged in: the cookie is new for all tabs, and so is the secret. */
  began(secret: string) {
    this.#put(secret);
    this.#tell({ kind: 'have', secret });
  }

  /** The login is over, for all tabs. */
  ended() {
    this.#put(null);
    this.#tell({ kind: 'ended' });
  }

  /** This tab's secret was refused. */
  wrong() {
    this.#put(null);
  }

  /** Whether another tab had one. */
  async askOthers(): Promise<boolean> {
    if (this.#value !== null) return true;
    if (this.#channel === null) return false;
    this.#tell({ kind: 'ask' });
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        stop();
        resolve(this.#value !== null);
      };
      const stop = this.listen(done);
      const timer = setTimeout(done, PATIENCE);
    });
  }

  listen(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #put(secret: string | null) {
    if (secret === this.#value) return;
    this.#value = secret;
    store(secret);
    for (const listener of [...this.#listeners]) listener();
  }

  #tell(message: Message) {
    this.#channel?.postMessage(message);
  }
}

export const secret = new Secret();
