// Sizes: short to look at, all of the bytes on hover.

import { exactSize, size } from '../format/size';

export function Size({ bytes }: { bytes: number }) {
  return <span title={exactSize(bytes)}>{size(bytes)}</span>;
}

/** How much of a limit is in use. */
export function Meter({ used, of, label }: { used: number; of: number; label: string }) {
  const share = of > 0 ? Math.min(1, used / of) : 0;
  const percent = Math.round(share * 100);
  return (
    <span class="meter" title={`${label}: ${percent} %`}>
      <span class="track" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
        <span class={share > 0.9 ? 'done full' : 'done'} style={{ width: `${percent}%`, display: 'block' }} />
      </span>
      <span>{percent} %</span>
    </span>
  );
}
