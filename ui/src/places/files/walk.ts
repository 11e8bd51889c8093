// Files and folders that were dropped on the page or chosen with a button, with their paths.

import type { Chosen } from './plan';

/** Most files of one upload: each is a request of its own. */
export const MAX_FILES = 20_000;

export interface Walked {
  files: Chosen<File>[];
  /** Folders in which there is nothing. */
  emptyFolders: string[];
  /** What could not be read. */
  unread: string[];
  /** Whether there were more than can be sent at once. */
  more: boolean;
}

/** Reads what was dropped. It must be called before the event is over: the browser forgets it then. */
export function dropped(items: DataTransferItemList): Promise<Walked> {
  const entries: FileSystemEntry[] = [];
  const loose: File[] = [];
  for (const item of Array.from(items)) {
    if (item.kind !== 'file') continue;
    const entry = item.webkitGetAsEntry();
    if (entry !== null) entries.push(entry);
    else {
      const file = item.getAsFile();
      if (file !== null) loose.push(file);
    }
  }
  return walk(entries, loose);
}

/** Those of a file field; with a folder their paths are relative to it. */
export function picked(files: FileList): Walked {
  const walked: Walked = { files: [], emptyFolders: [], unread: [], more: files.length > MAX_FILES };
  for (const file of Array.from(files).slice(0, MAX_FILES)) {
    walked.files.push({ path: file.webkitRelativePath || file.name, size: file.size, blob: file });
  }
  return walked;
}

export async function walk(entries: readonly FileSystemEntry[], loose: readonly File[] = []): Promise<Walked> {
  const walked: Walked = { files: [], emptyFolders: [], unread: [], more: false };
  for (const file of loose) walked.files.push({ path: file.name, size: file.size, blob: file });
  const waiting: { entry: FileSystemEntry; path: string }[] = entries.map((entry) => ({ entry, path: entry.name }));
  while (waiting.length > 0) {
    const next = waiting.shift();
    if (next === undefined) break;
    if (walked.files.length >= MAX_FILES) {
      walked.more = true;
      break;
    }
    try {
      if (next.entry.isFile) {
        const file = await fileOf(next.entry as FileSystemFileEntry);
        walked.files.push({ path: next.path, size: file.size, blob: file });
      } else if (next.entry.isDirectory) {
        const inside = await entriesOf(next.entry as FileSystemDirectoryEntry);
        if (inside.length === 0) walked.emptyFolders.push(next.path);
        for (const entry of inside) waiting.push({ entry, path: `${next.path}/${entry.name}` });
      }
    } catch {
      walked.unread.push(next.path);
    }
  }
  return walked;
}

function fileOf(entry: FileSystemFileEntry): Promise<File> {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

/** All entries of a folder: a reader gives some at a time, and none at the end. */
async function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return all;
    all.push(...some);
  }
}
