// What went wrong, or is to be known: the thing, the cause, the fix, the code.

import type { ComponentChildren } from 'preact';
import type { Told } from '../api/problem';
import { plain } from '../format/escape';
import { Button } from './button';
import { Copy } from './copy';

/** What stands between backticks is for a machine. */
export function Prose({ text }: { text: string }) {
  const parts = plain(text).split(/`([^`]+)`/);
  return (
    <>
      {parts.map((part, number) =>
        number % 2 === 1 ? (
          <code key={number} class="machine">
            {part}
          </code>
        ) : (
          part
        ),
      )}
    </>
  );
}

/** The command that a fix names, if it is one alone. */
export function commandOf(fix: string): string | null {
  const all = [...fix.matchAll(/`([^`]+)`/g)].map((found) => found[1] ?? '');
  const commands = all.filter((text) => /^(sudo |moltis |apt|apt-get |dnf |systemctl |loginctl |chcon |usermod |echo |curl |podman |docker |container )/.test(text));
  return commands.length === 1 ? (commands[0] ?? null) : null;
}

export function ErrorBox({
  told,
  tone = 'bad',
  onRetry,
  onClose,
  children,
}: {
  told: Told;
  tone?: 'bad' | 'warn' | 'plain';
  onRetry?: (() => unknown) | undefined;
  onClose?: (() => unknown) | undefined;
  children?: ComponentChildren;
}) {
  const command = told.fix === undefined ? null : commandOf(told.fix);
  return (
    <div class={`told ${tone}`} role={tone === 'bad' ? 'alert' : undefined}>
      <div class="line">
        <span class="what">
          <Prose text={told.message} />
        </span>
        <span class="code push">{told.code}</span>
      </div>
      {told.cause !== undefined && (
        <div class="why">
          <Prose text={told.cause} />
        </div>
      )}
      {told.fix !== undefined && (
        <div class="line">
          <span>
            <span class="soft">Fix: </span>
            <Prose text={told.fix} />
          </span>
          {command !== null && <Copy text={command} label="Copy command" />}
        </div>
      )}
      {children}
      {(onRetry || onClose) && (
        <div class="row">
          {onRetry && (
            <Button small onClick={onRetry}>
              Try again
            </Button>
          )}
          {onClose && (
            <Button small quiet onClick={onClose}>
              Close
            </Button>
          )}
        </div>
      )}
    </div>
  );
}
