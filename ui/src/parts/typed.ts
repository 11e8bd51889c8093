// A filter that is typed: it goes into the address when somebody pauses, and comes back from there.

import { useEffect, useRef, useState } from 'preact/hooks';

/** Milliseconds that somebody who types is given. */
const PAUSE = 300;

/**
 * What stands in the field, and how to change it. `at` is what the address says, without spaces around it. What is typed
 * while the address still follows is not undone by that.
 */
export function useTyped(at: string, put: (text: string) => void): [string, (text: string) => void] {
  const [typed, setTyped] = useState(at);
  const sent = useRef(at);
  const latest = useRef(put);
  latest.current = put;

  useEffect(() => {
    if (at === sent.current) return;
    sent.current = at;
    setTyped(at);
  }, [at]);

  useEffect(() => {
    const text = typed.trim();
    if (text === sent.current) return;
    const timer = setTimeout(() => {
      sent.current = text;
      latest.current(text);
    }, PAUSE);
    return () => clearTimeout(timer);
  }, [typed]);

  return [typed, setTyped];
}
