// What becomes of each file that is to be uploaded: nothing is replaced without a word.

/** Most bytes of a managed file. */
export const MAX_FILE = 1024 ** 3;

/** A file that somebody chose or dropped. */
export interface Chosen<Blob = unknown> {
  /** Its path below the folder that it goes into, such as `photos/a.png`. */
  path: string;
  size: number;
  blob: Blob;
}

export type Decision = 'replace' | 'keepBoth' | 'skip';

/** What is there already, by its path below the folder. */
export type There = ReadonlyMap<string, 'file' | 'directory' | 'other'>;

/** A file whose name is taken. */
export interface Conflict {
  path: string;
  /** What has the name, or that of a folder on the way to it. */
  with: 'file' | 'directory' | 'other';
  at: string;
  /** What can be done: what is no file is not replaced. */
  choices: readonly Decision[];
}

export interface Upload<Blob = unknown> {
  path: string;
  size: number;
  blob: Blob;
  replace: boolean;
}

export interface Plan<Blob = unknown> {
  uploads: Upload<Blob>[];
  /** Folders that hold no file, and are made all the same. */
  folders: string[];
  /** Conflicts about which nobody has decided. */
  open: Conflict[];
  skipped: string[];
  /** Files over the limit, which are not sent. */
  tooLarge: string[];
  bytes: number;
}

function parents(path: string): string[] {
  const parts = path.split('/');
  return parts.slice(1).map((_, at) => parts.slice(0, at + 1).join('/'));
}

/** What stands in the way of a path, if anything does. */
export function conflict(path: string, there: There): Conflict | undefined {
  const blocked = parents(path).find((folder) => there.has(folder) && there.get(folder) !== 'directory');
  if (blocked !== undefined) {
    return { path, with: there.get(blocked) ?? 'other', at: blocked, choices: ['skip'] };
  }
  const found = there.get(path);
  if (found === undefined) return undefined;
  return { path, with: found, at: path, choices: found === 'file' ? ['replace', 'keepBoth', 'skip'] : ['keepBoth', 'skip'] };
}

/** A name beside one that is taken: `a.txt` becomes `a (2).txt`. */
export function beside(path: string, taken: (path: string) => boolean): string {
  const slash = path.lastIndexOf('/');
  const [folder, name] = [path.slice(0, slash + 1), path.slice(slash + 1)];
  const dot = name.lastIndexOf('.');
  const [stem, end] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ''];
  for (let number = 2; ; number++) {
    const other = `${folder}${stem} (${number})${end}`;
    if (!taken(other)) return other;
  }
}

/**
 * Makes the plan: `decided` says what was decided of one path, `forAll` of all others where that can be done.
 */
export function plan<Blob>(
  chosen: readonly Chosen<Blob>[],
  there: There,
  decided: ReadonlyMap<string, Decision> = new Map(),
  forAll?: Decision,
  emptyFolders: readonly string[] = [],
): Plan<Blob> {
  const made: Plan<Blob> = { uploads: [], folders: [], open: [], skipped: [], tooLarge: [], bytes: 0 };
  const names = new Set(chosen.map((file) => file.path));
  const add = (file: Chosen<Blob>, path: string, replace: boolean) => {
    made.uploads.push({ path, size: file.size, blob: file.blob, replace });
    made.bytes += file.size;
    names.add(path);
  };
  for (const file of chosen) {
    if (file.size > MAX_FILE) {
      made.tooLarge.push(file.path);
      continue;
    }
    const found = conflict(file.path, there);
    if (found === undefined) {
      add(file, file.path, false);
      continue;
    }
    const word = decided.get(file.path) ?? (forAll !== undefined && found.choices.includes(forAll) ? forAll : undefined);
    switch (word) {
      case undefined:
        made.open.push(found);
        break;
      case 'skip':
        made.skipped.push(file.path);
        break;
      case 'replace':
        add(file, file.path, true);
        break;
      case 'keepBoth':
        add(file, beside(file.path, (path) => there.has(path) || names.has(path)), false);
        break;
    }
  }
  made.folders = emptyFolders.filter((folder) => !there.has(folder) && conflict(folder, there) === undefined);
  return made;
}

const SECRET_NAMES = new Set(['.npmrc', '.netrc', '.pypirc', '.git-credentials', 'id_rsa', 'id_dsa', 'id_ecdsa', 'id_ed25519']);
const SECRET_FOLDERS = new Set(['.ssh', '.aws', '.gnupg', '.kube']);

/** Whether a file of a dropped folder is one that often holds a secret: it goes along only if somebody says so. */
export function isSecret(path: string): boolean {
  const parts = path.toLowerCase().split('/');
  const name = parts.at(-1) ?? '';
  return (
    parts.slice(0, -1).some((part) => SECRET_FOLDERS.has(part)) ||
    SECRET_NAMES.has(name) ||
    name === '.env' ||
    name.startsWith('.env.') ||
    /\.(pem|key|p12|pfx|jks|keystore)$/.test(name)
  );
}
