// A terminal in a session. What runs there can change neither the page's title nor the clipboard, and makes no links.

import { FitAddon } from '@xterm/addon-fit';
import { Terminal as Xterm } from '@xterm/xterm';
import '@xterm/xterm/css/xterm.css';
import { useEffect, useRef, useState } from 'preact/hooks';
import { api } from '../../api/client';
import { secret } from '../../api/secret';
import { announce } from '../../parts/announce';
import { Button } from '../../parts/button';
import { Mark } from '../../parts/mark';
import { DROPPED_OSC, raw, read, resized, sized, told, typed, type Phase, type Said } from './framing';
import { styled, styleRows, whileStyled } from './styled';

/** Lines that can be scrolled back to. */
const SCROLLBACK = 5_000;

/** Bytes that the screen may be behind: a browser takes whatever comes, so that a flood must end. */
const BEHIND = 32 << 20;

/** The colours of the page, as xterm wants them. */
function theme(): Record<string, string> {
  const probe = document.createElement('span');
  document.body.append(probe);
  const of = (name: string) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const made = {
    background: of('--surface'),
    foreground: of('--ink'),
    cursor: of('--accent'),
    cursorAccent: of('--surface'),
    selectionBackground: of('--accent-ground'),
    selectionForeground: of('--ink'),
    black: of('--sunken'),
    red: of('--bad'),
    green: of('--good'),
    yellow: of('--warn'),
    blue: of('--focus'),
    magenta: of('--ink-soft'),
    cyan: of('--accent'),
    white: of('--ink-soft'),
    brightBlack: of('--line-strong'),
    brightRed: of('--bad'),
    brightGreen: of('--good'),
    brightYellow: of('--warn'),
    brightBlue: of('--focus'),
    brightMagenta: of('--ink'),
    brightCyan: of('--accent'),
    brightWhite: of('--ink'),
  };
  probe.remove();
  return made;
}

export function Terminal({ session }: { session: string }) {
  const place = useRef<HTMLDivElement>(null);
  const screen = useRef<{ xterm: Xterm; fit: FitAddon } | null>(null);
  const socket = useRef<WebSocket | null>(null);
  const [phase, setPhase] = useState<Phase>('connecting');
  const [end, setEnd] = useState<Said | undefined>(undefined);
  const [where, setWhere] = useState<string | undefined>(undefined);
  const [tries, setTries] = useState(0);

  // The screen lives as long as the place; connections come and go.
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const owner = styled(document);
    const xterm = new Xterm({
      documentOverride: owner,
      scrollback: SCROLLBACK,
      fontFamily: getComputedStyle(element).getPropertyValue('--mono') || 'monospace',
      fontSize: 13,
      cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches,
      screenReaderMode: true,
      theme: theme(),
      // Nothing that is printed leads anywhere.
      linkHandler: { activate: () => undefined },
      allowProposedApi: false,
    });
    const fit = new FitAddon();
    xterm.loadAddon(fit);
    for (const sequence of DROPPED_OSC) xterm.parser.registerOscHandler(sequence, () => true);
    // Reports of size, title and the like would be typed into the shell.
    xterm.parser.registerCsiHandler({ final: 't' }, () => true);
    whileStyled(document, () => xterm.open(element));
    styleRows(xterm, owner);
    // Shift+Tab and Escape are the program's; this leads out of the terminal by keyboard.
    xterm.attachCustomKeyEventHandler((event) => {
      if (event.type === 'keydown' && event.ctrlKey && event.altKey && event.key === 'Escape') {
        element.closest('.session')?.querySelector<HTMLElement>('.tabs a[aria-current]')?.focus();
        return false;
      }
      return true;
    });
    screen.current = { xterm, fit };
    const refit = () => {
      if (element.clientWidth > 0) fit.fit();
    };
    refit();
    const observer = new ResizeObserver(refit);
    observer.observe(element);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    const recolour = () => (xterm.options.theme = theme());
    scheme.addEventListener('change', recolour);
    const themes = new MutationObserver(recolour);
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
    const send = (parts: Uint8Array<ArrayBuffer>[]) => {
      const open = socket.current;
      if (open?.readyState === WebSocket.OPEN) for (const part of parts) open.send(part);
    };
    xterm.onData((data) => send(typed(data)));
    xterm.onBinary((data) => send(raw(data)));
    xterm.onResize(({ rows, cols }) => {
      const open = socket.current;
      if (open?.readyState === WebSocket.OPEN) open.send(resized(sized(rows, cols)));
    });
    return () => {
      observer.disconnect();
      themes.disconnect();
      scheme.removeEventListener('change', recolour);
      xterm.dispose();
      screen.current = null;
    };
  }, []);

  useEffect(() => {
    const now = screen.current;
    if (now === null) return;
    const { xterm } = now;
    setPhase('connecting');
    setEnd(undefined);
    let over = false;
    let behind = 0;
    let mine: WebSocket | undefined;
    const finish = (phase: Phase, said?: Said) => {
      if (over) return;
      over = true;
      setPhase(phase);
      setEnd(said);
      announce(told(phase, said));
    };
    const connect = async () => {
      // Another tab may have logged in.
      if (secret.value === null) await secret.askOthers();
      if (over) return;
      const { rows, columns } = sized(xterm.rows, xterm.cols);
      const opened = api.socket('/api/v1/sessions/{session}/terminal', {
        path: { session },
        query: { rows, columns, mustExist: true },
      });
      mine = opened;
      socket.current = opened;
      opened.binaryType = 'arraybuffer';
      let wasOpen = false;
      opened.onopen = () => {
        wasOpen = true;
        if (tries > 0) xterm.write('\r\n\x1b[0m\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?2004l');
        setPhase('open');
        const after = sized(xterm.rows, xterm.cols);
        if (after.rows !== rows || after.columns !== columns) opened.send(resized(after));
        xterm.focus();
      };
      opened.onmessage = ({ data }: MessageEvent<unknown>) => {
        const said = read(data);
        switch (said.type) {
          case 'bytes':
            behind += said.bytes.length;
            xterm.write(said.bytes, () => {
              behind -= said.bytes.length;
            });
            if (behind > BEHIND) {
              finish('ended', { type: 'error', code: 'terminal-flooded', detail: 'the shell printed faster than this page can show; it was ended' });
              opened.close();
            }
            break;
          case 'started':
            setWhere([said.backend, said.notEnforced.length > 0 ? `${said.notEnforced.length} not enforced` : ''].filter(Boolean).join(', '));
            break;
          case 'exit':
          case 'error':
            finish('ended', said);
            break;
          case 'unknown':
            break;
        }
      };
      opened.onclose = () => {
        if (socket.current === opened) socket.current = null;
        if (over) return;
        if (wasOpen) return finish('lost');
        // A browser does not tell why: an ordinary request does.
        void api
          .get('/api/v1/sessions/{session}', { path: { session } })
          .then((details) => {
            const why = details.refusal;
            finish(
              'ended',
              why
                ? { type: 'error', code: why.code, detail: why.detail, ...(why.fix ? { fix: why.fix } : {}) }
                : { type: 'error', code: 'terminal-refused', detail: 'the terminal cannot be opened; try it with a command, which says why' },
            );
          })
          .catch((error: unknown) =>
            finish('ended', { type: 'error', code: 'terminal-refused', detail: error instanceof Error ? error.message : 'the gateway does not answer' }),
          );
      };
    };
    void connect();
    return () => {
      over = true;
      mine?.close();
      if (socket.current === mine) socket.current = null;
    };
  }, [session, tries]);

  const over = phase === 'ended' || phase === 'lost';
  return (
    <section class="panel terminal" aria-label="Terminal">
      <div ref={place} class="screen" data-phase={phase} />
      <footer>
        <Mark kind={phase === 'open' ? 'live' : phase === 'connecting' ? 'opening' : phase === 'lost' ? 'lost' : 'ended'}>
          {told(phase, end)}
        </Mark>
        {phase === 'open' && where && <span class="small soft">{where}</span>}
        {end?.type === 'error' && end.fix !== undefined && <span class="small">Fix: {end.fix}</span>}
        <span class="push row">
          {over && (
            <Button small primary onClick={() => setTries(tries + 1)}>
              Open another shell
            </Button>
          )}
          <span class="small soft">Ctrl+Alt+Esc leaves it. Leaving this part ends the shell.</span>
        </span>
      </footer>
    </section>
  );
}
