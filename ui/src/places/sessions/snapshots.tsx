// What a session's sandbox held at moments: taken, gone back to, begun from by a new session, removed.

import { useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct, useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { announce } from '../../parts/announce';
import { Button, Confirm } from '../../parts/button';
import { Copy } from '../../parts/copy';
import { Empty } from '../../parts/empty';
import { Check, Field, TextInput } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Size } from '../../parts/size';
import { Table, type Column } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox, Prose } from '../../parts/told';
import { address, navigate, setQuery, useAddress } from '../../router';
import { quoted } from './quoted';
import { asker } from './timeline';

type Snapshot = Schema<'Snapshot'>;
type Begins = Schema<'SessionBegins'> | undefined;

/** What people call it. */
function nameOf({ name, id }: Pick<Snapshot, 'name' | 'id'>): string {
  return name === undefined ? id : oneLine(name);
}

export function Snapshots({ details, mayWrite, onChanged }: { details: Schema<'SessionDetails'>; mayWrite: boolean; onChanged: () => void }) {
  const { session, begins } = details;
  const { query } = useAddress();
  const read = useRead('/api/v1/sessions/{session}/snapshots', { path: { session } }, { topics: ['sandboxes', 'sessions'], every: 30_000 });
  const { data, error, loading, reload } = read;
  const newest = [...(data?.snapshots ?? [])].reverse();
  const opened = newest.find((one) => one.id === query.get('snapshot'));
  const changed = () => {
    reload();
    onChanged();
  };
  const columns: readonly Column<Snapshot>[] = [
    {
      id: 'name',
      title: 'Snapshot',
      width: 'minmax(180px, 2fr)',
      machine: true,
      cell: (one) => <span title={one.id}>{nameOf(one)}</span>,
    },
    {
      id: 'begins',
      title: 'This session',
      width: 'minmax(120px, 1fr)',
      cell: (one) => (one.id === begins?.snapshot ? <Mark kind="held">begins here</Mark> : <span class="soft">–</span>),
    },
    {
      id: 'home',
      title: 'Home',
      width: '110px',
      cell: ({ home }) => (home === 'copied' ? 'in it' : <span class="soft" title="The home is all sessions’, and stays as it is">not in it</span>),
    },
    { id: 'backend', title: 'Backend', width: '120px', machine: true, cell: ({ backend }) => backend },
    { id: 'bytes', title: 'Files', width: '90px', end: true, cell: ({ bytes }) => <Size bytes={bytes} /> },
    { id: 'taken', title: 'Taken', width: '100px', end: true, cell: ({ createdMillis }) => <When millis={createdMillis} /> },
    { id: 'by', title: 'By', width: 'minmax(120px, 1fr)', cell: ({ createdBy }) => oneLine(asker(createdBy)) },
  ];
  return (
    <>
      {begins && <BeginsFrom details={details} begins={begins} all={newest} mayWrite={mayWrite} onDone={changed} />}
      {mayWrite && <Take session={session} onDone={changed} />}
      <Panel title="Snapshots" about="what its sandbox held at a moment; this session can go back there, and new ones can begin there" flush>
        {error && <ErrorBox told={error} onRetry={reload} />}
        {loading && <Loading what="Reading snapshots" />}
        {data && (
          <Table
            label="Snapshots"
            rows={newest}
            columns={columns}
            rowKey={(one) => one.id}
            opened={opened?.id}
            onOpen={(one) => setQuery({ snapshot: one.id === opened?.id ? '' : one.id }, { replace: false })}
            empty={
              <Empty title="None was taken" command={`moltis session snapshot ${quoted(session)} --name good`}>
                Before something is tried that may go wrong, take one above, or:
              </Empty>
            }
          />
        )}
        {opened && <Opened key={opened.id} snapshot={opened} details={details} mayWrite={mayWrite} onDone={changed} />}
      </Panel>
    </>
  );
}

function Take({ session, onDone }: { session: string; onDone: () => void }) {
  const [name, setName] = useState('');
  const [notes, setNotes] = useState<readonly string[]>([]);
  const take = useAct(async () => {
    const body = name.trim() === '' ? {} : { name: name.trim() };
    const taken = await api.post('/api/v1/sessions/{session}/snapshots', { path: { session }, body });
    setNotes(taken.notes);
    setName('');
    announce(`The snapshot ${nameOf(taken)} is taken`);
    setQuery({ snapshot: taken.id });
    onDone();
  });
  return (
    <form
      class="panel"
      aria-label="Take a snapshot"
      onSubmit={(event) => {
        event.preventDefault();
        if (!take.busy) void take.run();
      }}
    >
      <div class="body stack tight">
        <Field
          label="Name of a new snapshot"
          help="May be left out. The sandbox is started if it does not run, and commands run on; processes and memory are not in it."
        >
          <TextInput value={name} onValue={setName} mono placeholder="good" />
        </Field>
        {take.error && <ErrorBox told={take.error} onClose={take.clear} />}
        {notes.length > 0 && (
          <div class="told plain" role="status">
            {notes.map((note) => (
              <div key={note}>
                <Prose text={note} />
              </div>
            ))}
          </div>
        )}
        <div class="row">
          <Button submit primary busy={take.busy}>
            Take a snapshot
          </Button>
        </div>
      </div>
    </form>
  );
}

/** Where the session begins, and the way back to nothing. */
function BeginsFrom({
  details,
  begins,
  all,
  mayWrite,
  onDone,
}: {
  details: Schema<'SessionDetails'>;
  begins: NonNullable<Begins>;
  all: readonly Snapshot[];
  mayWrite: boolean;
  onDone: () => void;
}) {
  const own = all.find((one) => one.id === begins.snapshot);
  return (
    <div class="told plain">
      <div>
        Each sandbox of this session begins from <span class="machine">{own ? nameOf(own) : begins.snapshot}</span>
        {own === undefined && ', which is another session’s,'} on {begins.backend}.
        {begins.homeWaits && ' Its home is replaced by the one in it when the next one starts.'}
      </div>
      {mayWrite && (
        <Restore details={details} snapshot={null} onDone={onDone}>
          Begin from nothing again…
        </Restore>
      )}
    </div>
  );
}

/** Asks, and has the session begin there. */
function Restore({
  details,
  snapshot,
  onDone,
  children,
}: {
  details: Schema<'SessionDetails'>;
  snapshot: Snapshot | null;
  onDone: () => void;
  children: string;
}) {
  const { session, sandbox } = details;
  const [recreate, setRecreate] = useState(false);
  const restore = useAct(async () => {
    const body = { snapshot: snapshot?.id ?? null, recreate };
    await api.post('/api/v1/sessions/{session}/restore', { path: { session }, body });
    setRecreate(false);
    announce(snapshot ? `The session begins from ${nameOf(snapshot)}` : 'The session begins from nothing again');
    onDone();
  });
  const runs = Math.max(sandbox?.activity?.operations ?? 0, sandbox?.background ?? 0);
  return (
    <>
      {restore.error && <ErrorBox told={restore.error} onClose={restore.clear} />}
      <Confirm
        small
        what={
          <>
            Its sandbox ends, and what is in <code>/tmp</code> and the writable root now is lost.{' '}
            {snapshot?.home === 'copied'
              ? 'Its home is replaced by the one in the snapshot when the next sandbox starts: what was written there since is lost too.'
              : 'Its home stays as it is.'}{' '}
            {/* What runs may have begun since this was read. */}
            <Check checked={recreate} onChecked={setRecreate}>
              {runs === 0 ? 'also if something runs in it by then' : `and end what runs in it (${runs === 1 ? '1 operation' : `${runs} operations`})`}
            </Check>
          </>
        }
        yes={snapshot ? 'Go back to it' : 'Begin from nothing'}
        onYes={() => restore.run()}
      >
        {children}
      </Confirm>
    </>
  );
}

function Opened({
  snapshot,
  details,
  mayWrite,
  onDone,
}: {
  snapshot: Snapshot;
  details: Schema<'SessionDetails'>;
  mayWrite: boolean;
  onDone: () => void;
}) {
  const { session } = details;
  const [forking, setForking] = useState(false);
  const remove = useAct(async () => {
    await api.delete('/api/v1/sessions/{session}/snapshots/{snapshot}', { path: { session, snapshot: snapshot.id } });
    announce('The snapshot is removed');
    setQuery({ snapshot: '' });
    onDone();
  });
  return (
    <div class="opened">
      <dl class="facts">
        <dt>Snapshot</dt>
        <dd>
          <span class="machine">{snapshot.id}</span> <Copy text={snapshot.id} />
        </dd>
        {snapshot.name !== undefined && (
          <>
            <dt>Name</dt>
            <dd class="machine">{nameOf(snapshot)}</dd>
          </>
        )}
        <dt>Can be used on</dt>
        <dd>
          <span class="machine">{snapshot.backend}</span> alone
        </dd>
      </dl>
      {remove.error && <ErrorBox told={remove.error} onClose={remove.clear} />}
      {forking && <Fork session={session} snapshot={snapshot} onClose={() => setForking(false)} />}
      <div class="row">
        {mayWrite && (
          <>
            <Restore details={details} snapshot={snapshot} onDone={onDone}>
              Go back to it…
            </Restore>
            <Button small expanded={forking} onClick={() => setForking(!forking)}>
              New session from it
            </Button>
            <Confirm
              small
              what={
                <>
                  Removes the snapshot <span class="machine">{nameOf(snapshot)}</span> and the files in it. It cannot be taken back. What is in sandboxes now stays.
                </>
              }
              yes="Remove it"
              onYes={() => remove.run()}
            >
              Remove…
            </Confirm>
          </>
        )}
        <span class="push">
          <Button quiet small onClick={() => setQuery({ snapshot: '' })}>
            Close
          </Button>
        </span>
      </div>
    </div>
  );
}

function Fork({ session, snapshot, onClose }: { session: string; snapshot: Snapshot; onClose: () => void }) {
  const [key, setKey] = useState('');
  const fork = useAct(async () => {
    await api.post('/api/v1/sessions/{session}/fork', { path: { session }, body: { session: key, snapshot: snapshot.id } });
    announce('The session is made');
    navigate(address(['sessions', key]));
  });
  return (
    <form
      class="stack tight"
      aria-label="New session from this snapshot"
      onSubmit={(event) => {
        event.preventDefault();
        if (key !== '' && !fork.busy) void fork.run();
      }}
    >
      <Field label="Key of the new session" help="It sets what this one sets, and begins with what is in the snapshot. What one writes the other does not see.">
        <TextInput value={key} onValue={setKey} mono autofocus />
      </Field>
      {fork.error && <ErrorBox told={fork.error} onClose={fork.clear} />}
      <div class="row">
        <Button submit primary small busy={fork.busy} disabled={key === ''}>
          Make it
        </Button>
        <Button quiet small onClick={onClose}>
          Cancel
        </Button>
      </div>
    </form>
  );
}
