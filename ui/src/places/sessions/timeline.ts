// The commands of a session: those that its feed tells, and older ones that are fetched page by page.

import type { Schema } from '../../api/client';

/** On whose behalf a command ran. */
export type Caller = Schema<'Caller'>;

/** A command as the API remembers it. */
export type Command = Schema<'HistoryEntry'>;

/** Commands, newest first. */
export type Timeline = readonly Command[];

/** Takes commands in that are new or have changed. */
export function merged(timeline: Timeline, told: readonly Command[]): Timeline {
  if (told.length === 0) return timeline;
  const all = new Map(timeline.map((command) => [command.number, command]));
  for (const command of told) {
    const before = all.get(command.number);
    // What is over does not begin again: a page that was asked for earlier may come later.
    if (before !== undefined && before.state !== 'running' && command.state === 'running') continue;
    all.set(command.number, command);
  }
  return [...all.values()].sort((a, b) => b.number - a.number);
}

/** The commands that a text is in. */
export function searched(timeline: Timeline, text: string): Timeline {
  const wanted = text.trim().toLowerCase();
  return wanted === '' ? timeline : timeline.filter((command) => command.command.toLowerCase().includes(wanted));
}

/** Who asked, in a few words. */
export function asker(caller: Caller): string {
  switch (caller.kind) {
    case 'cli':
      return `command line, uid ${caller.uid}`;
    case 'apiKey':
      return caller.name === 'admin' ? 'admin' : `key ${caller.name}`;
    case 'mcp':
      return `MCP, ${caller.client}`;
  }
}

/** How the gateway starts the shell of a terminal. */
const SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi';

/** What a command is called in a list: its text, but for the shell of a terminal. */
export function titleOf(command: string): string {
  return command === SHELL ? 'a terminal’s shell' : command;
}

/** How a command stands: a mark, and a word in its place. */
export interface Ending {
  mark: 'running' | 'ended' | 'failed' | 'stopped' | 'lost';
  word: string;
}

const SIGNALS: Record<number, string> = {
  1: 'HUP', 2: 'INT', 3: 'QUIT', 4: 'ILL', 6: 'ABRT', 7: 'BUS', 8: 'FPE', 9: 'KILL', 10: 'USR1', 11: 'SEGV',
  12: 'USR2', 13: 'PIPE', 14: 'ALRM', 15: 'TERM', 24: 'XCPU', 25: 'XFSZ', 31: 'SYS',
};

/** How it ended. */
export function ending(command: Pick<Command, 'state' | 'exitCode' | 'signal' | 'timedOut' | 'cancelled'>): Ending {
  if (command.state === 'running') return { mark: 'running', word: 'running' };
  if (command.state === 'lost') return { mark: 'lost', word: 'lost' };
  if (command.timedOut === true) return { mark: 'failed', word: 'time was up' };
  if (command.cancelled === true) return { mark: 'stopped', word: 'stopped' };
  if (command.signal !== undefined) {
    return { mark: 'failed', word: `signal ${SIGNALS[command.signal] ?? command.signal}` };
  }
  const code = command.exitCode ?? 0;
  return { mark: code === 0 ? 'ended' : 'failed', word: `exit ${code}` };
}

/** A background command that the sandbox knows. */
export interface Process {
  process: number;
  startedMillis: number;
  running: boolean;
}

/** Clocks of sandbox and host may differ by this much, in milliseconds. */
const SKEW = 5_000;

/**
 * The process of a background command, if the sandbox knows it still: a sandbox that was made anew counts from the
 * beginning, so that the number alone does not tell.
 */
export function processOf(command: Command, processes: readonly Process[]): Process | undefined {
  if (!command.background || command.process === undefined) return undefined;
  return processes.find(
    (process) =>
      process.process === command.process && Math.abs(process.startedMillis - command.startedMillis) < SKEW + 60_000,
  );
}
