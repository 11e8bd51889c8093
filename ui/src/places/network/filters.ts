// What of the log is wanted: in the address, in a request, and of what comes live.

import type { Schema } from '../../api/client';

export const PROTOCOLS = ['https', 'http', 'connect', 'socks5'] as const;
export const ACTIONS = ['allowed', 'denied'] as const;

/** Since when, in words of the address. */
export const SINCE = ['15m', '1h', '24h', '7d'] as const;
const SINCE_MILLIS: Record<string, number> = { '15m': 900_000, '1h': 3_600_000, '24h': 86_400_000, '7d': 604_800_000 };

export interface Filter {
  domain?: string;
  protocol?: (typeof PROTOCOLS)[number];
  action?: (typeof ACTIONS)[number];
  session?: string;
  since?: (typeof SINCE)[number];
}

export type Entry = Schema<'AuditEntry'>;

function among<T extends string>(words: readonly T[], value: string | null): T | undefined {
  return words.find((word) => word === value);
}

/** The filter of an address. What it cannot be is left out. */
export function fromAddress(query: URLSearchParams): Filter {
  const domain = query.get('domain')?.trim();
  const session = query.get('session');
  const protocol = among(PROTOCOLS, query.get('protocol'));
  const action = among(ACTIONS, query.get('action'));
  const since = among(SINCE, query.get('since'));
  return {
    ...(domain ? { domain } : {}),
    ...(protocol ? { protocol } : {}),
    ...(action ? { action } : {}),
    ...(session ? { session } : {}),
    ...(since ? { since } : {}),
  };
}

/** The query of an address, in one order, without what is not set. */
export function toAddress(filter: Filter): URLSearchParams {
  const query = new URLSearchParams();
  for (const key of ['domain', 'protocol', 'action', 'session', 'since'] as const) {
    const value = filter[key]?.trim();
    if (value) query.set(key, value);
  }
  return query;
}

/** What the API is asked for. */
export function toRequest(filter: Filter, now: number): Omit<Filter, 'since'> & { since?: number } {
  const { since, ...rest } = filter;
  const length = since === undefined ? undefined : SINCE_MILLIS[since];
  return length === undefined ? rest : { ...rest, since: now - length };
}

/** Whether anything is left out. */
export function isPlain(filter: Filter): boolean {
  return toAddress(filter).size === 0;
}

/** A host and a port as the filter writes them: `example.com`, `*.example.com`, `[::1]:80`. */
function parted(text: string): { host: string; port: number | undefined } {
  const found = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(text.trim());
  if (found === null) return { host: text.trim().toLowerCase(), port: undefined };
  const host = (found[1] ?? '').replace(/^\[|\]$/g, '').replace(/\.$/, '').toLowerCase();
  return { host, port: found[2] === undefined ? undefined : Number(found[2]) };
}

/** The name as the log has it: an IDN in punycode. */
function ascii(host: string): string {
  if (/^[\x20-\x7e]*$/.test(host)) return host;
  try {
    return new URL(`http://${host}/`).hostname;
  } catch {
    return host;
  }
}

/** Whether an entry that comes live is wanted: as the API would say, a host for itself and for those below it. */
export function wants(filter: Filter, entry: Entry, now: number): boolean {
  if (filter.protocol !== undefined && entry.protocol !== filter.protocol) return false;
  if (filter.action !== undefined && entry.action !== filter.action) return false;
  if (filter.session !== undefined && entry.session !== filter.session) return false;
  const length = filter.since === undefined ? undefined : SINCE_MILLIS[filter.since];
  if (length !== undefined && entry.timestamp < now - length) return false;
  if (filter.domain === undefined) return true;
  const wanted = parted(filter.domain);
  if (wanted.port !== undefined && wanted.port !== entry.port) return false;
  const domain = entry.domain.replace(/^\[|\]$/g, '');
  if (wanted.host === '*' || wanted.host === '') return true;
  const below = wanted.host.startsWith('*.');
  const host = ascii(below ? wanted.host.slice(2) : wanted.host);
  return domain.endsWith(`.${host}`) || (!below && domain === host);
}
