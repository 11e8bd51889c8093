// What changes something at the gateway, each act to its end, on a gateway that nothing else looks at.

import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Gateway } from '../lib/gateway.ts';
import { expect, goTo, logIn, type Page, settled, test as base } from '../lib/test.ts';

const test = base.extend<{ own: Gateway; at: Page }>({
  own: async ({ started }, use) => use(await started()),
  at: async ({ page, own }, use) => {
    await logIn(page, own);
    await use(page);
  },
});

test('a setting is saved at once, or after it was said what it weakens, and stands in the file', async ({ at, own }) => {
  const file = () => readFileSync(join(own.folder, 'config/moltis.toml'), 'utf8');
  await goTo(at, own, '/settings/sandboxes');
  const panel = at.getByRole('region', { name: 'Limits' });
  await panel.getByLabel('pids_max').fill('77');
  await panel.getByRole('button', { name: 'Save 1 change' }).click();
  await expect(panel.getByText('saved, and holds now')).toBeVisible();
  expect(file()).toContain('pids_max = 77');
  // More than before is less protection: that is said, and no is an answer.
  await panel.getByLabel('pids_max').fill('7700');
  await panel.getByRole('button', { name: 'Save 1 change' }).click();
  await expect(panel.getByRole('alertdialog')).toContainText('pids_max: 77 → 7700');
  await panel.getByRole('button', { name: 'Do not save' }).click();
  expect(file()).toContain('pids_max = 77\n');
  await panel.getByRole('button', { name: 'Save 1 change' }).click();
  await panel.getByRole('button', { name: 'Save it' }).click();
  await expect(panel.getByText('saved, and holds now')).toBeVisible();
  expect(file()).toContain('pids_max = 7700');
  await at.reload();
  await settled(at);
  await expect(panel.getByLabel('pids_max')).toHaveValue('7700');
});

test('a token for a provider is written, never shown, tried, and taken away', async ({ page, started }) => {
  let takes = false;
  const asked = new Set<string | undefined>();
  const provider = createServer((request, response) => {
    asked.add(request.headers.authorization);
    response.writeHead(takes ? 200 : 401, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(takes ? { items: [] } : { message: 'Unauthorized', statusCode: 401 }));
  });
  await new Promise<void>((resolve) => provider.listen(0, '127.0.0.1', resolve));
  const { port } = provider.address() as AddressInfo;
  const own = await started({ backend: `backend = "namespaces"\ndaytona_api_url = "http://127.0.0.1:${port}"` });
  try {
    await logIn(page, own);
    await goTo(page, own, '/settings/remote');
    const panel = page.getByRole('region', { name: 'Remote sandbox backends: Daytona' });
    const test = panel.getByRole('button', { name: 'Test the connection' });
    await expect(test).toHaveCount(0);
    await panel.getByLabel('daytona_api_key').fill('a-key-of-daytona');
    await panel.getByRole('button', { name: 'Add the token' }).click();
    await test.click();
    await expect(panel.getByRole('alert')).toContainText('the provider does not know the token');
    takes = true;
    await test.click();
    await expect(panel.getByText('it answers, and takes the token')).toBeVisible();
    await expect(panel.getByRole('alert')).toHaveCount(0);
    expect([...asked]).toEqual(['Bearer a-key-of-daytona']);
    expect(await page.content()).not.toContain('a-key-of-daytona');
    await panel.getByRole('button', { name: 'Remove…' }).click();
    await panel.getByRole('button', { name: 'Remove the token' }).click();
    await expect(test).toHaveCount(0);
  } finally {
    provider.closeAllConnections();
    provider.close();
  }
});

test('a sandbox that a provider alone knows of is shown as that, and removed there', async ({ page, started }) => {
  const name = 'moltis-left-behind';
  const removed: string[] = [];
  const provider = createServer((request, response) => {
    const path = new URL(request.url ?? '', 'http://provider').pathname;
    if (request.method === 'DELETE') removed.push(path);
    const there = removed.length === 0 ? [{ name, state: 'started', labels: {} }] : [];
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(request.method === 'GET' && path === '/sandbox' ? { items: there } : {}));
  });
  await new Promise<void>((resolve) => provider.listen(0, '127.0.0.1', resolve));
  const { port } = provider.address() as AddressInfo;
  const own = await started({
    backend: `backend = "namespaces"\ndaytona_api_url = "http://127.0.0.1:${port}"`,
    before: (folder) => {
      // As if something had been made there before.
      mkdirSync(join(folder, 'data/remote/daytona'), { recursive: true, mode: 0o700 });
      writeFileSync(join(folder, 'data/remote/daytona/instance'), '0123456789abcdef0123456789abcdef', { mode: 0o600 });
    },
  });
  try {
    await logIn(page, own);
    await goTo(page, own, '/settings/remote');
    const settings = page.getByRole('region', { name: 'Remote sandbox backends: Daytona' });
    await settings.getByLabel('daytona_api_key').fill('a-key-of-daytona');
    await settings.getByRole('button', { name: 'Add the token' }).click();
    await expect(settings.getByRole('button', { name: 'Test the connection' })).toBeVisible();
    await goTo(page, own, '/sandboxes');
    const panel = page.getByRole('region', { name: 'Sandboxes', exact: true });
    const row = panel.getByRole('row').filter({ hasText: 'daytona' });
    await expect(row).toContainText('started, unknown here');
    await row.click();
    await expect(panel.getByText(name)).toBeVisible();
    await expect(panel.getByRole('button', { name: 'Stop…' })).toHaveCount(0);
    await panel.getByRole('button', { name: 'Remove…' }).click();
    await panel.getByRole('button', { name: 'Remove it' }).click();
    await expect(row).toHaveCount(0);
    expect(removed).toEqual([`/sandbox/${name}`]);
  } finally {
    provider.closeAllConnections();
    provider.close();
  }
});

test('a question about a host is answered for this session, and for all', async ({ at, own }) => {
  await goTo(at, own, '/network');
  const question = at.getByRole('region', { name: 'Questions that wait' });
  const asks = async (session: string, host: string) => {
    await own.ask('POST', `/sessions/${session}/processes`, { command: `curl -s -m 50 -o /dev/null https://${host}/; true` });
    await expect(question).toContainText(`${host}:443`);
  };
  await asks('one', 'session.example');
  await question.getByRole('button', { name: 'Allow for this session' }).click();
  await expect(question).toHaveCount(0);
  await asks('one', 'all.example');
  await question.getByRole('button', { name: 'Always allow…' }).click();
  await expect(question.getByRole('alertdialog')).toContainText('Every session');
  await expect(question.getByRole('button', { name: 'Back' })).toBeFocused();
  await question.getByRole('button', { name: 'Always allow it' }).click();
  await expect(question).toHaveCount(0);
  // Both are rules from now on: nobody is asked again.
  await goTo(at, own, '/network/rules?session=one');
  const rules = at.getByRole('table', { name: 'Rules' });
  await expect(rules.getByRole('row', { name: /session\.example/ })).toContainText('allow');
  await expect(rules.getByRole('row', { name: /all\.example/ })).toContainText('allow');
  await own.ask('PUT', '/sessions/two', {});
  const said = [];
  for (const [session, host] of [['one', 'session.example'], ['two', 'all.example'], ['two', 'session.example']]) {
    said.push((await own.ask<{ asks: boolean }>('POST', '/network/test', { session, host })).asks);
  }
  expect(said).toEqual([false, false, true]);
});

test('a folder of the disk that is dropped on the page is uploaded, with what is in its folders', async ({ at, own }) => {
  const folder = join(test.info().outputPath('dropped'), 'tree');
  mkdirSync(join(folder, 'deep/er'), { recursive: true });
  mkdirSync(join(folder, 'empty'));
  writeFileSync(join(folder, 'top.txt'), 'top\n');
  writeFileSync(join(folder, 'deep/er/leaf.txt'), 'leaf\n');
  const loose = join(test.info().outputPath('dropped'), 'loose.txt');
  writeFileSync(loose, 'loose\n');
  await goTo(at, own, '/files');
  const place = at.locator('.browser');
  await expect(at.getByRole('button', { name: 'New folder' })).toBeVisible();
  const box = await place.boundingBox();
  if (box === null) throw new Error('the place has no size');
  // As the browser itself gets it from the desktop: paths, which it reads.
  const browser = await at.context().newCDPSession(at);
  const data = { items: [], files: [folder, loose], dragOperationsMask: 1 };
  const where = { x: box.x + box.width / 2, y: box.y + Math.min(box.height / 2, 200) };
  for (const type of ['dragEnter', 'dragOver'] as const) await browser.send('Input.dispatchDragEvent', { type, ...where, data });
  await expect(at.getByText('Drop to upload into /')).toBeVisible();
  await browser.send('Input.dispatchDragEvent', { type: 'drop', ...where, data });
  await expect(at.getByText(/Uploaded 3 of 3 files/)).toBeVisible();
  await expect(at.getByText('Drop to upload into /')).toHaveCount(0);
  const { entries } = await own.ask<{ entries: { name: string }[] }>('GET', '/files/list?path=%2Ftree');
  expect(entries.map(({ name }) => name).sort()).toEqual(['deep', 'empty', 'top.txt']);
  await goTo(at, own, '/files?path=/tree/deep/er&view=/tree/deep/er/leaf.txt');
  await expect(at.getByRole('log', { name: /leaf.txt/ })).toContainText('leaf');
});

test('variables of a session are set, kept and taken out, and never shown', async ({ at, own }) => {
  await own.ask('PATCH', '/sessions/vars', { env: { KEPT: 'first value', GONE: 'second value' } });
  await goTo(at, own, '/sessions/vars');
  await at.getByRole('button', { name: /^variables/ }).click();
  const form = at.getByRole('form', { name: 'What this session sets' });
  await expect(form.getByLabel('Value of KEPT')).toHaveValue('');
  await form.getByRole('button', { name: 'Take GONE out' }).click();
  await form.getByRole('button', { name: 'Add a variable' }).click();
  await expect(form.getByLabel('Name of variable 3')).toBeFocused();
  await form.getByLabel('Name of variable 3').fill('1ST');
  await expect(form.getByText('is no name of a variable')).toBeVisible();
  await form.getByLabel('Name of variable 3').fill('ADDED');
  await form.getByLabel('Value of ADDED').fill('third value');
  await form.getByLabel('WASM instructions').fill('5000000');
  await form.getByRole('button', { name: 'Save', exact: true }).click();
  await expect(form).toHaveCount(0);
  await expect(at.getByRole('button', { name: /^variables/ })).toContainText('ADDED KEPT');
  await expect(at.locator('body')).not.toContainText('value');
  const { stdout } = await own.ask<{ stdout: string }>('POST', '/sessions/vars/exec', { command: 'echo "$KEPT,$GONE,$ADDED"' });
  expect(stdout).toBe('first value,,third value\n');
  const { overrides } = await own.ask<{ overrides: unknown }>('GET', '/sessions/vars');
  expect(overrides).toEqual({ wasmFuelLimit: 5_000_000 });
});

test('sandboxes say what they take, and the top of the page what running ones lack', async ({ at, own }) => {
  await own.ask('POST', '/sessions/holds/processes', { command: `x=$(head -c 67108864 /dev/zero | tr '\\0' x); sleep 600; echo $x` });
  await goTo(at, own, '/sandboxes');
  const row = at.getByRole('table', { name: 'Sandboxes' }).getByRole('row', { name: /holds/ });
  await expect(row).toContainText(/(6[4-9]|[7-9]\d|1\d\d)(\.\d+)? (MB|MiB)/);
  await at.route('**/api/v1/status', async (route) => {
    const response = await route.fetch();
    const status = (await response.json()) as Record<string, unknown>;
    const lacks = { backend: 'docker', key: 'resource_limits.pids_max', reason: 'not here', session: 'holds', sessions: 2 };
    await route.fulfill({ response, json: { ...status, notEnforced: [], runningNotEnforced: [lacks] } });
  });
  await goTo(at, own, '/sandboxes');
  const strip = at.locator('.strip', { hasText: 'pids_max' });
  await expect(strip).toHaveText(/not enforced.*On docker: resource_limits\.pids_max – as in holds and 1 more/);
  await expect(at.locator('header.bar')).toContainText('1 not enforced');
  await strip.getByRole('link', { name: 'Why' }).click();
  await expect(at).toHaveURL(`${own.url}/sandboxes/backends/docker`);
});
