// Server-sent events read from a stream of bytes. The browser's own reader of them cannot send the login's secret.

export interface ServerEvent {
  event: string;
  /** The data, read as JSON. */
  data: unknown;
}

/** Characters that one event may have: what is longer is no event of ours. */
const MAX_EVENT = 8 << 20;

/** Takes text apart into events; a part of one waits for the rest. */
export class EventReader {
  #rest = '';

  /** The events that end within this text. Comments are left out. */
  read(text: string): ServerEvent[] {
    const all = this.#rest + text;
    const found: ServerEvent[] = [];
    let from = 0;
    for (;;) {
      const at = all.indexOf('\n\n', from);
      if (at < 0) break;
      const event = parse(all.slice(from, at));
      if (event) found.push(event);
      from = at + 2;
    }
    this.#rest = all.slice(from);
    if (this.#rest.length > MAX_EVENT) throw new Error('an event is too long');
    return found;
  }
}

function parse(block: string): ServerEvent | null {
  let event = 'message';
  const data: string[] = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) event = line.slice(6).trim();
    else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
  }
  if (data.length === 0) return null;
  return { event, data: JSON.parse(data.join('\n')) as unknown };
}

/** The events of an answer's body. `onBytes` hears of whatever comes, beats too. */
export async function* eventsOf(
  body: ReadableStream<Uint8Array>,
  onBytes?: () => void,
): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes?.();
      yield* events.read(decoder.decode(value, { stream: true }));
    }
  } finally {
    // Whoever stops listening ends the request.
    await reader.cancel().catch(() => undefined);
  }
}
