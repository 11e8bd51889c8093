// What is not enforced anywhere: for the next session that sets nothing, and in sandboxes that run.

import type { Status } from './status';

/** What one backend does not keep, each key once. */
export interface Unkept {
  /** Absent where no backend would be taken. */
  backend: string | undefined;
  lacks: { key: string; reason: string }[];
  /** Sessions with a sandbox that runs and lacks the most common of it; 0 where it is only what a new one would get. */
  sessions: number;
  /** One of them. */
  session: string | undefined;
}

export function unkept(status: Pick<Status, 'backend' | 'notEnforced' | 'runningNotEnforced'>): Unkept[] {
  const found = new Map<string, Unkept>();
  const of = (backend: string | undefined) => {
    const there = found.get(backend ?? '') ?? { backend, lacks: [], sessions: 0, session: undefined };
    found.set(backend ?? '', there);
    return there;
  };
  for (const { key, reason } of status.notEnforced) of(status.backend).lacks.push({ key, reason });
  for (const { backend, key, reason, sessions, session } of status.runningNotEnforced) {
    const there = of(backend);
    if (!there.lacks.some((one) => one.key === key)) there.lacks.push({ key, reason });
    if (sessions > there.sessions) Object.assign(there, { sessions, session });
  }
  return [...found.values()];
}

/** How many promises that is. */
export function countOf(all: readonly Unkept[]): number {
  return all.reduce((sum, { lacks }) => sum + lacks.length, 0);
}
