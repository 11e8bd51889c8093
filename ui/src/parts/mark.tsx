// How something stands: a glyph, a word and a colour, never colour alone. The words are those of the command line and
// the API.

import type { ComponentChildren } from 'preact';

const MARKS = {
  held: { glyph: '✓', word: 'held', tone: 'good' },
  notEnforced: { glyph: '▲', word: 'not enforced', tone: 'warn' },
  refused: { glyph: '✕', word: 'refused', tone: 'bad' },
  usable: { glyph: '●', word: 'usable', tone: 'good' },
  notUsable: { glyph: '○', word: 'not usable', tone: 'off' },
  running: { glyph: '●', word: 'running', tone: 'good' },
  opening: { glyph: '◐', word: 'opening', tone: 'off' },
  closing: { glyph: '◐', word: 'closing', tone: 'off' },
  gone: { glyph: '○', word: 'gone', tone: 'off' },
  none: { glyph: '○', word: 'no sandbox', tone: 'off' },
  allowed: { glyph: '✓', word: 'allowed', tone: 'good' },
  denied: { glyph: '✕', word: 'denied', tone: 'bad' },
  lost: { glyph: '?', word: 'lost', tone: 'warn' },
  ended: { glyph: '✓', word: 'ended', tone: 'off' },
  stopped: { glyph: '■', word: 'stopped', tone: 'off' },
  failed: { glyph: '✕', word: 'failed', tone: 'bad' },
  warning: { glyph: '▲', word: 'warning', tone: 'warn' },
  stale: { glyph: '◌', word: 'stale', tone: 'warn' },
  live: { glyph: '●', word: 'live', tone: 'good' },
} as const;

export type MarkKind = keyof typeof MARKS;

/** `children` stand in the place of the word. */
export function Mark({
  kind,
  children,
  chip = false,
  title,
}: {
  kind: MarkKind;
  children?: ComponentChildren;
  chip?: boolean;
  title?: string | undefined;
}) {
  const { glyph, word, tone } = MARKS[kind];
  return (
    <span class={`mark ${tone}${chip ? ' chip' : ''}`} title={title}>
      <span class="glyph" aria-hidden="true">
        {glyph}
      </span>
      <span>{children ?? word}</span>
    </span>
  );
}
