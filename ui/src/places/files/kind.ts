// What a file is by its first bytes: a raster image that a browser draws without running anything, text, or neither. What
// its name says does not matter, so that nothing is ever taken for SVG or HTML.

export type Shown = 'image' | 'text' | 'binary';

const IMAGES: readonly (readonly [offset: number, bytes: readonly number[]])[] = [
  [0, [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  [0, [0xff, 0xd8, 0xff]],
  [0, [0x47, 0x49, 0x46, 0x38, 0x37, 0x61]],
  [0, [0x47, 0x49, 0x46, 0x38, 0x39, 0x61]],
];

const at = (bytes: Uint8Array, offset: number, wanted: readonly number[]) =>
  wanted.every((byte, place) => bytes[offset + place] === byte);
const word = (text: string) => [...text].map((character) => character.charCodeAt(0));

export function isImage(bytes: Uint8Array): boolean {
  return (
    IMAGES.some(([offset, magic]) => at(bytes, offset, magic)) ||
    (at(bytes, 0, word('RIFF')) && at(bytes, 8, word('WEBP'))) ||
    (at(bytes, 4, word('ftyp')) && (at(bytes, 8, word('avif')) || at(bytes, 8, word('avis'))))
  );
}

/** What the beginning of a file shows as; `whole` when it is all of it. */
export function shownAs(bytes: Uint8Array, whole: boolean): Shown {
  if (isImage(bytes)) return 'image';
  if (bytes.includes(0)) return 'binary';
  // The last character may be torn where there is more.
  const text = new TextDecoder('utf-8', { fatal: true });
  for (let torn = 0; torn <= (whole ? 0 : 3); torn++) {
    try {
      text.decode(bytes.subarray(0, Math.max(0, bytes.length - torn)));
      return 'text';
    } catch {
      // One byte less.
    }
  }
  return 'binary';
}
