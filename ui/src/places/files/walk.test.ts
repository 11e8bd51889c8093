import { describe, expect, it } from 'vitest';

import { walk } from './walk';

const file = (name: string, content = 'x') =>
  ({
    isFile: true,
    isDirectory: false,
    name,
    file: (done: (file: File) => void, failed: (error: unknown) => void) =>
      content === 'broken' ? failed(new Error()) : done(new File([content], name)),
  }) as unknown as FileSystemEntry;

/** A folder whose reader gives two entries at a time. */
const folder = (name: string, inside: FileSystemEntry[]) =>
  ({
    isFile: false,
    isDirectory: true,
    name,
    createReader: () => {
      let at = 0;
      return {
        readEntries: (done: (entries: FileSystemEntry[]) => void) => {
          done(inside.slice(at, at + 2));
          at += 2;
        },
      };
    },
  }) as unknown as FileSystemEntry;

describe('what is dropped', () => {
  it('is read to the last file, with paths, empty folders and what cannot be read', async () => {
    const walked = await walk([
      file('a'),
      folder('d', [file('1'), file('2'), file('3'), folder('e', []), folder('f', [file('deep', 'xyz')]), file('bad', 'broken')]),
    ]);
    expect(walked.files.map((one) => [one.path, one.size])).toEqual([
      ['a', 1], ['d/1', 1], ['d/2', 1], ['d/3', 1], ['d/f/deep', 3],
    ]);
    expect([walked.emptyFolders, walked.unread, walked.more]).toEqual([['d/e'], ['d/bad'], false]);
  });
});
