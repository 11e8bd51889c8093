// Sends what Node's own HTTP clients fetch through the proxy that the variables name. With NODE_USE_ENV_PROXY=1 newer
// versions do that for `fetch` and the global agents, and for no other agent; older ones not at all. Loaded by
// NODE_OPTIONS; must never keep a program from starting.
'use strict';
try {
  const { env, versions } = process;
  const [major, minor] = versions.node.split('.').map(Number);
  const able = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
  const native = able && env.NODE_USE_ENV_PROXY === '1';
  const named = env.https_proxy || env.HTTPS_PROXY || env.http_proxy || env.HTTP_PROXY;
  if (named) install(new URL(named), env.no_proxy || env.NO_PROXY || '', native);
  if (native && major === 22) withoutWarning('UNDICI-EHPA');
} catch {
  // Then this program does without.
}

// Node 22 says on standard error of each process that this is experimental.
function withoutWarning(code) {
  const { emit } = process;
  process.emit = function (name, ...rest) {
    if (name !== 'warning' || !rest[0] || rest[0].code !== code) return emit.call(this, name, ...rest);
    process.emit = emit;
    return true;
  };
}

function install(proxy, except, native) {
  const net = require('net');
  const http = require('http');
  const https = require('https');
  const plain = (host) => String(host).replace(/^\[|\]$/g, '').replace(/\.$/, '').toLowerCase();
  const list = except.split(/[\s,]+/).filter(Boolean).map((item) => plain(item.replace(/^\*?\./, '')));
  const direct = (host) => {
    host = plain(host);
    return host === '0.0.0.0' || host === '::' || /^127\./.test(host) ||
      list.some((item) => item === '*' || host === item || host.endsWith('.' + item));
  };

  // A connection through the proxy, once the proxy has agreed.
  const tunnel = (host, port, done) => {
    host = plain(host);
    const target = (host.includes(':') ? `[${host}]` : host) + ':' + port;
    const socket = net.connect({ host: plain(proxy.hostname), port: Number(proxy.port || 80) });
    let head = Buffer.alloc(0);
    const over = (error) => {
      socket.removeListener('readable', read).removeListener('error', over).removeListener('close', closed);
      if (error) socket.destroy();
      done(error, error ? undefined : socket);
    };
    const closed = () => over(new Error(`the proxy ended the connection to ${target}`));
    const read = () => {
      for (let piece; (piece = socket.read()) !== null;) {
        head = Buffer.concat([head, piece]);
        const end = head.indexOf('\r\n\r\n');
        if (end < 0 && head.length < 16384) continue;
        const [first, ...fields] = head.subarray(0, end < 0 ? 0 : end).toString('latin1').split('\r\n');
        if (/^HTTP\/1\.[01] 200\b/.test(first)) {
          // Before anything else is read, so that it comes first.
          if (head.length > end + 4) socket.unshift(head.subarray(end + 4));
          return over();
        }
        return over(new Error(`the proxy said to ${target}: ${first.slice(0, 200)}`));
      }
    };
    socket.on('readable', read).on('error', over).on('close', closed);
    socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
  };

  // http and https: every agent that connects by itself.
  const through = (agent, defaultPort, secure) => {
    const original = agent.prototype.createConnection;
    agent.prototype.createConnection = function createConnection(...given) {
      const options = given[0];
      const done = given.find((argument) => typeof argument === 'function');
      const own = !done || !options || typeof options !== 'object' || options.socketPath || options.socket;
      const taken = native && (this === http.globalAgent || this === https.globalAgent || this.options.proxyEnv);
      if (own || taken || direct(options.host || 'localhost')) return original.apply(this, given);
      tunnel(options.host, options.port || defaultPort, (error, socket) => {
        if (error) return done(error);
        try {
          done(null, secure ? original.call(this, { ...options, socket, path: undefined }) : socket);
        } catch (thrown) {
          done(thrown);
        }
      });
    };
  };
  through(http.Agent, 80, false);
  through(https.Agent, 443, true);

  // fetch: the dispatcher that it shares with whoever asks for it.
  const key = Symbol.for('undici.globalDispatcher.1');
  const fetch = globalThis.fetch;
  if (typeof fetch !== 'function') return;
  let ready = false;
  const prepare = () => {
    ready = true;
    // Loads it, if nothing has.
    void globalThis.Headers;
    const Agent = globalThis[key] && globalThis[key].constructor;
    // Another kind is the program's own.
    if (!Agent || Agent.name !== 'Agent') return;
    const tls = require('tls');
    const connect = (options, done) => {
      const { hostname, host, protocol, port, servername } = options;
      const secure = protocol === 'https:';
      const number = Number(port || (secure ? 443 : 80));
      const name = servername || (net.isIP(plain(hostname)) ? undefined : hostname);
      const finish = (error, socket) => {
        if (error) return done(error);
        if (!secure) return done(null, socket);
        const session = tls.connect({ socket, servername: name, host: plain(hostname), ALPNProtocols: ['http/1.1'] });
        session.once('secureConnect', () => { session.removeListener('error', done); done(null, session); });
        session.once('error', done);
      };
      if (!direct(hostname)) return tunnel(hostname, number, finish);
      const socket = net.connect({ host: plain(hostname), port: number });
      socket.once('error', finish);
      socket.once('connect', () => { socket.removeListener('error', finish); finish(null, socket); });
      return socket;
    };
    globalThis[key] = new Agent({ connect });
  };
  globalThis.fetch = {
    fetch(...given) {
      if (!ready) prepare();
      return fetch.apply(this, given);
    },
  }.fetch;
}
