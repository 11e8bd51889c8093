// The log as it is filtered, with what comes while somebody looks; and the questions that wait.

import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { api } from '../../api/client';
import type { FeedState } from '../../api/feed';
import { asTold, isAbort, type Told } from '../../api/problem';
import { useFeed } from '../../api/use';
import { toAddress, toRequest, wants, type Entry, type Filter } from './filters';
import { asked, Log, type Approval, type Row } from './live';

/** Entries of one page. */
const PAGE = 300;

/** Time between two drawings while much comes. */
const DRAW = 250;

export interface LogView {
  rows: readonly Row[];
  loading: boolean;
  error: Told | null;
  /** Whether there are older entries. */
  hasMore: boolean;
  more: () => void;
  again: () => void;
  waiting: readonly Approval[];
  feed: FeedState;
  retry: () => void;
  /** Counts up with what comes live, for what is counted over all. */
  version: number;
}

export function useLog(filter: Filter): LogView {
  const name = toAddress(filter).toString();
  const wanted = useRef(filter);
  wanted.current = filter;
  const log = useRef(new Log());
  const cursor = useRef<string | undefined>(undefined);
  const running = useRef<AbortController | null>(null);
  const [rows, setRows] = useState<readonly Row[]>([]);
  const [state, setState] = useState<{ loading: boolean; error: Told | null; hasMore: boolean }>({
    loading: true,
    error: null,
    hasMore: false,
  });
  const [waiting, setWaiting] = useState<readonly Approval[]>([]);
  const [version, setVersion] = useState(0);

  const draw = useCallback(() => setRows(log.current.newest()), []);

  /** Reads a page: the newest one, or the next of those that were read. */
  const read = useCallback(
    async (older: boolean) => {
      if (older && running.current !== null) return;
      running.current?.abort();
      const mine = new AbortController();
      running.current = mine;
      const mark = log.current;
      try {
        const query = {
          ...toRequest(wanted.current, Date.now()),
          limit: PAGE,
          ...(older && cursor.current !== undefined ? { cursor: cursor.current } : {}),
        };
        const page = await api.get('/api/v1/network/audit', { query, signal: mine.signal });
        if (log.current !== mark) return;
        log.current.add(page.entries);
        // After a gap in between the older ones are read anew from here.
        cursor.current = page.next;
        setState({ loading: false, error: null, hasMore: page.next !== undefined });
        draw();
      } catch (failed) {
        if (!isAbort(failed)) setState((before) => ({ ...before, loading: false, error: asTold(failed) }));
      } finally {
        if (running.current === mine) running.current = null;
      }
    },
    [draw],
  );

  useEffect(() => {
    log.current = new Log();
    cursor.current = undefined;
    setRows([]);
    setState({ loading: true, error: null, hasMore: false });
    void read(false);
    return () => running.current?.abort();
  }, [name]);

  const { state: feed, retry } = useFeed('network', () => {
    let held: Entry[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    return {
      open: (hooks) => api.events('get', '/api/v1/network/feed', hooks),
      onOpen: (again) => {
        setWaiting([]);
        // What was missed meanwhile.
        if (again) void read(false);
      },
      onEvent: ({ event, data }) => {
        if (event === 'entry') {
          held.push(data as Entry);
          timer ??= setTimeout(() => {
            timer = undefined;
            const now = Date.now();
            const mine = held.filter((entry) => wants(wanted.current, entry, now));
            held = [];
            if (mine.length > 0 && log.current.add(mine)) draw();
            setVersion((before) => before + 1);
          }, DRAW);
        } else if (event === 'asked' || event === 'answered') {
          setWaiting((before) => asked(before, data as Approval));
        }
      },
    };
  });
  return {
    rows,
    ...state,
    more: () => void read(true),
    again: () => void read(false),
    waiting,
    feed,
    retry,
    version,
  };
}
