import { describe, expect, it } from 'vitest';

import { asker, ending, merged, processOf, searched } from './timeline';
import type { Command } from './timeline';

const command = (number: number, rest: Partial<Command> = {}): Command => ({
  number,
  command: `echo ${number}`,
  caller: { kind: 'apiKey', name: 'admin' },
  backend: 'namespaces',
  background: false,
  startedMillis: number * 1000,
  state: 'ended',
  exitCode: 0,
  ...rest,
});

describe('a timeline', () => {
  it('is newest first, each command once, and what is over stays over', () => {
    const running = command(2, { state: 'running' });
    const first = merged([], [command(1), running]);
    expect(first.map((one) => one.number)).toEqual([2, 1]);
    const over = merged(first, [command(2, { exitCode: 3 }), command(3)]);
    expect(over.map((one) => [one.number, one.state, one.exitCode])).toEqual([
      [3, 'ended', 0],
      [2, 'ended', 3],
      [1, 'ended', 0],
    ]);
    expect(merged(over, [running])[1]?.state).toBe('ended');
    expect(merged(over, [])).toBe(over);
  });

  it('is searched without regard to case', () => {
    const all = [command(1, { command: 'Make test' }), command(2)];
    expect(searched(all, ' TEST ').map((one) => one.number)).toEqual([1]);
    expect(searched(all, ' ')).toBe(all);
  });

  it('says who asked and how it ended', () => {
    expect([
      asker({ kind: 'cli', uid: 0 }),
      asker({ kind: 'apiKey', name: 'ci' }),
      asker({ kind: 'mcp', client: 'x' }),
    ]).toEqual(['command line, uid 0', 'key ci', 'MCP, x']);
    expect(
      [
        command(1, { state: 'running' }),
        command(1, { state: 'lost' }),
        command(1),
        command(1, { exitCode: 2 }),
        command(1, { exitCode: 137, signal: 9 }),
        command(1, { exitCode: 124, timedOut: true }),
        command(1, { exitCode: 143, signal: 15, cancelled: true }),
      ].map((one) => ending(one).word),
    ).toEqual(['running', 'lost', 'exit 0', 'exit 2', 'signal KILL', 'time was up', 'stopped']);
  });

  it('finds the process of a command, not another one of the same number', () => {
    const processes = [{ process: 1, startedMillis: 500_000, running: true }];
    const background = (startedMillis: number) => command(9, { background: true, process: 1, startedMillis });
    expect(processOf(background(499_000), processes)).toBe(processes[0]);
    expect(processOf(background(100_000), processes)).toBeUndefined();
    expect(processOf(command(9), processes)).toBeUndefined();
  });
});
