// How far something is.

export function Progress({ done, of, label }: { done?: number | undefined; of?: number | undefined; label: string }) {
  const known = done !== undefined && of !== undefined && of > 0;
  const percent = known ? Math.min(100, Math.round((done / of) * 100)) : undefined;
  return (
    <div class="progress">
      <span>
        {label}
        {percent !== undefined && ` – ${percent} %`}
      </span>
      <div
        class={known ? 'track' : 'track unknown'}
        role="progressbar"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={percent}
      >
        <div class="done" style={percent === undefined ? {} : { width: `${percent}%` }} />
      </div>
    </div>
  );
}
