import { describe, expect, test } from 'vitest';
import { oneLine, plain, shortened } from './escape';
import { exactSize, size } from './size';
import { duration, exact, relative } from './time';

describe('sizes', () => {
  test.each([
    [0, '0 B'],
    [1, '1 B'],
    [1023, '1023 B'],
    [1024, '1 KiB'],
    [1536, '1.5 KiB'],
    [10_240, '10 KiB'],
    [1_047_552, '1023 KiB'],
    [1_048_200, '1 MiB'],
    [1_610_612_736, '1.5 GiB'],
    [Number.MAX_SAFE_INTEGER, '8 PiB'],
    [-1, '–'],
    [Number.NaN, '–'],
  ])('%d is %s', (bytes, text) => expect(size(bytes)).toBe(text));

  test('are exact on hover', () => expect([exactSize(1), exactSize(1_610_612_736)]).toEqual(['1 byte', '1,610,612,736 bytes']));
});

describe('durations', () => {
  test.each([
    [0.84, '0.8 ms'],
    [9, '9 ms'],
    [340, '340 ms'],
    [999.7, '1 s'],
    [1234, '1.2 s'],
    [59_940, '59.9 s'],
    [59_960, '1 min 00 s'],
    [184_000, '3 min 04 s'],
    [7_800_000, '2 h 10 min'],
    [273_600_000, '3 d 4 h'],
    [-1, '–'],
  ])('%d ms is %s', (millis, text) => expect(duration(millis)).toBe(text));
});

describe('times', () => {
  const now = 1_800_000_000_000;
  test.each([
    [0, 'now'],
    [-12_000, '12 s ago'],
    [-61_000, '1 min ago'],
    [-7_200_000, '2 h ago'],
    [-200_000_000, '2 d ago'],
    [300_000, 'in 5 min'],
  ])('%d ms from now is %s', (away, text) => expect(relative(now + away, now)).toBe(text));

  test('older than a month are a day', () => expect(relative(now - 40 * 86_400_000, now)).toMatch(/^\d{4}-\d\d-\d\d$/));
  test('are exact to the millisecond', () => expect(exact(now + 7)).toMatch(/^2027-01-1\d \d\d:\d\d:\d\d\.007 UTC/));
});

describe('what a program wrote is only ever text', () => {
  test.each([
    ['colours are left out', '\x1b[1;31mred\x1b[0m', 'red'],
    ['a title is written out', '\x1b]0;owned\x07', '\\x1b]0;owned\\x07'],
    ['a cursor that moves is written out', 'a\x1b[2Jb\rc', 'a\\x1b[2Jb\\x0dc'],
    ['direction is written out', 'a\u202egpj.exe', 'a\\u{202e}gpj.exe'],
    ['what is not seen is written out', 'a\u200bb\ufeff', 'a\\u{200b}b\\u{feff}'],
    ['lines and tabs stay', 'a\r\n\tb\n', 'a\n\tb\n'],
    ['half a character is written out', '\ud83d', '\\u{d83d}'],
    ['whole characters stay', '👩‍👩‍👧 naïve', '👩‍👩‍👧 naïve'],
    ['markup stays text', '<img src=x onerror=alert(1)>', '<img src=x onerror=alert(1)>'],
    ['high controls are written out', '\x9b31m', '\\x9b31m'],
  ])('%s', (_, given, shown) => expect(plain(given)).toBe(shown));

  test('a name is one line', () => expect(oneLine('a\nb\tc\x00')).toBe('a\\nb\\tc\\x00'));
  test('a name is cut between characters', () => expect([shortened('abc', 3), shortened('a👩b', 2)]).toEqual(['abc', 'a…']));
});
