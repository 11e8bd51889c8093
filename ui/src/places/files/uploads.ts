// Uploads that run: one after another, each file at once or not at all, with what is done and what failed.

import { asTold, isAbort, type Told } from '../../api/problem';
import type { Place } from './api';
import { joined } from './path';
import type { Upload } from './plan';

export interface UploadState {
  /** Bytes and files that are done, and all of them. */
  sent: number;
  bytes: number;
  done: number;
  files: number;
  /** What is being sent. */
  current: string | null;
  failed: { path: string; told: Told }[];
  running: boolean;
  cancelled: boolean;
}

export interface Work {
  folder: string;
  uploads: Upload<Blob>[];
  folders: string[];
}

/** Time that a connection is given to come back before a file is sent again, in milliseconds. */
const AGAIN = [1_000, 3_000, 8_000];

/** Sends all of it, and says how far it is. */
export async function send(
  place: Place,
  work: Work,
  signal: AbortSignal,
  say: (state: UploadState) => void,
  wait: (millis: number) => Promise<void> = (millis) => new Promise((resolve) => setTimeout(resolve, millis)),
): Promise<UploadState> {
  const state: UploadState = {
    sent: 0,
    bytes: work.uploads.reduce((sum, upload) => sum + upload.size, 0),
    done: 0,
    files: work.uploads.length,
    current: null,
    failed: [],
    running: true,
    cancelled: false,
  };
  const tell = () => say({ ...state, failed: [...state.failed] });
  tell();
  for (const folder of work.folders) {
    if (signal.aborted) break;
    try {
      await place.makeFolder(joined(work.folder, folder), true);
    } catch (error) {
      state.failed.push({ path: folder, told: asTold(error) });
    }
  }
  for (const upload of work.uploads) {
    if (signal.aborted) break;
    const before = state.sent;
    state.current = upload.path;
    tell();
    for (let attempt = 0; ; attempt++) {
      try {
        await place.upload(joined(work.folder, upload.path), upload.blob, {
          replace: upload.replace,
          signal,
          onProgress: (sent) => {
            state.sent = before + Math.min(sent, upload.size);
            tell();
          },
        });
        state.done += 1;
        break;
      } catch (error) {
        if (isAbort(error)) break;
        const told = asTold(error);
        const pause = AGAIN[attempt];
        // Nothing of a file is there until all of it is: after a break it is sent anew.
        if (told.code === 'gateway-unreachable' && pause !== undefined && !signal.aborted) {
          state.sent = before;
          await wait(pause);
          continue;
        }
        // It came through, and its answer was lost.
        if (attempt > 0 && told.code === 'file-exists' && !upload.replace) state.done += 1;
        else state.failed.push({ path: upload.path, told });
        break;
      }
    }
    state.sent = before + upload.size;
    tell();
  }
  state.current = null;
  state.running = false;
  state.cancelled = signal.aborted;
  tell();
  return state;
}
