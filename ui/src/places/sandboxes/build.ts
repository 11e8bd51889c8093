// A build as its events tell it.

import type { ServerEvent } from '../../api/events';
import type { Schema } from '../../api/client';
import { problemOf, type Told } from '../../api/problem';
import { Tail } from '../../parts/log';

export interface Building {
  step: string | null;
  steps: number;
  fetched: { bytes: number; total: number | undefined } | null;
  log: Tail;
  /** Counts lines: the log itself is the same object all the time. */
  lines: number;
  done: Schema<'Built'> | null;
  failed: Told | null;
}

export function begun(): Building {
  return { step: null, steps: 0, fetched: null, log: new Tail(), lines: 0, done: null, failed: null };
}

/** The build after one more event. */
export function after(building: Building, { event, data }: ServerEvent): Building {
  const told = (data ?? {}) as Record<string, unknown>;
  if (event === 'built') return { ...building, done: data as Schema<'Built'>, fetched: null };
  if (event === 'error') return { ...building, failed: problemOf(0, data), fetched: null };
  if (event !== 'progress') return building;
  if (typeof told['step'] === 'string') {
    const step = told['step'];
    building.log.push(`== ${step}\n`);
    return { ...building, step, steps: building.steps + 1, fetched: null, lines: building.lines + 1 };
  }
  if (typeof told['log'] === 'string') {
    building.log.push(`${told['log']}\n`);
    return { ...building, lines: building.lines + 1 };
  }
  if (typeof told['fetchedBytes'] === 'number') {
    const total = typeof told['totalBytes'] === 'number' ? told['totalBytes'] : undefined;
    return { ...building, fetched: { bytes: told['fetchedBytes'], total } };
  }
  return building;
}
