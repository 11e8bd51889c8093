// Times: relative to look at, exact on hover and for whoever copies them.

import { useEffect, useState } from 'preact/hooks';
import { changesIn, duration, exact, relative } from '../format/time';

/** How far a time is from now, kept true while it is shown. */
export function When({ millis }: { millis: number }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    setNow(Date.now());
    let timer: ReturnType<typeof setTimeout>;
    const tick = () => {
      const at = Date.now();
      setNow(at);
      timer = setTimeout(tick, changesIn(millis, at));
    };
    timer = setTimeout(tick, changesIn(millis, Date.now()));
    return () => clearTimeout(timer);
  }, [millis]);
  return (
    <time dateTime={new Date(millis).toISOString()} title={exact(millis)}>
      {relative(millis, now)}
    </time>
  );
}

/** How long something took, in milliseconds. */
export function Took({ millis }: { millis: number }) {
  return <span title={`${millis.toLocaleString('en')} ms`}>{duration(millis)}</span>;
}
