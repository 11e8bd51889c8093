// Where the page is: places and what is looked at stand in the address, so that it can be sent to somebody, and back works.

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';

export interface Address {
  /** Parts of the path, undone of their percent signs. */
  parts: string[];
  query: URLSearchParams;
}

/**
 * A part of a path as it is written. Browsers fold `.` and `..` away, as `%2E` too: they get a `~` in front, and so that
 * nothing has two meanings, what looks like that already gets one more. The gateway reads sessions' keys so.
 */
export function written(part: string): string {
  return encodeURIComponent(/^~*\.\.?$/.test(part) ? `~${part}` : part);
}

function read(part: string): string {
  try {
    const text = decodeURIComponent(part);
    return /^~+\.\.?$/.test(text) ? text.slice(1) : text;
  } catch {
    return part;
  }
}

/** An address taken apart. A part that is no UTF-8 stays as it stands. */
export function parseAddress(pathname: string, search: string): Address {
  const parts = pathname.split('/').filter((part) => part !== '').map(read);
  return { parts, query: new URLSearchParams(search) };
}

/** What a query is to say: what is empty is left out, as is what is false. */
export type Query = Record<string, string | number | boolean | null | undefined>;

/** The address of these parts. */
export function address(parts: readonly string[], query: Query = {}): string {
  const path = parts.map(written).join('/');
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === '' || value === false) continue;
    all.set(name, String(value));
  }
  const text = all.toString();
  return `/${path}${text === '' ? '' : `?${text}`}`;
}

const listeners = new Set<() => void>();

function tell() {
  for (const listener of [...listeners]) listener();
}

if (typeof window !== 'undefined') window.addEventListener('popstate', tell);

export function navigate(to: string, how: { replace?: boolean } = {}) {
  if (to === location.pathname + location.search) return;
  if (how.replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
  tell();
}

/** Changes parts of the query and nothing else. A filter that is typed makes no step to go back to; a row that is opened does. */
export function setQuery(changes: Query, how: { replace?: boolean } = { replace: true }) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === '' || value === false) query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  navigate(`${location.pathname}${text === '' ? '' : `?${text}`}`, how);
}

export function useAddress(): Address {
  const current = () => location.pathname + location.search;
  const [at, setAt] = useState(current);
  useEffect(() => {
    const listener = () => setAt(current());
    listeners.add(listener);
    listener();
    return () => void listeners.delete(listener);
  }, []);
  const [pathname = '/', search = ''] = at.split(/\?(.*)/s, 2);
  return parseAddress(pathname, search);
}

export function useTitle(...parts: string[]) {
  const title = [...parts, 'Moltis'].join(' · ');
  useEffect(() => {
    document.title = title;
  }, [title]);
}

/** A link within the page. With a key held, or to elsewhere, it is the browser's. */
export function Link({
  to,
  children,
  ...rest
}: {
  to: string;
  children: ComponentChildren;
  class?: string;
  title?: string | undefined;
  'aria-current'?: 'page' | undefined;
  'aria-label'?: string;
}) {
  const follow = (event: MouseEvent) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a href={to} onClick={follow} {...rest}>
      {children}
    </a>
  );
}
