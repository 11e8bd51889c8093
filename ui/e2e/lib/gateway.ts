// A real gateway: the built program, on a port and with folders of its own, with real sandboxes.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

/** Time for whatever a busy machine takes long for, in milliseconds. */
export const PATIENCE = 60_000;

const CONFIG = `
[tools.exec.sandbox]
failover = "off"
home_persistence = "session"
on_unknown = "ask"
approval_timeout = "1m"
network = "trusted"
trusted_domains = ["packages.example"]
denied_domains = ["*.ads.example"]
`;

function program(): string {
  const path = process.env['MOLTIS_PROGRAM'];
  if (path === undefined) throw new Error('MOLTIS_PROGRAM does not say where the program is');
  return path;
}

export class Gateway {
  readonly folder: string;
  #child: ChildProcess | null = null;
  #port = 0;

  private constructor(backend: string) {
    // What outlives this process is found there, and ended, by whoever started it.
    const parent = process.env['MOLTIS_PAGE_FOLDER'] ?? tmpdir();
    this.folder = mkdtempSync(join(parent, 'gateway-'));
    for (const name of ['home', 'config', 'data']) mkdirSync(join(this.folder, name), { mode: 0o700 });
    writeFileSync(join(this.folder, 'config/moltis.toml'), `${CONFIG}${backend}\n`);
  }

  /** One that runs; `backend` is what its configuration says of that, and `before` may put files into its folder. */
  static async start({ backend = 'backend = "namespaces"', before = (_: string) => {} } = {}): Promise<Gateway> {
    const gateway = new Gateway(backend);
    try {
      before(gateway.folder);
      await gateway.start();
    } catch (error) {
      await gateway.close();
      throw error;
    }
    return gateway;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  get token(): string {
    return readFileSync(join(this.folder, 'data/admin-token'), 'utf8').trim();
  }

  /** Its log, for whoever wonders. */
  get log(): string {
    return readFileSync(join(this.folder, 'log'), 'utf8');
  }

  /** Starts it, or starts it again where it was. */
  async start(): Promise<void> {
    const log = openSync(join(this.folder, 'log'), 'a');
    const child = spawn(program(), ['gateway', '--port', String(this.#port), '--json'], {
      cwd: this.folder,
      env: this.#environment(),
      stdio: ['ignore', 'pipe', log],
    });
    this.#child = child;
    const line = await new Promise<string>((resolve, reject) => {
      let text = '';
      const timer = setTimeout(() => reject(new Error(`the gateway did not start\n${this.log}`)), PATIENCE);
      child.stdout?.on('data', (part: Buffer) => {
        text += part.toString();
        if (!text.includes('\n')) return;
        clearTimeout(timer);
        resolve(text);
      });
      child.on('error', reject);
      child.on('exit', (code) => reject(new Error(`the gateway ended with ${code}\n${this.log}`)));
    });
    const { url } = JSON.parse(line) as { url: string };
    this.#port = Number(new URL(url).port);
  }

  /** Ends it without a word of warning. Its sandboxes go on. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  async #end(signal: NodeJS.Signals) {
    const child = this.#child;
    this.#child = null;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill(signal);
    const ended = await Promise.race([gone.then(() => true), pause(PATIENCE, false, { ref: false })]);
    if (!ended) {
      child.kill('SIGKILL');
      await gone;
      throw new Error(`the gateway did not end by ${signal}\n${this.log}`);
    }
  }

  /** Ends it, its sandboxes and what it has built. */
  async close(): Promise<void> {
    try {
      await this.#end('SIGTERM');
      const { sandboxes } = this.#told(['sandbox', 'ps', '--json']) as { sandboxes: { id: string }[] };
      for (const { id } of sandboxes) this.#told(['sandbox', 'rm', id, '--json']);
      const { images } = this.#told(['sandbox', 'list', '--json']) as { images: { tag: string }[] };
      if (images.length > 0) this.#told(['sandbox', 'remove', ...images.map(({ tag }) => tag), '--json']);
      if (this.log.includes('panicked at')) throw new Error(this.log);
    } finally {
      rmSync(this.folder, { recursive: true, force: true });
    }
  }

  #told(words: string[]): unknown {
    const { status, stdout, stderr } = spawnSync(program(), words, { env: this.#environment(), cwd: this.folder, encoding: 'utf8' });
    if (status !== 0) throw new Error(`moltis ${words.join(' ')} ended with ${status}: ${stdout}${stderr}`);
    return JSON.parse(stdout);
  }

  #environment(): NodeJS.ProcessEnv {
    return {
      PATH: process.env['PATH'],
      HOME: join(this.folder, 'home'),
      MOLTIS_CONFIG_DIR: join(this.folder, 'config'),
      MOLTIS_DATA_DIR: join(this.folder, 'data'),
      NO_COLOR: '1',
    };
  }

  /** Asks the API, as the administrator. */
  async ask<T = unknown>(method: string, path: string, body?: unknown): Promise<T> {
    const bytes = typeof body === 'string' || body instanceof Uint8Array;
    const response = await fetch(`${this.url}/api/v1${path}`, {
      method,
      headers: {
        Authorization: `Bearer ${this.token}`,
        ...(body === undefined ? {} : { 'Content-Type': bytes ? 'application/octet-stream' : 'application/json' }),
      },
      ...(body === undefined ? {} : { body: bytes ? (body as BodyInit) : JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return (text === '' ? undefined : JSON.parse(text)) as T;
  }

  /** Runs a command in a session, to its end. */
  async exec(session: string, command: string): Promise<void> {
    await this.ask('POST', `/sessions/${encodeURIComponent(session)}/exec`, { command });
  }
}
