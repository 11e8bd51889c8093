// The form of what a session sets: filled from the session, and made into a change of what differs.

import { parseDomains, parseSeconds, parseSize, writeSize } from './weaken';
import type { Configured, Overrides, Patch } from './weaken';

/** A variable of a session. What it is set to is told by nobody, so one that is kept has no value here. */
export interface Variable {
  name: string;
  value: string;
  /** Whether the session has it. */
  had: boolean;
  change: 'keep' | 'set' | 'remove';
}

/** Texts as they stand in the fields; an empty one is not set. */
export interface Form {
  enabled: '' | 'on' | 'off';
  backend: string;
  image: string;
  network: '' | 'blocked' | 'trusted' | 'open';
  memory: string;
  cpus: string;
  pids: string;
  idle: string;
  workspace: string;
  mode: 'ro' | 'rw';
  trusted: string;
  denied: string;
  unknown: '' | 'deny' | 'ask';
  fuel: string;
  variables: Variable[];
}

/** Seconds in the largest unit that loses nothing. */
export function writeSeconds(seconds: number): string {
  for (const [unit, length] of [['d', 86_400], ['h', 3_600], ['m', 60]] as const) {
    if (seconds % length === 0) return `${seconds / length}${unit}`;
  }
  return `${seconds}s`;
}

/** `env` has the names of its variables. */
export function filled(overrides: Overrides, env: readonly string[] = []): Form {
  const { limits, workspace } = overrides;
  return {
    enabled: overrides.sandboxEnabled === undefined ? '' : overrides.sandboxEnabled ? 'on' : 'off',
    backend: overrides.sandboxBackend ?? '',
    image: overrides.sandboxImage ?? '',
    network: overrides.network ?? '',
    memory: limits?.memory === undefined ? '' : writeSize(limits.memory),
    cpus: limits?.cpus === undefined ? '' : String(limits.cpus),
    pids: limits?.pids === undefined ? '' : String(limits.pids),
    idle: overrides.idleTtlSecs === undefined ? '' : writeSeconds(overrides.idleTtlSecs),
    workspace: workspace?.source ?? '',
    mode: workspace?.mode ?? 'ro',
    trusted: (overrides.trustedDomains ?? []).join('\n'),
    denied: (overrides.deniedDomains ?? []).join('\n'),
    unknown: overrides.onUnknown ?? '',
    fuel: overrides.wasmFuelLimit === undefined ? '' : String(overrides.wasmFuelLimit),
    variables: env.map((name) => ({ name, value: '', had: true, change: 'keep' })),
  };
}

function count(text: string): number | undefined {
  const value = Number(text);
  return Number.isSafeInteger(value) && value > 0 ? value : undefined;
}

function cores(text: string): number | undefined {
  const value = Number(text);
  return Number.isFinite(value) && value > 0 ? value : undefined;
}

/** What cannot be right, by field. What the gateway alone knows it says when it is saved. */
export function wrongOf(form: Form): Partial<Record<keyof Form, string>> {
  const wrong: Partial<Record<keyof Form, string>> = {};
  const memory = parseSize(form.memory);
  if (form.memory !== '' && (memory === undefined || memory < 1_048_576)) {
    wrong.memory = 'write a size of at least 1M, such as `512M`';
  }
  if (form.cpus !== '' && cores(form.cpus) === undefined) wrong.cpus = 'write a number above 0, such as `1.5`';
  const pids = count(form.pids);
  if (form.pids !== '' && (pids === undefined || pids > 4_194_304)) wrong.pids = 'write a whole number from 1 to 4194304';
  const idle = parseSeconds(form.idle);
  if (form.idle !== '' && (idle === undefined || idle > 31_536_000)) wrong.idle = 'write a time up to a year, such as `30m`';
  if (form.workspace !== '' && !form.workspace.startsWith('/')) wrong.workspace = 'write its path from the root';
  if (form.fuel !== '' && count(form.fuel) === undefined) wrong.fuel = 'write a whole number of instructions, above 0';
  const names = form.variables.filter(isMeant).map(({ name }) => name.trim());
  const bad = names.find((name) => !/^[A-Za-z_][A-Za-z0-9_]{0,255}$/.test(name));
  const twice = names.find((name, at) => names.indexOf(name) !== at);
  if (bad !== undefined) wrong.variables = `\`${bad}\` is no name of a variable: it has letters, digits and _, and no digit first`;
  else if (twice !== undefined) wrong.variables = `\`${twice}\` is there twice`;
  return wrong;
}

/** A row that was added and left empty means nothing. */
function isMeant({ had, name, value }: Variable): boolean {
  return had || name.trim() !== '' || value !== '';
}

/** The change that makes what a session sets into what the form says; only what differs is in it. */
export function patchOf(before: Overrides, form: Form): Patch {
  const old = filled(before);
  const patch: Patch = {};
  const differs = (...keys: (keyof Form)[]) => keys.some((key) => old[key] !== form[key]);
  if (differs('enabled')) patch.sandboxEnabled = form.enabled === '' ? null : form.enabled === 'on';
  if (differs('backend')) {
    patch.sandboxBackend = form.backend === '' ? null : (form.backend as NonNullable<Patch['sandboxBackend']>);
  }
  if (differs('image')) patch.sandboxImage = form.image.trim() === '' ? null : form.image.trim();
  if (differs('network')) patch.network = form.network === '' ? null : form.network;
  const limits: NonNullable<Patch['limits']> = {};
  if (differs('memory')) limits.memory = parseSize(form.memory) ?? null;
  if (differs('cpus')) limits.cpus = form.cpus === '' ? null : (cores(form.cpus) ?? null);
  if (differs('pids')) limits.pids = form.pids === '' ? null : (count(form.pids) ?? null);
  if (Object.keys(limits).length > 0) patch.limits = limits;
  if (differs('idle')) patch.idleTtlSecs = parseSeconds(form.idle) ?? null;
  if (differs('workspace') || (form.workspace !== '' && differs('mode'))) {
    patch.workspace = form.workspace === '' ? null : { source: form.workspace, mode: form.mode };
  }
  for (const [field, key, was] of [
    ['trusted', 'trustedDomains', before.trustedDomains],
    ['denied', 'deniedDomains', before.deniedDomains],
  ] as const) {
    const now = parseDomains(form[field]);
    if (JSON.stringify(now) !== JSON.stringify(was ?? [])) patch[key] = now.length === 0 ? null : now;
  }
  if (differs('fuel')) patch.wasmFuelLimit = form.fuel === '' ? null : (count(form.fuel) ?? null);
  const changed = form.variables.filter((variable) => variable.change !== 'keep' && isMeant(variable));
  if (changed.length > 0) {
    patch.env = Object.fromEntries(changed.map(({ name, value, change }) => [name.trim(), change === 'remove' ? null : value]));
  }
  if (differs('unknown')) patch.onUnknown = form.unknown === '' ? null : form.unknown;
  return patch;
}

/** What would hold if the session set nothing, out of its settings. */
export function configuredOf(settings: readonly { key: string; configured?: string }[]): Configured {
  const of = (key: string) => settings.find((setting) => setting.key === key)?.configured;
  const mode = of('mode');
  const memory = of('resource_limits.memory_limit');
  const number = (key: string) => {
    const text = of(key);
    return text === undefined ? undefined : Number(text);
  };
  return {
    sandboxEnabled: mode === undefined ? of('sandboxEnabled') !== 'false' : mode !== 'off',
    backend: of('backend'),
    network: of('network'),
    memory: memory === undefined ? undefined : parseSize(memory),
    cpus: number('resource_limits.cpu_quota'),
    pids: number('resource_limits.pids_max'),
    onUnknown: of('on_unknown'),
    fuel: number('wasm_fuel_limit'),
  };
}
