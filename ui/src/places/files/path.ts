// Paths whose names need not be UTF-8: a byte that is no part of a character is kept as a lone half of one
// (U+DC80 to U+DCFF), as Python does it, so that a path is a string everywhere in the page.

import { oneLine } from '../../format/escape';
import { fromBase64 } from '../sessions/output';

/** The string of bytes that need not be UTF-8. */
export function fromBytes(bytes: Uint8Array): string {
  const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let text = '';
  let at = 0;
  while (at < bytes.length) {
    const first = bytes[at] ?? 0;
    const length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
    try {
      if (length === 0 || at + length > bytes.length) throw new RangeError();
      text += strict.decode(bytes.slice(at, at + length));
      at += length;
    } catch {
      text += String.fromCharCode(0xdc00 + first);
      at += 1;
    }
  }
  return text;
}

/** The bytes of such a string. */
export function toBytes(text: string): Uint8Array<ArrayBuffer> {
  const encoder = new TextEncoder();
  const parts: number[] = [];
  for (const character of text) {
    const code = character.codePointAt(0) ?? 0;
    if (code >= 0xdc80 && code <= 0xdcff) parts.push(code - 0xdc00);
    else parts.push(...encoder.encode(character));
  }
  return Uint8Array.from(parts);
}

/** A name as the API tells it. */
export function named(name: string, encoding: string | undefined): string {
  return encoding === 'base64' ? fromBytes(fromBase64(name)) : name;
}

/** A path for a query: its bytes, percent-encoded. */
export function encoded(path: string): string {
  let text = '';
  for (const byte of toBytes(path)) {
    const plain = (byte >= 0x30 && byte <= 0x39) || (byte >= 0x41 && byte <= 0x5a) || (byte >= 0x61 && byte <= 0x7a);
    text += plain || '-_.~/'.includes(String.fromCharCode(byte))
      ? String.fromCharCode(byte)
      : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }
  return text;
}

/** A path for a body of JSON, and its encoding where it is no UTF-8. */
export function forBody(path: string): { text: string; encoding?: 'base64' } {
  if (!/[\udc80-\udcff]/.test(path.replace(/[\ud800-\udbff][\udc00-\udfff]/g, ''))) return { text: path };
  return { text: btoa(String.fromCharCode(...toBytes(path))), encoding: 'base64' };
}

/** A path in an address: bytes that are no UTF-8 as `\xFF`, and a backslash doubled. */
export function toAddress(path: string): string {
  return Array.from(path.replace(/\\/g, '\\\\'), (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code >= 0xdc80 && code <= 0xdcff ? `\\x${(code - 0xdc00).toString(16).toUpperCase()}` : character;
  }).join('');
}

/** A path or name to look at: bytes that are no UTF-8 as `\xff`. */
export function shown(path: string): string {
  return Array.from(path, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code >= 0xdc80 && code <= 0xdcff ? `\\x${(code - 0xdc00).toString(16)}` : oneLine(character);
  }).join('');
}

/** The path of an address; `/` where it is none. */
export function fromAddress(text: string | null): string {
  if (text === null || !text.startsWith('/') || text.includes('\0')) return '/';
  const path = text.replace(/\\(\\|x([0-9A-Fa-f]{2}))/g, (_, what: string, hex: string | undefined) =>
    what === '\\' ? '\\' : String.fromCharCode(0xdc00 + parseInt(hex ?? '80', 16)),
  );
  return normal(path);
}

/** Without empty parts, `.` and `..`. */
function normal(path: string): string {
  const parts: string[] = [];
  for (const part of path.split('/')) {
    if (part === '..') parts.pop();
    else if (part !== '' && part !== '.') parts.push(part);
  }
  return `/${parts.join('/')}`;
}

/** A name in a folder. */
export function joined(folder: string, name: string): string {
  return folder.endsWith('/') ? folder + name : `${folder}/${name}`;
}

/** The folder that a path lies in. */
export function parent(path: string): string {
  const cut = path.lastIndexOf('/');
  return cut <= 0 ? '/' : path.slice(0, cut);
}

/** The last part of a path. */
export function base(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** Each folder on the way to a path, from the root on. */
export function crumbs(path: string): { name: string; path: string }[] {
  const all = [{ name: '', path: '/' }];
  for (const part of path.split('/').filter((part) => part !== '')) {
    all.push({ name: part, path: joined(all.at(-1)?.path ?? '/', part) });
  }
  return all;
}

/** Why a text cannot be the name of a file; nothing if it can. */
export function nameProblem(name: string): string | undefined {
  if (name === '') return 'a name has at least one character';
  if (name === '.' || name === '..') return `\`${name}\` is no name`;
  if (name.includes('/')) return 'a name has no slash';
  if (name.includes('\0')) return 'a name has no NUL';
  if (toBytes(name).length > 255) return 'a name has at most 255 bytes';
  return undefined;
}
