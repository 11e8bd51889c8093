import { expect, test } from 'vitest';
import { countOf, unkept } from './unkept';

test('what running sessions lack is told beside what a new one would, each once', () => {
  const one = (key: string) => ({ key, reason: `no ${key}` });
  const all = unkept({
    backend: 'namespaces',
    notEnforced: [one('cpu_quota')],
    runningNotEnforced: [
      { backend: 'docker', ...one('pids_max'), session: 'a', sessions: 1 },
      { backend: 'namespaces', ...one('cpu_quota'), session: 'b', sessions: 3 },
      { backend: 'namespaces', ...one('memory_limit'), session: 'c', sessions: 2 },
    ],
  });
  expect([all, countOf(all)]).toEqual([
    [
      { backend: 'namespaces', lacks: [one('cpu_quota'), one('memory_limit')], sessions: 3, session: 'b' },
      { backend: 'docker', lacks: [one('pids_max')], sessions: 1, session: 'a' },
    ],
    3,
  ]);
  expect(unkept({ notEnforced: [], runningNotEnforced: [] })).toEqual([]);
});
