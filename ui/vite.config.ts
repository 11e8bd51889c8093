import { defineConfig } from 'vite';

// A gateway that `npm run dev` stands in front of.
const gateway = process.env.MOLTIS_GATEWAY ?? 'http://127.0.0.1:13131';

export default defineConfig({
  build: {
    target: ['chrome123', 'firefox121', 'safari17.5'],
    // The policy of the page allows no `data:` but for images, and a file is as good.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: Object.fromEntries(
      ['/api', '/healthz', '/readyz', '/metrics', '/mcp'].map((path) => [
        path,
        {
          target: gateway,
          ws: true,
          // The gateway sees to it that a request names it and comes from its own page: from here that is so.
          changeOrigin: true,
          headers: { origin: gateway },
        },
      ]),
    ),
  },
});
