// Pictures of each place for the documentation, where a folder for them is given.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Gateway } from '../lib/gateway.ts';
import { AT, seed } from '../lib/seed.ts';
import { expect, goTo, logIn, type Page, test } from '../lib/test.ts';

const FOLDER = process.env['MOLTIS_PAGE_SHOTS'];

const PLACES: readonly [name: string, address: string][] = [
  ['sandboxes', '/sandboxes'],
  ['sessions', '/sessions'],
  ['session', AT],
  ['network', '/network'],
  ['files', '/files'],
  ['settings', '/settings/sandboxes'],
];

const FORMS = [
  { form: 'light', colorScheme: 'light', viewport: { width: 1280, height: 800 } },
  { form: 'dark', colorScheme: 'dark', viewport: { width: 1280, height: 800 } },
  { form: 'phone', colorScheme: 'light', viewport: { width: 360, height: 740 } },
] as const;

if (FOLDER !== undefined) {
  test('each place is drawn, light, dark and on a phone', async ({ page: here, started, watched: _ }) => {
    test.setTimeout(240_000);
    mkdirSync(FOLDER, { recursive: true });
    // One in which no other test has left anything.
    const gateway = await started();
    await seed(gateway);
    await logIn(here, gateway);
    await drawn(here, gateway, FOLDER);
  });
}

async function drawn(here: Page, gateway: Gateway, folder: string) {
  for (const { form, colorScheme, viewport } of FORMS) {
    await here.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await here.setViewportSize(viewport);
    for (const [name, address] of PLACES) {
      await goTo(here, gateway, address);
      if (name === 'session') {
        await here.getByRole('button', { name: /ls \/nowhere/ }).click();
        await expect(here.getByRole('log')).toBeVisible();
        await here.evaluate(() => scrollTo(0, 0));
      }
      await here.screenshot({ path: join(folder, `${name}-${form}.png`), scale: 'css' });
    }
  }
}
