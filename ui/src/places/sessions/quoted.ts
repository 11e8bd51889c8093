// Text for the command line, in commands that the page teaches.

/** A word of a POSIX shell. */
export function quoted(text: string): string {
  return /^[A-Za-z0-9_./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
