// What has changed at the gateway, told by one stream for the whole page. It carries topics, not data: whoever shows
// something asks for it anew when its topic comes up.

import { api } from './client';
import { Feed, followVisibility, type FeedState } from './feed';

export const TOPICS = ['status', 'sessions', 'sandboxes', 'approvals', 'network', 'settings'] as const;

export type Topic = (typeof TOPICS)[number];

type Listener = (topics: ReadonlySet<Topic>) => void;

class Live {
  #feed: Feed | null = null;
  #stop: (() => void) | null = null;
  #listeners = new Set<Listener>();
  #watchers = new Set<() => void>();
  #state: FeedState = { kind: 'connecting' };
  #instance: number | null = null;

  get state(): FeedState {
    return this.#state;
  }

  start() {
    if (this.#feed) return;
    this.#feed = new Feed({
      open: (hooks) => api.events('get', '/api/v1/events', hooks),
      onState: (state) => {
        this.#state = state;
        for (const watcher of [...this.#watchers]) watcher();
      },
      // What was missed is not known.
      onOpen: (again) => again && this.#tell(new Set(TOPICS)),
      onEvent: ({ event, data }) => {
        if (event === 'hello') {
          const { startedMillis } = data as { startedMillis: number };
          if (this.#instance !== null && this.#instance !== startedMillis) this.#tell(new Set(TOPICS));
          this.#instance = startedMillis;
        } else if (event === 'changed') {
          this.#tell(new Set((data as { topics: Topic[] }).topics));
        }
      },
    });
    this.#stop = followVisibility(this.#feed);
  }

  stop() {
    this.#stop?.();
    this.#feed?.close();
    this.#feed = null;
    this.#state = { kind: 'connecting' };
  }

  retry() {
    this.#feed?.retry();
  }

  /** Hears of topics that have changed. */
  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Hears that the state of the connection has changed. */
  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  #tell(topics: ReadonlySet<Topic>) {
    for (const listener of [...this.#listeners]) listener(topics);
  }
}

export const live = new Live();
