// What came out of a sandbox is text: never markup, never a programme, never a sequence that a terminal would obey.

import { AT, MARKUP, SCRIPT } from '../lib/seed.ts';
import { expect, goTo, type Page, test } from '../lib/test.ts';

/** Nothing of a sandbox has become a part of the page or has changed it. */
async function untouched(page: Page) {
  await expect(page).toHaveTitle(/ · Moltis$/);
  const strange = await page.evaluate(
    () => document.querySelectorAll('main script, main iframe, main object, main embed, main img, main [onload], main [onerror], main [onmouseover], main b').length,
  );
  expect(strange).toBe(0);
}

test('what a command printed is text: markup, pictures, sequences, text from right to left', async ({ here, gateway }) => {
  await goTo(here, gateway, AT);
  await here.getByRole('button', { name: /cat <</ }).click();
  const markup = here.getByRole('log', { name: /cat <</ });
  await expect(markup).toContainText(SCRIPT);
  await expect(markup).toContainText('<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>');
  await here.getByRole('button', { name: /^printf/ }).click();
  const sequences = here.getByRole('log', { name: /^Output of printf/ });
  await expect(sequences).toContainText('gpj.exe');
  await expect(sequences.locator('a')).toHaveCount(0);
  const text = (await sequences.textContent()) ?? '';
  expect(text, 'what changes directions or commands a terminal is written out').not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/);
  await untouched(here);
});

test('keys and names of files like markup are text, and show which way they really read', async ({ here, gateway }) => {
  await goTo(here, gateway, '/sessions');
  await expect(here.getByRole('link', { name: MARKUP })).toBeVisible();
  await untouched(here);
  await goTo(here, gateway, `${AT}/files?path=/home/sandbox/work`);
  await expect(here.locator('main').getByText('<b>bold<b>.txt').first()).toBeVisible();
  const named = (await here.getByText(/gpj\.exe/).first().textContent()) ?? '';
  expect(named).not.toMatch(/\u202e/);
  await untouched(here);
});

test('a picture of lines and a page are shown as text, a picture of dots is drawn', async ({ here, gateway }) => {
  const view = (name: string) => `${AT}/files?path=/home/sandbox/work&view=/home/sandbox/work/${name}`;
  await goTo(here, gateway, view('evil.svg'));
  await expect(here.getByRole('log', { name: /evil.svg/ })).toContainText('<script>document.title="run"</script>');
  await untouched(here);
  await goTo(here, gateway, view('evil.html'));
  await expect(here.getByRole('log', { name: /evil.html/ })).toContainText('<title>run</title>');
  await untouched(here);
  await goTo(here, gateway, view('dot.png'));
  await expect(here.getByRole('img', { name: 'The image dot.png' })).toBeVisible();
});

test('files come as attachments that no browser opens in place', async ({ here, gateway }) => {
  const file = `${gateway.url}/api/v1/sessions/${encodeURIComponent('team/review-17')}/files/content?path=/home/sandbox/work/evil.html`;
  const answer = await here.request.get(file);
  expect(answer.status()).toBe(200);
  const head = answer.headers();
  expect(head['content-disposition']).toMatch(/^attachment/);
  expect(head['x-content-type-options']).toBe('nosniff');
  expect(head['content-security-policy']).toContain('sandbox');
  await goTo(here, gateway, `${AT}/files?path=/home/sandbox/work`);
  const coming = here.waitForEvent('download');
  await here.getByRole('link', { name: 'Download evil.html' }).click();
  expect((await coming).suggestedFilename()).toBe('evil.html');
  await untouched(here);
});

test('a terminal obeys no title, link or clipboard of what runs in it', async ({ here, gateway }) => {
  await here.context().grantPermissions(['clipboard-read', 'clipboard-write'], { origin: gateway.url });
  await goTo(here, gateway, `${AT}/terminal`);
  await here.evaluate(() => navigator.clipboard.writeText('mine'));
  await expect(here.locator('[data-phase=open]')).toBeVisible();
  await here.locator('.xterm-helper-textarea').focus();
  await here.keyboard.type(String.raw`printf '\033]0;taken\007\033]8;;http://evil.example\007link\033]8;;\007\033]52;c;c3RvbGVu\007%s\n' 'all''done'`);
  await here.keyboard.press('Enter');
  await expect(here.locator('.xterm-rows')).toContainText('alldone');
  await expect(here).toHaveTitle(/Terminal.* · Moltis$/);
  expect(await here.evaluate(() => navigator.clipboard.readText())).toBe('mine');
  await expect(here.locator('.xterm a')).toHaveCount(0);
});
