// What a gateway has in it before a page is opened: sessions of several kinds, what they ran and tried to reach, files.

import type { Gateway } from './gateway.ts';

/** A session with commands of all kinds. */
export const SESSION = 'team/review-17';

/** Its address. */
export const AT = `/sessions/${encodeURIComponent(SESSION)}`;

/** A key like markup. */
export const MARKUP = 'agent-<b onmouseover=alert(1)>x</b>';

/** Text that is a programme where it is not shown as text. */
export const SCRIPT = '<script>document.title="run"</script><img src=x onerror="document.title=\'run\'">';

export async function seed(gateway: Gateway): Promise<void> {
  const of = `/sessions/${encodeURIComponent(SESSION)}`;
  await gateway.ask('PUT', of, { limits: { memory: 512 << 20, pids: 256 } });
  await gateway.exec(SESSION, 'uname -s && id -u');
  await gateway.exec(SESSION, `cat <<'END'\n${SCRIPT}\n<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>\nEND`);
  // A title, a link, the clipboard, a colour, text from right to left that looks like another name.
  await gateway.exec(SESSION, String.raw`printf '\033]0;taken\007\033]8;;http://evil.example\007link\033]8;;\007\033]52;c;c3RvbGVu\007\033[31mred\033[0m \342\200\256gpj.exe\n'`);
  await gateway.exec(SESSION, 'ls /nowhere; exit 3');
  await gateway.exec(SESSION, 'seq 1 20000');
  await gateway.exec(SESSION, `for host in packages.example track.ads.example; do curl -s -m 5 -o /dev/null "https://$host/"; done; true`);
  const folder = '/home/sandbox/work';
  await gateway.exec(SESSION, `mkdir -p ${folder}/sub && cd ${folder} && printf 'hello\\n' > a.txt`);
  const file = (name: string, body: string | Uint8Array) =>
    gateway.ask('PUT', `${of}/files/content?path=${encodeURIComponent(`${folder}/${name}`)}`, body);
  await file('evil.svg', `<svg xmlns="http://www.w3.org/2000/svg"><script>document.title="run"</script></svg>`);
  await file('evil.html', `<!doctype html><title>run</title>${SCRIPT}`);
  await file('<b>bold<b>.txt', 'x');
  await file('report\u202Egpj.exe', 'x');
  await file('dot.png', PNG);
  for (const session of ['ci/build-1', MARKUP]) await gateway.exec(session, 'echo done');
  await gateway.ask('PATCH', '/sessions/ci%2Fbuild-2', { network: 'open' });
  await gateway.ask('PUT', '/files/content?path=%2Fnotes%2Freadme.md&parents=true', '# Notes\n');
  await gateway.ask('PUT', '/files/content?path=%2Freport%20final.csv', 'a,b\n1,2\n');
}

/** One dot. */
const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==',
  'base64',
);
