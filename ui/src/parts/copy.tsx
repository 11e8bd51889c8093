// Text to be taken along: a button that copies, and a command with one.

import { useEffect, useRef, useState } from 'preact/hooks';
import { announce } from './announce';
import { Button } from './button';

/** Puts a text on the clipboard; also where the page came without TLS, and the browser keeps its own way shut. */
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'unseen';
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [done, setDone] = useState<boolean | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const act = async () => {
    const copied = await copy(text);
    setDone(copied);
    announce(copied ? 'Copied' : 'Could not be copied');
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(null), 2000);
  };
  return (
    <Button quiet small onClick={act} label={label === 'Copy' ? `Copy: ${text.slice(0, 80)}` : label}>
      {done === null ? label : done ? 'Copied' : 'Select it by hand'}
    </Button>
  );
}

/** A command to run somewhere else. */
export function Command({ text }: { text: string }) {
  return (
    <span class="command">
      <code tabIndex={0}>{text}</code>
      <Copy text={text} />
    </span>
  );
}
