import { describe, expect, it } from 'vitest';

import { configuredOf, filled, patchOf, wrongOf, writeSeconds } from './form';
import type { Form } from './form';
import type { Overrides } from './weaken';

const set: Overrides = {
  sandboxEnabled: true,
  sandboxBackend: 'docker',
  network: 'trusted',
  limits: { memory: 536_870_912, pids: 50 },
  workspace: { source: '/srv/a', mode: 'rw' },
  idleTtlSecs: 5_400,
  trustedDomains: ['a.example', 'b.example'],
};

describe('the form of a session', () => {
  it('changes nothing by itself', () => {
    for (const overrides of [{}, set]) {
      expect([patchOf(overrides, filled(overrides)), wrongOf(filled(overrides))]).toEqual([{}, {}]);
    }
  });

  it('clears by emptying, each limit by itself', () => {
    const form: Form = {
      ...filled(set),
      enabled: '', backend: '', network: '', memory: '', workspace: '', idle: '', trusted: ' ',
    };
    expect(patchOf(set, form)).toEqual({
      sandboxEnabled: null,
      sandboxBackend: null,
      network: null,
      limits: { memory: null },
      workspace: null,
      idleTtlSecs: null,
      trustedDomains: null,
    });
  });

  it('sets what was typed', () => {
    const form: Form = {
      ...filled({}),
      enabled: 'off', image: ' debian:12 ', memory: '1g', cpus: '1.5', pids: '9', idle: '2h', workspace: '/w',
      mode: 'ro', denied: 'x.example y.example', unknown: 'ask',
    };
    expect(patchOf({}, form)).toEqual({
      sandboxEnabled: false,
      sandboxImage: 'debian:12',
      limits: { memory: 1_073_741_824, cpus: 1.5, pids: 9 },
      idleTtlSecs: 7_200,
      workspace: { source: '/w', mode: 'ro' },
      deniedDomains: ['x.example', 'y.example'],
      onUnknown: 'ask',
    });
    expect(patchOf(set, { ...filled(set), mode: 'ro' })).toEqual({ workspace: { source: '/srv/a', mode: 'ro' } });
  });

  it('says what cannot be right', () => {
    const form: Form = { ...filled({}), memory: '1K', cpus: '0', pids: '1.5', idle: '2y', workspace: 'here' };
    expect(Object.keys(wrongOf(form)).sort()).toEqual(['cpus', 'idle', 'memory', 'pids', 'workspace']);
  });

  it('knows what the configuration has', () => {
    expect(
      configuredOf([
        { key: 'mode', configured: 'off' },
        { key: 'network', configured: 'trusted' },
        { key: 'resource_limits.memory_limit', configured: '2G' },
        { key: 'resource_limits.pids_max', configured: '1024' },
        { key: 'resource_limits.cpu_quota' },
      ]),
    ).toEqual({ sandboxEnabled: false, network: 'trusted', memory: 2_147_483_648, pids: 1024 });
    expect(configuredOf([{ key: 'sandboxEnabled', configured: 'false' }]).sandboxEnabled).toBe(false);
    expect([90, 5_400, 86_400, 61].map(writeSeconds)).toEqual(['90s', '90m', '1d', '61s']);
  });

  it('changes variables each by itself, and keeps what nobody is shown', () => {
    const form = filled({}, ['KEPT', 'SET', 'GONE']);
    expect(form.variables.map(({ name, value, change }) => [name, value, change])).toEqual([
      ['KEPT', '', 'keep'], ['SET', '', 'keep'], ['GONE', '', 'keep'],
    ]);
    expect(patchOf({}, form)).toEqual({});
    const [kept, set, gone] = form.variables;
    if (kept === undefined || set === undefined || gone === undefined) throw new Error('three variables');
    const added = { name: ' NEW ', value: 'a=b', had: false, change: 'set' } as const;
    const changed: Form = {
      ...form,
      fuel: '7',
      variables: [kept, { ...set, value: '', change: 'set' }, { ...gone, change: 'remove' }, added, { ...added, name: '', value: '' }],
    };
    expect([wrongOf(changed), patchOf({}, changed)]).toEqual([{}, { env: { SET: '', GONE: null, NEW: 'a=b' }, wasmFuelLimit: 7 }]);
    for (const name of ['', '1A', 'A B', 'a=b', 'KEPT']) {
      expect(Object.keys(wrongOf({ ...changed, variables: [kept, { ...added, name }] }))).toEqual(['variables']);
    }
    expect(Object.keys(wrongOf({ ...form, fuel: '1.5' }))).toEqual(['fuel']);
    expect(patchOf({ wasmFuelLimit: 7 }, filled({}))).toEqual({ wasmFuelLimit: null });
  });
});
