import { describe, expect, it } from 'vitest';

import { applied, parseDomains, parseSeconds, parseSize, weaker, writeSize } from './weaken';
import type { Configured, Keeps, Overrides, Patch } from './weaken';

const keeps: Keeps = (backend) =>
  ({
    docker: { filesystem: true, kernel: false },
    firecracker: { filesystem: true, kernel: true },
    'restricted-host': { filesystem: false, kernel: false },
  })[backend];

const words = (overrides: Overrides, patch: Patch, configured: Configured = {}) =>
  weaker(overrides, patch, configured, keeps).map(({ what, before, after }) => `${what}: ${before} → ${after}`);

describe('a change of a session', () => {
  it.each<[Overrides, Patch, Configured, string[]]>([
    [{}, {}, {}, []],
    [{}, { sandboxEnabled: false }, {}, ['sandbox: on → off']],
    [{ sandboxEnabled: true }, { sandboxEnabled: null }, { sandboxEnabled: false }, ['sandbox: on → off']],
    [{ sandboxEnabled: false }, { sandboxEnabled: null }, {}, []],
    [{}, { sandboxBackend: 'restricted-host' }, { backend: 'docker' }, ['backend: docker → restricted-host']],
    [{}, { sandboxBackend: 'docker' }, { backend: 'firecracker' }, ['backend: firecracker → docker']],
    [{ sandboxBackend: 'docker' }, { sandboxBackend: 'firecracker' }, {}, []],
    [{}, { network: 'open' }, {}, ['network: blocked → open']],
    [{ network: 'open' }, { network: 'trusted' }, {}, []],
    [{ network: 'blocked' }, { network: null }, { network: 'trusted' }, ['network: blocked → trusted']],
    [{ limits: { memory: 1024 } }, { limits: { memory: 2048 } }, {}, ['memory limit: 1K → 2K']],
    [{ limits: { memory: 5 } }, { limits: { memory: 4 } }, {}, []],
    [{ limits: { memory: 5, pids: 3 } }, { limits: null }, { pids: 2 }, ['memory limit: 5 → none']],
    [{}, { limits: { cpus: 2 } }, { cpus: 1 }, ['CPU limit: 1 → 2']],
    [{}, { workspace: { source: '/srv/a', mode: 'ro' } }, {}, ['workspace: none → /srv/a']],
    [
      { workspace: { source: '/srv/a' } },
      { workspace: { source: '/srv/a', mode: 'rw' } },
      {},
      ['workspace: ro → rw'],
    ],
    [{ workspace: { source: '/srv/a' } }, { workspace: null }, {}, []],
    [
      { trustedDomains: ['a'] },
      { trustedDomains: ['a', 'b'], deniedDomains: ['c'] },
      {},
      ['allowed hosts: a → a, b'],
    ],
    [{ deniedDomains: ['c'] }, { deniedDomains: null }, {}, ['denied hosts: c → none of its own']],
    [{}, { onUnknown: 'ask' }, {}, ['hosts that no rule names: deny → ask']],
  ])('%j with %j over %j', (overrides, patch, configured, expected) => {
    expect(words(overrides, patch, configured)).toEqual(expected);
  });

  it('clears by null, and each limit by itself', () => {
    const before: Overrides = { network: 'open', limits: { memory: 1, pids: 2 }, idleTtlSecs: 60 };
    expect(applied(before, { network: null, limits: { memory: null } })).toEqual({
      limits: { pids: 2 },
      idleTtlSecs: 60,
    });
    expect(applied(before, { limits: { memory: null, pids: null } })).toEqual({ network: 'open', idleTtlSecs: 60 });
  });
});

describe('values as people write them', () => {
  it('are sizes', () => {
    expect(['512M', '2 GiB', '1.5g', '100', '64kb', '0', 'x', '-1', ''].map(parseSize)).toEqual([
      536_870_912, 2_147_483_648, 1_610_612_736, 100, 65_536, undefined, undefined, undefined, undefined,
    ]);
    expect([536_870_912, 1_610_612_736, 1000].map(writeSize)).toEqual(['512M', '1536M', '1000']);
  });

  it('are durations and domains', () => {
    expect(['90', '30m', '2H', '1d', '0', '1w'].map(parseSeconds)).toEqual([
      90, 1_800, 7_200, 86_400, undefined, undefined,
    ]);
    expect(parseDomains(' a.example, *.b.example\na.example ')).toEqual(['a.example', '*.b.example']);
  });
});
