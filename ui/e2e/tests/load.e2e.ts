// What a page takes to be there: bytes, hosts, a slow link.

import { expect, logIn, settled, test } from '../lib/test.ts';

/** Bytes as they are sent, of all that the page is made of. */
const MOST = 200_000;

test('the first load is at most 200 kB as sent, without the terminal, and of no other host', async ({ page, gateway, watched: _ }) => {
  const link = await page.context().newCDPSession(page);
  await link.send('Network.enable');
  const addresses = new Map<string, string>();
  const sent = new Map<string, number>();
  link.on('Network.responseReceived', ({ requestId, response }) => addresses.set(requestId, response.url));
  link.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
    const address = addresses.get(requestId);
    if (address !== undefined && !new URL(address).pathname.startsWith('/api/')) sent.set(address, encodedDataLength);
  });
  await logIn(page, gateway);
  await settled(page);
  await expect.poll(() => [...sent.keys()].some((address) => address.endsWith('.js'))).toBe(true);
  expect([...sent.keys()].filter((address) => /terminal/.test(address))).toEqual([]);
  expect([...sent.keys()].map((address) => new URL(address).host)).toEqual([...sent.keys()].map(() => new URL(gateway.url).host));
  const total = [...sent.values()].reduce((sum, bytes) => sum + bytes, 0);
  console.log(`first load: ${total} bytes in ${sent.size} files`);
  expect(total).toBeLessThanOrEqual(MOST);
});

test('on a slow link the page says that it reads, and gets there', async ({ here, gateway }) => {
  const link = await here.context().newCDPSession(here);
  await link.send('Network.enable');
  await link.send('Network.emulateNetworkConditions', { offline: false, latency: 800, downloadThroughput: 25_000, uploadThroughput: 10_000 });
  await here.getByRole('link', { name: /^Sessions/ }).click();
  await expect(here.getByText('Reading sessions')).toBeVisible();
  await here.getByRole('link', { name: 'team/review-17' }).click();
  await expect(here.getByRole('button', { name: /uname -s/ })).toBeVisible();
  // Something that changes meanwhile still comes by itself.
  await gateway.exec('team/slow', 'true');
  await here.getByRole('navigation', { name: 'Places' }).getByRole('link', { name: /^Sessions/ }).click();
  await expect(here.getByRole('link', { name: 'team/slow' })).toBeVisible();
  await expect(here).toHaveURL(`${gateway.url}/sessions`);
});
