import { describe, expect, test } from 'vitest';
import { address, parseAddress } from './router';

describe('addresses', () => {
  test.each([
    ['team/a'],
    ['with space & 100 % ?#'],
    ['…ünï👩'],
    ['<b>'],
    ['.'],
    ['..'],
    ['~.'],
    ['~~..'],
    ['~'],
    ['...'],
  ])('a key %j is there again', (key) => {
    const made = new URL(address(['sessions', key, 'files']), 'http://x');
    expect(parseAddress(made.pathname, made.search).parts).toEqual(['sessions', key, 'files']);
  });

  test('keys that browsers fold are written as the gateway reads them', () => {
    expect(['.', '..', '~.', '~a', 'a.b'].map((key) => address(['sessions', key]))).toEqual([
      '/sessions/~.', '/sessions/~..', '/sessions/~~.', '/sessions/~a', '/sessions/a.b',
    ]);
  });

  test('what says nothing is left out of the query', () => {
    const made = address(['network'], { domain: 'a b', action: '', only: false, page: 0, live: true, session: null, x: undefined });
    expect(made).toBe('/network?domain=a+b&page=0&live=true');
  });

  test('a part that is no UTF-8 stays as it stands', () => expect(parseAddress('/a/%ff', '').parts).toEqual(['a', '%ff']));
  test('slashes too many are none', () => expect(parseAddress('//a//', '').parts).toEqual(['a']));
});
