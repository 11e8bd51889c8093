import { describe, expect, it } from 'vitest';

import type { Entry } from './api';
import { lookAround } from './there';

describe('what is there', () => {
  it('is looked at only where an upload can meet it', async () => {
    const tree: Record<string, [string, Entry['kind']][]> = {
      '/in': [['a', 'file'], ['d', 'directory'], ['other', 'directory'], ['l', 'symlink']],
      '/in/d': [['e', 'directory'], ['x', 'file']],
      '/in/d/e': [['y', 'file']],
    };
    const looked: string[] = [];
    const list = (path: string) => {
      looked.push(path);
      return Promise.resolve((tree[path] ?? []).map(([name, kind]) => ({ name, kind, size: 0, mode: '0644', modifiedMillis: 0 })));
    };
    const there = await lookAround(list, '/in', ['a', 'd/x', 'd/e/y', 'd/new/z', 'l/q']);
    expect([...there]).toEqual([
      ['a', 'file'], ['d', 'directory'], ['other', 'directory'], ['l', 'other'],
      ['d/e', 'directory'], ['d/x', 'file'], ['d/e/y', 'file'],
    ]);
    expect(looked).toEqual(['/in', '/in/d', '/in/d/e']);
  });
});
