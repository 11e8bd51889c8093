// A button, and one that asks once, in its place, before something is lost.

import type { ComponentChildren, KeyboardEventHandler } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';

export interface ButtonProps {
  children: ComponentChildren;
  onClick?: (() => unknown) | undefined;
  /** Of a form: it sends it. */
  submit?: boolean;
  primary?: boolean;
  danger?: boolean;
  quiet?: boolean;
  small?: boolean;
  /** What was asked for is being done. */
  busy?: boolean;
  disabled?: boolean;
  /** What a screen reader says in the place of what is written. */
  label?: string;
  title?: string | undefined;
  expanded?: boolean;
}

export function Button(props: ButtonProps) {
  const { children, onClick, submit, busy, disabled, label, title, expanded } = props;
  const looks = (['primary', 'danger', 'quiet', 'small'] as const).filter((name) => props[name]);
  const off = busy || disabled;
  return (
    <button
      type={submit ? 'submit' : 'button'}
      class={['button', ...looks].join(' ')}
      // Not `disabled`: the focus would be lost.
      aria-disabled={off ? 'true' : undefined}
      aria-busy={busy ? 'true' : undefined}
      aria-label={label}
      aria-expanded={expanded}
      title={title}
      onClick={(event) => {
        if (off) return event.preventDefault();
        if (onClick) void onClick();
      }}
    >
      {busy && <span class="spinner" aria-hidden="true" />}
      {children}
    </button>
  );
}

/** What is asked before something is lost, in the place where it was wanted. */
export function Question({
  what,
  yes,
  no = 'Keep',
  weakens = false,
  busy = false,
  onYes,
  onNo,
}: {
  /** Names what is lost. */
  what: ComponentChildren;
  yes: string;
  no?: string;
  /** Nothing is lost, but less is protected then. */
  weakens?: boolean;
  busy?: boolean;
  onYes: () => unknown;
  onNo: () => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  // Before another key can arrive.
  useLayoutEffect(() => {
    // What changes nothing has the focus.
    place.current?.querySelector<HTMLButtonElement>('.keep button')?.focus();
  }, []);
  const keys: KeyboardEventHandler<HTMLDivElement> = (event) => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      onNo();
    }
  };
  return (
    <div ref={place} class={weakens ? 'confirm weakens' : 'confirm'} role="alertdialog" aria-label={yes} onKeyDown={keys}>
      <div class="what">{what}</div>
      <div class="row">
        <Button danger={!weakens} primary={!weakens} small busy={busy} onClick={onYes}>
          {yes}
        </Button>
        <span class="keep">
          <Button small onClick={onNo}>
            {no}
          </Button>
        </span>
      </div>
    </div>
  );
}

/** A button whose act is asked for once more, naming what is lost. */
export function Confirm({
  children,
  what,
  yes,
  no,
  onYes,
  quiet = false,
  small = false,
  disabled = false,
  label,
}: {
  children: ComponentChildren;
  what: ComponentChildren;
  yes: string;
  no?: string;
  onYes: () => Promise<unknown>;
  quiet?: boolean;
  small?: boolean;
  disabled?: boolean;
  label?: string;
}) {
  const [asked, setAsked] = useState(false);
  const [busy, setBusy] = useState(false);
  const place = useRef<HTMLSpanElement>(null);
  const returns = useRef(false);
  const close = () => {
    returns.current = true;
    setAsked(false);
  };
  useLayoutEffect(() => {
    if (asked || !returns.current) return;
    returns.current = false;
    place.current?.querySelector('button')?.focus();
  }, [asked]);
  const act = async () => {
    setBusy(true);
    try {
      await onYes();
    } finally {
      setBusy(false);
      close();
    }
  };
  return (
    <span ref={place}>
      {asked ? (
        <Question what={what} yes={yes} {...(no === undefined ? {} : { no })} busy={busy} onYes={act} onNo={close} />
      ) : (
        <Button danger quiet={quiet} small={small} disabled={disabled} {...(label ? { label } : {})} onClick={() => setAsked(true)}>
          {children}
        </Button>
      )}
    </span>
  );
}
