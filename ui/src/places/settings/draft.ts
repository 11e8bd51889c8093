// What is written in a form's field, and the value that it stands for.

import type { Schema } from '../../api/client';

export type Setting = Schema<'Setting'>;

/** A draft: the text in the field, or that the default is to hold. */
export type Draft = { kind: 'default' } | { kind: 'text'; text: string };

/** The text that a value has in its field. */
export function textOf(setting: Setting): string {
  const { now, form } = setting;
  if (now === undefined || now === null) return '';
  if (form === 'list') return (now as string[]).join('\n');
  if (form === 'table') return JSON.stringify(now, null, 2);
  return String(now);
}

export type Value = { ok: true; value: unknown } | { ok: false; why: string };

/** The value that a draft stands for, as a change takes it; `null` is the default. What only the gateway can judge, it judges. */
export function valueOf(setting: Setting, draft: Draft): Value {
  if (draft.kind === 'default') return { ok: true, value: null };
  const { text } = draft;
  switch (setting.form) {
    case 'flag':
      return { ok: true, value: text === 'true' };
    case 'number': {
      const trimmed = text.trim();
      if (trimmed === '') return { ok: true, value: null };
      const number = Number(trimmed);
      return Number.isFinite(number) ? { ok: true, value: number } : { ok: false, why: 'write a number' };
    }
    case 'list':
      return {
        ok: true,
        value: text
          .split('\n')
          .map((line) => line.trim())
          .filter((line) => line !== ''),
      };
    case 'table': {
      if (text.trim() === '') return { ok: true, value: null };
      try {
        return { ok: true, value: JSON.parse(text) as unknown };
      } catch (error) {
        return { ok: false, why: `this is no JSON: ${error instanceof Error ? error.message : ''}` };
      }
    }
    default:
      return { ok: true, value: text.trim() === '' ? null : text.trim() };
  }
}

/** Whether a draft is another value than the one that holds. */
export function differs(setting: Setting, draft: Draft): boolean {
  if (draft.kind === 'default') return setting.origin !== 'default';
  return draft.text !== textOf(setting);
}

/** Where a value came from, in words: of a file its name and the line. */
export function from(setting: Setting): string {
  const place = setting.place === undefined ? '' : ` ${setting.place.replace(/^.*\//, '')}`;
  const line = /^ (.+?):(\d+)(?::\d+)?$/.exec(place);
  switch (setting.origin) {
    case 'default':
      return 'default';
    case 'file':
      return line === null ? `from the file${place}` : `from ${line[1]}, line ${line[2]}`;
    case 'secrets':
      return 'from secrets.toml';
    case 'env':
    case 'alias':
      return `from the environment${place}`;
    case 'flag':
      return `from a flag${place}`;
    default:
      return `from ${setting.origin}${place}`;
  }
}

/** Why a setting cannot be changed here, if it cannot. */
export function fixed(setting: Setting): string | null {
  if (setting.origin === 'env' || setting.origin === 'flag') {
    return setting.origin === 'env' ? 'The environment wins over the file.' : 'The flag that the gateway was started with wins over the file.';
  }
  if (!setting.writable) return 'Only who runs the gateway may change it: in moltis.toml, or on its machine.';
  return null;
}

/** What a problem says of a key, without where that stands in the file: the field is before one's eyes. */
export function without(message: string, key: string): string {
  const at = message.indexOf(`\`${key}\`: `);
  return at < 0 ? message : message.slice(at + key.length + 4);
}

/** The key that a problem is about: the longest whose path or name its text has between marks. */
export function about(message: string, keys: readonly string[]): string | null {
  const named = (text: string) => message.includes(`\`${text}\``) || message.includes(`"${text}"`) || message.includes(` ${text} `) || message.startsWith(`${text} `) || message.includes(`${text}:`);
  return keys.find((key) => named(key)) ?? keys.find((key) => named(key.split('.').at(-1) ?? key)) ?? null;
}
