// Thousands of rows: few are drawn, all can be reached.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AT } from '../lib/seed.ts';
import { expect, goTo, logIn, test } from '../lib/test.ts';

const ROWS = 5_000;

/** The log of a network that was busy for a day. */
function audit(folder: string) {
  const end = Date.now();
  const lines = Array.from({ length: ROWS }, (_, id) =>
    JSON.stringify({
      timestamp: end - (ROWS - id) * 15_000,
      session: `load/${id % 40}`,
      id,
      event: 'open',
      domain: `host-${id}.example`,
      port: 443,
      protocol: 'connect',
      action: id % 3 === 0 ? 'denied' : 'allowed',
      source: 'config',
      reason: '*.example',
      sentBytes: id,
      receivedBytes: id * 10,
      durationMs: 5,
    }),
  );
  writeFileSync(join(folder, 'data/network-audit.jsonl'), `${lines.join('\n')}\n`, { mode: 0o600 });
}

test('a log of thousands and files by the thousand are windowed, by mouse and keyboard', async ({ page, started, watched: _ }) => {
  const gateway = await started({ before: audit });
  await gateway.ask('PUT', '/files/tree?path=%2Fmany', tar(3_000));
  await logIn(page, gateway, '/network');
  const log = page.getByRole('table').first();
  await expect(log.getByText(`host-${ROWS - 1}.example`).first()).toBeVisible();
  expect(await log.locator('[data-row]').count()).toBeLessThan(120);
  await log.locator('[data-row="0"]').focus();
  for (let presses = 0; presses < 5; presses += 1) await page.keyboard.press('End');
  await expect.poll(async () => Number(await page.locator(':focus').getAttribute('data-row'))).toBeGreaterThan(100);
  expect(await log.locator('[data-row]').count()).toBeLessThan(120);

  await goTo(page, gateway, '/network?domain=host-7.example');
  await expect(page.getByRole('table').first().getByText('host-7.example').first()).toBeVisible();

  await goTo(page, gateway, '/files?path=/many');
  const files = page.getByRole('table', { name: /many/ });
  await expect(files).toHaveAttribute('aria-rowcount', '3001');
  expect(await files.locator('[data-row]').count()).toBeLessThan(120);
  await files.locator('[data-row="0"]').focus();
  await page.keyboard.press('End');
  await expect(page.locator('[data-row="2999"]')).toBeFocused();
  await page.getByLabel('Filter by name').fill('f-1234.txt');
  await expect(files).toHaveAttribute('aria-rowcount', '2');
});

test('output of thousands of lines is windowed, and says where it was cut', async ({ here, gateway }) => {
  await goTo(here, gateway, AT);
  await here.getByRole('button', { name: 'seq 1 20000' }).click();
  const output = here.getByRole('log', { name: /seq 1 20000/ });
  await expect(output.getByText('20000', { exact: true })).toBeVisible();
  expect(await output.locator('.of').count()).toBeLessThan(200);
  await output.evaluate((element) => element.scrollTo(0, 0));
  await expect(output.getByText('1', { exact: true })).toBeVisible();
  await expect(here.getByText(/the first and the last 4 KiB are remembered/)).toBeVisible();
});

/** An archive of so many files with a line each. */
function tar(count: number): Buffer {
  const files = Array.from({ length: count }, (_, number) => {
    const block = Buffer.alloc(1024);
    const field = (text: string, at: number) => block.write(text, at, 'latin1');
    field(`f-${number}.txt`, 0);
    field('0000644\0', 100);
    field('0000000\0', 108);
    field('0000000\0', 116);
    field('00000000005\0', 124);
    field('14000000000\0', 136);
    field('        ', 148);
    field('0', 156);
    field('ustar\x0000', 257);
    const sum = block.subarray(0, 512).reduce((total, byte) => total + byte, 0);
    field(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
    field('line\n', 512);
    return block;
  });
  return Buffer.concat([...files, Buffer.alloc(1024)]);
}
