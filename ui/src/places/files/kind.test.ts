import { describe, expect, it } from 'vitest';

import { shownAs } from './kind';

const bytes = (text: string) => new TextEncoder().encode(text);

describe('a file', () => {
  it('is what its bytes are, never SVG or HTML', () => {
    const png = Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0);
    expect(shownAs(png, true)).toBe('image');
    expect(shownAs(Uint8Array.of(0xff, 0xd8, 0xff, 0xe0), false)).toBe('image');
    expect(shownAs(bytes('RIFF....WEBPVP8 '), false)).toBe('image');
    expect(shownAs(bytes('GIF89a'), true)).toBe('image');
    expect(shownAs(bytes('<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'), true)).toBe('text');
    expect(shownAs(bytes('<!doctype html><script>1</script>'), true)).toBe('text');
    expect(shownAs(new Uint8Array(), true)).toBe('text');
    expect(shownAs(bytes('a\0b'), true)).toBe('binary');
    expect(shownAs(Uint8Array.of(0xff, 0xfe, 0x41), true)).toBe('binary');
  });

  it('may be torn within a character where there is more of it', () => {
    const torn = bytes('aaaa€').slice(0, 6);
    expect([shownAs(torn, false), shownAs(torn, true)]).toEqual(['text', 'binary']);
  });
});
