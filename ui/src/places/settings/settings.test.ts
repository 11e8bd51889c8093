import { describe, expect, test } from 'vitest';
import { about, differs, fixed, from, textOf, valueOf, without, type Setting } from './draft';
import { GROUPS, PROVIDERS } from './groups';
import { mountsOf } from './mounts';
import { amount, weakens } from './weaken';

const S = 'tools.exec.sandbox.';

describe('a change weakens', () => {
  test.each([
    ['network', 'blocked', 'trusted', true],
    ['network', 'blocked', 'open', true],
    ['network', 'open', 'blocked', false],
    ['network', 'trusted', null, false],
    ['mode', 'all', 'off', true],
    ['failover', 'off', 'any', true],
    ['failover', 'any', 'isolated', false],
    ['home_persistence', 'session', 'shared', true],
    ['home_persistence', 'shared', 'off', false],
    ['workspace_mount', 'ro', 'rw', true],
    ['managed_files_mount', 'rw', 'none', false],
    ['on_unknown', 'deny', 'ask', true],
    ['allow_nested_podman', false, true, true],
    ['allow_nested_podman', true, false, false],
    ['trusted_domains', ['a.example'], ['a.example', '*'], true],
    ['trusted_domains', ['a.example', 'b.example'], ['b.example'], false],
    ['denied_domains', ['a.example'], [], true],
    ['denied_domains', [], ['a.example'], false],
    ['workspace_protect', ['.git/hooks', '.envrc'], ['.envrc'], true],
    ['allowed_images', ['a/*'], [], true],
    ['allowed_images', [], ['a/*'], false],
    ['allowed_images', ['a/*'], ['a/*', 'b/*'], true],
    ['mounts', [], [{ source: '/srv', target: '/srv' }], true],
    ['resource_limits.memory_limit', '512M', '1G', true],
    ['resource_limits.memory_limit', '1G', '512M', false],
    ['resource_limits.memory_limit', '1G', null, true],
    ['resource_limits.pids_max', 100, 50, false],
    ['resource_limits.cpu_quota', 1, 1.5, true],
    ['workspace', undefined, '/srv/x', true],
    ['idle_ttl', '30m', '1h', false],
  ])('%s from %j to %j: %j', (key, was, is, does) => {
    const fallback = { network: 'blocked', allow_nested_podman: false }[key];
    expect(weakens(S + key, was, is, fallback) !== null).toBe(does);
  });

  test('back to a default that lets more through', () =>
    expect(weakens(`${S}home_persistence`, 'off', null, 'shared')).toContain('share a home'));

  test('amounts are compared as bytes', () =>
    expect(['512M', '1.5G', '100', 7, 'much', null].map(amount)).toEqual([536_870_912, 1_610_612_736, 100, 7, null, null]));
});

const base: Setting = { key: `${S}x`, origin: 'default', help: 'h', kind: 'text', live: true, writable: true, secret: false };

describe('a draft', () => {
  test.each([
    [{ form: 'number', now: 7 } as const, '7', ' 12 ', 12],
    [{ form: 'number', now: 7 } as const, '7', '', null],
    [{ form: 'list', now: ['a', 'b'] } as const, 'a\nb', 'a\n\n c ', ['a', 'c']],
    [{ form: 'flag', now: true } as const, 'true', 'false', false],
    [{ form: 'text', now: '30m' } as const, '30m', ' 1h ', '1h'],
    [{ form: 'text' } as const, '', '', null],
    [{ form: 'table', now: [] } as const, '[]', '[{"source":"/a","target":"/b"}]', [{ source: '/a', target: '/b' }]],
  ])('%j shows %j, and %j is %j', (of, shown, text, value) => {
    const setting: Setting = { ...base, ...of } as Setting;
    expect(textOf(setting)).toBe(shown);
    expect(valueOf(setting, { kind: 'text', text })).toEqual({ ok: true, value });
  });

  test('that cannot be right says why', () => {
    expect(valueOf({ ...base, form: 'number' }, { kind: 'text', text: 'x' })).toMatchObject({ ok: false });
    expect(valueOf({ ...base, form: 'table' }, { kind: 'text', text: '{' })).toMatchObject({ ok: false });
  });

  test('differs from what holds, or does not', () => {
    const setting: Setting = { ...base, form: 'text', now: 'a', origin: 'file' };
    expect([
      differs(setting, { kind: 'text', text: 'a' }),
      differs(setting, { kind: 'text', text: 'b' }),
      differs(setting, { kind: 'default' }),
      differs({ ...setting, origin: 'default' }, { kind: 'default' }),
    ]).toEqual([false, true, true, false]);
  });

  test('where a value came from, and why it stays', () => {
    const place = '/home/me/.moltis/moltis.toml:3:1';
    expect(from({ ...base, origin: 'file', place })).toBe('from moltis.toml, line 3');
    expect(from({ ...base, origin: 'env', place: 'MOLTIS_X' })).toBe('from the environment MOLTIS_X');
    expect(fixed({ ...base, origin: 'env' })).toContain('environment');
    expect(fixed({ ...base, writable: false })).toContain('moltis.toml');
    expect(fixed(base)).toBeNull();
  });

  test('a problem is told at the field that it is about', () => {
    const keys = [`${S}network`, `${S}trusted_domains`];
    expect(about('`tools.exec.sandbox.network` is "opne"', keys)).toBe(keys[0]);
    expect(about('the value of `trusted_domains` is odd', keys)).toBe(keys[1]);
    expect(about('something else', keys)).toBeNull();
    expect(without('/x/moltis.toml:6:20: `tools.exec.sandbox.network`: no such word', `${S}network`)).toBe('no such word');
    expect(without('something else', `${S}network`)).toBe('something else');
  });
});

test('mounts are rows, and what is none of ours is not', () => {
  expect(mountsOf('')).toEqual([]);
  expect(mountsOf('[{"source":"/a","target":"/b","mode":"rw"}]')).toEqual([{ source: '/a', target: '/b', mode: 'rw' }]);
  expect([mountsOf('[{"source":"/a","later":"x"}]'), mountsOf('{'), mountsOf('[1]'), mountsOf('{}')]).toEqual([null, null, null, null]);
});

test('no key stands in two forms', () => {
  const all = [...Object.values(GROUPS).flat(), ...PROVIDERS].flatMap((group) => group.keys);
  expect(new Set(all).size).toBe(all.length);
});
