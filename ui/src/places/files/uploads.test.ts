import { describe, expect, it } from 'vitest';

import { ApiError, unreachable } from '../../api/problem';
import type { Place } from './api';
import { send, type UploadState } from './uploads';

const upload = (path: string, size = 3, replace = false) => ({ path, size, blob: new Blob(['abc']), replace });
const denied = new ApiError({ code: 'file-exists', message: 'it is there', status: 409, kind: 'refused' });

function placeThat(does: (path: string, attempt: number) => unknown) {
  const tried = new Map<string, number>();
  const log: string[] = [];
  const place = {
    makeFolder: (path: string) => Promise.resolve(log.push(`mkdir ${path}`)),
    upload: (path: string, _: Blob, { replace, onProgress }: { replace: boolean; onProgress: (sent: number) => void }) => {
      const attempt = tried.get(path) ?? 0;
      tried.set(path, attempt + 1);
      onProgress(1);
      const result = does(path, attempt);
      if (result !== undefined) return Promise.reject(result as Error);
      log.push(`${replace ? 'replace' : 'write'} ${path}`);
      return Promise.resolve();
    },
  } as unknown as Place;
  return { place, log };
}

const run = async (place: Place, uploads: ReturnType<typeof upload>[], folders: string[] = [], abort = new AbortController()) => {
  const told: UploadState[] = [];
  const end = await send(place, { folder: '/in', uploads, folders }, abort.signal, (state) => told.push(state), () => Promise.resolve());
  return { told, end };
};

describe('uploads', () => {
  it('send folders and files in order and say how far they are', async () => {
    const { place, log } = placeThat(() => undefined);
    const { told, end } = await run(place, [upload('a'), upload('d/b', 3, true)], ['empty']);
    expect(log).toEqual(['mkdir /in/empty', 'write /in/a', 'replace /in/d/b']);
    expect(told.map((state) => state.sent)).toEqual([0, 0, 1, 3, 3, 4, 6, 6]);
    expect([end.done, end.files, end.failed, end.running, end.cancelled]).toEqual([2, 2, [], false, false]);
  });

  it('go on after one that fails, and name it', async () => {
    const { place } = placeThat((path) => (path === '/in/a' ? denied : undefined));
    const { end } = await run(place, [upload('a'), upload('b')]);
    expect([end.done, end.failed.map((one) => [one.path, one.told.code])]).toEqual([1, [['a', 'file-exists']]]);
  });

  it('send a file anew when the connection broke, and know one that had come through', async () => {
    const { place, log } = placeThat((path, attempt) => {
      if (attempt === 0) return unreachable(new Error('broke'));
      return path === '/in/b' ? denied : undefined;
    });
    const { end } = await run(place, [upload('a'), upload('b')]);
    expect([log, end.done, end.failed]).toEqual([['write /in/a'], 2, []]);
  });

  it('give up after a while', async () => {
    const { place } = placeThat(() => unreachable(new Error('broke')));
    const { end } = await run(place, [upload('a')]);
    expect(end.failed.map((one) => one.told.code)).toEqual(['gateway-unreachable']);
  });

  it('stop when they are told to', async () => {
    const abort = new AbortController();
    const { place, log } = placeThat(() => void abort.abort());
    const { end } = await run(place, [upload('a'), upload('b')], [], abort);
    expect([log, end.cancelled, end.done]).toEqual([['write /in/a'], true, 1]);
  });
});
