// Every place by its address, and back.

import { expect, goTo, settled, test } from '../lib/test.ts';
import { AT, MARKUP } from '../lib/seed.ts';

/** Each address, and what stands there and nowhere else. */
const PLACES: readonly [address: string, title: RegExp, shown: string][] = [
  ['/sandboxes', /^Sandboxes/, 'Backends'],
  ['/sandboxes/guarantees', /Guarantees/, 'namespaces'],
  ['/sandboxes/images', /Images/, 'Build'],
  ['/sandboxes/disk', /Disk use/, 'Disk'],
  ['/sandboxes/backends/namespaces', /namespaces/, 'namespaces'],
  ['/sessions', /^Sessions/, 'ci/build-1'],
  [AT, /review-17/, 'Timeline'],
  [`${AT}/terminal`, /Terminal/, 'Terminal'],
  [`${AT}/background`, /Background/, 'Background'],
  [`${AT}/files?path=/home/sandbox/work`, /Files/, 'a.txt'],
  [`${AT}/snapshots`, /Snapshots/, 'None was taken'],
  ['/network', /^Network/, 'track.ads.example'],
  ['/network/hosts', /Hosts/, 'track.ads.example'],
  ['/network/rules', /Rules/, 'packages.example'],
  ['/files', /^Files/, 'report final.csv'],
  ['/files?path=/notes', /^Files/, 'readme.md'],
  ['/settings/sandboxes', /Settings/, 'Backend'],
  ['/settings/network', /Network.*Settings|Settings.*Network/, 'Network'],
  ['/settings/remote', /Settings/, 'Vercel'],
  ['/settings/keys', /Settings/, 'New key'],
  ['/settings/all', /Settings/, 'Only what is set'],
];

test('each place is what its address says, and has a title of its own', async ({ here, gateway }) => {
  test.setTimeout(240_000);
  for (const [address, title, shown] of PLACES) {
    await test.step(address, async () => {
      await goTo(here, gateway, address);
      await expect(here).toHaveTitle(title);
      await expect(here.locator('main').getByText(shown).first()).toBeVisible();
    });
  }
});

test('back and forward lead through the places, and a filter stands in the address', async ({ here, gateway }) => {
  const places = here.getByRole('navigation', { name: 'Places' });
  for (const name of ['Sessions', 'Network', 'Files', 'Settings']) {
    await places.getByRole('link', { name: new RegExp(`^${name}`) }).click();
    await settled(here);
  }
  for (const name of ['files', 'network', 'sessions', 'sandboxes']) {
    await here.goBack();
    await expect(here).toHaveURL(`${gateway.url}/${name}`);
    await settled(here);
  }
  await here.goForward();
  await here.getByLabel('Filter sessions by a part of their keys').fill('build-1');
  await expect(here).toHaveURL(/contains=build-1/);
  await expect(here.getByRole('link', { name: 'ci/build-1' })).toBeVisible();
  await expect(here.getByRole('link', { name: /review-17/ })).toHaveCount(0);
  await here.reload();
  await expect(here.getByLabel('Filter sessions by a part of their keys')).toHaveValue('build-1');
  await expect(here.getByRole('link', { name: 'ci/build-1' })).toBeVisible();
  await here.getByRole('link', { name: 'ci/build-1' }).click();
  await expect(here).toHaveURL(`${gateway.url}/sessions/ci%2Fbuild-1`);
  await here.goBack();
  await expect(here).toHaveURL(/contains=build-1/);
});

test('a key of any characters has an address', async ({ here, gateway }) => {
  await goTo(here, gateway, `/sessions/${encodeURIComponent(MARKUP)}`);
  await expect(here.locator('main').getByText(MARKUP).first()).toBeVisible();
});

test('keys that browsers fold away have addresses too', async ({ here, gateway }) => {
  for (const [key, written] of [['.', '~.'], ['..', '~..'], ['~.', '~~.']] as const) {
    await goTo(here, gateway, '/sessions');
    await here.getByRole('button', { name: 'New session' }).click();
    await here.getByLabel('Key', { exact: true }).fill(key);
    await here.getByRole('button', { name: 'Open' }).click();
    await expect(here).toHaveURL(`${gateway.url}/sessions/${written}`);
    await here.getByLabel('Command to run in this session').fill(`echo "in $((40 + 2))"`);
    await here.keyboard.press('Enter');
    await expect(here.getByRole('log')).toContainText('in 42');
    await here.reload();
    await settled(here);
    await expect(here.locator('h1')).toHaveText(`Sessions›${key}`);
    const { session } = await gateway.ask<{ session: string }>('GET', `/sessions/${written}`);
    expect(session).toBe(key);
    await here.getByRole('link', { name: 'Background' }).click();
    await expect(here).toHaveURL(`${gateway.url}/sessions/${written}/background`);
    await gateway.ask('DELETE', `/sessions/${written}`);
  }
});

test('an address where nothing is says so', async ({ here, gateway, watched }) => {
  watched.allow(/status of 404/);
  await goTo(here, gateway, '/nothing/here');
  await expect(here.getByText('There is nothing at this address')).toBeVisible();
  await goTo(here, gateway, '/sessions/never-made');
  await expect(here.locator('main').getByText('never-made').first()).toBeVisible();
  await expect(here.locator('main').getByRole('button', { name: /make|open/i }).first()).toBeVisible();
});
