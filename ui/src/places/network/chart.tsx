// How often hosts were allowed and denied, by time, as a small drawing of our own and as words.

import { useId, useState } from 'preact/hooks';
import { exact, duration } from '../../format/time';
import { bars, type Period } from './bars';

const WIDTH = 960;
const HEIGHT = 64;

export function Chart({ periods, periodMs }: { periods: readonly Period[]; periodMs: number }) {
  const [at, setAt] = useState<number | null>(null);
  const hatch = useId();
  const drawn = bars(periods, periodMs, WIDTH, HEIGHT);
  const last = drawn.at(-1);
  if (drawn.length === 0 || last === undefined) return null;
  const sum = (of: 'allowed' | 'denied') => drawn.reduce((all, bar) => all + bar[of], 0);
  const shown = at === null ? undefined : drawn[at];
  const words = `${sum('allowed').toLocaleString('en')} allowed and ${sum('denied').toLocaleString('en')} denied from ${exact(drawn[0]?.fromMillis ?? 0)} to ${exact(last.toMillis)}`;
  return (
    <figure class="chart">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={words}
        tabIndex={0}
        onPointerLeave={() => setAt(null)}
        onBlur={() => setAt(null)}
        onKeyDown={(event) => {
          const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
          if (step === 0) return;
          event.preventDefault();
          setAt(Math.max(0, Math.min(drawn.length - 1, at === null ? (step > 0 ? 0 : drawn.length - 1) : at + step)));
        }}
      >
        {/* Denied is told by more than its colour. */}
        <pattern id={hatch} width={6} height={6} patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="hatch-ground" width={6} height={6} />
          <rect class="hatch-line" width={3} height={6} />
        </pattern>
        {drawn.map((bar, number) => (
          <g key={bar.fromMillis} class={number === at ? 'on' : ''} onPointerEnter={() => setAt(number)}>
            <rect class="room" x={bar.x} y={0} width={bar.width} height={HEIGHT} />
            <rect class="allowed" x={bar.x} y={HEIGHT - bar.allowedHeight} width={bar.width} height={bar.allowedHeight} />
            <rect
              class="denied"
              x={bar.x}
              y={HEIGHT - bar.allowedHeight - bar.deniedHeight}
              width={bar.width}
              height={bar.deniedHeight}
              fill={`url(#${hatch})`}
            />
          </g>
        ))}
      </svg>
      <figcaption aria-live="polite">
        {shown === undefined ? (
          <>
            <span class="key allowed">allowed {sum('allowed').toLocaleString('en')}</span>
            <span class="key denied">denied {sum('denied').toLocaleString('en')}</span>
            <span class="soft">bars of {duration(last.toMillis - last.fromMillis)}</span>
            <span class="soft push">
              {exact(drawn[0]?.fromMillis ?? 0)} to {exact(last.toMillis)}
            </span>
          </>
        ) : (
          <>
            <span class="key allowed">allowed {shown.allowed.toLocaleString('en')}</span>
            <span class="key denied">denied {shown.denied.toLocaleString('en')}</span>
            <span class="soft">
              {exact(shown.fromMillis)}, {duration(shown.toMillis - shown.fromMillis)}
            </span>
          </>
        )}
      </figcaption>
    </figure>
  );
}
