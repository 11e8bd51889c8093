import { describe, expect, it } from 'vitest';

import { MAX_LINE, MAX_LINES, Output, cutMark, remembered, textOf } from './output';

const shown = (output: Output) => output.lines().map((line) => [line.source, line.text]);

describe('output', () => {
  it('is lines of both streams in the order in which they came', () => {
    const output = new Output();
    output.push('stdout', { data: 'one\ntw' });
    output.push('stderr', { data: 'oops\r\n' });
    output.push('stdout', { data: 'o\n\nend' });
    expect(shown(output)).toEqual([
      ['stdout', 'one'],
      ['stdout', 'two'],
      ['stderr', 'oops'],
      ['stdout', ''],
      ['stdout', 'end'],
    ]);
    expect([output.seen('stdout'), output.seen('stderr'), output.cut]).toEqual([12, 6, false]);
  });

  it('puts characters together that were torn between pieces', () => {
    const output = new Output();
    output.push('stdout', { data: btoa('\xe2\x82'), encoding: 'base64' });
    output.push('stdout', { data: btoa('\xac!\xff'), encoding: 'base64' });
    output.end();
    expect(shown(output)).toEqual([['stdout', '€!\ufffd']]);
    expect(output.seen('stdout')).toBe(5);
  });

  it('marks where bytes are missing, and goes on after them', () => {
    const output = new Output();
    output.push('stdout', { data: 'half' });
    output.missed({ stdout: 1_234, stderr: 0 });
    output.push('stdout', { data: 'rest\n' });
    expect(shown(output)).toEqual([
      ['stdout', 'half'],
      ['cut', '1,234 bytes of standard output are cut here'],
      ['stdout', 'rest'],
    ]);
    expect([output.seen('stdout'), output.cut]).toEqual([4 + 1_234 + 5, true]);
  });

  it('draws a long line in pieces and never tears a character', () => {
    const output = new Output();
    output.push('stdout', { data: `${'x'.repeat(MAX_LINE - 1)}😀${'y'.repeat(MAX_LINE)}\nnext\n` });
    const lines = output.lines();
    expect(lines.map((line) => [line.text.length, line.goesOn])).toEqual([
      [MAX_LINE - 1, true],
      [MAX_LINE, true],
      [2, false],
      [4, false],
    ]);
    expect(lines.map((line) => line.text).join('')).toBe(
      `${'x'.repeat(MAX_LINE - 1)}😀${'y'.repeat(MAX_LINE)}next`,
    );
  });

  it('keeps so many lines, says what is gone, and keeps their keys', () => {
    const output = new Output();
    output.push('stdout', { data: 'a\n'.repeat(MAX_LINES) });
    const last = output.lines().at(-1)?.key;
    output.push('stdout', { data: 'b\n'.repeat(1_000) });
    const lines = output.lines();
    expect(lines.length).toBe(MAX_LINES + 1);
    expect(lines[0]).toEqual({ key: 0, source: 'cut', text: '1,000 earlier lines are not kept here', goesOn: false });
    expect(lines.find((line) => line.key === last)?.text).toBe('a');
    expect(output.cut).toBe(true);
  });

  it('of the past is head and tail with a mark between them', () => {
    const output = remembered(
      { bytes: 10, cut: 4, head: 'abc', tail: btoa('\xffzz'), tailEncoding: 'base64' },
      { bytes: 3, cut: 0, head: 'err', tail: '' },
    );
    expect(shown(output)).toEqual([
      ['stdout', 'abc'],
      ['cut', cutMark('stdout', 4)],
      ['stdout', '\ufffdzz'],
      ['stderr', 'err'],
    ]);
    expect(textOf(btoa('\xe2\x82\xac'), 'base64')).toBe('€');
  });
});
