// Lines of output: only those in sight are drawn, as text and nothing else, following the end while it grows.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { plain } from '../../format/escape';
import { windowOf } from '../../parts/window';
import type { Line } from './output';

/** Height of a line, which the style sheet has too. */
const LINE = 19;

/** Lines of a box that is as high as what it holds. */
const SHOWN = 24;

export function Lines({ lines, label }: { lines: readonly Line[]; label: string }) {
  const place = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [scrolled, setScrolled] = useState(0);
  const height = Math.min(SHOWN, lines.length) * LINE;
  const { from, to, above, below } = windowOf(scrolled, height, LINE, lines.length, 20);

  useLayoutEffect(() => {
    const element = place.current;
    if (element === null || !atEnd.current) return;
    element.scrollTop = element.scrollHeight;
    setScrolled(element.scrollTop);
  }, [lines.length, lines.at(-1)?.text]);

  return (
    <div
      ref={place}
      class="output"
      role="log"
      aria-label={label}
      aria-live="off"
      tabIndex={0}
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        atEnd.current = scrollHeight - scrollTop - clientHeight < LINE;
        setScrolled(scrollTop);
      }}
    >
      <div style={{ height: `${above}px` }} />
      {lines.slice(from, to).map((line) => (
        <div key={line.key} class={`of ${line.source}`}>
          {line.source === 'cut' ? `✂ ${line.text}` : plain(line.text)}
          {line.goesOn && (
            <span class="on" title="the line goes on below">
              ↩
            </span>
          )}
        </div>
      ))}
      <div style={{ height: `${below}px` }} />
    </div>
  );
}
