// The first hour with Moltis, by the page alone.

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { IMAGE, lacking } from '../lib/engine.ts';
import { expect, logIn, settled, test } from '../lib/test.ts';

test('log in, look around, run a command and watch it, allow and block a domain, upload a folder', async ({ page, started, watched }) => {
  watched.allow(/status of 401/);
  const gateway = await started();
  await page.goto(gateway.url);
  await page.getByLabel('Admin token or API key').fill('mistyped');
  await page.getByRole('button', { name: 'Log in' }).click();
  await expect(page.getByRole('alert')).toBeVisible();
  await logIn(page, gateway, '/');
  await expect(page).toHaveURL(`${gateway.url}/sandboxes`);

  // What holds commands, and what it keeps.
  const backends = page.locator('.backends');
  await expect(backends.getByRole('link', { name: 'namespaces', exact: true })).toBeVisible();
  await expect(page.getByText('No sandbox runs')).toBeVisible();
  await page.getByRole('link', { name: 'Details of namespaces' }).click();
  await expect(page).toHaveURL(/backends\/namespaces/);

  // A session, a command, its output as it comes.
  const places = page.getByRole('navigation', { name: 'Places' });
  await places.getByRole('link', { name: /^Sessions/ }).click();
  await expect(page.getByText('No session yet')).toBeVisible();
  await page.getByRole('button', { name: 'New session' }).click();
  await page.getByLabel('Key', { exact: true }).fill('first');
  await page.getByRole('button', { name: 'Open' }).click();
  await expect(page.getByText('It has run nothing yet')).toBeVisible();
  const command = page.getByLabel('Command to run in this session');
  await command.fill('echo one; read line; echo "two $line"; exit 3');
  await page.getByRole('button', { name: 'Run', exact: true }).click();
  await expect(page.getByRole('log')).toHaveText(/one/);
  await page.getByLabel('A line for its standard input').fill('more');
  await page.getByRole('button', { name: 'Send' }).click();
  await expect(page.getByRole('log')).toContainText('two more');
  await expect(page.locator('.command-row').first()).toContainText('3');
  await expect(page.locator('header.bar')).toContainText('1 running');

  // A host that no rule names: a question, answered for this session.
  const reach = (host: string) => `curl -s -m 20 -o /dev/null -w 'code %{http_connect}\\n' https://${host}/; true`;
  await command.fill(reach('new.example'));
  await command.press('Enter');
  await expect(page.getByText(/asks to reach a host that no rule names/)).toBeVisible();
  await page.getByRole('link', { name: 'Answer' }).click();
  const question = page.getByRole('region', { name: 'Questions that wait' });
  await expect(question).toContainText('new.example:443');
  await question.getByRole('button', { name: 'Deny' }).click();
  await expect(question).toHaveCount(0);
  const log = page.getByRole('table').first();
  await expect(log.getByText('new.example').first()).toBeVisible();

  // A rule for all: what it weakens is said first.
  await page.getByRole('link', { name: 'Rules' }).click();
  await page.getByLabel('New rule for good').fill('*.allowed.example');
  await page.getByRole('button', { name: 'Make it' }).click();
  await expect(page.getByRole('alertdialog')).toContainText('Every session');
  await page.getByRole('button', { name: 'Allow it for all' }).click();
  const rules = page.getByRole('table', { name: 'Rules' });
  await expect(rules.getByRole('row', { name: /\*\.allowed\.example/ })).toContainText('allow');
  await page.getByLabel('New rule for good').fill('blocked.example');
  await page.getByLabel('What it does').selectOption('deny');
  await page.getByRole('button', { name: 'Make it' }).click();
  await expect(rules.getByRole('row', { name: /blocked\.example/ })).toContainText('deny');
  const ask = page.getByLabel('Host, with :port if it is not 443');
  for (const [host, word] of [['blocked.example', 'denied'], ['a.allowed.example', 'allowed']] as const) {
    await ask.fill(host);
    await page.getByRole('button', { name: 'Ask', exact: true }).click();
    await expect(page.getByRole('status').filter({ hasText: `${host}:443` })).toContainText(word);
  }
  await page.getByRole('button', { name: 'Forget the rule blocked.example' }).click();
  await page.getByRole('button', { name: 'Forget it' }).click();
  await expect(rules.getByRole('row', { name: /blocked\.example/ })).toHaveCount(0);

  // A folder, with a file that is often secret: that one is asked about.
  const folder = join(test.info().outputPath('upload'), 'project');
  mkdirSync(join(folder, 'src'), { recursive: true });
  writeFileSync(join(folder, 'readme.md'), '# It is there\n');
  writeFileSync(join(folder, 'src/main.py'), 'print(1)\n');
  writeFileSync(join(folder, '.env'), 'TOKEN=1\n');
  await places.getByRole('link', { name: /^Files/ }).click();
  await settled(page);
  await page.locator('input[type=file][webkitdirectory]').setInputFiles(folder);
  await expect(page.getByText('1 file often holds secrets')).toBeVisible();
  await page.getByRole('button', { name: 'Upload 2' }).click();
  await expect(page.getByText(/Uploaded 2 of 2 files/)).toBeVisible();
  await page.getByText('project/').click();
  await expect(page.getByRole('table', { name: /project/ })).toContainText('readme.md');
  await expect(page.getByRole('table', { name: /project/ })).not.toContainText('.env');
  await page.getByText('readme.md').click();
  await expect(page.getByRole('log', { name: /readme.md/ })).toContainText('# It is there');
  // The same once more: what is there is not replaced without a word.
  await page.getByRole('button', { name: '/', exact: true }).click();
  await page.locator('input[type=file][webkitdirectory]').setInputFiles(folder);
  await expect(page.getByText(/2 names are taken/)).toBeVisible();
  await page.getByRole('radio', { name: /skip/i }).check();
  await page.getByRole('button', { name: 'Cancel' }).click();

  // The end of it: what is lost is named.
  await places.getByRole('link', { name: /^Sandboxes/ }).click();
  await page.getByRole('row', { name: /first/ }).click();
  await page.getByRole('button', { name: 'Stop…' }).click();
  await expect(page.getByRole('alertdialog')).toContainText('/tmp');
  await page.getByRole('button', { name: 'Stop it' }).click();
  await expect(page.locator('header.bar')).toContainText('0 running');
});

test('an image is built on Docker, its log is live, and a command runs in it', async ({ page, started, watched: _ }) => {
  const without = lacking();
  test.skip(without !== '', without);
  test.setTimeout(240_000);
  const gateway = await started({ backend: `backend = "docker"\nimage = "${IMAGE}"\npackages = ["hello"]` });
  await logIn(page, gateway, '/sandboxes/images');
  await page.getByRole('button', { name: 'Build', exact: true }).click();
  await expect(page.getByRole('log', { name: 'Build log' })).toBeVisible({ timeout: 60_000 });
  await expect(page.getByText(/on docker was (built|there already)/)).toBeVisible({ timeout: 80_000 });
  await expect(page.getByRole('table', { name: 'Images' })).toContainText(IMAGE);
  await page.goto(`${gateway.url}/sessions`);
  await gateway.ask('PUT', '/sessions/contained', {});
  await page.getByRole('link', { name: 'contained' }).click();
  await page.getByLabel('Command to run in this session').fill('hello');
  await page.keyboard.press('Enter');
  await expect(page.getByRole('log')).toContainText('Hello, world!', { timeout: 60_000 });
  await expect(page.locator('.command-row').first()).toContainText('docker');
});
