import { describe, expect, it } from 'vitest';

import { base, crumbs, encoded, forBody, fromAddress, fromBytes, joined, named, nameProblem, parent, shown, toAddress, toBytes } from './path';

describe('a path', () => {
  it('keeps every byte, whether it is UTF-8 or not', () => {
    const all = Uint8Array.from({ length: 256 }, (_, byte) => byte);
    expect([...toBytes(fromBytes(all))]).toEqual([...all]);
    for (const text of ['/a', '/ü€😀', '/\ufffd', '/\ufeffx']) {
      expect(fromBytes(new TextEncoder().encode(text))).toBe(text);
    }
    expect(fromBytes(Uint8Array.of(0xe2, 0x82))).toBe('\udce2\udc82');
    // Surrogates and overlong forms are no UTF-8.
    for (const odd of [[0xed, 0xa0, 0x80], [0xc0, 0xaf], [0xf4, 0x90, 0x80, 0x80]]) {
      expect([...toBytes(fromBytes(Uint8Array.from(odd)))]).toEqual(odd);
    }
  });

  it('goes into a query by its bytes, and into a body', () => {
    const name = named(btoa('a\xff b'), 'base64');
    expect(encoded(joined('/ü', name))).toBe('/%C3%BC/a%FF%20b');
    expect(encoded('/a&b=c?d#e%f+g')).toBe('/a%26b%3Dc%3Fd%23e%25f%2Bg');
    expect(forBody('/ü😀')).toEqual({ text: '/ü😀' });
    expect(forBody(joined('/', name))).toEqual({ text: btoa('/a\xff b'), encoding: 'base64' });
  });

  it('stands in the address and comes back from it', () => {
    for (const path of ['/', '/a b/c', '/a\\x41', `/odd${named(btoa('\xff\xfe'), 'base64')}`, '/😀']) {
      expect(fromAddress(toAddress(path))).toBe(path);
    }
    expect(toAddress('/\udcff')).toBe('/\\xFF');
    expect([null, '', 'a', '/a/../../b/./c//', '/a\0'].map(fromAddress)).toEqual(['/', '/', '/', '/b/c', '/']);
  });

  it('is looked at without anything that hides or turns text', () => {
    expect(shown(`/a\n\u202e\x1b${named(btoa('\xff'), 'base64')}😀`)).toBe('/a\\n\\u{202e}\\x1b\\xff😀');
  });

  it('has parts', () => {
    expect([parent('/a/b'), parent('/a'), parent('/'), base('/a/b'), joined('/', 'x'), joined('/a', 'x')]).toEqual([
      '/a', '/', '/', 'b', '/x', '/a/x',
    ]);
    expect(crumbs('/a/b')).toEqual([
      { name: '', path: '/' },
      { name: 'a', path: '/a' },
      { name: 'b', path: '/a/b' },
    ]);
  });

  it('has names with rules', () => {
    expect(['a', '.env', '', '.', 'a/b', 'ü'.repeat(128)].map((name) => nameProblem(name) === undefined)).toEqual([
      true, true, false, false, false, false,
    ]);
  });
});
