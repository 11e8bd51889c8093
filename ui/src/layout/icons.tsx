// The signs of the places, drawn with lines of the text's colour.

import type { ComponentChildren } from 'preact';

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      {children}
    </svg>
  );
}

export const ICONS = {
  sandboxes: (
    <Icon>
      <path d="M10 2.5 17 6v8l-7 3.5L3 14V6z M3 6l7 3.5L17 6 M10 9.5v8" />
    </Icon>
  ),
  sessions: (
    <Icon>
      <path d="M2.5 4h15v12h-15z M5.5 8l2.5 2-2.5 2 M10.5 12.5h4" />
    </Icon>
  ),
  network: (
    <Icon>
      <circle cx="10" cy="10" r="7.5" />
      <path d="M2.5 10h15 M10 2.5c5 5 5 10 0 15-5-5-5-10 0-15" />
    </Icon>
  ),
  files: (
    <Icon>
      <path d="M2.5 4.5h5l2 2h8v9.5h-15z" />
    </Icon>
  ),
  settings: (
    <Icon>
      <path d="M3 6h8 M15 6h2 M3 14h2 M9 14h8" />
      <circle cx="13" cy="6" r="2" />
      <circle cx="7" cy="14" r="2" />
    </Icon>
  ),
} as const;
