// Whether Docker is here, with the image that the tests of containers use.

import { spawnSync } from 'node:child_process';

export const IMAGE = 'localhost/sandbox-base:debian';

/** Why nothing can be built on Docker here; empty where it can. */
export function lacking(): string {
  const { status, stderr, error } = spawnSync('docker', ['image', 'inspect', IMAGE], { encoding: 'utf8', timeout: 30_000 });
  return status === 0 ? '' : `Docker with the image ${IMAGE}: ${(error?.message ?? stderr).trim().split('\n')[0]}`;
}
