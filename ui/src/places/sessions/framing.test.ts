import { describe, expect, it } from 'vitest';

import { MAX_MESSAGE, raw, read, resized, sized, told, typed } from './framing';

describe('a terminal', () => {
  it('has a size that the gateway takes', () => {
    expect([sized(0, Number.NaN), sized(5000, 90.7)]).toEqual([
      { rows: 1, columns: 80 },
      { rows: 1000, columns: 90 },
    ]);
  });

  it('sends what is typed as bytes, in messages that are taken', () => {
    expect(typed('ä')).toEqual([new Uint8Array([0xc3, 0xa4])]);
    expect(raw('\u00ff')).toEqual([new Uint8Array([0xff])]);
    expect(typed('x'.repeat(MAX_MESSAGE + 1)).map((part) => part.length)).toEqual([MAX_MESSAGE, 1]);
    expect(JSON.parse(resized({ rows: 3, columns: 4 }))).toEqual({ type: 'resize', rows: 3, columns: 4 });
  });

  it('reads what the gateway says, and takes no harm from anything else', () => {
    expect(read(new Uint8Array([1, 2]).buffer)).toEqual({ type: 'bytes', bytes: new Uint8Array([1, 2]) });
    expect(read('{"type":"started","backend":"namespaces","process":3}')).toEqual({
      type: 'started',
      backend: 'namespaces',
      notEnforced: [],
    });
    expect(read('{"type":"exit","exitCode":137,"signal":9}')).toEqual({ type: 'exit', exitCode: 137, signal: 9 });
    expect(read('{"type":"error","code":"exec-lost","detail":"gone","fix":"look"}')).toEqual({
      type: 'error',
      code: 'exec-lost',
      detail: 'gone',
      fix: 'look',
    });
    for (const odd of ['', '{', 'null', '[]', '{"type":"exit"}', '{"type":"other"}', 7, undefined]) {
      expect(read(odd)).toEqual({ type: 'unknown' });
    }
  });

  it('says how it ended', () => {
    expect(told('ended', { type: 'exit', exitCode: 2 })).toBe('the shell ended with exit code 2');
    expect(told('ended', { type: 'exit', exitCode: 137, signal: 9 })).toBe('the shell was ended by signal 9');
    expect(told('ended', { type: 'error', code: 'c', detail: 'why' })).toBe('why');
    expect(told('lost', undefined)).toMatch(/connection was lost/);
  });
});
