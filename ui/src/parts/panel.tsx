// A titled part of a place.

import type { ComponentChildren } from 'preact';
import { useId } from 'preact/hooks';

export function Panel({
  title,
  about,
  actions,
  flush = false,
  footer,
  children,
  id,
}: {
  title: string;
  about?: ComponentChildren;
  actions?: ComponentChildren;
  /** What is inside reaches the edges, as a table does. */
  flush?: boolean;
  footer?: ComponentChildren;
  children: ComponentChildren;
  id?: string;
}) {
  const name = useId();
  return (
    <section class="panel" aria-labelledby={name} id={id}>
      <header>
        <h2 id={name}>{title}</h2>
        {about && <span class="about">{about}</span>}
        {actions && <span class="row push">{actions}</span>}
      </header>
      <div class={flush ? 'body flush' : 'body'}>{children}</div>
      {footer && <footer>{footer}</footer>}
    </section>
  );
}

/** Something is on its way. */
export function Loading({ what = 'Loading' }: { what?: string }) {
  return (
    <div class="empty loading" role="status">
      <span class="row">
        <span class="spinner" aria-hidden="true" />
        {what}…
      </span>
    </div>
  );
}
