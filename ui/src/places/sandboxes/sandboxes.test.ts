import { describe, expect, test } from 'vitest';
import { after, begun } from './build';
import { lost, PROMISES, share, type Promises } from './promises';
import { alone, stateOf } from './state';

function promises(not: readonly string[] = []): Promises {
  return Object.fromEntries(PROMISES.map(({ id }) => [id, { state: not.includes(id) ? 'notEnforced' : 'held' }])) as Promises;
}

describe('what a backend keeps', () => {
  test('is held, partly held or not', () => {
    const some = promises(['memory', 'kernel']);
    expect([share(some, ['filesystem']), share(some, ['memory', 'cpus']), share(some, ['kernel'])]).toEqual(['held', 'partly', 'notEnforced']);
  });

  test('what is lost by another one is named, but only what isolates', () => {
    expect(lost(promises(['kernel']), promises(['kernel', 'memory', 'gpus']))).toEqual(['Memory limit']);
    expect(lost(promises(), promises())).toEqual([]);
    expect(lost(undefined, promises())).toEqual([]);
    expect(lost(promises(), undefined).length).toBeGreaterThan(5);
  });
});

describe('a build', () => {
  const told = (...events: [string, unknown][]) => events.reduce((now, [event, data]) => after(now, { event, data }), begun());

  test('is shown step by step', () => {
    const now = told(['progress', { step: 'pulling x' }], ['progress', { fetchedBytes: 5, totalBytes: 10 }], ['progress', { log: 'Get:1 \x1b[0m' }]);
    expect(now).toMatchObject({ step: 'pulling x', steps: 1, fetched: { bytes: 5, total: 10 }, lines: 2, done: null, failed: null });
    expect(now.log.text).toBe('== pulling x\nGet:1 \x1b[0m\n');
  });

  test('ends with an image, or with what failed', () => {
    const built = { backend: 'docker', prepared: [], image: { tag: 't', id: 'i', new: true } };
    expect(told(['built', built]).done).toEqual(built);
    expect(told(['error', { code: 'package-failed', detail: 'nope', kind: 'refused' }]).failed).toMatchObject({ code: 'package-failed', message: 'nope' });
  });

  test('an event that is not known changes nothing', () => expect(told(['later', {}], ['progress', null])).toMatchObject({ steps: 0, lines: 0 }));
});

describe('what there is of a sandbox', () => {
  const of = (state: string, known: boolean, running: boolean) => ({ running, provider: { name: 'x', state, known } });

  test('is what this machine knows, where there is no provider', () => {
    expect([true, false].map((running) => stateOf({ running }))).toEqual([
      { kind: 'running', word: 'running' },
      { kind: 'gone', word: 'gone' },
    ]);
  });

  test('is the provider’s word where it runs no more or belongs to nobody', () => {
    const all = [of('started', true, true), of('stopped', true, false), of('started', false, true), of('stopped', false, false)];
    expect(all.map(stateOf)).toEqual([
      { kind: 'running', word: 'running' },
      { kind: 'gone', word: 'stopped' },
      { kind: 'warning', word: 'started, unknown here' },
      { kind: 'warning', word: 'stopped, unknown here' },
    ]);
    expect(all.map(alone)).toEqual([false, false, true, true]);
  });
});
