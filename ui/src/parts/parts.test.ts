import { describe, expect, test } from 'vitest';
import { Tail } from './log';
import { commandOf } from './told';
import { scrollTo, windowOf } from './window';

describe('a window of a long list', () => {
  test('is all of a short one', () =>
    expect(windowOf(0, 600, 34, 5)).toEqual({ from: 0, to: 5, above: 0, below: 0 }));
  test('holds what is in sight and some more, and keeps the height of the rest', () => {
    const { from, to, above, below } = windowOf(34_000, 680, 34, 10_000);
    expect({ from, to }).toEqual({ from: 988, to: 1033 });
    expect(above + below + (to - from) * 34).toBe(340_000);
  });
  test('ends with the list, however far it is scrolled', () =>
    expect(windowOf(1e9, 680, 34, 100)).toMatchObject({ to: 100, below: 0 }));
  test('of nothing is nothing', () => expect(windowOf(50, 680, 34, 0)).toEqual({ from: 0, to: 0, above: 0, below: 0 }));
  test.each([
    [0, 100, 0],
    [3, 0, null],
    [20, 0, 434],
    [5, 170, null],
  ])('row %d is brought into sight from %d', (row, scrolled, wanted) => expect(scrollTo(row, scrolled, 280, 34, 0)).toBe(wanted));
});

describe('the tail of a log', () => {
  test('keeps whole lines and counts what it leaves out', () => {
    const tail = new Tail(10).push('first\n').push('second\nx');
    expect([tail.text, tail.cut]).toEqual(['second\nx', 6]);
  });
  test('is bounded when a line is not', () => {
    const tail = new Tail(10);
    for (let n = 0; n < 100; n += 1) tail.push('x'.repeat(7000));
    expect([tail.text.length, tail.cut]).toEqual([10, 699_990]);
  });
});

test('a fix that names one command can be copied', () => {
  expect(commandOf('start it: `sudo systemctl start docker`')).toBe('sudo systemctl start docker');
  expect(commandOf('set `vercel_token`, or run `moltis config init`')).toBe('moltis config init');
  expect(commandOf('set `backend` in [tools.exec.sandbox]')).toBeNull();
  expect(commandOf('`apt install podman` or `apt install docker.io`')).toBeNull();
});
