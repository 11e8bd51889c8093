// What a command or a file's name says, as text that is only ever text: nothing in it moves the cursor, hides, or turns
// the direction of what stands beside it.

// Colours and other rendition, which would only litter a text without colours.
const RENDITION = /\x1b\[[0-9;:]*m/g;

// Control characters but for tab and newline; characters that change direction, are not seen, or break lines unseen.
const HIDDEN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function written(character: string): string {
  const code = character.charCodeAt(0);
  return code < 0x100 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
}

/** A text of several lines, such as a command's output. */
export function plain(text: string): string {
  return text.replace(RENDITION, '').replace(/\r\n/g, '\n').replace(HIDDEN, written);
}

/** A text of one line, such as a name: newline and tab are written out too. */
export function oneLine(text: string): string {
  return text.replace(HIDDEN, written).replace(/\n/g, '\\n').replace(/\t/g, '\\t');
}

/** The beginning of a text of one line, with a mark where more follows. */
export function shortened(text: string, most: number): string {
  const all = [...oneLine(text)];
  return all.length <= most ? all.join('') : `${all.slice(0, Math.max(0, most - 1)).join('')}…`;
}
