// What a command printed, as it comes: lines of text, where bytes were cut, and how much of it is kept.

/** Which stream a line is of; `cut` is a mark where bytes are missing. */
export type Source = 'stdout' | 'stderr' | 'cut';

export interface Line {
  /** Counts up for as long as the output lives, so that a line keeps its key while those before it go. */
  readonly key: number;
  readonly source: Source;
  /** Text without its end of line; of a mark, what it says. */
  readonly text: string;
  /** Whether the line goes on in the next one: a long line comes in pieces. */
  readonly goesOn: boolean;
}

/** Characters of text that are kept; what comes before them goes, and a mark says so. */
export const MAX_CHARACTERS = 2_000_000;

/** Longest line that is drawn as one. */
export const MAX_LINE = 2_000;

/** Lines that are kept: an empty one takes room too. */
export const MAX_LINES = 50_000;

/** Bytes as they stand in an event: text, or base64 where they are no UTF-8. */
export interface Piece {
  data: string;
  encoding?: string | undefined;
}

/** The bytes of base64. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** A whole stream as text: what is no UTF-8 shows as U+FFFD. */
export function textOf(data: string, encoding?: string): string {
  return encoding === 'base64' ? new TextDecoder().decode(fromBase64(data)) : data;
}

class Stream {
  private decoder = new TextDecoder();
  private bytes = new TextEncoder();
  /** Text since the last end of line. */
  open = '';
  /** The key of the line that `open` is, if it is shown. */
  openKey: number | undefined;
  /** Bytes that came. */
  seen = 0;

  read(piece: Piece): string {
    // Characters may be torn between two pieces; then both are base64, or one is.
    const bytes = piece.encoding === 'base64' ? fromBase64(piece.data) : this.bytes.encode(piece.data);
    this.seen += bytes.length;
    return this.decoder.decode(bytes, { stream: true });
  }

  end(): string {
    return this.decoder.decode();
  }
}

/** Lines of both streams in the order in which they came, in bounded memory. */
export class Output {
  private kept: Line[] = [];
  private streams = { stdout: new Stream(), stderr: new Stream() };
  private characters = 0;
  private nextKey = 1;
  private gone = 0;
  private wasCut = false;

  /** Bytes that were read of a stream: where reading goes on. */
  seen(source: 'stdout' | 'stderr'): number {
    return this.streams[source].seen;
  }

  /** Lines that are kept; a first one may say how many are not. */
  lines(): readonly Line[] {
    if (this.gone === 0) return this.kept;
    const text = `${this.gone.toLocaleString('en')} earlier lines are not kept here`;
    return [{ key: 0, source: 'cut', text, goesOn: false }, ...this.kept];
  }

  /** Whether anything is missing. */
  get cut(): boolean {
    return this.wasCut || this.gone > 0;
  }

  push(source: 'stdout' | 'stderr', piece: Piece): void {
    const stream = this.streams[source];
    this.add(source, stream.read(piece));
  }

  /** Bytes are missing here. */
  missed(missed: { stdout?: number; stderr?: number }): void {
    for (const source of ['stdout', 'stderr'] as const) {
      const bytes = missed[source] ?? 0;
      if (bytes === 0) continue;
      this.streams[source].seen += bytes;
      this.mark(source, bytes);
    }
  }

  /** A mark that so many bytes of a stream are missing here. */
  mark(source: 'stdout' | 'stderr', bytes: number): void {
    this.close(source);
    this.wasCut = true;
    this.append('cut', cutMark(source, bytes), false);
    this.trim();
  }

  /** Nothing more comes. */
  end(): void {
    for (const source of ['stdout', 'stderr'] as const) {
      this.add(source, this.streams[source].end());
      this.close(source);
    }
  }

  private add(source: 'stdout' | 'stderr', text: string): void {
    if (text === '') return;
    const stream = this.streams[source];
    const parts = text.split('\n');
    parts.forEach((part, at) => {
      const ends = at < parts.length - 1;
      if (part === '' && !ends) return;
      this.extend(source, stream, part);
      if (ends) {
        this.replace(stream, stream.open.endsWith('\r') ? stream.open.slice(0, -1) : stream.open, false);
        stream.open = '';
        stream.openKey = undefined;
      }
    });
    this.trim();
  }

  /** Adds text to the line that is open, in pieces where it gets too long. */
  private extend(source: 'stdout' | 'stderr', stream: Stream, text: string): void {
    let rest = text;
    do {
      if (stream.openKey === undefined) {
        stream.open = '';
        stream.openKey = this.append(source, '', false);
      }
      const room = MAX_LINE - stream.open.length;
      let cut = Math.min(room, rest.length);
      // Not between the halves of a character.
      const last = rest.charCodeAt(cut - 1);
      if (cut < rest.length && cut > 1 && last >= 0xd800 && last <= 0xdbff) cut -= 1;
      stream.open += rest.slice(0, cut);
      rest = rest.slice(cut);
      this.replace(stream, stream.open, rest !== '');
      if (rest !== '') stream.openKey = undefined;
    } while (rest !== '');
  }

  private close(source: 'stdout' | 'stderr'): void {
    this.streams[source].open = '';
    this.streams[source].openKey = undefined;
  }

  private append(source: Source, text: string, goesOn: boolean): number {
    const key = this.nextKey++;
    this.kept.push({ key, source, text, goesOn });
    this.characters += text.length;
    return key;
  }

  private replace(stream: Stream, text: string, goesOn: boolean): void {
    if (stream.openKey === undefined) return;
    // The open line of a stream is near the end: at most one line of the other one comes after it, and marks.
    for (let at = this.kept.length - 1; at >= 0; at--) {
      const line = this.kept[at];
      if (line === undefined || line.key < stream.openKey) return;
      if (line.key === stream.openKey) {
        this.characters += text.length - line.text.length;
        this.kept[at] = { ...line, text, goesOn };
        return;
      }
    }
  }

  private trim(): void {
    let drop = 0;
    let characters = this.characters;
    while (
      this.kept.length - drop > 1 &&
      (characters > MAX_CHARACTERS || this.kept.length - drop > MAX_LINES)
    ) {
      characters -= this.kept[drop]?.text.length ?? 0;
      drop += 1;
    }
    if (drop > 0) {
      this.kept.splice(0, drop);
      this.gone += drop;
      this.characters = characters;
    }
  }
}

/** What a mark says. */
export function cutMark(source: 'stdout' | 'stderr', bytes: number): string {
  const name = source === 'stdout' ? 'standard output' : 'standard error';
  return `${bytes.toLocaleString('en')} ${bytes === 1 ? 'byte' : 'bytes'} of ${name} are cut here`;
}

/** What is remembered of a stream: its first bytes, its last ones, and how many lie between. */
export interface Remains {
  bytes: number;
  cut: number;
  head: string;
  headEncoding?: string;
  tail: string;
  tailEncoding?: string;
}

/** What is remembered of a command's output. The streams were not kept together, so that one comes after the other. */
export function remembered(stdout: Remains | undefined, stderr: Remains | undefined): Output {
  const output = new Output();
  for (const [source, remains] of [
    ['stdout', stdout],
    ['stderr', stderr],
  ] as const) {
    if (remains === undefined) continue;
    output.push(source, { data: remains.head, encoding: remains.headEncoding });
    if (remains.cut > 0) output.mark(source, remains.cut);
    output.push(source, { data: remains.tail, encoding: remains.tailEncoding });
  }
  output.end();
  return output;
}
