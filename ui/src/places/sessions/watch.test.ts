import { describe, expect, it } from 'vitest';

import { Output } from './output';
import { take } from './watch';

const part = (rest: Partial<Parameters<typeof take>[1]> = {}) => ({
  process: 1,
  readMillis: 0,
  running: true,
  stdout: '',
  stdoutFrom: 0,
  stdoutMissed: 0,
  stdoutNext: 0,
  stderr: '',
  stderrFrom: 0,
  stderrMissed: 0,
  stderrNext: 0,
  ...rest,
});

describe('reading on', () => {
  it('goes on where the gateway says, over gaps and bytes that are no text', () => {
    const output = new Output();
    expect(take(output, part())).toBe(false);
    const first = part({ stdout: 'ab\n', stdoutMissed: 100, stdoutNext: 103 });
    expect(take(output, first)).toBe(true);
    expect(output.seen('stdout')).toBe(first.stdoutNext);
    const second = part({ stdout: btoa('\xff\n'), stdoutEncoding: 'base64', stdoutFrom: 103, stdoutNext: 105, stderr: 'x', stderrNext: 1 });
    take(output, second);
    expect([output.seen('stdout'), output.seen('stderr')]).toEqual([second.stdoutNext, second.stderrNext]);
    expect(output.lines().map((line) => [line.source, line.text])).toEqual([
      ['cut', '100 bytes of standard output are cut here'],
      ['stdout', 'ab'],
      ['stdout', '\ufffd'],
      ['stderr', 'x'],
    ]);
  });
});
