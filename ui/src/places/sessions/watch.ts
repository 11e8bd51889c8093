// What a background command prints, read on from where reading ended: a reload, a second tab or a restart of the gateway
// loses nothing of it. It is asked for again and again instead of being streamed, since a browser has few connections.

import { useEffect, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { ApiError, asTold, isAbort, type Told } from '../../api/problem';
import { Output } from './output';

/** Pauses between two questions: right after something came, and at most. */
const SHORT = 300;
const LONG = 2_000;

export interface Watched {
  output: Output;
  /** Counts up with whatever comes. */
  version: number;
  running: boolean;
  /** Why it cannot be read now; it is tried again unless `final`. */
  error: Told | null;
  final: boolean;
  ended: Schema<'Ended'> | null;
}

type Part = Schema<'ProcessOutput'>;

/** Takes a part in; whether anything was in it. */
export function take(output: Output, part: Part): boolean {
  output.missed({ stdout: part.stdoutMissed, stderr: part.stderrMissed });
  if (part.stdout !== '') output.push('stdout', { data: part.stdout, encoding: part.stdoutEncoding });
  if (part.stderr !== '') output.push('stderr', { data: part.stderr, encoding: part.stderrEncoding });
  return part.stdout !== '' || part.stderr !== '' || part.stdoutMissed > 0 || part.stderrMissed > 0;
}

export function useOutput(session: string, process: number): Watched {
  const [watched, setWatched] = useState<Watched>(() => ({
    output: new Output(),
    version: 0,
    running: true,
    error: null,
    final: false,
    ended: null,
  }));
  useEffect(() => {
    const output = new Output();
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let pause = SHORT;
    let version = 0;
    let shown = false;
    const say = (change: Partial<Watched>) => {
      version += 1;
      shown = true;
      setWatched((before) => ({ ...before, output, version, error: null, final: false, ...change }));
    };
    const ask = async () => {
      try {
        const part = await api.get('/api/v1/sessions/{session}/processes/{process}/output', {
          path: { session, process },
          query: { stdoutFrom: output.seen('stdout'), stderrFrom: output.seen('stderr') },
          signal: abort.signal,
        });
        const more = take(output, part);
        if (!part.running && !more) {
          output.end();
          const { exitCode, signal, timedOut = false, cancelled = false, durationMs = 0 } = part;
          const ended =
            exitCode === undefined
              ? null
              : { exitCode, timedOut, cancelled, durationMs, ...(signal === undefined ? {} : { signal }) };
          return say({ running: false, ended });
        }
        if (more || !shown) say({ running: true });
        // A full part, or an end, is followed at once.
        pause = more ? SHORT : Math.min(LONG, pause * 1.5);
        timer = setTimeout(() => void ask(), more && !part.running ? 0 : document.hidden ? LONG : pause);
      } catch (error) {
        if (isAbort(error) || abort.signal.aborted) return;
        const final = error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
        say({ error: asTold(error), final });
        if (!final) timer = setTimeout(() => void ask(), LONG);
      }
    };
    void ask();
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [session, process]);
  return watched;
}
