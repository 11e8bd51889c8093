// A session's commands: one to run, and those that ran or run, newest first.

import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct } from '../../api/use';
import { announce } from '../../parts/announce';
import { Button, Confirm } from '../../parts/button';
import { Empty } from '../../parts/empty';
import { Loading, Panel } from '../../parts/panel';
import { ErrorBox } from '../../parts/told';
import { oneLine } from '../../format/escape';
import { setQuery, useAddress } from '../../router';
import { CommandRow } from './command';
import { quoted } from './quoted';
import { merged, processOf, searched, type Command, type Timeline } from './timeline';

/** Older commands that are read at once. */
const OLDER = 100;

export function Commands({
  session,
  timeline,
  loaded,
  processes,
  mayWrite,
}: {
  session: string;
  /** The latest commands, kept true. */
  timeline: Timeline;
  /** Whether anything has come. */
  loaded: boolean;
  processes: readonly Schema<'Process'>[];
  mayWrite: boolean;
}) {
  const { query } = useAddress();
  const wanted = query.get('find') ?? '';
  const [older, setOlder] = useState<readonly Command[]>([]);
  const [isWhole, setWhole] = useState(false);
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  /** The process that was started here, to be unfolded once it is in the timeline, after this command. */
  const started = useRef<{ process: number; after: number } | null>(null);

  const all = useMemo(() => merged(older, timeline), [older, timeline]);
  const shown = useMemo(() => searched(all, wanted), [all, wanted]);

  useEffect(() => {
    setOlder([]);
    setWhole(false);
    setOpen(new Set());
  }, [session]);

  const unfold = useCallback((number: number, is: boolean) => {
    setOpen((before) => {
      const next = new Set(before);
      if (is) next.add(number);
      else next.delete(number);
      return next;
    });
  }, []);

  useEffect(() => {
    const wanted = started.current;
    if (wanted === null) return;
    const found = all.find((command) => command.process === wanted.process && command.number > wanted.after);
    if (found === undefined) return;
    started.current = null;
    unfold(found.number, true);
  }, [all]);

  const more = useAct(async () => {
    const last = all.at(-1);
    const page = await api.get('/api/v1/sessions/{session}/history', {
      path: { session },
      query: { limit: OLDER, ...(last === undefined ? {} : { cursor: String(last.number) }) },
    });
    setOlder((before) => merged(before, page.commands));
    setWhole(page.next === undefined);
  });

  const first = all.at(-1)?.number ?? 1;
  const hasMore = !isWhole && first > 1 && timeline.length > 0;
  return (
    <>
      {mayWrite && (
        <Run
          session={session}
          latest={() => all[0]?.number ?? 0}
          onStarted={(process, after) => {
            started.current = { process, after };
          }}
        />
      )}
      <Panel
        title="Timeline"
        about={loaded && all.length > 0 ? `${shown.length.toLocaleString('en')} of ${all.length.toLocaleString('en')}${hasMore ? ' and more' : ''}, newest first` : undefined}
        flush
        actions={
          <input
            type="search"
            class="input filter"
            placeholder="Find in commands"
            aria-label="Find in commands"
            value={wanted}
            onInput={(event) => setQuery({ find: event.currentTarget.value })}
          />
        }
      >
        {!loaded ? (
          <Loading what="Reading what it ran" />
        ) : shown.length === 0 ? (
          wanted ? (
            <Empty title={`No command with “${oneLine(wanted)}” in it${hasMore ? ' among the latest' : ''}`}>
              <Button small onClick={() => setQuery({ find: '' })}>
                Show all
              </Button>
            </Empty>
          ) : (
            <Empty title="It has run nothing yet" command={`moltis exec --session ${quoted(session)} 'ls -la'`}>
              What is run here, by the command line, the API or a model, shows with who asked, how it ended and what it
              printed.
            </Empty>
          )
        ) : (
          <ol class="timeline" aria-label="Commands, newest first">
            {shown.map((command) => (
              <CommandRow
                key={command.number}
                session={session}
                command={command}
                process={byNumber(command, all, processes)}
                open={open.has(command.number)}
                onOpen={(is) => unfold(command.number, is)}
                mayWrite={mayWrite}
              />
            ))}
          </ol>
        )}
        {more.error && <ErrorBox told={more.error} onRetry={() => more.run()} />}
        {hasMore && (
          <div class="row older">
            <Button small busy={more.busy} onClick={() => more.run()}>
              Older commands
            </Button>
          </div>
        )}
      </Panel>
    </>
  );
}

/** The process of a command: of several with one number only the newest can be it. */
function byNumber(command: Command, all: Timeline, processes: readonly Schema<'Process'>[]) {
  const found = processOf(command, processes);
  if (found === undefined) return undefined;
  const newest = all.find((other) => other.background && other.process === command.process);
  return newest?.number === command.number ? processes.find((one) => one.process === found.process) : undefined;
}

/** Runs a command in the background, so that neither a reload nor the end of this tab ends it. */
function Run({
  session,
  latest,
  onStarted,
}: {
  session: string;
  /** Number of the latest command. */
  latest: () => number;
  onStarted: (process: number, after: number) => void;
}) {
  const [command, setCommand] = useState('');
  const [cwd, setCwd] = useState('');
  const [seconds, setSeconds] = useState('');
  const [notes, setNotes] = useState<readonly string[]>([]);
  const run = useAct(async (recreate: boolean) => {
    const timeoutSecs = Number(seconds);
    const after = latest();
    const answer = await api.post('/api/v1/sessions/{session}/processes', {
      path: { session },
      body: {
        command,
        mustExist: true,
        ...(recreate ? { recreate } : {}),
        ...(cwd === '' ? {} : { cwd }),
        ...(seconds === '' ? {} : { timeoutSecs }),
      },
    });
    setCommand('');
    onStarted(answer.process, after);
    setNotes([
      ...answer.notes,
      ...(answer.restarted === undefined ? [] : [`The sandbox before this one ended (${answer.restarted}): what was not in the home is gone.`]),
      ...answer.lost.map((lost) => `What came of “${oneLine(lost.command)}” is not known.`),
    ]);
    announce('It runs');
  });
  const submit = () => {
    if (command.trim() !== '' && !run.busy) void run.run(false);
  };
  return (
    <form
      class="panel run"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <div class="body stack tight">
        <div class="run-line">
          <textarea
            class="input wide"
            aria-label="Command to run in this session"
            placeholder="A command, such as  make test"
            rows={Math.min(8, command.split('\n').length)}
            spellcheck={false}
            autocomplete="off"
            value={command}
            onInput={(event) => setCommand(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
              event.preventDefault();
              submit();
            }}
          />
          <Button submit primary busy={run.busy} disabled={command.trim() === ''}>
            Run
          </Button>
        </div>
        {run.busy && (
          <p class="small soft" role="status">
            It starts. A sandbox that does not run is made first, which takes a while if its image is not there.
          </p>
        )}
        {run.error && (
          <ErrorBox told={run.error} onClose={run.clear}>
            {run.error.code === 'sandbox-busy' && (
              <div>
                <Confirm
                  small
                  what="All that runs in the session ends, and what is not in its home, as in /tmp, is lost. The command runs in a new sandbox."
                  yes="End it all and run"
                  onYes={() => run.run(true)}
                >
                  Make the sandbox anew and run it…
                </Confirm>
              </div>
            )}
          </ErrorBox>
        )}
        {notes.length > 0 && (
          <div class="told plain">
            {notes.map((note) => (
              <div key={note}>{oneLine(note)}</div>
            ))}
            <div>
              <Button small quiet onClick={() => setNotes([])}>
                Close
              </Button>
            </div>
          </div>
        )}
        <div class="run-foot">
          <details class="fold">
            <summary>Folder and time limit</summary>
            <div class="run-more">
              <label>
                <span>Folder inside</span>
                <input class="input machine" value={cwd} placeholder="where the session begins" onInput={(event) => setCwd(event.currentTarget.value)} />
              </label>
              <label>
                <span>Seconds until it is ended</span>
                <input class="input" inputMode="decimal" value={seconds} placeholder="none" onInput={(event) => setSeconds(event.currentTarget.value.replace(/[^\d.]/g, ''))} />
              </label>
            </div>
          </details>
          <span class="small soft">
            Enter runs it, Shift+Enter makes another line. It goes on in the background when this page is left.
          </span>
        </div>
      </div>
    </form>
  );
}
