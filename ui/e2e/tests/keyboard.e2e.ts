// The main acts without a mouse.

import { AT } from '../lib/seed.ts';
import { expect, goTo, type Page, settled, test } from '../lib/test.ts';

/** Presses Tab until what has the focus is of this name. */
async function tabTo(page: Page, name: RegExp, most = 80) {
  for (let presses = 0; presses < most; presses += 1) {
    await page.keyboard.press('Tab');
    const found = await page.evaluate(() => {
      const element = document.activeElement;
      const label = element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement ? element.labels?.[0]?.textContent : '';
      return element?.getAttribute('aria-label') ?? (label || element?.textContent || '');
    });
    if (name.test(found.trim())) return;
  }
  throw new Error(`Tab does not lead to ${name}`);
}

/** Whether what has the focus can be seen to have it. */
async function ringed(page: Page) {
  const style = await page.evaluate(() => {
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement ?? document.body);
    return { outline: outlineStyle !== 'none' && Number.parseFloat(outlineWidth) > 0, shadow: boxShadow !== 'none' };
  });
  expect(style.outline || style.shadow, 'a ring around what has the focus').toBe(true);
}

test('log in, open a session, run a command, read its output and stop another, by keyboard alone', async ({ page, gateway, watched: _ }) => {
  await gateway.exec('keyboard/one', 'true');
  await page.goto(`${gateway.url}/sessions`);
  await expect(page.getByLabel('Admin token or API key')).toBeFocused();
  await page.keyboard.type(gateway.token);
  await page.keyboard.press('Enter');
  await settled(page);
  await page.keyboard.press('Tab');
  await expect(page.getByRole('link', { name: 'Skip to the content' })).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.locator('#main')).toBeFocused();
  await tabTo(page, /^Filter sessions/);
  await page.keyboard.type('keyboard/');
  await expect(page.getByRole('link', { name: /review-17/ })).toHaveCount(0);
  await expect(page.getByRole('row', { name: 'keyboard/one' })).toBeVisible();
  await page.keyboard.press('Tab');
  await ringed(page);
  // A table is one stop; arrows lead through its rows and Enter opens one.
  await tabTo(page, /^keyboard\/one/, 5);
  await expect(page.getByRole('row', { name: 'keyboard/one' })).toBeFocused();
  await ringed(page);
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(/keyboard%2Fone/);
  await settled(page);
  await tabTo(page, /^Command to run/);
  await page.keyboard.type('echo typed; sleep 600');
  await page.keyboard.press('Enter');
  await expect(page.getByRole('log')).toContainText('typed');
  await tabTo(page, /^Stop$/);
  await ringed(page);
  await page.keyboard.press('Enter');
  // What changes nothing has the focus; Escape is that too.
  await expect(page.getByRole('button', { name: 'Keep' }).last()).toBeFocused();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('alertdialog')).toHaveCount(0);
  await expect(page.locator(':focus')).toHaveText('Stop');
  await page.keyboard.press('Enter');
  await expect(page.getByRole('button', { name: 'Keep' }).last()).toBeFocused();
  await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Enter');
  await expect(page.getByText(/It is over after/)).toBeVisible();
});

test('a rule, a folder and a setting, by keyboard alone', async ({ here, gateway }) => {
  await goTo(here, gateway, '/network/rules');
  await tabTo(here, /^New rule for good/);
  await here.keyboard.type('typed.example');
  await here.keyboard.press('Enter');
  await expect(here.getByRole('button', { name: 'Back' })).toBeFocused();
  await here.keyboard.press('Shift+Tab');
  await here.keyboard.press('Enter');
  await expect(here.getByRole('row', { name: /typed\.example/ })).toBeVisible();

  await goTo(here, gateway, '/files');
  await tabTo(here, /^New folder$/);
  await here.keyboard.press('Enter');
  await expect(here.getByLabel('Name', { exact: true })).toBeFocused();
  await here.keyboard.type('typed');
  await here.keyboard.press('Enter');
  await expect(here.getByRole('row', { name: /typed\// })).toBeVisible();

  await goTo(here, gateway, AT);
  // In capitals it is the place.
  await tabTo(here, /^network/, 40);
  await here.keyboard.press('Enter');
  await expect(here.getByRole('form', { name: 'What this session sets' }).locator(':focus')).toHaveAttribute('name', 'network');
  await here.keyboard.press('Escape');
  await expect(here.getByRole('form', { name: 'What this session sets' })).toHaveCount(0);
});

test('the terminal is entered and left by keyboard', async ({ here, gateway }) => {
  await goTo(here, gateway, `${AT}/terminal`);
  await expect(here.locator('[data-phase=open]')).toBeVisible();
  await here.locator('.xterm-helper-textarea').focus();
  await here.keyboard.type("echo 'with''in'");
  await here.keyboard.press('Enter');
  await expect(here.locator('.xterm-rows')).toContainText('within');
  await here.keyboard.press('Control+Alt+Escape');
  await expect(here.getByRole('link', { name: 'Terminal' })).toBeFocused();
});
