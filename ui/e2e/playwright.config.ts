// How the page is tested: in the system's Chromium, by the order of the files, each test once.

import { defineConfig } from '@playwright/test';

/** What a machine without a display, and without an account for the browser, needs; and nothing that calls home. */
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

export default defineConfig({
  testDir: 'tests',
  testMatch: '*.e2e.ts',
  outputDir: 'results',
  // A test that fails now and then is a fault to find.
  retries: 0,
  workers: 2,
  timeout: 90_000,
  expect: { timeout: 30_000 },
  forbidOnly: true,
  reporter: './lib/report.ts',
  use: {
    launchOptions: { executablePath: process.env['MOLTIS_CHROMIUM'] ?? '/usr/bin/chromium', args: FLAGS },
    viewport: { width: 1280, height: 800 },
    locale: 'en-GB',
    actionTimeout: 30_000,
    navigationTimeout: 30_000,
  },
});
