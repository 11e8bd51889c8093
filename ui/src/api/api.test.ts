import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { api, onUnauthorised, url } from './client';
import { EventReader } from './events';
import { Feed, pause, SILENCE, type FeedState } from './feed';
import { ApiError, asTold, problemOf } from './problem';
import { secret } from './secret';

function answer(status: number, body: unknown, headers: Record<string, string> = {}): Response {
  return new Response(status === 204 ? null : JSON.stringify(body), { status, headers });
}

const fetched = vi.fn<(address: string, init: RequestInit) => Promise<Response>>();

beforeEach(() => {
  fetched.mockReset();
  vi.stubGlobal('fetch', fetched);
  secret.began('ms_1');
});
afterEach(() => vi.unstubAllGlobals());

function sent(call = 0) {
  const [address, init] = fetched.mock.calls[call] ?? [];
  const headers = init?.headers as Headers;
  return { address, method: init?.method, secret: headers.get('x-moltis-secret'), type: headers.get('content-type'), body: init?.body };
}

describe('the client', () => {
  test('percent-encodes parts of paths and leaves out what is not set', () => {
    expect(url('/api/v1/sessions/{session}/history', { path: { session: 'a/b c' }, query: { limit: 5, cursor: undefined, output: false } })).toBe(
      '/api/v1/sessions/a%2Fb%20c/history?limit=5&output=false',
    );
    expect(() => url('/x/{y}')).toThrow('needs y');
  });

  test('sends the secret of the login and JSON', async () => {
    fetched.mockResolvedValueOnce(answer(200, { removed: [], kept: 1, legacy: [] }));
    const pruned = await api.post('/api/v1/sandboxes/prune', { body: { idle: true } });
    expect(pruned.kept).toBe(1);
    expect(sent()).toEqual({
      address: '/api/v1/sandboxes/prune',
      method: 'POST',
      secret: 'ms_1',
      type: 'application/json',
      body: '{"idle":true}',
    });
  });

  test('gives problems as errors with code, cause and fix', async () => {
    fetched.mockResolvedValueOnce(answer(409, { code: 'image-in-use', detail: 'it is in use', kind: 'refused', cause: 'why', fix: 'do' }));
    const failed = await api.delete('/api/v1/images', { query: { tag: 'x' } }).catch((error: unknown) => error);
    expect(failed).toBeInstanceOf(ApiError);
    expect({ ...(failed as ApiError) }).toMatchObject({ code: 'image-in-use', status: 409, kind: 'refused', cause: 'why', fix: 'do' });
    expect((failed as ApiError).message).toBe('it is in use');
  });

  test('a gateway that is away is an error of its own, and nothing is sent again', async () => {
    fetched.mockRejectedValueOnce(new TypeError('Failed to fetch'));
    const failed = await api.post('/api/v1/logout').catch((error: unknown) => error);
    expect(failed).toMatchObject({ code: 'gateway-unreachable', kind: 'unreachable', cause: 'Failed to fetch' });
    expect(fetched).toHaveBeenCalledTimes(1);
  });

  test('a login that is over leads to the login, once nobody else has one', async () => {
    const heard = vi.fn();
    const stop = onUnauthorised(heard);
    fetched.mockResolvedValueOnce(answer(401, { code: 'secret-missing', detail: 'x', kind: 'refused' }));
    await expect(api.get('/api/v1/me')).rejects.toMatchObject({ code: 'secret-missing' });
    stop();
    expect([heard.mock.calls.length, secret.value, fetched.mock.calls.length]).toEqual([1, null, 1]);
  });

  test('another tab that has logged in since helps out', async () => {
    const other = new BroadcastChannel('moltis.login');
    other.onmessage = ({ data }: MessageEvent<{ kind: string }>) => {
      if (data.kind === 'ask') other.postMessage({ kind: 'have', secret: 'ms_2' });
    };
    fetched.mockResolvedValueOnce(answer(401, { code: 'secret-missing', detail: 'x', kind: 'refused' }));
    fetched.mockResolvedValueOnce(answer(200, { kind: 'admin', scope: 'operator.admin' }));
    await expect(api.get('/api/v1/me')).resolves.toEqual({ kind: 'admin', scope: 'operator.admin' });
    other.close();
    expect(sent(1).secret).toBe('ms_2');
  });

  test('a wrong token at the login is no login that is over', async () => {
    const heard = vi.fn();
    const stop = onUnauthorised(heard);
    fetched.mockResolvedValueOnce(answer(401, { code: 'token-wrong', detail: 'x', kind: 'refused' }));
    await expect(api.post('/api/v1/login', { body: { token: 'x' } })).rejects.toMatchObject({ code: 'token-wrong' });
    stop();
    expect(heard).not.toHaveBeenCalled();
  });
});

describe('problems', () => {
  test('whatever the body is, there is something to show', () => {
    for (const body of [undefined, null, 'text', [], {}, { code: 7 }]) {
      expect(problemOf(502, body)).toMatchObject({ code: 'http-502', status: 502 });
    }
    expect(problemOf(0, { code: 'x', kind: 'other' })).toMatchObject({ code: 'x', message: 'x', kind: 'unavailable' });
    expect(asTold('odd')).toEqual({ code: 'page-failed', message: 'odd', fix: 'reload the page' });
  });
});

describe('events', () => {
  test('are read however they are cut, and beats are none', () => {
    const text = 'event: hello\ndata: {"a":1}\n\n: beat\n\nevent: changed\ndata: {"topics":\ndata: ["x"]}\n\n';
    for (let cut = 0; cut <= text.length; cut += 1) {
      const reader = new EventReader();
      const all = [...reader.read(text.slice(0, cut)), ...reader.read(text.slice(cut))];
      expect(all).toEqual([
        { event: 'hello', data: { a: 1 } },
        { event: 'changed', data: { topics: ['x'] } },
      ]);
    }
  });

  test('one that does not end is no event of ours', () => {
    const reader = new EventReader();
    expect(() => reader.read('x'.repeat(9 << 20))).toThrow('too long');
  });
});

describe('a feed', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  test('waits longer from try to try, within bounds', () => {
    expect([1, 2, 3, 10].map((failures) => pause(failures, () => 0.5))).toEqual([500, 1000, 2000, 15_000]);
    expect([pause(1, () => 0), pause(1, () => 1)]).toEqual([400, 600]);
  });

  test('is opened again when it ends, and says what it missed', async () => {
    const states: string[] = [];
    const heard: unknown[] = [];
    const opened: boolean[] = [];
    let opens = 0;
    const feed = new Feed({
      random: () => 0.5,
      async *open({ onOpen }) {
        opens += 1;
        if (opens === 2) throw new ApiError({ code: 'gateway-unreachable', message: 'away' });
        onOpen();
        yield { event: 'n', data: opens };
      },
      onEvent: ({ data }) => heard.push(data),
      onState: (state) => states.push(state.kind),
      onOpen: (again) => opened.push(again),
    });
    await vi.advanceTimersByTimeAsync(0);
    expect([states, heard]).toEqual([['live', 'stale'], [1]]);
    await vi.advanceTimersByTimeAsync(500);
    expect([opens, states]).toEqual([2, ['live', 'stale', 'stale']]);
    await vi.advanceTimersByTimeAsync(1000);
    expect([opens, heard, opened]).toEqual([3, [1, 3], [false, true]]);
    feed.close();
  });

  test('that is silent counts as lost', async () => {
    const states: FeedState[] = [];
    const feed = new Feed({
      async *open({ signal, onOpen }) {
        onOpen();
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(new DOMException('x', 'AbortError'))));
      },
      onEvent: () => undefined,
      onState: (state) => states.push(state),
    });
    await vi.advanceTimersByTimeAsync(SILENCE - 1);
    expect(states.map((state) => state.kind)).toEqual(['live']);
    await vi.advanceTimersByTimeAsync(1);
    expect(states.at(-1)).toMatchObject({ kind: 'stale', why: { code: 'gateway-silent' } });
    feed.close();
  });

  test('that is refused does not come back by itself', async () => {
    let opens = 0;
    const feed = new Feed({
      async *open() {
        opens += 1;
        throw new ApiError({ code: 'session-missing', message: 'x', status: 404 });
      },
      onEvent: () => undefined,
    });
    await vi.advanceTimersByTimeAsync(60_000);
    expect([opens, feed.state.kind]).toEqual([1, 'ended']);
    feed.close();
  });
});
