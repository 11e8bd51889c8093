// What components read from the gateway and do there.

import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { api, url, type AnswerOf, type Ask, type Loose, type PathOf } from './client';
import { Feed, followVisibility, type FeedOptions, type FeedState } from './feed';
import { live, type Topic } from './live';
import { asTold, isAbort, type Told } from './problem';

/** The least time between two reads of the same thing that changes all the time, in milliseconds. */
const BREATH = 700;

export interface Read<T> {
  /** What was read last; it stays while it is read again, and when that fails. */
  data: T | undefined;
  error: Told | null;
  /** Whether nothing was read yet. */
  loading: boolean;
  reload: () => void;
  /** Puts something in its place that is known to be newer. */
  put: (data: T) => void;
}

// What was read last of what was shown lately, so that going back shows it at once.
const remembered = new Map<string, unknown>();
const REMEMBERED = 40;

function remember(name: string, data: unknown) {
  remembered.delete(name);
  remembered.set(name, data);
  for (const oldest of remembered.keys()) {
    if (remembered.size <= REMEMBERED) break;
    remembered.delete(oldest);
  }
}

/** Forgets all that was read: somebody else may log in. */
export function forgetAll() {
  remembered.clear();
}

/**
 * Reads something, and reads it anew whenever one of its topics has changed, the connection is back, or `every`
 * milliseconds are over. `null` instead of a path reads nothing.
 */
export function useRead<P extends PathOf<'get'>>(
  path: P | null,
  ask?: Omit<Ask<P, 'get'>, 'signal'>,
  options: { topics?: readonly Topic[]; every?: number } = {},
): Read<AnswerOf<P, 'get'>> {
  type T = AnswerOf<P, 'get'>;
  const name = path === null ? null : url(path, ask as Loose);
  const [read, setRead] = useState<{ name: string | null; data: T | undefined; error: Told | null }>(() => ({
    name,
    data: name === null ? undefined : (remembered.get(name) as T | undefined),
    error: null,
  }));
  const current = useRef(name);
  current.current = name;
  const running = useRef<{ abort: AbortController; again: boolean } | null>(null);
  const lastMillis = useRef(0);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);

  const load = useCallback(() => {
    if (name === null || path === null) return;
    if (running.current) {
      running.current.again = true;
      return;
    }
    const wait = lastMillis.current + BREATH - Date.now();
    if (wait > 0) {
      clearTimeout(timer.current);
      timer.current = setTimeout(load, wait);
      return;
    }
    lastMillis.current = Date.now();
    const mine = { abort: new AbortController(), again: false };
    running.current = mine;
    const done = (set: (before: T | undefined) => { data: T | undefined; error: Told | null }) => {
      if (current.current === name) {
        setRead((before) => ({ name, ...set(before.name === name ? before.data : undefined) }));
      }
    };
    (api.get as (path: P, ask: unknown) => Promise<T>)(path, { ...(ask as object), signal: mine.abort.signal })
      .then((data) => {
        remember(name, data);
        done(() => ({ data, error: null }));
      })
      .catch((error: unknown) => {
        if (!isAbort(error)) done((data) => ({ data, error: asTold(error) }));
      })
      .finally(() => {
        if (running.current === mine) running.current = null;
        if (mine.again && !mine.abort.signal.aborted) load();
      });
    // The name stands for path and parameters.
  }, [name]);

  useEffect(() => {
    setRead((before) =>
      before.name === name
        ? before
        : { name, data: name === null ? undefined : (remembered.get(name) as T | undefined), error: null },
    );
    lastMillis.current = 0;
    load();
    return () => {
      clearTimeout(timer.current);
      running.current?.abort.abort();
      running.current = null;
    };
  }, [name]);

  const topics = options.topics?.join(' ') ?? '';
  useEffect(() => {
    if (topics === '') return;
    const mine = topics.split(' ');
    return live.listen((changed) => {
      if (mine.some((topic) => changed.has(topic as Topic))) load();
    });
  }, [topics, load]);

  const { every } = options;
  useEffect(() => {
    if (every === undefined) return;
    const beat = setInterval(() => {
      if (!document.hidden) load();
    }, every);
    return () => clearInterval(beat);
  }, [every, load]);

  const here = read.name === name;
  return {
    data: here ? read.data : undefined,
    error: here ? read.error : null,
    loading: !here || (read.data === undefined && read.error === null),
    reload: load,
    put: (data) => {
      if (name !== null) remember(name, data);
      setRead({ name, data, error: null });
    },
  };
}

export interface Act<A extends unknown[], T> {
  /** Does it; gives nothing when it failed, and then `error` says why. */
  run: (...args: A) => Promise<T | undefined>;
  busy: boolean;
  error: Told | null;
  clear: () => void;
}

/** Something that a person does at the gateway. */
export function useAct<A extends unknown[], T>(work: (...args: A) => Promise<T>): Act<A, T> {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Told | null>(null);
  const latest = useRef(work);
  latest.current = work;
  const run = useCallback(async (...args: A) => {
    setBusy(true);
    setError(null);
    try {
      return await latest.current(...args);
    } catch (failed) {
      if (!isAbort(failed)) setError(asTold(failed));
      return undefined;
    } finally {
      setBusy(false);
    }
  }, []);
  const clear = useCallback(() => setError(null), []);
  return { run, busy, error, clear };
}

/** A feed of its own, as long as the component is there. `name` says which: another one opens another. */
export function useFeed(name: string | null, options: () => FeedOptions): { state: FeedState; retry: () => void } {
  const [state, setState] = useState<FeedState>({ kind: 'connecting' });
  const feed = useRef<Feed | null>(null);
  useEffect(() => {
    if (name === null) return;
    const made = options();
    const mine = new Feed({
      ...made,
      onState: (state) => {
        setState(state);
        made.onState?.(state);
      },
    });
    feed.current = mine;
    const stop = followVisibility(mine);
    return () => {
      stop();
      mine.close();
    };
  }, [name]);
  return { state, retry: () => feed.current?.retry() };
}

/** The state of the page's own stream. */
export function useLiveState(): FeedState {
  const [state, setState] = useState(live.state);
  useEffect(() => {
    setState(live.state);
    return live.watch(() => setState(live.state));
  }, []);
  return state;
}
