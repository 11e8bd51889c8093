// A folder: what it holds, and what can be done with that. Of a session's files or of managed ones.

import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { asTold, isAbort, type Told } from '../../api/problem';
import { useAct } from '../../api/use';
import { size as written } from '../../format/size';
import { announce } from '../../parts/announce';
import { Button, Question } from '../../parts/button';
import { Empty } from '../../parts/empty';
import { Field, TextInput } from '../../parts/field';
import { Loading, Panel } from '../../parts/panel';
import { Progress } from '../../parts/progress';
import { Size } from '../../parts/size';
import { Table, type Column } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { setQuery } from '../../router';
import type { Entry, Place } from './api';
import { Conflicts, needsNoWord, workOf, type Waiting } from './conflicts';
import { begin, dismiss, useJob } from './jobs';
import { base, crumbs, fromAddress, joined, nameProblem, parent, shown, toAddress } from './path';
import { lookAround } from './there';
import { Viewer } from './viewer';
import { dropped, picked, type Walked } from './walk';
import type { Work } from './uploads';

type Asked =
  | { kind: 'folder' }
  | { kind: 'rename'; entry: Entry }
  | { kind: 'move'; names: string[] }
  | { kind: 'delete'; names: string[] };

const GLYPH: Record<Entry['kind'], string> = { directory: '▸', file: '·', symlink: '↪', other: '?' };
const KIND: Record<Entry['kind'], string> = { directory: 'folder', file: 'file', symlink: 'link', other: 'device or socket' };

export function Browser({
  place,
  path,
  view,
  mayWrite,
  every,
  empty,
}: {
  place: Place;
  path: string;
  /** The file that is looked at. */
  view: string | null;
  mayWrite: boolean;
  /** How often it is looked whether something has changed, in milliseconds. */
  every?: number;
  /** What an empty place teaches. */
  empty: { title: string; command: string };
}) {
  const { entries, error, reload } = useListing(place, path, every);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [asked, setAsked] = useState<Asked | null>(null);
  const [waiting, setWaiting] = useState<Waiting | null>(null);
  const [over, setOver] = useState(false);
  const [filter, setFilter] = useState('');
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const job = useJob(place);
  const go = (to: string) => setQuery({ path: to === '/' ? null : toAddress(to), view: null }, {});

  useEffect(() => {
    setChosen(new Set());
    setAsked(null);
    setFilter('');
  }, [place.id, path]);

  const prepare = useAct(async (walking: Promise<Walked> | Walked) => {
    const walked = await walking;
    if (walked.files.length + walked.emptyFolders.length + walked.unread.length === 0) return;
    const there = await lookAround((at) => place.list(at), path, [...walked.files.map((file) => file.path), ...walked.emptyFolders]);
    const made: Waiting = { folder: path, ...walked, there };
    const plain = needsNoWord(made);
    if (plain === null) setWaiting(made);
    else void upload(workOf(path, plain));
  });
  const upload = async (work: Work) => {
    setWaiting(null);
    await begin(place, work);
    reload();
  };
  const busy = job?.state.running === true || prepare.busy;

  const rows = useMemo(() => {
    const wanted = filter.trim().toLowerCase();
    const all = (entries ?? []).filter((entry) => wanted === '' || entry.name.toLowerCase().includes(wanted));
    // Folders first, each in the order of names as people read them.
    return all.sort(
      (a, b) =>
        Number(b.kind === 'directory') - Number(a.kind === 'directory') ||
        a.name.localeCompare(b.name, 'en', { numeric: true, sensitivity: 'base' }),
    );
  }, [entries, filter]);

  const open = (entry: Entry) => {
    const at = joined(path, entry.name);
    if (entry.kind === 'directory') go(at);
    else if (entry.kind === 'file') setQuery({ view: toAddress(at) }, {});
  };
  const columns: Column<Entry>[] = [
    ...(mayWrite
      ? [
          {
            id: 'choose',
            title: '',
            width: '36px',
            cell: (row: Entry) => (
              <input
                type="checkbox"
                class="choose"
                aria-label={`Choose ${shown(row.name)}`}
                checked={chosen.has(row.name)}
                onChange={(event) => {
                  const next = new Set(chosen);
                  if (event.currentTarget.checked) next.add(row.name);
                  else next.delete(row.name);
                  setChosen(next);
                }}
              />
            ),
          },
        ]
      : []),
    {
      id: 'name',
      title: 'Name',
      width: 'minmax(200px, 3fr)',
      machine: true,
      cell: (row) => (
        <span class={`file-name ${row.kind}`}>
          <span class="glyph" title={KIND[row.kind]} aria-hidden="true">
            {GLYPH[row.kind]}
          </span>
          {shown(row.name)}
          {row.kind === 'directory' && '/'}
          {row.target !== undefined && <span class="soft"> → {shown(row.target)}</span>}
          <span class="unseen">, {KIND[row.kind]}</span>
        </span>
      ),
    },
    { id: 'size', title: 'Size', width: '90px', end: true, cell: (row) => (row.kind === 'file' ? <Size bytes={row.size} /> : '') },
    { id: 'changed', title: 'Changed', width: '110px', cell: (row) => <When millis={row.modifiedMillis} /> },
    { id: 'mode', title: 'Mode', width: '66px', machine: true, cell: (row) => row.mode },
    {
      id: 'act',
      title: '',
      width: mayWrite ? '250px' : '100px',
      end: true,
      cell: (row) => {
        const at = joined(path, row.name);
        const name = shown(row.name);
        return (
          <>
            {row.kind === 'file' && (
              <a class="button quiet small" href={place.contentAt(at)} download aria-label={`Download ${name}`}>
                Download
              </a>
            )}
            {row.kind === 'directory' && (
              <a class="button quiet small" href={place.treeAt(at)} download aria-label={`Download the folder ${name} as tar`}>
                As tar
              </a>
            )}
            {mayWrite && (
              <>
                {(row.kind === 'file' || row.kind === 'directory') && (
                  <Button quiet small label={`Rename ${name}`} onClick={() => setAsked({ kind: 'rename', entry: row })}>
                    Rename
                  </Button>
                )}
                <Button quiet small danger label={`Delete ${name}`} onClick={() => setAsked({ kind: 'delete', names: [row.name] })}>
                  Delete
                </Button>
              </>
            )}
          </>
        );
      },
    },
  ];
  const done = () => {
    setAsked(null);
    setChosen(new Set());
    reload();
  };
  const names = [...chosen].filter((name) => entries?.some((entry) => entry.name === name));
  return (
    <div
      class={over ? 'stack browser over' : 'stack browser'}
      onDragOver={(event) => {
        if (!mayWrite || busy || !event.dataTransfer?.types.includes('Files')) return;
        event.preventDefault();
        event.dataTransfer.dropEffect = 'copy';
        setOver(true);
      }}
      onDragLeave={(event) => {
        if (!(event.relatedTarget instanceof Node) || !event.currentTarget.contains(event.relatedTarget)) setOver(false);
      }}
      onDrop={(event) => {
        setOver(false);
        if (!mayWrite || busy || event.dataTransfer === null) return;
        event.preventDefault();
        void prepare.run(dropped(event.dataTransfer.items));
      }}
    >
      {prepare.error && <ErrorBox told={prepare.error} onClose={prepare.clear} />}
      {job && <Uploading place={place} job={job} />}
      {waiting && <Conflicts waiting={waiting} onGo={(work) => void upload(work)} onCancel={() => setWaiting(null)} />}
      {asked?.kind === 'folder' && <NewFolder place={place} path={path} onDone={done} onClose={() => setAsked(null)} />}
      {asked?.kind === 'rename' && (
        <Rename key={asked.entry.name} place={place} path={path} entry={asked.entry} onDone={done} onClose={() => setAsked(null)} />
      )}
      {asked?.kind === 'move' && <Move place={place} path={path} names={asked.names} onDone={done} onClose={() => setAsked(null)} />}
      {asked?.kind === 'delete' && (
        <Delete key={asked.names.join('/')} place={place} path={path} names={asked.names} entries={entries ?? []} onDone={done} onClose={() => setAsked(null)} />
      )}
      {view !== null && (
        <Viewer place={place} path={fromAddress(view)} onClose={() => setQuery({ view: null }, {})} />
      )}
      <section class="panel" aria-label={`The folder ${shown(path)}`}>
        <header>
          <nav class="folders machine" aria-label="Folders on the way here">
            {crumbs(path).map((crumb, number, all) => (
              <span key={crumb.path}>
                {number > 1 && <span class="soft">/</span>}
                {number === all.length - 1 ? (
                  <span aria-current="page">{number === 0 ? '/' : shown(crumb.name)}</span>
                ) : (
                  <button type="button" class="crumb" onClick={() => go(crumb.path)}>
                    {number === 0 ? '/' : shown(crumb.name)}
                  </button>
                )}
              </span>
            ))}
          </nav>
          <span class="row push">
            {mayWrite && (
              <>
                <Button small onClick={() => setAsked({ kind: 'folder' })}>
                  New folder
                </Button>
                <Button small disabled={busy} onClick={() => files.current?.click()}>
                  Upload files
                </Button>
                <Button small disabled={busy} onClick={() => folder.current?.click()}>
                  Upload a folder
                </Button>
              </>
            )}
            <a class="button quiet small" href={place.treeAt(path)} download>
              Download as tar
            </a>
            <Button quiet small onClick={reload}>
              Refresh
            </Button>
          </span>
        </header>
        <input
          ref={files}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            const list = event.currentTarget.files;
            if (list !== null && list.length > 0) void prepare.run(picked(list));
            event.currentTarget.value = '';
          }}
        />
        <input
          ref={(element) => {
            folder.current = element;
            element?.setAttribute('webkitdirectory', '');
          }}
          type="file"
          hidden
          onChange={(event) => {
            const list = event.currentTarget.files;
            if (list !== null && list.length > 0) void prepare.run(picked(list));
            event.currentTarget.value = '';
          }}
        />
        {names.length > 0 && (
          <div class="row chosen" role="group" aria-label="With what is chosen">
            <span>{names.length} chosen</span>
            <Button small onClick={() => setAsked({ kind: 'move', names })}>
              Move…
            </Button>
            <Button small danger onClick={() => setAsked({ kind: 'delete', names })}>
              Delete…
            </Button>
            <Button small quiet onClick={() => setChosen(new Set())}>
              Choose none
            </Button>
          </div>
        )}
        {(entries?.length ?? 0) > 20 && (
          <div class="row chosen">
            <input
              type="search"
              class="input filter"
              placeholder="Filter by name"
              aria-label="Filter by name"
              value={filter}
              onInput={(event) => setFilter(event.currentTarget.value)}
            />
            <span class="small soft">
              {rows.length.toLocaleString('en')} of {entries?.length.toLocaleString('en')}
            </span>
          </div>
        )}
        {error && (
          <div class="pad">
            <ErrorBox told={error} onRetry={reload}>
              {path !== '/' && (
                <span>
                  <Button small quiet onClick={() => go(parent(path))}>
                    Go up
                  </Button>
                </span>
              )}
            </ErrorBox>
          </div>
        )}
        {entries === null ? (
          !error && <Loading what="Reading the folder" />
        ) : (
          <Table
            label={`Entries of ${shown(path)}`}
            rows={rows}
            columns={columns}
            rowKey={(row) => row.name}
            onOpen={open}
            opened={view === null ? undefined : base(fromAddress(view))}
            empty={
              filter !== '' ? (
                <Empty title="No name is like this" />
              ) : path === '/' ? (
                <Empty title={empty.title} command={empty.command}>
                  {mayWrite && 'Drop files or folders here, use the buttons above, or:'}
                </Empty>
              ) : (
                <Empty title="The folder is empty">{mayWrite && 'Drop files or folders here to upload them.'}</Empty>
              )
            }
          />
        )}
      </section>
      {over && <div class="drop">Drop to upload into {shown(path)}</div>}
    </div>
  );
}

function useListing(place: Place, path: string, every: number | undefined) {
  const [state, setState] = useState<{ of: string; entries: Entry[] | null; error: Told | null }>({ of: '', entries: null, error: null });
  const running = useRef<AbortController | null>(null);
  const name = `${place.id} ${path}`;
  const reload = useCallback(() => {
    running.current?.abort();
    const mine = new AbortController();
    running.current = mine;
    place
      .list(path, mine.signal)
      .then((entries) => setState({ of: name, entries, error: null }))
      .catch((failed: unknown) => {
        if (isAbort(failed)) return;
        setState((before) => ({ of: name, entries: before.of === name ? before.entries : null, error: asTold(failed) }));
      });
  }, [name]);
  useEffect(() => {
    reload();
    const look = () => {
      if (!document.hidden) reload();
    };
    const timer = every === undefined ? undefined : setInterval(look, every);
    return () => {
      clearInterval(timer);
      running.current?.abort();
    };
  }, [reload, every]);
  const here = state.of === name;
  return { entries: here ? state.entries : null, error: here ? state.error : null, reload };
}

function Uploading({ place, job }: { place: Place; job: NonNullable<ReturnType<typeof useJob>> }) {
  const { state } = job;
  const files = `${state.done.toLocaleString('en')} of ${state.files.toLocaleString('en')} files`;
  return (
    <div class="panel" role="group" aria-label="Upload">
      <div class="body stack tight">
        {state.running ? (
          <>
            <Progress done={state.sent} of={state.bytes} label={`Uploading into ${shown(job.folder)}: ${files}, ${written(state.sent)} of ${written(state.bytes)}`} />
            <div class="row small">
              <span class="machine soft">{state.current !== null && shown(state.current)}</span>
              <span class="push">
                <Button small onClick={job.cancel}>
                  Give it up
                </Button>
              </span>
            </div>
          </>
        ) : (
          <div class="row">
            <span>
              {state.cancelled ? `Given up after ${files}. What was sent by half is not there.` : `Uploaded ${files} into ${shown(job.folder)}.`}
            </span>
            <span class="push">
              <Button small quiet onClick={() => dismiss(place)}>
                Close
              </Button>
            </span>
          </div>
        )}
        {state.failed.slice(0, 20).map((one) => (
          <ErrorBox key={one.path} told={one.told}>
            <span class="machine small">{shown(one.path)}</span>
          </ErrorBox>
        ))}
        {state.failed.length > 20 && <p class="small">And {state.failed.length - 20} more failed.</p>}
      </div>
    </div>
  );
}

function NewFolder({ place, path, onDone, onClose }: { place: Place; path: string; onDone: () => void; onClose: () => void }) {
  const [name, setName] = useState('');
  const wrong = name === '' ? undefined : nameProblem(name);
  const make = useAct(async () => {
    await place.makeFolder(joined(path, name));
    announce('The folder is there');
    onDone();
  });
  return (
    <Ask title="New folder" onClose={onClose} onSubmit={() => name !== '' && wrong === undefined && make.run()}>
      <Field label="Name" wrong={wrong}>
        <TextInput mono value={name} onValue={setName} autofocus />
      </Field>
      {make.error && <ErrorBox told={make.error} onClose={make.clear} />}
      <div class="row">
        <Button submit primary busy={make.busy} disabled={name === '' || wrong !== undefined}>
          Make it
        </Button>
        <Button quiet onClick={onClose}>
          Cancel
        </Button>
      </div>
    </Ask>
  );
}

function Rename({ place, path, entry, onDone, onClose }: { place: Place; path: string; entry: Entry; onDone: () => void; onClose: () => void }) {
  const [name, setName] = useState(entry.name);
  const changed = name !== entry.name;
  const wrong = nameProblem(name);
  const move = useAct(async (overwrite: boolean) => {
    await place.move(joined(path, entry.name), joined(path, name), overwrite);
    announce('Renamed');
    onDone();
  });
  const taken = move.error?.code === 'file-exists';
  return (
    <Ask title={`Rename ${shown(entry.name)}`} onClose={onClose} onSubmit={() => changed && wrong === undefined && move.run(false)}>
      <Field label="New name" wrong={wrong}>
        <TextInput
          mono
          value={name}
          onValue={(value) => {
            setName(value);
            move.clear();
          }}
          autofocus
        />
      </Field>
      {move.error && !taken && <ErrorBox told={move.error} onClose={move.clear} />}
      {taken ? (
        <Question
          what={
            <>
              <code class="machine">{shown(name)}</code> is there already. What is in it is lost if it is replaced.
            </>
          }
          yes="Replace it"
          no="Take another name"
          busy={move.busy}
          onYes={() => move.run(true)}
          onNo={move.clear}
        />
      ) : (
        <div class="row">
          <Button submit primary busy={move.busy} disabled={!changed || wrong !== undefined}>
            Rename
          </Button>
          <Button quiet onClick={onClose}>
            Cancel
          </Button>
        </div>
      )}
    </Ask>
  );
}

function Move({ place, path, names, onDone, onClose }: { place: Place; path: string; names: string[]; onDone: () => void; onClose: () => void }) {
  const [to, setTo] = useState(toAddress(path));
  const [left, setLeft] = useState(names);
  const target = fromAddress(to);
  const move = useAct(async (overwrite: boolean) => {
    // Each by itself: one that fails is named, and those before it have moved.
    for (const name of left) {
      await place.move(joined(path, name), joined(target, name), overwrite);
      setLeft((before) => before.filter((other) => other !== name));
    }
    announce('Moved');
    onDone();
  });
  const taken = move.error?.code === 'file-exists';
  const what = left.length === 1 ? shown(left[0] ?? '') : `${left.length} entries`;
  return (
    <Ask title={`Move ${what}`} onClose={onClose} onSubmit={() => target !== path && to.startsWith('/') && move.run(false)}>
      <Field label="Into the folder" help="Its path from the root, such as `/archive`." wrong={to.startsWith('/') ? undefined : 'write its path from the root'}>
        <TextInput
          mono
          value={to}
          onValue={(value) => {
            setTo(value);
            move.clear();
          }}
          autofocus
        />
      </Field>
      {move.error && !taken && <ErrorBox told={move.error} onClose={move.clear} />}
      {taken ? (
        <Question
          what={
            <>
              <code class="machine">{shown(joined(target, left[0] ?? ''))}</code> is there already. What is in it is lost
              if it is replaced.
            </>
          }
          yes={left.length === 1 ? 'Replace it' : 'Replace it, and others like it'}
          no="Keep it"
          busy={move.busy}
          onYes={() => move.run(true)}
          onNo={move.clear}
        />
      ) : (
        <div class="row">
          <Button submit primary busy={move.busy} disabled={target === path || !to.startsWith('/')}>
            Move
          </Button>
          <Button quiet onClick={onClose}>
            Cancel
          </Button>
        </div>
      )}
    </Ask>
  );
}

/** What is deleted is counted first, so that what is lost is named. */
function Delete({
  place,
  path,
  names,
  entries,
  onDone,
  onClose,
}: {
  place: Place;
  path: string;
  names: string[];
  entries: Entry[];
  onDone: () => void;
  onClose: () => void;
}) {
  const [lost, setLost] = useState<{ files: number; folders: number; others: number; bytes: number; all: boolean } | null>(null);
  const [uncounted, setUncounted] = useState(false);
  useEffect(() => {
    const abort = new AbortController();
    const count = async () => {
      const sum = { files: 0, folders: 0, others: 0, bytes: 0, all: true };
      for (const name of names) {
        const entry = entries.find((one) => one.name === name);
        if (entry !== undefined && entry.kind !== 'directory') {
          if (entry.kind === 'file') {
            sum.files += 1;
            sum.bytes += entry.size;
          } else sum.others += 1;
          continue;
        }
        const counted = await place.count(joined(path, name), abort.signal);
        sum.files += counted.files;
        sum.folders += counted.folders + 1;
        sum.others += counted.others;
        sum.bytes += counted.bytes;
        sum.all &&= counted.all;
      }
      setLost(sum);
    };
    count().catch((failed: unknown) => {
      if (!isAbort(failed)) setUncounted(true);
    });
    return () => abort.abort();
  }, []);
  const remove = useAct(async () => {
    for (const name of names) await place.remove(joined(path, name), true);
    announce('Deleted');
    onDone();
  });
  const first = names.slice(0, 8).map(shown);
  const parts =
    lost === null
      ? []
      : [
          [lost.files, 'file', 'files'],
          [lost.folders, 'folder', 'folders'],
          [lost.others, 'link or other', 'links and others'],
        ].flatMap(([count, one, many]) => (count === 0 ? [] : [`${Number(count).toLocaleString('en')} ${count === 1 ? one : many}`]));
  return (
    <div class="stack tight">
      <Question
        what={
          <>
            <div>
              <strong>Deleted for good:</strong> <span class="machine">{first.join(', ')}</span>
              {names.length > first.length && ` and ${names.length - first.length} more`}
            </div>
            <div>
              {lost === null ? (
                uncounted ? (
                  'What is in it could not be counted.'
                ) : (
                  'Counting what is in it…'
                )
              ) : (
                <>
                  {!lost.all && 'at least '}
                  {parts.join(', ') || 'nothing'}, {written(lost.bytes)}
                </>
              )}
            </div>
          </>
        }
        yes="Delete"
        busy={remove.busy || (lost === null && !uncounted)}
        onYes={() => remove.run()}
        onNo={onClose}
      />
      {remove.error && <ErrorBox told={remove.error} onClose={remove.clear} />}
    </div>
  );
}

function Ask({
  title,
  onSubmit,
  onClose,
  children,
}: {
  title: string;
  onSubmit: () => unknown;
  onClose: () => void;
  children: preact.ComponentChildren;
}) {
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void onSubmit();
      }}
      onKeyDown={(event) => event.key === 'Escape' && onClose()}
    >
      <Panel title={title}>
        <div class="stack tight">{children}</div>
      </Panel>
    </form>
  );
}
