// What a change of a session takes away from its protection, told before it is saved.

import type { Schema } from '../../api/client';

/** What a session sets, as the API tells it. */
export type Overrides = Schema<'Overrides'>;

type Limits = NonNullable<Overrides['limits']>;

/** A change: what is absent stays, `null` clears. */
export type Patch = Schema<'SessionPatch'>;

/** What the session would have if it set nothing, by the API's keys of settings; absent is none. */
export interface Configured {
  sandboxEnabled?: boolean | undefined;
  backend?: string | undefined;
  network?: string | undefined;
  memory?: number | undefined;
  cpus?: number | undefined;
  pids?: number | undefined;
  onUnknown?: string | undefined;
  fuel?: number | undefined;
}

/** One thing that gets weaker. */
export interface Weaker {
  what: string;
  before: string;
  after: string;
  /** What it means. */
  means: string;
}

/** What a backend keeps, where that is known. */
export type Keeps = (backend: string) => { filesystem: boolean; kernel: boolean } | undefined;

const REACH = ['blocked', 'trusted', 'open'];
const NETWORK: Record<string, string> = {
  trusted: 'programs inside reach the hosts that are allowed',
  open: 'programs inside reach any host, and no log is written of it',
};

/** What is set after a change. */
export function applied(overrides: Overrides, patch: Patch): Overrides {
  const next: Record<string, unknown> = { ...overrides };
  for (const [key, value] of Object.entries(patch)) {
    if (value === undefined) continue;
    if (value === null) {
      delete next[key];
    } else if (key === 'limits') {
      const limits: Record<string, unknown> = { ...overrides.limits };
      for (const [limit, of] of Object.entries(value as Limits)) {
        if (of === null) delete limits[limit];
        else if (of !== undefined) limits[limit] = of;
      }
      if (Object.keys(limits).length > 0) next['limits'] = limits;
      else delete next['limits'];
    } else {
      next[key] = value;
    }
  }
  return next as Overrides;
}

/** What gets weaker by a change. */
export function weaker(overrides: Overrides, patch: Patch, configured: Configured, keeps: Keeps): Weaker[] {
  const after = applied(overrides, patch);
  const found: Weaker[] = [];
  const sandboxed = (set: Overrides) => set.sandboxEnabled ?? configured.sandboxEnabled ?? true;
  if (sandboxed(overrides) && !sandboxed(after)) {
    found.push({
      what: 'sandbox',
      before: 'on',
      after: 'off',
      means: 'every command of the session runs straight on the host, as the user who runs the gateway',
    });
  }
  const backend = (set: Overrides) => set.sandboxBackend ?? configured.backend ?? 'auto';
  if (backend(overrides) !== backend(after)) {
    const [old, now] = [keeps(backend(overrides)), keeps(backend(after))];
    const means =
      now === undefined
        ? undefined
        : !now.filesystem && old?.filesystem !== false
          ? 'files of the host are not kept away from commands'
          : !now.kernel && old?.kernel === true
            ? 'commands share the kernel of the host'
            : undefined;
    if (means !== undefined) {
      found.push({ what: 'backend', before: backend(overrides), after: backend(after), means });
    }
  }
  const network = (set: Overrides) => set.network ?? configured.network ?? 'blocked';
  if (REACH.indexOf(network(after)) > REACH.indexOf(network(overrides))) {
    found.push({
      what: 'network',
      before: network(overrides),
      after: network(after),
      means: NETWORK[network(after)] ?? 'programs inside reach more',
    });
  }
  for (const [limit, name, means] of [
    ['memory', 'memory limit', 'commands may use more memory'],
    ['cpus', 'CPU limit', 'commands may use more of the processors'],
    ['pids', 'process limit', 'commands may start more processes'],
  ] as const) {
    const of = (set: Overrides) => set.limits?.[limit] ?? configured[limit];
    const [before, now] = [of(overrides), of(after)];
    if (before !== undefined && (now === undefined || now > before)) {
      const written = limit === 'memory' ? writeSize : String;
      found.push({ what: name, before: written(before), after: now === undefined ? 'none' : written(now), means });
    }
  }
  const fuel = (set: Overrides) => set.wasmFuelLimit ?? configured.fuel;
  const [before, now] = [fuel(overrides), fuel(after)];
  if (before !== undefined && (now === undefined || now > before)) {
    const means = 'a WASM command may compute for longer';
    found.push({ what: 'instruction limit', before: String(before), after: now === undefined ? 'none' : String(now), means });
  }
  const writes = (set: Overrides) => set.workspace?.mode === 'rw';
  if (after.workspace !== undefined && after.workspace.source !== overrides.workspace?.source) {
    found.push({
      what: 'workspace',
      before: overrides.workspace?.source ?? 'none',
      after: after.workspace.source,
      means: writes(after)
        ? 'commands read and change this folder of the host'
        : 'commands read this folder of the host',
    });
  } else if (writes(after) && !writes(overrides)) {
    found.push({ what: 'workspace', before: 'ro', after: 'rw', means: 'commands change this folder of the host' });
  }
  const more = (after.trustedDomains ?? []).filter((domain) => !(overrides.trustedDomains ?? []).includes(domain));
  if (more.length > 0) {
    found.push({
      what: 'allowed hosts',
      before: (overrides.trustedDomains ?? []).join(', ') || 'none of its own',
      after: (after.trustedDomains ?? []).join(', '),
      means: `${more.join(', ')} can be reached`,
    });
  }
  const fewer = (overrides.deniedDomains ?? []).filter((domain) => !(after.deniedDomains ?? []).includes(domain));
  if (fewer.length > 0) {
    found.push({
      what: 'denied hosts',
      before: (overrides.deniedDomains ?? []).join(', '),
      after: (after.deniedDomains ?? []).join(', ') || 'none of its own',
      means: `${fewer.join(', ')} may be reached if something else allows it`,
    });
  }
  const unknown = (set: Overrides) => set.onUnknown ?? configured.onUnknown ?? 'deny';
  if (unknown(overrides) === 'deny' && unknown(after) === 'ask') {
    found.push({
      what: 'hosts that no rule names',
      before: 'deny',
      after: 'ask',
      means: 'a person may let programs reach them',
    });
  }
  return found;
}

/** A size as people write it, in bytes; nothing when it is none. */
export function parseSize(text: string): number | undefined {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*$/i.exec(text);
  if (found === null) return undefined;
  const power = 'kmgt'.indexOf((found[2] ?? '').toLowerCase()) + (found[2] ? 1 : 0);
  const bytes = Math.round(Number(found[1]) * 1024 ** power);
  return Number.isSafeInteger(bytes) && bytes > 0 ? bytes : undefined;
}

/** Bytes in the largest unit that loses nothing. */
export function writeSize(bytes: number): string {
  const units = ['', 'K', 'M', 'G', 'T'];
  let at = 0;
  let rest = bytes;
  while (rest >= 1024 && rest % 1024 === 0 && at < units.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${rest}${units[at]}`;
}

/** Seconds of a duration as people write it, such as `90`, `30m` or `2h`; nothing when it is none. */
export function parseSeconds(text: string): number | undefined {
  const found = /^\s*(\d+)\s*([smhd]?)\s*$/i.exec(text);
  if (found === null) return undefined;
  const unit = { '': 1, s: 1, m: 60, h: 3600, d: 86_400 }[(found[2] ?? '').toLowerCase()] ?? 1;
  const seconds = Number(found[1]) * unit;
  return Number.isSafeInteger(seconds) && seconds > 0 ? seconds : undefined;
}

/** Domains that are written one a line, or with commas or spaces between. */
export function parseDomains(text: string): string[] {
  const all = text.split(/[\s,]+/).filter((domain) => domain !== '');
  return [...new Set(all)];
}
