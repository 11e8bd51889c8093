// The files of a session or managed ones: the same operations at another address.

import { api, url, type Schema } from '../../api/client';
import { encoded, forBody, named } from './path';

export interface Entry {
  name: string;
  kind: Schema<'FileInfo'>['kind'];
  size: number;
  mode: string;
  modifiedMillis: number;
  target?: string;
}

export interface Place {
  /** Names it among others, for what is remembered of it. */
  id: string;
  list(path: string, signal?: AbortSignal): Promise<Entry[]>;
  /** The folder in which commands run that name none. */
  beginning(signal?: AbortSignal): Promise<string>;
  makeFolder(path: string, parents?: boolean): Promise<unknown>;
  move(from: string, to: string, overwrite?: boolean): Promise<unknown>;
  remove(path: string, recursive: boolean): Promise<unknown>;
  count(path: string, signal?: AbortSignal): Promise<Schema<'TreeCount'>>;
  /** Where a file, or a tree as tar, is downloaded from. */
  contentAt(path: string): string;
  treeAt(path: string): string;
  /** The first bytes of a file, and how many it has. */
  begin(path: string, most: number, signal?: AbortSignal): Promise<{ bytes: Uint8Array<ArrayBuffer>; size: number }>;
  upload(
    path: string,
    blob: Blob,
    options: { replace: boolean; signal: AbortSignal; onProgress: (sent: number) => void },
  ): Promise<unknown>;
}

/** A path goes into the query as its bytes, which the plain client would take for text. */
function withPath(address: string, path: string): string {
  return `${address}${address.includes('?') ? '&' : '?'}path=${encoded(path)}`;
}

export function placeOf(session: string | null): Place {
  const top = session === null ? '/api/v1/files' : '/api/v1/sessions/{session}/files';
  const parts = session === null ? {} : { path: { session } };
  const at = (route: string, path: string, query: Record<string, unknown> = {}) =>
    withPath(url(`${top}${route}`, { ...parts, query }), path);
  // The client fills nothing into an address that is whole already.
  const whole = (address: string) => address as '/api/v1/files';
  return {
    id: session === null ? 'managed' : `session ${session}`,
    async list(path, signal) {
      const response = await api.raw('get', whole(at('/list', path)), { signal });
      const { entries } = (await response.json()) as { entries: Schema<'FileInfo'>[] };
      return entries.map((entry) => ({
        name: named(entry.name ?? '', entry.nameEncoding),
        kind: entry.kind,
        size: entry.size,
        mode: entry.mode,
        modifiedMillis: entry.modifiedMillis,
        ...(entry.target === undefined ? {} : { target: named(entry.target, entry.targetEncoding) }),
      }));
    },
    async beginning(signal) {
      const response = await api.raw('get', whole(url(`${top}/list`, parts)), { signal });
      const { path, pathEncoding } = (await response.json()) as { path: string; pathEncoding?: string };
      return named(path, pathEncoding);
    },
    async makeFolder(path, parents = false) {
      const { text } = forBody(path);
      await api.raw('post', whole(url(`${top}/mkdir`, parts)), {
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ path: text, parents }),
      });
    },
    async move(from, to, overwrite = false) {
      const [source, target] = [forBody(from), forBody(to)];
      await api.raw('post', whole(url(`${top}/move`, parts)), {
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({
          from: source.text,
          ...(source.encoding ? { fromEncoding: source.encoding } : {}),
          to: target.text,
          ...(target.encoding ? { toEncoding: target.encoding } : {}),
          overwrite,
        }),
      });
    },
    remove: (path, recursive) => api.raw('delete', whole(at('', path, { recursive }))),
    async count(path, signal) {
      const response = await api.raw('get', whole(at('/count', path)), { signal });
      return (await response.json()) as Schema<'TreeCount'>;
    },
    contentAt: (path) => at('/content', path),
    treeAt: (path) => at('/tree', path),
    async begin(path, most, signal) {
      const response = await api.raw('get', whole(at('/content', path)), {
        // A file without bytes has no range: one more is asked for by its whole.
        headers: { Range: `bytes=0-${most - 1}` },
        signal,
      });
      const bytes = new Uint8Array(await response.arrayBuffer());
      const range = /\/(\d+)$/.exec(response.headers.get('Content-Range') ?? '');
      return { bytes, size: range === null ? bytes.length : Number(range[1]) };
    },
    upload: (path, blob, { replace, signal, onProgress }) =>
      api.upload('put', whole(at('/content', path, { parents: true, ...(replace ? { overwrite: true } : {}) })), {
        body: blob,
        headers: { 'Content-Type': 'application/octet-stream' },
        signal,
        onProgress: (sent) => onProgress(sent),
      }),
  };
}
