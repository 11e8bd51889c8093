// Which rows of a long list are in sight.

export interface Window {
  /** The first row that is there. */
  from: number;
  /** The row after the last one. */
  to: number;
  /** Height of what is left out above, and below. */
  above: number;
  below: number;
}

/** Rows of one height in a box of some height that is scrolled so far, with some more on each side. */
export function windowOf(scrolled: number, height: number, row: number, count: number, more = 12): Window {
  const first = Math.floor(Math.max(0, scrolled) / row);
  const shown = Math.ceil(height / row) + 1;
  const from = Math.max(0, Math.min(first - more, count - shown));
  const to = Math.min(count, Math.max(first, 0) + shown + more);
  return { from, to: Math.max(from, to), above: from * row, below: (count - Math.max(from, to)) * row };
}

/** Where a box is to be scrolled so that a row is in sight; `null` if it is. `top` is covered, as by a head. */
export function scrollTo(row: number, scrolled: number, height: number, rowHeight: number, top: number): number | null {
  const start = row * rowHeight;
  if (start < scrolled) return start;
  const end = start + rowHeight + top;
  if (end > scrolled + height) return end - height;
  return null;
}
