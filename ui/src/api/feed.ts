// A stream of events that is opened again whenever it ends: with growing pauses, and with a word on how old what it told
// last is. It ends while nobody looks at the tab, since a browser has few connections for one host.

import { ApiError, isAbort, type Told, asTold } from './problem';
import type { ServerEvent } from './events';

/** Silence after which a connection counts as lost, in milliseconds. The gateway says something every 15 s. */
export const SILENCE = 40_000;

/** Time a hidden tab keeps its connection, in milliseconds. */
export const HIDDEN = 20_000;

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;

export type FeedState =
  | { kind: 'connecting' }
  | { kind: 'live' }
  /** What is shown was true at that time; it is tried again. */
  | { kind: 'stale'; sinceMillis: number; why: Told }
  /** It will not come back by itself. */
  | { kind: 'ended'; why: Told | null };

/** Opens the stream. `onOpen` when the answer begins, `onBytes` with whatever comes. */
export type Open = (hooks: {
  signal: AbortSignal;
  onOpen: () => void;
  onBytes: () => void;
}) => AsyncIterable<ServerEvent>;

export interface FeedOptions {
  open: Open;
  onEvent: (event: ServerEvent) => void;
  onState?: (state: FeedState) => void;
  /** A connection is there again: what was missed meanwhile is to be asked for. */
  onOpen?: (again: boolean) => void;
  /** Whether a stream that ended by itself is to be opened again. */
  again?: boolean;
  random?: () => number;
}

/** The pause before the n-th try in a row, in milliseconds: doubled each time, within a fifth of chance. */
export function pause(failures: number, random: () => number = Math.random): number {
  const plain = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.max(0, failures - 1));
  return Math.round(plain * (0.8 + random() * 0.4));
}

/** Whether another try cannot help. */
function isFinal(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
}

export class Feed {
  #options: FeedOptions;
  #state: FeedState = { kind: 'connecting' };
  #lastMillis = Date.now();
  #failures = 0;
  #opened = false;
  #closed = false;
  #abort: AbortController | null = null;
  #wake: (() => void) | null = null;
  #watch: ReturnType<typeof setTimeout> | undefined;

  constructor(options: FeedOptions) {
    this.#options = options;
    void this.#run();
  }

  get state(): FeedState {
    return this.#state;
  }

  /** Tries at once, where it waits for the next try. */
  retry() {
    this.#failures = 0;
    this.#wake?.();
  }

  /** Gives the connection up until `retry`, as while the tab is hidden. */
  rest() {
    this.#abort?.abort();
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#watch);
    this.#abort?.abort();
    this.#wake?.();
  }

  #say(state: FeedState) {
    this.#state = state;
    if (!this.#closed) this.#options.onState?.(state);
  }

  #heard() {
    this.#lastMillis = Date.now();
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => this.#abort?.abort(), SILENCE);
  }

  async #run() {
    while (!this.#closed) {
      let why: Told | null = null;
      this.#abort = new AbortController();
      this.#heard();
      try {
        const events = this.#options.open({
          signal: this.#abort.signal,
          onOpen: () => {
            this.#heard();
            this.#failures = 0;
            const again = this.#opened;
            this.#opened = true;
            this.#say({ kind: 'live' });
            this.#options.onOpen?.(again);
          },
          onBytes: () => this.#heard(),
        });
        for await (const event of events) {
          if (this.#closed) return;
          this.#options.onEvent(event);
        }
        if (this.#options.again === false) return this.#say({ kind: 'ended', why: null });
        why = { code: 'stream-ended', message: 'the gateway has ended the stream' };
      } catch (error) {
        if (this.#closed) return;
        if (isFinal(error)) return this.#say({ kind: 'ended', why: asTold(error) });
        why = isAbort(error)
          ? { code: 'gateway-silent', message: 'the gateway has not been heard of for a while' }
          : asTold(error);
      } finally {
        clearTimeout(this.#watch);
      }
      if (this.#closed) return;
      this.#failures += 1;
      this.#say({ kind: 'stale', sinceMillis: this.#lastMillis, why });
      await this.#pause(pause(this.#failures, this.#options.random));
    }
  }

  #pause(millis: number): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        this.#wake = null;
        resolve();
      };
      // A hidden tab waits until somebody looks again.
      const timer = setTimeout(() => {
        if (typeof document === 'undefined' || !document.hidden) done();
      }, millis);
      this.#wake = done;
    });
  }
}

/** Closes a feed's connection while the tab is hidden for long, and opens it when somebody looks again. */
export function followVisibility(feed: Feed): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const seen = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => feed.rest(), HIDDEN);
    else feed.retry();
  };
  const online = () => feed.retry();
  document.addEventListener('visibilitychange', seen);
  window.addEventListener('online', online);
  return () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', seen);
    window.removeEventListener('online', online);
  };
}
