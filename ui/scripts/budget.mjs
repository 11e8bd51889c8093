// Holds a build to its size: what a browser loads before it opens a terminal is at most 200 kB, packed by gzip.
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';

const MOST = 200_000;
const folder = process.argv[2];
const all = readdirSync(folder, { recursive: true }).map(String);
const packed = all.filter((name) => name.endsWith('.gz') && !/terminal|xterm/.test(name));
const bytes = packed.reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
const later = all.filter((name) => name.endsWith('.gz') && /terminal|xterm/.test(name)).reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
console.log(`the page: ${bytes} bytes packed of at most ${MOST}; the terminal, loaded later: ${later}`);
if (packed.length === 0 || bytes > MOST) process.exit(1);
