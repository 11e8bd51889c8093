// A table of as many rows as there are: only those in sight are drawn. On a narrow screen each row is a card with the same
// fields.

import type { ComponentChildren, KeyboardEventHandler } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useNarrow } from './narrow';
import { scrollTo, windowOf } from './window';

export interface Column<T> {
  /** Stable name. */
  id: string;
  title: string;
  /** A track of the grid, such as `120px` or `minmax(160px, 2fr)`. */
  width: string;
  cell: (row: T) => ComponentChildren;
  end?: boolean;
  /** Its text is what a machine wrote. */
  machine?: boolean;
}

/** The least width of a track, in pixels: `minmax(160px, 2fr)` is 160. */
function leastWidth(track: string): number {
  return Number(/(\d+)px/.exec(track)?.[1] ?? 0);
}

/** A number of a row that is there. */
function clamped(number: number, count: number): number {
  return Math.max(0, Math.min(count - 1, number));
}

const ROW = 34;
const HEAD = 30;
const CARD_LINE = 26;
const CARD_PADDING = 13;

export function Table<T>({
  label,
  rows,
  columns,
  rowKey,
  onOpen,
  opened,
  empty,
  onEnd,
}: {
  /** What a screen reader calls it. */
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  rowKey: (row: T) => string | number;
  /** Enter, or a click. */
  onOpen?: ((row: T) => void) | undefined;
  /** Key of the row that is open. */
  opened?: string | number | undefined;
  empty: ComponentChildren;
  /** The last rows are in sight: more may be asked for. */
  onEnd?: (() => void) | undefined;
}) {
  const cards = useNarrow();
  const box = useRef<HTMLDivElement>(null);
  const [scrolled, setScrolled] = useState(0);
  const [height, setHeight] = useState(600);
  // The row that arrows start from: as a list is read anew it may stand elsewhere, and then another is in its place.
  const [current, setCurrent] = useState<{ number: number; key: string | number | undefined }>({ number: 0, key: undefined });
  const wantsFocus = useRef(false);

  const card = columns.length * CARD_LINE + CARD_PADDING;
  const row = cards ? card : ROW;
  const head = cards ? 0 : HEAD;
  const { from, to, above, below } = windowOf(scrolled, height, row, rows.length);
  const at = useMemo(() => {
    const there = rows[current.number];
    if (current.key === undefined || (there !== undefined && rowKey(there) === current.key)) return clamped(current.number, rows.length);
    const moved = rows.findIndex((row) => rowKey(row) === current.key);
    return moved === -1 ? clamped(current.number, rows.length) : moved;
  }, [rows, current]);
  // Tab leads into the table wherever it is scrolled to.
  const stop = at >= from && at < to ? at : clamped(Math.ceil(scrolled / row), rows.length);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight || 600));
    observer.observe(element);
    return () => observer.disconnect();
  }, [rows.length === 0]);

  useEffect(() => {
    if (to >= rows.length && rows.length > 0) onEnd?.();
  }, [to, rows.length]);

  useLayoutEffect(() => {
    if (!wantsFocus.current) return;
    wantsFocus.current = false;
    box.current?.querySelector<HTMLElement>(`[data-row="${at}"]`)?.focus({ preventScroll: true });
  });

  if (rows.length === 0) return <>{empty}</>;

  const become = (number: number) => {
    const item = rows[number];
    setCurrent({ number, key: item === undefined ? undefined : rowKey(item) });
  };
  const go = (to: number) => {
    const next = clamped(to, rows.length);
    const element = box.current;
    if (element) {
      const wanted = scrollTo(next, element.scrollTop, element.clientHeight - head, row, 0);
      if (wanted !== null) {
        element.scrollTop = wanted;
        setScrolled(wanted);
      }
    }
    wantsFocus.current = true;
    become(next);
  };

  const keys: KeyboardEventHandler<HTMLDivElement> = (event) => {
    // What is typed into something inside a row is that thing's.
    if (!(event.target instanceof HTMLElement) || event.target.dataset['row'] === undefined) return;
    const page = Math.max(1, Math.floor(height / row) - 1);
    const steps: Record<string, number> = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: rows.length - 1,
    };
    const to = steps[event.key];
    if (to !== undefined) {
      event.preventDefault();
      go(to);
    } else if (event.key === 'Enter' && onOpen) {
      const opened = rows[at];
      if (opened !== undefined) {
        event.preventDefault();
        onOpen(opened);
      }
    }
  };

  const least = columns.reduce((sum, column) => sum + leastWidth(column.width), 16);
  const tracks = { minWidth: `${least}px`, gridTemplateColumns: columns.map((column) => column.width).join(' ') };
  return (
    <div
      ref={box}
      class={['table', cards ? 'cards' : '', rows.length > (cards ? 8 : 40) ? 'long' : ''].join(' ')}
      role="table"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      onScroll={(event) => setScrolled(event.currentTarget.scrollTop)}
      onKeyDown={keys}
    >
      <div role="rowgroup">
        <div class="line head" role="row" aria-rowindex={1} style={tracks}>
          {columns.map((column) => (
            <span key={column.id} role="columnheader" class={column.end ? 'cell end' : 'cell'}>
              {column.title}
            </span>
          ))}
        </div>
      </div>
      <div role="rowgroup">
        {above > 0 && <div style={{ height: `${above}px` }} />}
        {rows.slice(from, to).map((item, offset) => {
          const number = from + offset;
          const key = rowKey(item);
          return (
            <div
              key={key}
              data-row={number}
              role="row"
              aria-rowindex={number + 2}
              aria-selected={opened === key ? 'true' : undefined}
              tabIndex={number === stop ? 0 : -1}
              class={onOpen ? 'line item opens' : 'line item'}
              style={cards ? { '--card': `${card}px` } : tracks}
              onFocus={() => become(number)}
              onClick={(event) => {
                // A button or a link in a row is not the row; nor is text that was selected.
                const inner = (event.target as HTMLElement).closest('a, button, input, select, label');
                if (!inner && onOpen && getSelection()?.isCollapsed !== false) onOpen(item);
              }}
            >
              {columns.map((column) => (
                <span key={column.id} role="cell" class={column.end ? 'cell end' : 'cell'}>
                  {cards && column.title !== '' && <span class="name">{column.title}</span>}
                  <span class={column.machine ? 'value machine' : 'value'}>{column.cell(item)}</span>
                </span>
              ))}
            </div>
          );
        })}
        {below > 0 && <div style={{ height: `${below}px` }} />}
      </div>
    </div>
  );
}
