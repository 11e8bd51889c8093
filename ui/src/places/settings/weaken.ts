// Whether a change of a setting protects less than before, and why: that is shown before it is made.

const BASE = 'tools.exec.sandbox.';

/** Words in the order from the most to the least protecting, and what the later ones mean. */
const ORDERS: Record<string, readonly (readonly [string, string])[]> = {
  network: [
    ['blocked', ''],
    ['trusted', 'commands reach every domain that is allowed'],
    ['open', 'commands reach everything'],
  ],
  mode: [
    ['all', ''],
    ['off', 'commands of every session that says nothing else run on the host, in no sandbox'],
  ],
  failover: [
    ['off', ''],
    ['isolated', 'a session whose engine fails goes on elsewhere'],
    ['any', 'a session whose engine fails may go on where files are not isolated'],
  ],
  home_persistence: [
    ['off', ''],
    ['session', 'what a command leaves in its home is there for the session’s next ones'],
    ['shared', 'all sessions share a home: what one leaves there, all others find'],
  ],
  workspace_mount: [
    ['none', ''],
    ['ro', 'commands can read the workspace'],
    ['rw', 'commands can change the workspace, which the host may run later'],
  ],
  managed_files_mount: [
    ['none', ''],
    ['ro', 'commands can read managed files'],
    ['rw', 'commands can change managed files'],
  ],
  on_unknown: [
    ['deny', ''],
    ['ask', 'a person may let through what no rule names'],
  ],
};

/** Switches that open something when they are on. */
const SWITCHES: Record<string, string> = {
  allow_host_podman: 'the sandbox gets the host’s Podman, which removes the boundary',
  allow_nested_podman: 'the sandbox is privileged',
  allow_unenforced: '`restricted-host` runs although it cannot keep the network policy',
};

/** Lists whose entries open something, and those whose entries close something. */
const OPENING: Record<string, string> = {
  trusted_domains: 'more domains are reached',
  mounts: 'more of the host shows inside',
  gpus: 'devices of the host are given to sandboxes',
};
const CLOSING: Record<string, string> = {
  denied_domains: 'fewer domains are denied',
  workspace_protect: 'less of a writable workspace is protected',
  'tools.fs.deny_paths': 'file tools are kept from fewer paths',
};
/** Lists that close when they say something at all. */
const NARROWING: Record<string, string> = {
  'tools.fs.allow_paths': 'file tools may touch more paths',
  allowed_images: 'keys may name more images',
};

const LIMITS: Record<string, string> = {
  'resource_limits.memory_limit': 'memory',
  'resource_limits.cpu_quota': 'processor time',
  'resource_limits.pids_max': 'processes',
};

function short(key: string): string {
  return key.startsWith(BASE) ? key.slice(BASE.length) : key;
}

function list(value: unknown): string[] {
  if (value === undefined || value === null) return [];
  return (Array.isArray(value) ? value : [value]).map((one) => (typeof one === 'string' ? one : JSON.stringify(one)));
}

/** A limit as a number: `512M` is that many bytes. Nothing said is no bound that could be compared. */
export function amount(value: unknown): number | null {
  if (typeof value === 'number') return value;
  if (typeof value !== 'string') return null;
  const found = /^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*$/i.exec(value);
  if (!found) return null;
  const step = ['', 'K', 'M', 'G', 'T'].indexOf((found[2] ?? '').toUpperCase());
  return Number(found[1]) * 1024 ** step;
}

/**
 * Why a change weakens what is promised, or nothing. `from` and `to` are values as a change takes them; `null` is the
 * default, which `fallback` is where it is known.
 */
export function weakens(key: string, from: unknown, to: unknown, fallback?: unknown): string | null {
  const name = short(key);
  const before = from ?? fallback ?? null;
  const after = to ?? fallback ?? null;
  const order = ORDERS[name];
  if (order) {
    const at = (value: unknown) => order.findIndex(([word]) => word === value);
    const [was, is] = [at(before), at(after)];
    return was >= 0 && is > was ? (order[is]?.[1] ?? null) : null;
  }
  const on = SWITCHES[name];
  if (on) return after === true && before !== true ? on : null;
  const opening = OPENING[name];
  if (opening) return list(after).some((one) => !list(before).includes(one)) ? opening : null;
  const closing = CLOSING[name];
  if (closing) return list(before).some((one) => !list(after).includes(one)) ? closing : null;
  const narrowing = NARROWING[name];
  if (narrowing) {
    const [was, is] = [list(before), list(after)];
    if (was.length === 0) return null;
    return is.length === 0 || is.some((one) => !was.includes(one)) ? narrowing : null;
  }
  const limit = LIMITS[name];
  if (limit) {
    const [was, is] = [amount(before), amount(after)];
    if (was === null) return null;
    if (is === null) return `the limit of ${limit} that you set is taken back to the default`;
    return is > was ? `a sandbox may use more ${limit}` : null;
  }
  if (name === 'workspace') return after !== null && after !== before ? 'a folder of the host shows at /workspace' : null;
  return null;
}
