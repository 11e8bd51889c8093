// What every test is given: a gateway, and pages that are watched. An error in a page's console, a violation of its
// policy, a dialogue, or a request to another host fails the test, whatever else it looks at.

import { type BrowserContext, expect, type Page, test as base } from '@playwright/test';
import { Gateway } from './gateway.ts';
import { seed } from './seed.ts';

export { expect };
export type { Page };

interface Watch {
  /** What a page may say in its console, from now on: failures that the test itself brings about. */
  allow(what: RegExp): void;
  watch(context: BrowserContext): void;
}

interface Each {
  watched: Watch;
  /** A page that is logged in. */
  here: Page;
  /** Starts gateways of the test's own, which end with it once its page has left them. */
  started: (options?: Parameters<typeof Gateway.start>[0]) => Promise<Gateway>;
}

interface Whole {
  /** One for all tests of a worker, with sessions and commands in it. Nothing that others look at may be changed. */
  gateway: Gateway;
}

export const test = base.extend<Each, Whole>({
  gateway: [
    async ({}, use) => {
      const gateway = await Gateway.start();
      try {
        await seed(gateway);
        await use(gateway);
      } finally {
        await gateway.close();
      }
    },
    { scope: 'worker', timeout: 120_000 },
  ],

  watched: async ({}, use) => {
    const allowed: RegExp[] = [];
    const seen: string[] = [];
    const say = (what: string) => {
      if (!allowed.some((pattern) => pattern.test(what))) seen.push(what);
    };
    await use({ allow: (what) => allowed.push(what), watch: (context) => watch(context, say) });
    expect(seen, 'what the pages complained about').toEqual([]);
  },

  started: async ({ page }, use) => {
    const all: Gateway[] = [];
    await use(async (options) => {
      const gateway = await Gateway.start(options);
      all.push(gateway);
      return gateway;
    });
    // An open page asks once more, which a gateway that has ended does not answer.
    await page.goto('about:blank');
    for (const gateway of all) await gateway.close();
  },

  context: async ({ context, watched }, use) => {
    watched.watch(context);
    await use(context);
  },

  here: async ({ page, gateway }, use) => {
    await logIn(page, gateway);
    await use(page);
  },
});

function watch(context: BrowserContext, say: (what: string) => void) {
  void context.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => {
      console.error(`policy: ${event.violatedDirective} refused ${event.blockedURI} in ${event.sourceFile}`);
    });
  });
  context.on('weberror', (error) => say(`${error.error().stack ?? error.error().message}`));
  context.on('console', (message) => {
    if (['error', 'warning', 'assert'].includes(message.type())) say(`${message.type()}: ${message.text()}`);
  });
  context.on('dialog', (dialog) => {
    say(`a dialogue: ${dialog.message()}`);
    void dialog.dismiss();
  });
  context.on('request', (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (protocol !== 'blob:' && protocol !== 'data:' && hostname !== '127.0.0.1') say(`a request to ${request.url()}`);
  });
}

/** Fills in the form of the login, at the address where the page is then. */
export async function logIn(page: Page, gateway: Gateway, address = '/sandboxes') {
  await page.goto(gateway.url + address);
  await page.getByLabel('Admin token or API key').fill(gateway.token);
  await page.getByRole('button', { name: 'Log in' }).click();
  await expect(page.getByRole('navigation', { name: 'Places' })).toBeVisible();
}

/** Goes to an address as somebody who types it: the page is loaded anew. */
export async function goTo(page: Page, gateway: Gateway, address: string) {
  await page.goto(gateway.url + address);
  await settled(page);
}

/** Waits until nothing of a place is still being read. What reads says so by this class. */
export async function settled(page: Page) {
  await expect(page.locator('.place')).toBeVisible();
  await expect(page.locator('.place .loading')).toHaveCount(0);
}
