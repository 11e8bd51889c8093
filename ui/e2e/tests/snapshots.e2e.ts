// What a session held at a moment, and the ways back to it.

import type { Gateway } from '../lib/gateway.ts';
import { expect, goTo, logIn, test } from '../lib/test.ts';

/** What a command prints in a session. */
async function printed(gateway: Gateway, session: string, command: string): Promise<string> {
  const { stdout } = await gateway.ask<{ stdout: string }>('POST', `/sessions/${session}/exec`, { command });
  return stdout;
}

test('a snapshot is taken, gone back to, begun from by a new session, and removed', async ({ page, started, watched }) => {
  // What runs, and what is begun from, is refused first.
  watched.allow(/status of 4\d\d/);
  const gateway = await started();
  await gateway.exec('work', 'echo good > /tmp/state; echo good > ~/state');
  await logIn(page, gateway);
  await goTo(page, gateway, '/sessions/work/snapshots');
  await expect(page.getByText('None was taken')).toBeVisible();
  await page.getByLabel('Name of a new snapshot').fill('before');
  await page.getByRole('button', { name: 'Take a snapshot' }).click();
  const row = page.getByRole('table', { name: 'Snapshots' }).getByRole('row', { name: /before/ });
  await expect(row).toContainText('namespaces');
  await expect(row).toContainText('in it');
  await expect(page.getByLabel('Name of a new snapshot')).toHaveValue('');
  await expect(page).toHaveURL(/snapshot=snap-/);

  await gateway.exec('work', 'echo broken > /tmp/state; echo broken > ~/state');
  await gateway.ask('POST', '/sessions/work/processes', { command: 'sleep 600' });
  await page.getByRole('button', { name: 'Go back to it…' }).click();
  const question = page.getByRole('alertdialog', { name: 'Go back to it' });
  await expect(question).toContainText('/tmp');
  await expect(question).toContainText('Its home is replaced');
  await question.getByRole('button', { name: 'Go back to it' }).click();
  await expect(page.getByRole('alert')).toContainText('sandbox-busy');
  expect(await printed(gateway, 'work', 'cat /tmp/state')).toBe('broken\n');
  await page.getByRole('button', { name: 'Go back to it…' }).click();
  await question.getByRole('checkbox').check();
  await question.getByRole('button', { name: 'Go back to it' }).click();
  await expect(row).toContainText('begins here');
  await expect(page.getByText(/Each sandbox of this session begins from before on namespaces/)).toBeVisible();
  expect(await printed(gateway, 'work', 'cat /tmp/state ~/state')).toBe('good\ngood\n');

  await page.getByRole('button', { name: 'New session from it' }).click();
  await page.getByLabel('Key of the new session').fill('work');
  await page.getByRole('button', { name: 'Make it' }).click();
  await expect(page.getByRole('alert')).toContainText('session-exists');
  await page.getByLabel('Key of the new session').fill('try');
  await page.getByRole('button', { name: 'Make it' }).click();
  await expect(page).toHaveURL(`${gateway.url}/sessions/try`);
  expect(await printed(gateway, 'try', 'cat /tmp/state; echo own > /tmp/state')).toBe('good\n');
  await page.getByRole('link', { name: 'a snapshot' }).click();
  await expect(page).toHaveURL(`${gateway.url}/sessions/try/snapshots`);
  await expect(page.getByText(/begins from snap-.*another session/)).toBeVisible();

  // Back to nothing, in both; then nothing holds it any more.
  for (const session of ['try', 'work']) {
    await goTo(page, gateway, `/sessions/${session}/snapshots`);
    await page.getByRole('button', { name: 'Begin from nothing again…' }).click();
    await page.getByRole('alertdialog').getByRole('button', { name: 'Begin from nothing' }).click();
    await expect(page.getByText(/Each sandbox of this session begins/)).toHaveCount(0);
  }
  await row.click();
  await page.getByRole('button', { name: 'Remove…' }).click();
  await page.getByRole('button', { name: 'Remove it' }).click();
  await expect(page.getByText('None was taken')).toBeVisible();
  expect(await gateway.ask('GET', '/sessions/work/snapshots')).toEqual({ snapshots: [] });
});
