// Entries of the log as they are shown: an open and its close are one row, newest first, in bounded memory.

import type { Schema } from '../../api/client';
import type { Entry } from './filters';

/** Rows that are kept. */
export const MAX_ROWS = 10_000;

/** A connection or request. */
export interface Row extends Entry {
  key: string;
  /** Whether its end is known, or there is none to come. */
  over: boolean;
}

function keyOf(entry: Entry): string {
  // Numbers are counted by each process anew: the host and when it began tell such rows apart.
  const began = entry.event === 'close' ? entry.timestamp - entry.durationMs : entry.timestamp;
  return `${entry.session}\u0000${entry.id}\u0000${entry.domain}:${entry.port}\u0000${Math.round(began / 60_000)}`;
}

/** Another key that the same connection may have: its beginning may be counted in the minute beside. */
function alsoKnownAs(entry: Entry): string[] {
  const began = entry.event === 'close' ? entry.timestamp - entry.durationMs : entry.timestamp;
  return [-60_000, 60_000].map((shift) => keyOf({ ...entry, event: 'open', timestamp: began + shift }));
}

/** Rows, newest first. */
export class Log {
  private rows = new Map<string, Row>();

  /** Takes entries in, in any order; whether anything changed. */
  add(entries: readonly Entry[]): boolean {
    let changed = false;
    for (const entry of entries) {
      const own = keyOf(entry);
      const key = [own, ...alsoKnownAs(entry)].find((known) => this.rows.has(known)) ?? own;
      const before = this.rows.get(key);
      if (entry.event === 'close') {
        if (before?.over === true && before.event === 'close') continue;
        const timestamp = before?.timestamp ?? entry.timestamp - entry.durationMs;
        this.rows.set(key, { ...before, ...entry, timestamp, key, over: true });
        changed = true;
      } else if (before === undefined) {
        this.rows.set(key, { ...entry, key, over: entry.action === 'denied' });
        changed = true;
      }
    }
    if (this.rows.size > MAX_ROWS) {
      const kept = this.newest().slice(0, MAX_ROWS);
      this.rows = new Map(kept.map((row) => [row.key, row]));
    }
    return changed;
  }

  newest(): Row[] {
    return [...this.rows.values()].sort((a, b) => b.timestamp - a.timestamp || b.id - a.id);
  }

  get size(): number {
    return this.rows.size;
  }
}

/** A question about a host. */
export type Approval = Schema<'Approval'>;

/** Questions that wait, the oldest first, after one was told. */
export function asked(waiting: readonly Approval[], told: Approval): readonly Approval[] {
  const others = waiting.filter((approval) => approval.id !== told.id);
  if (told.result !== undefined) return others.length === waiting.length ? waiting : others;
  return [...others, told].sort((a, b) => a.askedMillis - b.askedMillis || a.id - b.id);
}
