// What a backend can keep, in words, and how much of it.

import type { Schema } from '../../api/client';

export type Promises = Schema<'Guarantees'>;
export type PromiseName = keyof Promises;

/** Each promise: its name, what it means. Those of `isolation` are what a sandbox is for. */
export const PROMISES: readonly { id: PromiseName; title: string; means: string; isolation?: boolean }[] = [
  { id: 'filesystem', title: 'Files', means: 'The host’s files are out of reach but for what is mounted', isolation: true },
  { id: 'kernel', title: 'Kernel', means: 'It has a kernel of its own, so that a fault of the host’s does not let it out', isolation: true },
  { id: 'environment', title: 'Environment', means: 'Nothing of the host’s environment shows', isolation: true },
  { id: 'networkBlocked', title: 'Network blocked', means: 'Nothing is reached', isolation: true },
  { id: 'networkTrusted', title: 'Network trusted', means: 'Only domains that are allowed are reached', isolation: true },
  { id: 'networkOpen', title: 'Network open', means: 'Everything is reached, without the host’s own network' },
  { id: 'memory', title: 'Memory limit', means: 'The memory of the whole sandbox is bounded', isolation: true },
  { id: 'cpus', title: 'CPU limit', means: 'Its processor time is bounded', isolation: true },
  { id: 'pids', title: 'Process limit', means: 'The number of its processes is bounded', isolation: true },
  { id: 'terminal', title: 'Terminal', means: 'Commands can have a terminal' },
  { id: 'background', title: 'Background', means: 'Commands can go on in the background' },
  { id: 'forward', title: 'Ports', means: 'Ports inside can be reached from here' },
  { id: 'workspace', title: 'Workspace', means: 'A folder shows inside, or is carried there and back' },
  { id: 'home', title: 'Home', means: '/home/sandbox can outlive the sandbox' },
  { id: 'managedFiles', title: 'Managed files', means: 'Managed files show at /home/sandbox/files' },
  { id: 'adopt', title: 'Restart', means: 'A sandbox goes on while the gateway restarts' },
  { id: 'images', title: 'Images', means: 'It starts from images that can be chosen' },
  { id: 'packages', title: 'Packages', means: 'Packages that the configuration names are installed in it' },
  { id: 'rootfs', title: 'Root directory', means: 'It can start from a directory' },
  { id: 'runtime', title: 'OCI runtime', means: 'Another runtime can be chosen' },
  { id: 'gpus', title: 'GPUs', means: 'GPUs can be given to it' },
  { id: 'hostPodman', title: 'Host’s Podman', means: 'It can be given the host’s Podman, which removes the boundary' },
  { id: 'nestedPodman', title: 'Nested Podman', means: 'Podman can run inside' },
];

/** What is shown of a backend at a glance. */
export const GROUPS: readonly { title: string; of: readonly PromiseName[] }[] = [
  { title: 'files', of: ['filesystem'] },
  { title: 'net', of: ['networkBlocked', 'networkTrusted'] },
  { title: 'kernel', of: ['kernel'] },
  { title: 'limits', of: ['memory', 'cpus', 'pids'] },
];

export type Share = 'held' | 'partly' | 'notEnforced';

/** How much of these is kept. */
export function share(promises: Promises, of: readonly PromiseName[]): Share {
  const held = of.filter((name) => promises[name].state === 'held').length;
  return held === of.length ? 'held' : held === 0 ? 'notEnforced' : 'partly';
}

/** What isolates with one backend and would not with another. */
export function lost(from: Promises | undefined, to: Promises | undefined): string[] {
  if (!from) return [];
  return PROMISES.filter(({ id, isolation }) => isolation && from[id].state === 'held' && to?.[id].state !== 'held').map(
    ({ title }) => title,
  );
}
