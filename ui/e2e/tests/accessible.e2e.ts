// Every place for everybody: found faults of axe, light and dark, 360 px, less motion.

import AxeBuilder from '@axe-core/playwright';
import { AT } from '../lib/seed.ts';
import { expect, goTo, type Page, test } from '../lib/test.ts';

const PLACES = [
  '/sandboxes',
  '/sandboxes/guarantees',
  '/sandboxes/images',
  '/sandboxes/disk',
  '/sandboxes/backends/namespaces',
  '/sessions',
  AT,
  `${AT}/terminal`,
  `${AT}/background`,
  `${AT}/snapshots`,
  `${AT}/files?path=/home/sandbox/work&view=/home/sandbox/work/evil.svg`,
  '/network',
  '/network/hosts',
  '/network/rules',
  '/files',
  '/settings/sandboxes',
  '/settings/network',
  '/settings/remote',
  '/settings/keys',
  '/settings/all',
];

/** What axe finds that keeps somebody from using the page. What is the same in the dark is looked at in the light. */
async function faults(page: Page, scheme: 'light' | 'dark'): Promise<string[]> {
  const axe = new AxeBuilder({ page });
  const { violations } = await (scheme === 'dark' ? axe.withRules(['color-contrast', 'link-in-text-block']) : axe).analyze();
  const bad = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  return bad.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)} (${node.failureSummary?.split('\n')[1]?.trim()})`));
}

for (const scheme of ['light', 'dark'] as const) {
  test(`axe finds nothing serious on any place, ${scheme}`, async ({ here, gateway }) => {
    test.setTimeout(240_000);
    await here.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    const found: Record<string, string[]> = {};
    for (const address of PLACES) {
      await goTo(here, gateway, address);
      const faulty = await faults(here, scheme);
      if (faulty.length > 0) found[address] = faulty;
    }
    await here.getByRole('button', { name: 'Log out' }).click();
    await expect(here.getByLabel('Admin token or API key')).toBeVisible();
    const faulty = await faults(here, scheme);
    if (faulty.length > 0) found['the login'] = faulty;
    expect(found).toEqual({});
  });
}

test('on 360 px nothing of a page scrolls sideways', async ({ here, gateway }) => {
  test.setTimeout(240_000);
  await here.setViewportSize({ width: 360, height: 740 });
  const wide: Record<string, number> = {};
  for (const address of PLACES) {
    await goTo(here, gateway, address);
    const more = await here.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (more > 0) wide[address] = more;
    await expect(here.getByRole('navigation', { name: 'Places' })).toBeInViewport();
  }
  expect(wide, 'pixels that a page is too wide').toEqual({});
});

test('who asks for less motion gets none', async ({ here, gateway }) => {
  await here.emulateMedia({ reducedMotion: 'reduce' });
  await goTo(here, gateway, AT);
  const moving = await here.evaluate(() => {
    const all = [...document.querySelectorAll('*')].flatMap((element) =>
      ['', '::before', '::after'].map((part) => getComputedStyle(element, part || null)),
    );
    const seconds = (text: string) => Math.max(...text.split(',').map((one) => Number.parseFloat(one) * (one.trim().endsWith('ms') ? 0.001 : 1)));
    return all.filter(
      (style) => seconds(style.transitionDuration) > 0.001 || (style.animationName !== 'none' && seconds(style.animationDuration) > 0.001),
    ).length;
  });
  expect(moving).toBe(0);
});
