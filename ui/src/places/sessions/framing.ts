// What goes over a terminal's WebSocket: bytes as binary messages, what concerns the terminal itself as JSON.

/** Most bytes of one message to the gateway. */
export const MAX_MESSAGE = 256 * 1024;

export interface Size {
  rows: number;
  columns: number;
}

/** A size that a terminal can have. */
export function sized(rows: number, columns: number): Size {
  const within = (value: number, fallback: number) =>
    Number.isFinite(value) ? Math.min(1000, Math.max(1, Math.floor(value))) : fallback;
  return { rows: within(rows, 24), columns: within(columns, 80) };
}

/** What was typed or pasted, as messages that the gateway takes. */
export function typed(data: string): Uint8Array<ArrayBuffer>[] {
  return split(new TextEncoder().encode(data));
}

/** What xterm hands over as one character a byte: mouse reports of old. */
export function raw(data: string): Uint8Array<ArrayBuffer>[] {
  return split(Uint8Array.from(data, (character) => character.charCodeAt(0) & 0xff));
}

function split(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer>[] {
  const all: Uint8Array<ArrayBuffer>[] = [];
  for (let at = 0; at < bytes.length; at += MAX_MESSAGE) all.push(bytes.slice(at, at + MAX_MESSAGE));
  return all;
}

/** That the terminal has another size now. */
export function resized(size: Size): string {
  return JSON.stringify({ type: 'resize', rows: size.rows, columns: size.columns });
}

/** What the gateway says of a terminal. */
export type Said =
  | { type: 'bytes'; bytes: Uint8Array }
  | { type: 'started'; backend?: string; sandboxId?: string; notEnforced: { key: string; reason: string }[] }
  | { type: 'exit'; exitCode: number; signal?: number }
  | { type: 'error'; code: string; detail: string; cause?: string; fix?: string }
  | { type: 'unknown' };

/** Reads a message. What is not understood is nobody's harm. */
export function read(data: unknown): Said {
  if (data instanceof ArrayBuffer) return { type: 'bytes', bytes: new Uint8Array(data) };
  if (typeof data !== 'string') return { type: 'unknown' };
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    return { type: 'unknown' };
  }
  if (typeof value !== 'object' || value === null) return { type: 'unknown' };
  const fields = value as Record<string, unknown>;
  const text = (name: string) => (typeof fields[name] === 'string' ? fields[name] : undefined);
  switch (fields['type']) {
    case 'started': {
      const list = Array.isArray(fields['notEnforced']) ? fields['notEnforced'] : [];
      return {
        type: 'started',
        ...defined({ backend: text('backend'), sandboxId: text('sandboxId') }),
        notEnforced: list as { key: string; reason: string }[],
      };
    }
    case 'exit':
      if (typeof fields['exitCode'] !== 'number') return { type: 'unknown' };
      return {
        type: 'exit',
        exitCode: fields['exitCode'],
        ...defined({ signal: typeof fields['signal'] === 'number' ? fields['signal'] : undefined }),
      };
    case 'error':
      return {
        type: 'error',
        code: text('code') ?? 'unknown',
        detail: text('detail') ?? text('title') ?? 'the terminal failed',
        ...defined({ cause: text('cause'), fix: text('fix') }),
      };
    default:
      return { type: 'unknown' };
  }
}

function defined<T extends Record<string, unknown>>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>;
  };
}

/** What a terminal is doing. */
export type Phase = 'connecting' | 'open' | 'ended' | 'lost';

/** What the line below a terminal says. */
export function told(phase: Phase, end: Said | undefined): string {
  switch (phase) {
    case 'connecting':
      return 'connecting: a sandbox that does not run is started first';
    case 'open':
      return 'connected';
    case 'ended':
      if (end?.type === 'exit') {
        return end.signal === undefined
          ? `the shell ended with exit code ${end.exitCode}`
          : `the shell was ended by signal ${end.signal}`;
      }
      return end?.type === 'error' ? end.detail : 'the shell ended';
    case 'lost':
      return 'the connection was lost, and with it the shell that ran here: what it had started is ended';
  }
}

/** OSC sequences that are taken and dropped: titles, colours, links, folders, clipboard, notifications. */
export const DROPPED_OSC = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 50, 51, 52, 99, 104, 110, 111, 112, 133, 633, 777, 1337];
