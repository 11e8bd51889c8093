// Times and durations for people.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How long something took: `0.8 ms`, `340 ms`, `1.2 s`, `3 min 04 s`, `2 h 10 min`, `3 d 4 h`. */
export function duration(millis: number): string {
  if (!Number.isFinite(millis) || millis < 0) return '–';
  if (millis < 10) return `${millis.toFixed(1).replace(/\.0$/, '')} ms`;
  if (millis < 999.5) return `${Math.round(millis)} ms`;
  if (millis < 59_950) return `${(millis / SECOND).toFixed(1).replace(/\.0$/, '')} s`;
  const seconds = Math.round(millis / SECOND);
  const two = (value: number) => String(value).padStart(2, '0');
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.floor(minutes / 60);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How far a time is from now: `now`, `12 s ago`, `in 5 min`. Older than a month: the day. */
export function relative(millis: number, now: number): string {
  const away = Math.abs(now - millis);
  if (away < 1500) return 'now';
  let text: string;
  if (away < MINUTE) text = `${Math.floor(away / SECOND)} s`;
  else if (away < HOUR) text = `${Math.floor(away / MINUTE)} min`;
  else if (away < DAY) text = `${Math.floor(away / HOUR)} h`;
  else if (away < 31 * DAY) text = `${Math.floor(away / DAY)} d`;
  else return day(millis);
  return millis > now ? `in ${text}` : `${text} ago`;
}

/** When what `relative` says of a time changes next, in milliseconds from now. */
export function changesIn(millis: number, now: number): number {
  const away = Math.abs(now - millis);
  if (away < MINUTE) return SECOND;
  if (away < HOUR) return 15 * SECOND;
  return 5 * MINUTE;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** `2026-11-30` of this place. */
export function day(millis: number): string {
  const at = new Date(millis);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** `2026-11-30 17:41:05.123 UTC+01:00`: exact, of this place. */
export function exact(millis: number): string {
  const at = new Date(millis);
  const offset = -at.getTimezoneOffset();
  const sign = offset < 0 ? '−' : '+';
  const zone = offset === 0 ? 'UTC' : `UTC${sign}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, '0')}`;
  return `${day(millis)} ${clock} ${zone}`;
}
