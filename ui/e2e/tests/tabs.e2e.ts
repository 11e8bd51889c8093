// Several tabs, and a gateway that goes away and comes back.

import { expect, goTo, logIn, test } from '../lib/test.ts';

test('two tabs at once show the same, and one login ends for both', async ({ here, gateway, context, watched }) => {
  watched.allow(/status of 401/);
  await gateway.exec('tabs/two', 'true');
  await goTo(here, gateway, '/sessions/tabs%2Ftwo');
  const other = await context.newPage();
  await other.goto(`${gateway.url}/sessions/tabs%2Ftwo`);
  await expect(other.getByRole('button', { name: 'true', exact: true })).toBeVisible();
  await here.getByLabel('Command to run in this session').fill('echo from the first; read line; echo "got $line"');
  await here.keyboard.press('Enter');
  await other.getByRole('button', { name: /echo from the first/ }).click();
  await expect(other.getByRole('log')).toContainText('from the first');
  await other.getByLabel('A line for its standard input').fill('of the second');
  await other.getByRole('button', { name: 'Send' }).click();
  await expect(here.getByRole('log')).toContainText('got of the second');
  await expect(other.getByRole('log')).toContainText('got of the second');
  await other.getByRole('button', { name: 'Log out' }).click();
  for (const page of [here, other]) await expect(page.getByLabel('Admin token or API key')).toBeVisible();
});

test('a tab without the secret of the login has to log in, though it has the cookie', async ({ here, gateway, context, watched }) => {
  watched.allow(/status of 401/);
  const cookies = await context.cookies();
  await here.close();
  const alone = await context.newPage();
  await alone.goto(`${gateway.url}/sessions`);
  await expect(alone.getByLabel('Admin token or API key')).toBeVisible();
  expect(await context.cookies()).toEqual(cookies);
  expect(cookies.map(({ httpOnly, sameSite }) => [httpOnly, sameSite])).toEqual([[true, 'Strict']]);
  const refused = await alone.evaluate(async () => {
    const headers = { 'Content-Type': 'application/json' };
    return (await fetch('/api/v1/sessions/by-cookie-alone', { method: 'PUT', headers, body: '{}' })).status;
  });
  expect(refused).toBe(401);
});

test('a gateway that is killed and comes back: the page says so meanwhile, and loses nothing', async ({ page, started, watched }) => {
  watched.allow(/Failed to load resource|ERR_|WebSocket/);
  const gateway = await started();
  await logIn(page, gateway, '/sessions/over%20restarts');
  await gateway.exec('over restarts', 'echo before');
  await goTo(page, gateway, '/sessions/over%20restarts');
  await page.getByLabel('Command to run in this session').fill('echo begun; while [ ! -e go ]; do sleep 0.2; done; echo finished');
  await page.keyboard.press('Enter');
  await expect(page.getByRole('log')).toContainText('begun');
  await gateway.kill();
  await expect(page.getByText('not live')).toBeVisible();
  await expect(page.getByRole('log')).toContainText('begun');
  await page.getByLabel('Command to run in this session').fill('touch go; echo after');
  await gateway.start();
  await expect(page.getByText('not live')).toHaveCount(0, { timeout: 60_000 });
  await expect(page.getByLabel('Command to run in this session'), 'what was typed').toHaveValue('touch go; echo after');
  await page.getByRole('button', { name: 'Run', exact: true }).click();
  await expect(page.getByRole('log').filter({ hasText: 'begun' })).toContainText('finished');
  await expect(page.getByRole('log').filter({ hasText: 'after' })).toBeVisible();
  await expect(page.getByRole('button', { name: 'echo before' })).toBeVisible();
});
