// Nothing is there: what would be, and the one command that makes it so.

import type { ComponentChildren } from 'preact';
import { Command } from './copy';

export function Empty({ title, children, command }: { title: string; children?: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <div>{children}</div>}
      {command !== undefined && <Command text={command} />}
    </div>
  );
}
