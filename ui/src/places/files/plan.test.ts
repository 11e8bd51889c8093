import { describe, expect, it } from 'vitest';

import { MAX_FILE, beside, conflict, isSecret, plan } from './plan';
import type { Chosen, Decision, There } from './plan';

const there: There = new Map([
  ['a.txt', 'file'],
  ['a (2).txt', 'file'],
  ['dir', 'directory'],
  ['dir/b', 'file'],
  ['link', 'other'],
]);
const file = (path: string, size = 1): Chosen<string> => ({ path, size, blob: path });

describe('an upload', () => {
  it('replaces nothing without a word', () => {
    const made = plan([file('new'), file('a.txt'), file('dir/b'), file('dir/c'), file('dir'), file('link/x')], there);
    expect(made.uploads.map((upload) => [upload.path, upload.replace])).toEqual([
      ['new', false],
      ['dir/c', false],
    ]);
    expect(made.open.map((found) => [found.path, found.with, found.choices])).toEqual([
      ['a.txt', 'file', ['replace', 'keepBoth', 'skip']],
      ['dir/b', 'file', ['replace', 'keepBoth', 'skip']],
      ['dir', 'directory', ['keepBoth', 'skip']],
      ['link/x', 'other', ['skip']],
    ]);
    expect(made.bytes).toBe(2);
  });

  it.each<[Decision, string[], string[], string[]]>([
    ['replace', ['a.txt!', 'new'], [], ['dir', 'link/x']],
    ['keepBoth', ['a (3).txt', 'new', 'dir (2)'], [], ['link/x']],
    ['skip', ['new'], ['a.txt', 'dir', 'link/x'], []],
  ])('does with all what %s says where it can', (word, uploads, skipped, open) => {
    const made = plan([file('a.txt'), file('new'), file('dir'), file('link/x')], there, new Map(), word);
    expect(made.uploads.map((upload) => upload.path + (upload.replace ? '!' : ''))).toEqual(uploads);
    expect(made.skipped).toEqual(skipped);
    expect(made.open.map((found) => found.path)).toEqual(open);
  });

  it('heeds what was said of one before what was said of all', () => {
    const made = plan([file('a.txt'), file('dir/b')], there, new Map([['a.txt', 'skip']]), 'replace');
    expect([made.skipped, made.uploads.map((upload) => upload.path)]).toEqual([['a.txt'], ['dir/b']]);
  });

  it('leaves out what is too large, and makes folders that are empty', () => {
    const made = plan([file('big', MAX_FILE + 1), file('fits', MAX_FILE)], there, new Map(), undefined, [
      'empty', 'dir', 'link/in',
    ]);
    expect([made.tooLarge, made.uploads.map((upload) => upload.path), made.folders]).toEqual([
      ['big'], ['fits'], ['empty'],
    ]);
  });

  it('finds names beside those that are taken', () => {
    const taken = new Set(['x (2)', '.env (2)', 'd/y (2).tar']);
    expect(['x', '.env', 'd/y.tar'].map((path) => beside(path, (other) => taken.has(other)))).toEqual([
      'x (3)', '.env (3)', 'd/y (3).tar',
    ]);
    expect(conflict('dir/c', there)).toBeUndefined();
  });

  it('knows what often holds a secret', () => {
    const all = ['.env', 'a/.env.local', '.ssh/config', 'k/server.PEM', 'id_rsa', '.npmrc', 'env', 'keys.txt', 'ssh/x'];
    expect(all.filter(isSecret)).toEqual(['.env', 'a/.env.local', '.ssh/config', 'k/server.PEM', 'id_rsa', '.npmrc']);
  });
});
