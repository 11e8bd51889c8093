// The one way to the gateway: paths, parameters, bodies and answers as its OpenAPI document has them.

import { eventsOf, type ServerEvent } from './events';
import { ApiError, isAbort, problemOf, unreachable } from './problem';
import type { components, paths } from '../../types/schema';
import { written } from '../router';
import { secret } from './secret';

/** A schema of the document by its name. */
export type Schema<Name extends keyof components['schemas']> = components['schemas'][Name];

type Method = 'get' | 'put' | 'post' | 'patch' | 'delete';

/** Paths that have this method. */
export type PathOf<M extends Method> = {
  [P in keyof paths]: paths[P][M] extends { responses: unknown } ? P : never;
}[keyof paths];

type Operation<P extends keyof paths, M extends Method> = NonNullable<paths[P][M]>;

type Part<O, Name extends string> = O extends { parameters: infer All }
  ? Name extends keyof All
    ? NonNullable<All[Name]>
    : never
  : never;

// What must be there must be given; the rest may be.
type Given<Name extends string, Of> = [Of] extends [never]
  ? { [N in Name]?: never }
  : Record<never, never> extends Of
    ? { [N in Name]?: Of }
    : { [N in Name]: Of };

type BodyOf<O> = O extends { requestBody: { content: { 'application/json': infer B } } }
  ? { body: B }
  : O extends { requestBody?: { content: { 'application/json': infer B } } }
    ? { body?: B }
    : { body?: never };

interface Common {
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
}

export type Ask<P extends keyof paths, M extends Method> = Given<'path', Part<Operation<P, M>, 'path'>> &
  Given<'query', Part<Operation<P, M>, 'query'>> &
  BodyOf<Operation<P, M>> &
  Common;

type JsonOf<A> = A extends { content: { 'application/json': infer J } } ? J : undefined;

type Good<R> = { [S in keyof R & (200 | 201 | 202 | 204)]: JsonOf<R[S]> }[keyof R & (200 | 201 | 202 | 204)];

export type AnswerOf<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { responses: infer R } ? Good<R> : never;

/** Arguments that may be left out where nothing must be given. */
type Args<A> = Record<never, never> extends A ? [ask?: A] : [ask: A];

/** Anything that a request can say, for those that have no typed form. */
export interface Loose {
  path?: Record<string, string | number>;
  query?: Record<string, unknown>;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

/** The address of a path with its parts and query filled in, each percent-encoded. */
export function url(path: string, ask: Pick<Loose, 'path' | 'query'> = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const part = ask.path?.[name];
    if (part === undefined) throw new Error(`${path} needs ${name}`);
    return name === 'session' ? written(String(part)) : encodeURIComponent(String(part));
  });
  const query = Object.entries(ask.query ?? {}).filter(([, value]) => value !== undefined && value !== null);
  if (query.length === 0) return filled;
  const text = query.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`);
  return `${filled}?${text.join('&')}`;
}

/** Hears that nobody is logged in any more. */
const unauthorised = new Set<() => void>();

export function onUnauthorised(listener: () => void): () => void {
  unauthorised.add(listener);
  return () => unauthorised.delete(listener);
}

function head(ask: { headers?: Record<string, string> }): Headers {
  const headers = new Headers(ask.headers);
  if (secret.value !== null) headers.set('X-Moltis-Secret', secret.value);
  return headers;
}

async function failure(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => undefined);
  return problemOf(response.status, body);
}

/** Sends a request, and gives the answer if it is a good one. */
async function send(method: string, address: string, init: RequestInit & Common): Promise<Response> {
  const once = async () => {
    try {
      return await fetch(address, {
        ...init,
        method: method.toUpperCase(),
        headers: head(init),
        credentials: 'same-origin',
        redirect: 'error',
        signal: init.signal ?? null,
      });
    } catch (error) {
      throw isAbort(error) ? error : unreachable(error);
    }
  };
  const had = secret.value;
  let response = await once();
  if (response.ok) return response;
  let problem = await failure(response);
  if (problem.status === 401 && address !== LOGIN) {
    // Refused before anything was done. Another tab may have logged in since.
    if (secret.value === had) secret.wrong();
    if (await secret.askOthers()) {
      response = await once();
      if (response.ok) return response;
      problem = await failure(response);
    }
    if (problem.status === 401) for (const listener of [...unauthorised]) listener();
  }
  throw problem;
}

const LOGIN = '/api/v1/login';

async function json<T>(method: Method, path: string, ask: Loose & { body?: unknown } = {}): Promise<T> {
  const init: RequestInit & Common = { headers: { Accept: 'application/json', ...ask.headers } };
  if (ask.signal) init.signal = ask.signal;
  if (ask.body !== undefined) {
    init.body = JSON.stringify(ask.body);
    init.headers = { ...(init.headers as Record<string, string>), 'Content-Type': 'application/json' };
  }
  const response = await send(method, url(path, ask), init as RequestInit & Common);
  if (response.status === 204) return undefined as T;
  try {
    return (await response.json()) as T;
  } catch (error) {
    throw isAbort(error) ? error : unreachable(error);
  }
}

export const api = {
  get: <P extends PathOf<'get'>>(path: P, ...[ask]: Args<Ask<P, 'get'>>) =>
    json<AnswerOf<P, 'get'>>('get', path, ask as Loose),
  put: <P extends PathOf<'put'>>(path: P, ...[ask]: Args<Ask<P, 'put'>>) =>
    json<AnswerOf<P, 'put'>>('put', path, ask as Loose),
  post: <P extends PathOf<'post'>>(path: P, ...[ask]: Args<Ask<P, 'post'>>) =>
    json<AnswerOf<P, 'post'>>('post', path, ask as Loose),
  patch: <P extends PathOf<'patch'>>(path: P, ...[ask]: Args<Ask<P, 'patch'>>) =>
    json<AnswerOf<P, 'patch'>>('patch', path, ask as Loose),
  delete: <P extends PathOf<'delete'>>(path: P, ...[ask]: Args<Ask<P, 'delete'>>) =>
    json<AnswerOf<P, 'delete'>>('delete', path, ask as Loose),

  /** A request whose body or answer is no JSON; the answer is a good one. */
  raw: (method: Method, path: keyof paths, ask: Loose & { body?: BodyInit } = {}) =>
    send(method, url(path, ask), {
      signal: ask.signal ?? undefined,
      ...(ask.headers ? { headers: ask.headers } : {}),
      ...(ask.body !== undefined ? { body: ask.body } : {}),
    } as RequestInit & Common),

  /** The events of an answer that goes on. Who stops listening, or aborts, ends it. */
  async *events(
    method: Method,
    path: keyof paths,
    ask: Loose & { body?: unknown; onOpen?: () => void; onBytes?: () => void } = {},
  ): AsyncGenerator<ServerEvent> {
    const response = await send(method, url(path, ask), {
      headers: {
        Accept: 'text/event-stream',
        ...(ask.body !== undefined ? { 'Content-Type': 'application/json' } : {}),
        ...ask.headers,
      },
      ...(ask.body !== undefined ? { body: JSON.stringify(ask.body) } : {}),
      signal: ask.signal,
    } as RequestInit & Common);
    ask.onOpen?.();
    if (response.body === null) return;
    try {
      yield* eventsOf(response.body, ask.onBytes);
    } catch (error) {
      throw isAbort(error) || error instanceof ApiError ? error : unreachable(error);
    }
  },

  /** A WebSocket; what it speaks, and the login's secret, go as its subprotocols. */
  socket(path: keyof paths, ask: Pick<Loose, 'path' | 'query'> = {}): WebSocket {
    const address = new URL(url(path, ask), location.href);
    address.protocol = address.protocol === 'https:' ? 'wss:' : 'ws:';
    const protocols = ['moltis.v1', ...(secret.value === null ? [] : [`moltis.secret.${secret.value}`])];
    return new WebSocket(address, protocols);
  },

  /** Sends bytes and says how far it is: `fetch` does not. */
  upload(
    method: 'put' | 'post',
    path: keyof paths,
    ask: Loose & { body: Blob; onProgress?: (sent: number, total: number) => void },
  ): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open(method.toUpperCase(), url(path, ask));
      head(ask).forEach((value, name) => request.setRequestHeader(name, value));
      request.upload.onprogress = (event) => ask.onProgress?.(event.loaded, event.total);
      request.onerror = () => reject(unreachable(new Error('the connection broke off')));
      request.onabort = () => reject(new DOMException('given up', 'AbortError'));
      request.onload = () => {
        let body: unknown;
        try {
          body = request.responseText === '' ? undefined : (JSON.parse(request.responseText) as unknown);
        } catch {
          body = undefined;
        }
        if (request.status >= 200 && request.status < 300) return resolve(body);
        const problem = problemOf(request.status, body);
        if (problem.status === 401) for (const listener of [...unauthorised]) listener();
        reject(problem);
      };
      if (ask.signal?.aborted) return reject(new DOMException('given up', 'AbortError'));
      ask.signal?.addEventListener('abort', () => request.abort(), { once: true });
      request.send(ask.body);
    });
  },
};
