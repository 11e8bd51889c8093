import { describe, expect, it } from 'vitest';

import { MAX_BARS, bars } from './bars';
import { fromAddress, isPlain, toAddress, toRequest, wants } from './filters';
import type { Entry, Filter } from './filters';
import { Log, MAX_ROWS, asked } from './live';
import type { Approval } from './live';

const entry = (rest: Partial<Entry> = {}): Entry => ({
  timestamp: 1_000_000,
  session: 's',
  id: 1,
  event: 'open',
  domain: 'a.example',
  port: 443,
  protocol: 'https',
  action: 'allowed',
  source: 'config',
  sentBytes: 0,
  receivedBytes: 0,
  durationMs: 0,
  ...rest,
});

describe('a filter', () => {
  it('stands in the address and comes back from it', () => {
    const filter: Filter = { domain: '*.ä.example', protocol: 'https', action: 'denied', session: 'team/a&b', since: '1h' };
    const address = toAddress(filter);
    expect(fromAddress(new URLSearchParams(address.toString()))).toEqual(filter);
    expect([isPlain(filter), isPlain({}), toAddress({}).toString()]).toEqual([false, true, '']);
  });

  it('leaves out what an address cannot mean', () => {
    const query = new URLSearchParams('domain=+&protocol=ftp&action=&session=&since=9y&other=1');
    expect(fromAddress(query)).toEqual({});
  });

  it('is what the API is asked for, with a time instead of a length', () => {
    expect(toRequest({ domain: 'a', since: '1h' }, 10_000_000)).toEqual({ domain: 'a', since: 6_400_000 });
  });

  it.each<[Filter, Partial<Entry>, boolean]>([
    [{}, {}, true],
    [{ domain: 'example' }, {}, true],
    [{ domain: 'A.EXAMPLE.' }, {}, true],
    [{ domain: 'xample' }, {}, false],
    [{ domain: '*.a.example' }, {}, false],
    [{ domain: '*.example' }, {}, true],
    [{ domain: 'a.example:80' }, {}, false],
    [{ domain: 'a.example:443' }, {}, true],
    [{ domain: 'bücher.example' }, { domain: 'xn--bcher-kva.example' }, true],
    [{ domain: '[::1]:443' }, { domain: '[::1]' }, true],
    [{ domain: '*' }, {}, true],
    [{ protocol: 'http' }, {}, false],
    [{ action: 'denied' }, { action: 'denied' }, true],
    [{ session: 't' }, {}, false],
    [{ since: '15m' }, { timestamp: 1_000 }, false],
    [{ since: '15m' }, {}, true],
  ])('%j of %j', (filter, rest, expected) => {
    expect(wants(filter, entry(rest), 1_000_500)).toBe(expected);
  });
});

describe('the log', () => {
  it('makes one row of an open and its close, whichever comes first', () => {
    const open = entry();
    const close = entry({ event: 'close', timestamp: 1_059_999, durationMs: 59_999, sentBytes: 5, receivedBytes: 7 });
    for (const order of [
      [open, close],
      [close, open],
      [open, open, close, close],
    ]) {
      const log = new Log();
      for (const one of order) log.add([one]);
      const rows = log.newest();
      expect(rows.map((row) => [row.timestamp, row.sentBytes, row.receivedBytes, row.over])).toEqual([
        [1_000_000, 5, 7, true],
      ]);
    }
  });

  it('is newest first, knows what runs, and keeps so many rows', () => {
    const log = new Log();
    expect(log.add([entry({ id: 1 }), entry({ id: 2, timestamp: 2_000_000, action: 'denied' })])).toBe(true);
    expect(log.add([entry({ id: 1 })])).toBe(false);
    expect(log.newest().map((row) => [row.id, row.over])).toEqual([
      [2, true],
      [1, false],
    ]);
    log.add(Array.from({ length: MAX_ROWS }, (_, id) => entry({ id: id + 10, timestamp: 3_000_000 + id })));
    expect([log.size, log.newest().at(-1)?.id]).toEqual([MAX_ROWS, 10]);
  });
});

describe('questions', () => {
  it('wait until they are answered, the oldest first', () => {
    const approval = (id: number, rest: Partial<Approval> = {}): Approval => ({
      id,
      session: 's',
      host: 'h',
      port: 443,
      protocol: 'https',
      askedMillis: 100 - id,
      expiresMillis: 0,
      ...rest,
    });
    let waiting: readonly Approval[] = [];
    for (const told of [approval(1), approval(2), approval(1)]) waiting = asked(waiting, told);
    expect(waiting.map((one) => one.id)).toEqual([2, 1]);
    expect(asked(waiting, approval(9, { result: 'expired' }))).toBe(waiting);
    expect(asked(waiting, approval(2, { result: 'decided' })).map((one) => one.id)).toEqual([1]);
  });
});

describe('the chart', () => {
  it('draws each period in its place and nothing higher than the box', () => {
    expect(bars([], 1000, 100, 10)).toEqual([]);
    const drawn = bars(
      [
        { fromMillis: 0, allowed: 1, denied: 0 },
        { fromMillis: 3_000, allowed: 999, denied: 1 },
      ],
      1000,
      120,
      50,
    );
    expect(drawn.map((bar) => [bar.x, bar.toMillis])).toEqual([
      [0, 1_000],
      [7.5, 4_000],
    ]);
    for (const bar of drawn) expect(bar.allowedHeight + bar.deniedHeight).toBeLessThanOrEqual(50 + 1e-9);
    expect(drawn[1]?.deniedHeight).toBeGreaterThan(1);
  });

  it('puts periods together where there are too many', () => {
    const many = Array.from({ length: 500 }, (_, at) => ({ fromMillis: at * 10, allowed: 1, denied: 1 }));
    const drawn = bars(many, 10, 600, 50);
    expect(drawn.length).toBeLessThanOrEqual(MAX_BARS);
    expect(drawn.reduce((sum, bar) => sum + bar.allowed + bar.denied, 0)).toBe(1000);
  });
});
