// What is there already in a folder, as far as an upload into it can meet it.

import type { Entry } from './api';
import { joined } from './path';

export type Kind = 'file' | 'directory' | 'other';

const kindOf = (entry: Entry): Kind => (entry.kind === 'file' || entry.kind === 'directory' ? entry.kind : 'other');

/** Looks into the folder, and into those below it that the paths go through. */
export async function lookAround(
  list: (path: string) => Promise<Entry[]>,
  folder: string,
  paths: readonly string[],
): Promise<Map<string, Kind>> {
  const there = new Map<string, Kind>();
  const wanted = new Set<string>();
  for (const path of paths) {
    const parts = path.split('/');
    for (let depth = 1; depth < parts.length; depth++) wanted.add(parts.slice(0, depth).join('/'));
  }
  const look = async (below: string) => {
    const entries = await list(below === '' ? folder : joined(folder, below));
    for (const entry of entries) there.set(below === '' ? entry.name : `${below}/${entry.name}`, kindOf(entry));
  };
  await look('');
  // Shorter ones first: what is not there has nothing below it.
  for (const below of [...wanted].sort((a, b) => a.length - b.length)) {
    if (there.get(below) === 'directory') await look(below);
  }
  return there;
}
