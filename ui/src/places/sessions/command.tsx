// One command of the timeline: what was asked for, by whom, how it ended, and, folded, what it printed.

import { useEffect, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { asTold, isAbort, type Told } from '../../api/problem';
import { useAct } from '../../api/use';
import { oneLine } from '../../format/escape';
import { Button, Confirm } from '../../parts/button';
import { Copy } from '../../parts/copy';
import { Mark } from '../../parts/mark';
import { Loading } from '../../parts/panel';
import { Took, When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { Lines } from './lines';
import { type Output, remembered } from './output';
import { asker, type Command, ending, titleOf } from './timeline';
import { useOutput } from './watch';

type Process = Schema<'Process'>;

export function CommandRow({
  session,
  command,
  process,
  open,
  onOpen,
  mayWrite,
}: {
  session: string;
  command: Command;
  /** Its process, if the sandbox knows it. */
  process: Process | undefined;
  open: boolean;
  onOpen: (open: boolean) => void;
  mayWrite: boolean;
}) {
  const { mark, word } = ending(command);
  const id = `command-${command.number}`;
  return (
    <li class={open ? 'command-row open' : 'command-row'}>
      <div class="line">
        <button
          type="button"
          class="unfold"
          aria-expanded={open}
          aria-controls={id}
          onClick={() => onOpen(!open)}
        >
          <span class="glyph" aria-hidden="true">
            {open ? '▾' : '▸'}
          </span>
          <span class="machine text">{oneLine(titleOf(command.command))}</span>
        </button>
        <span class="facts-line">
          <Mark kind={mark}>{word}</Mark>
          <span class="soft" title="on whose behalf it ran">
            {oneLine(asker(command.caller))}
          </span>
          <span class="machine soft" title="what held it">
            {command.backend}
          </span>
          {command.background && <span class="soft">background</span>}
          <span class="took">{command.durationMs === undefined ? '' : <Took millis={command.durationMs} />}</span>
          <span class="soft when">
            <When millis={command.startedMillis} />
          </span>
        </span>
      </div>
      {open && (
        <div class="printed" id={id}>
          {command.command.length > 120 || /[\n\r]/.test(command.command) ? (
            <pre class="machine whole">{command.command.split('\n').map(oneLine).join('\n')}</pre>
          ) : null}
          {process !== undefined ? (
            <Watch session={session} process={process.process} label={command.command} mayWrite={mayWrite} />
          ) : command.state === 'running' ? (
            <p class="soft">
              It runs for {oneLine(asker(command.caller))}, who has its output. The beginning and the end of it are
              remembered once it is over.
            </p>
          ) : (
            <Past session={session} command={command} />
          )}
        </div>
      )}
    </li>
  );
}

/** All that was printed, as text to take along. */
function textOf(output: Output): string {
  return output
    .lines()
    .map((line) => line.text + (line.goesOn ? '' : '\n'))
    .join('');
}

/** What is remembered of a command that is over. */
function Past({ session, command }: { session: string; command: Command }) {
  const [output, setOutput] = useState<Output | null>(null);
  const [error, setError] = useState<Told | null>(null);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (command.state === 'lost') return;
    const abort = new AbortController();
    setError(null);
    api
      .get('/api/v1/sessions/{session}/history', {
        path: { session },
        query: { output: true, limit: 1, cursor: String(command.number + 1) },
        signal: abort.signal,
      })
      .then(({ commands }) => {
        const found = commands.find((one) => one.number === command.number);
        setOutput(remembered(found?.stdout, found?.stderr));
      })
      .catch((failed: unknown) => {
        if (!isAbort(failed)) setError(asTold(failed));
      });
    return () => abort.abort();
  }, [session, command.number, command.state, tries]);
  if (command.state === 'lost') {
    return <p class="soft">What came of it, and what it printed, is not known: whoever asked for it, or what held it, went away.</p>;
  }
  if (error) return <ErrorBox told={error} onRetry={() => setTries(tries + 1)} />;
  if (output === null) return <Loading what="Reading its output" />;
  if (output.lines().length === 0) return <p class="soft">It printed nothing.</p>;
  return (
    <>
      <Lines lines={output.lines()} label={`Output of ${oneLine(command.command)}`} />
      <div class="row small soft">
        {output.cut
          ? 'Of each stream the first and the last 4 KiB are remembered; standard error stands after standard output.'
          : 'Standard error stands after standard output: they were remembered apart.'}
        <span class="push">
          <Copy text={textOf(output)} label="Copy output" />
        </span>
      </div>
    </>
  );
}

/** A process that the sandbox knows: what it prints as it does, and what can be told to it. */
export function Watch({
  session,
  process,
  label,
  mayWrite,
}: {
  session: string;
  process: number;
  label: string;
  mayWrite: boolean;
}) {
  const { output, running, error, final, ended } = useOutput(session, process);
  const lines = output.lines();
  const path = { session, process };
  const stop = useAct(() => api.delete('/api/v1/sessions/{session}/processes/{process}', { path }));
  const signal = useAct((number: number) =>
    api.post('/api/v1/sessions/{session}/processes/{process}/signal', { path, body: { signal: number } }),
  );
  return (
    <>
      {lines.length > 0 ? (
        <Lines lines={lines} label={`Output of ${oneLine(label)}`} />
      ) : (
        <p class="soft">{running ? 'It has printed nothing yet.' : 'It printed nothing.'}</p>
      )}
      {error && (
        <ErrorBox told={error} tone={final ? 'bad' : 'warn'}>
          {!final && <span class="soft">It is tried again by itself.</span>}
        </ErrorBox>
      )}
      {running && !final && mayWrite && <Input session={session} process={process} />}
      {(stop.error ?? signal.error) && <ErrorBox told={(stop.error ?? signal.error)!} onClose={() => (stop.clear(), signal.clear())} />}
      <div class="row small soft">
        {ended !== null && (
          <span>
            It is over after <Took millis={ended.durationMs} />.
          </span>
        )}
        {running && !final && (
          <span class="row">
            <span class="spinner" aria-hidden="true" /> runs
          </span>
        )}
        <span class="push row">
          {lines.length > 0 && <Copy text={textOf(output)} label="Copy output" />}
          {running && !final && mayWrite && (
            <>
              <Button small quiet busy={signal.busy} onClick={() => signal.run(2)} title="Sends the signal INT to its process group">
                Interrupt
              </Button>
              <Confirm
                small
                what={
                  <>
                    <code class="machine">{oneLine(label).slice(0, 200)}</code> is ended with all that it started. What it
                    has not written is lost.
                  </>
                }
                yes="Stop it"
                onYes={() => stop.run()}
              >
                Stop
              </Confirm>
            </>
          )}
        </span>
      </div>
    </>
  );
}

/** Sends lines to a command's standard input. */
function Input({ session, process }: { session: string; process: number }) {
  const [text, setText] = useState('');
  const [closed, setClosed] = useState(false);
  const send = useAct(async (body: string, close: boolean) => {
    await api.raw('post', '/api/v1/sessions/{session}/processes/{process}/input', {
      path: { session, process },
      query: { close },
      headers: { 'Content-Type': 'application/octet-stream' },
      body,
    });
    setText('');
    if (close) setClosed(true);
  });
  if (closed) return <p class="soft small">Its input was ended.</p>;
  return (
    <form
      class="stack tight"
      onSubmit={(event) => {
        event.preventDefault();
        if (!send.busy) void send.run(`${text}\n`, false);
      }}
    >
      <div class="row input-line">
        <input
          class="input wide machine"
          value={text}
          aria-label="A line for its standard input"
          placeholder="A line for its standard input"
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <Button submit small busy={send.busy}>
          Send
        </Button>
        <Button small quiet onClick={() => send.run(text === '' ? '' : `${text}\n`, true)} title="Ends its standard input, after what is written here">
          End input
        </Button>
      </div>
      {send.error && <ErrorBox told={send.error} onClose={send.clear} />}
    </form>
  );
}
