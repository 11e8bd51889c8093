// Sizes for people.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

/** `1.5 GiB`: three figures at most, in steps of 1,024. */
export function size(bytes: number): string {
  if (!Number.isFinite(bytes) || bytes < 0) return '–';
  let unit = 0;
  let value = bytes;
  // 1,023.9 would be written as 1,024 of the same unit.
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const figures = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const text = value.toFixed(figures);
  return `${text.includes('.') ? text.replace(/\.?0+$/, '') : text} ${UNITS[unit]}`;
}

/** All of the bytes, in groups: `1,610,612,736 bytes`. */
export function exactSize(bytes: number): string {
  return `${bytes.toLocaleString('en')} ${bytes === 1 ? 'byte' : 'bytes'}`;
}
