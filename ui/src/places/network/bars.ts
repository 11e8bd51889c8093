// The geometry of the chart: how often something was allowed and denied, by time.

import type { Schema } from '../../api/client';

export type Period = Schema<'NetworkStats'>['overTime']['periods'][number];

export interface Bar {
  fromMillis: number;
  toMillis: number;
  allowed: number;
  denied: number;
  x: number;
  width: number;
  /** Heights; the denied part stands on the allowed one. */
  allowedHeight: number;
  deniedHeight: number;
}

/** Most bars that are drawn. */
export const MAX_BARS = 120;

/** Bars over the whole time from the first period to the last, in a box of this size. */
export function bars(periods: readonly Period[], periodMs: number, width: number, height: number): Bar[] {
  const first = periods[0];
  const last = periods.at(-1);
  if (first === undefined || last === undefined || periodMs <= 0) return [];
  const count = Math.round((last.fromMillis - first.fromMillis) / periodMs) + 1;
  const times = Math.ceil(count / MAX_BARS);
  // A few bars are no wider than many.
  const drawn = Math.max(Math.ceil(count / times), 48);
  const sums = new Map<number, { allowed: number; denied: number }>();
  for (const period of periods) {
    const at = Math.floor(Math.round((period.fromMillis - first.fromMillis) / periodMs) / times);
    const sum = sums.get(at) ?? { allowed: 0, denied: 0 };
    sums.set(at, { allowed: sum.allowed + period.allowed, denied: sum.denied + period.denied });
  }
  const most = Math.max(1, ...[...sums.values()].map((sum) => sum.allowed + sum.denied));
  const step = width / drawn;
  return [...sums.entries()]
    .sort(([a], [b]) => a - b)
    .map(([at, sum]) => {
      const scaled = (value: number) => (value === 0 ? 0 : Math.max(2, (value / most) * height));
      const [allowedHeight, deniedHeight] = [scaled(sum.allowed), scaled(sum.denied)];
      // Two parts that are each drawn at least a little must not be higher than the box together.
      const fit = Math.min(1, height / Math.max(1, allowedHeight + deniedHeight));
      return {
        fromMillis: first.fromMillis + at * times * periodMs,
        toMillis: first.fromMillis + (at + 1) * times * periodMs,
        ...sum,
        x: at * step,
        width: Math.max(1, step - 1),
        allowedHeight: allowedHeight * fit,
        deniedHeight: deniedHeight * fit,
      };
    });
}
