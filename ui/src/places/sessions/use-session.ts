// All that is known of one session: what it is, what it would get, what it ran, and what runs in the background.

import { useEffect, useRef, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import type { FeedState } from '../../api/feed';
import { useFeed, useRead, type Read } from '../../api/use';
import type { AnswerOf } from '../../api/client';
import { merged, type Command, type Timeline } from './timeline';

export interface SessionView {
  details: Read<AnswerOf<'/api/v1/sessions/{session}', 'get'>>;
  processes: readonly Schema<'Process'>[];
  timeline: Timeline;
  /** Whether the feed has told the latest commands. */
  loaded: boolean;
  feed: FeedState;
  retry: () => void;
}

/** Time that changes have to come together before what depends on them is asked for. */
const TOGETHER = 150;

export function useSession(session: string): SessionView {
  const path = { session };
  const details = useRead('/api/v1/sessions/{session}', { path }, { topics: ['settings', 'sandboxes'], every: 60_000 });
  const processes = useRead('/api/v1/sessions/{session}/processes', { path }, { topics: ['sandboxes'] });
  const [timeline, setTimeline] = useState<Timeline>([]);
  const [loaded, setLoaded] = useState(false);
  const reload = useRef<() => void>(() => undefined);
  reload.current = () => {
    details.reload();
    processes.reload();
  };
  useEffect(() => {
    setTimeline([]);
    setLoaded(false);
  }, [session]);
  const { state, retry } = useFeed(session, () => {
    let told: Command[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const later = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        const commands = told;
        told = [];
        setTimeline((before) => merged(before, commands));
        setLoaded(true);
        reload.current();
      }, TOGETHER);
    };
    return {
      open: (hooks) => api.events('get', '/api/v1/sessions/{session}/feed', { path: { session }, ...hooks }),
      onEvent: ({ event, data }) => {
        if (event === 'command') told.push(data as Command);
        if (event === 'command' || event === 'session') later();
      },
    };
  });
  return { details, processes: processes.data?.processes ?? [], timeline, loaded, feed: state, retry };
}
