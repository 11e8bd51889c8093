// The focus is never lost, whatever becomes of what has it.

import { expect, goTo, type Page, settled, test } from '../lib/test.ts';

const row = (page: Page, name: string) => page.getByRole('row', { name });

test('the focus stays with its row while the list is put in another order, and goes to what is near when the row is gone', async ({ here, gateway }) => {
  // Each change is told after a second, and that many times.
  test.setTimeout(240_000);
  const keys = ['focus/a', 'focus/b', 'focus/c'];
  for (const key of keys) await gateway.exec(key, 'true');
  try {
    await goTo(here, gateway, '/sessions?contains=focus%2F');
    const first = here.locator('[data-row="0"]');
    await expect(first).toContainText('focus/c');
    await row(here, 'focus/b').focus();
    // It becomes the first one, and the one that was it comes behind.
    await gateway.exec('focus/b', 'true');
    await expect(first).toContainText('focus/b');
    await expect(row(here, 'focus/b')).toBeFocused();
    await gateway.exec('focus/a', 'true');
    await expect(first).toContainText('focus/a');
    await expect(row(here, 'focus/b')).toBeFocused();
    await here.keyboard.press('ArrowUp');
    await expect(row(here, 'focus/a')).toBeFocused();
    // Of several rows, then of one, then of none.
    for (const [gone, next] of [['focus/a', 'focus/b'], ['focus/b', 'focus/c']] as const) {
      await gateway.ask('DELETE', `/sessions/${encodeURIComponent(gone)}`);
      await expect(row(here, gone)).toHaveCount(0);
      await expect(row(here, next)).toBeFocused();
    }
    await gateway.ask('DELETE', `/sessions/${encodeURIComponent('focus/c')}`);
    await expect(here.getByText('No session has this in its key')).toBeVisible();
    await expect(here.getByRole('region', { name: /^Keys with/ })).toBeFocused();
    await here.keyboard.press('Tab');
    await expect(here.getByRole('button', { name: 'Show all' })).toBeFocused();
    // The button is gone with what it ended.
    await here.keyboard.press('Enter');
    await expect(here.getByRole('region', { name: 'All sessions' })).toBeFocused();
  } finally {
    for (const key of keys) await gateway.ask('DELETE', `/sessions/${encodeURIComponent(key)}`).catch(() => undefined);
  }
});

test('what closes gives the focus back to what opened it', async ({ here, gateway }) => {
  await gateway.exec('focus/chips', 'true');
  await goTo(here, gateway, '/sessions/focus%2Fchips');
  const chip = here.getByRole('button', { name: /^network/ });
  await chip.focus();
  await here.keyboard.press('Enter');
  const form = here.getByRole('form', { name: 'What this session sets' });
  await expect(form.locator(':focus')).toHaveAttribute('name', 'network');
  await here.keyboard.press('Escape');
  await expect(form).toHaveCount(0);
  await expect(chip).toBeFocused();
});

test('who clicks beside what has the focus, or goes past the end of the page, has given it up', async ({ here, gateway }) => {
  await gateway.exec('focus/left', 'true');
  await goTo(here, gateway, '/sessions?contains=focus%2Fleft');
  const body = () => here.evaluate(() => document.activeElement === document.body);
  await row(here, 'focus/left').focus();
  await here.locator('header.bar').click({ position: { x: 400, y: 10 } });
  expect(await body()).toBe(true);
  await gateway.exec('focus/left2', 'true');
  await expect(here.locator('[data-row]')).toHaveCount(2);
  expect(await body()).toBe(true);
  // The last thing that Tab leads to.
  await here.locator('[data-row][tabindex="0"] a').focus();
  for (let presses = 0; presses < 10 && !(await body()); presses += 1) await here.keyboard.press('Tab');
  await gateway.exec('focus/left3', 'true');
  await expect(here.locator('[data-row]')).toHaveCount(3);
  expect(await body()).toBe(true);
});

test('a filter that is typed slowly keeps each of its characters', async ({ here, gateway }) => {
  await gateway.exec('typed/slowly', 'true');
  await goTo(here, gateway, '/sessions');
  await here.getByLabel('Filter sessions by a part of their keys').focus();
  // Pauses around that after which the address follows, which it does while the next character is typed.
  for (const character of 'typed/slowly') {
    await here.keyboard.type(character);
    await here.waitForTimeout(260 + Math.random() * 80);
  }
  await expect(here).toHaveURL(/contains=typed%2Fslowly$/);
  await expect(here.getByLabel('Filter sessions by a part of their keys')).toHaveValue('typed/slowly');
  await settled(here);
});
