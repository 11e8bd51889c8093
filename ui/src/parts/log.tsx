// What a program printed, as plain text: control characters written out, bounded, following its end while it grows.

import { useLayoutEffect, useRef } from 'preact/hooks';
import { plain } from '../format/escape';
import { size } from '../format/size';

/** Characters of a log that a page keeps. */
export const MOST = 256 << 10;

/** Puts a text behind another, and keeps the last characters of both. */
export class Tail {
  text = '';
  /** Characters that were left out at the beginning. */
  cut = 0;

  constructor(readonly most: number = MOST) {}

  push(more: string): this {
    const all = this.text + more;
    if (all.length > this.most) {
      // Whole lines, so that no half of a character or sequence is left; a line that is too long is cut anyhow.
      const least = all.length - this.most;
      const line = all.indexOf('\n', least);
      const from = line >= 0 && line - least < 4096 ? line + 1 : least;
      this.cut += from;
      this.text = all.slice(from);
    } else {
      this.text = all;
    }
    return this;
  }
}

export function Log({ text, cut = 0, label, follow = true }: { text: string; cut?: number; label: string; follow?: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    const element = place.current;
    if (element && follow && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [text, follow]);
  return (
    <div
      ref={place}
      class="log"
      role="log"
      aria-label={label}
      aria-live="off"
      tabIndex={0}
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        atEnd.current = scrollHeight - scrollTop - clientHeight < 24;
      }}
    >
      {cut > 0 && <div class="cut">▲ {size(cut)} before this are not kept here</div>}
      {plain(text)}
    </div>
  );
}
