// Uploads of the page: they go on while somebody looks at something else in it.

import { useEffect, useState } from 'preact/hooks';
import { announce } from '../../parts/announce';
import type { Place } from './api';
import { send, type UploadState, type Work } from './uploads';

export interface Job {
  state: UploadState;
  cancel: () => void;
  folder: string;
}

const jobs = new Map<string, Job>();
const listeners = new Set<() => void>();

function tell() {
  for (const listener of [...listeners]) listener();
}

/** Starts an upload; one at a time of each place. */
export async function begin(place: Place, work: Work): Promise<UploadState> {
  const abort = new AbortController();
  const end = await send(place, work, abort.signal, (state) => {
    jobs.set(place.id, { state, cancel: () => abort.abort(), folder: work.folder });
    tell();
  });
  announce(
    end.cancelled
      ? 'The upload was given up'
      : end.failed.length > 0
        ? `${end.done} files are there, ${end.failed.length} failed`
        : `${end.done} files are there`,
  );
  return end;
}

export function dismiss(place: Place) {
  if (jobs.get(place.id)?.state.running === false) jobs.delete(place.id);
  tell();
}

export function useJob(place: Place): Job | undefined {
  const [, setCount] = useState(0);
  useEffect(() => {
    const listener = () => setCount((count) => count + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return jobs.get(place.id);
}
