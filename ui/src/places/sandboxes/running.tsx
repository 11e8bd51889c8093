// Sandboxes that run, and what is left of others.

import type { ComponentChildren } from 'preact';
import { api, type Schema } from '../../api/client';
import { useAct, useRead } from '../../api/use';
import { Button, Confirm } from '../../parts/button';
import { Copy } from '../../parts/copy';
import { Empty } from '../../parts/empty';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Size } from '../../parts/size';
import { Table, type Column } from '../../parts/table';
import { Took, When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { address, Link, setQuery } from '../../router';
import { oneLine } from '../../format/escape';
import { useMay, useMe } from '../../layout/me';
import { announce } from '../../parts/announce';
import { alone, stateOf, unmeasured } from './state';

type Sandbox = Schema<'Sandbox'>;

const COLUMNS: readonly Column<Sandbox>[] = [
  {
    id: 'session',
    title: 'Session',
    width: 'minmax(180px, 2fr)',
    machine: true,
    cell: ({ session, id }) =>
      session === undefined ? (
        <span class="soft" title={id}>
          none: {id.slice(0, 12)}
        </span>
      ) : (
        <Link to={address(['sessions', session])} title={oneLine(session)}>
          {oneLine(session)}
        </Link>
      ),
  },
  { id: 'backend', title: 'Backend', width: '130px', machine: true, cell: ({ backend }) => backend },
  { id: 'state', title: 'State', width: '150px', cell: (sandbox) => <State sandbox={sandbox} /> },
  { id: 'use', title: 'In use', width: 'minmax(130px, 1fr)', cell: (sandbox) => <Use sandbox={sandbox} /> },
  {
    id: 'memory',
    title: 'Memory',
    width: '96px',
    end: true,
    cell: (sandbox) => <Known sandbox={sandbox} of={({ memoryBytes }) => <Size bytes={memoryBytes} />} />,
  },
  {
    id: 'cpu',
    title: 'CPU time',
    width: '90px',
    end: true,
    cell: (sandbox) => <Known sandbox={sandbox} of={({ cpuMs }) => <Took millis={cpuMs} />} />,
  },
  { id: 'commands', title: 'Commands', width: '90px', end: true, cell: ({ activity }) => activity?.commands.toLocaleString('en') ?? '–' },
  {
    id: 'uptime',
    title: 'Uptime',
    width: '110px',
    end: true,
    cell: ({ activity, running, createdMillis }) =>
      running ? <Took millis={activity?.uptimeMs ?? Date.now() - createdMillis} /> : '–',
  },
  { id: 'created', title: 'Created', width: '100px', end: true, cell: ({ createdMillis }) => <When millis={createdMillis} /> },
];

function State({ sandbox }: { sandbox: Sandbox }) {
  const { kind, word } = stateOf(sandbox);
  return (
    <Mark kind={kind} title={sandbox.provider && `at the provider: ${oneLine(sandbox.provider.state)}`}>
      {oneLine(word)}
    </Mark>
  );
}

/** What a sandbox takes, or why nobody knows. */
function Known({ sandbox, of }: { sandbox: Sandbox; of: (usage: NonNullable<Sandbox['usage']>) => ComponentChildren }) {
  if (sandbox.usage) return <>{of(sandbox.usage)}</>;
  if (!sandbox.running) return <>–</>;
  return (
    <span class="soft" title={unmeasured(sandbox.backend)}>
      not told
    </span>
  );
}

function Use({ sandbox: { activity, background, running } }: { sandbox: Sandbox }) {
  if (!running) return <>–</>;
  const doing = [
    activity && activity.operations > background ? `${activity.operations - background} running` : '',
    background > 0 ? `${background} in background` : '',
  ].filter(Boolean);
  if (doing.length > 0) return <>{doing.join(', ')}</>;
  if (!activity) return <span class="soft">not known</span>;
  return (
    <span class="soft">
      idle for <Took millis={activity.idleMs} />
    </span>
  );
}

export function Running({ query }: { query: URLSearchParams }) {
  const { data, error, loading, reload } = useRead('/api/v1/sandboxes', {}, { topics: ['sandboxes', 'sessions'], every: 10_000 });
  const onlyRunning = query.get('show') === 'running';
  const all = data?.sandboxes ?? [];
  const rows = onlyRunning ? all.filter((one) => one.running) : all;
  const running = all.filter((one) => one.running).length;
  const opened = rows.find((one) => one.id === query.get('sandbox'));
  // A key that is bound to some sessions may end those by their own pages alone.
  const write = useMay('operator.write');
  const mayPrune = useMe().sessions === undefined && write;
  const prune = useAct(async (idle: boolean) => {
    const pruned = await api.post('/api/v1/sandboxes/prune', { body: { idle } });
    announce(`${pruned.removed.length} removed, ${pruned.kept} kept`);
    reload();
  });
  return (
    <Panel
      title="Sandboxes"
      about={data && `${running} running${all.length > running ? `, ${all.length - running} not running` : ''}`}
      flush
      actions={
        <>
          {all.length > running && (
            <Button quiet small onClick={() => setQuery({ show: onlyRunning ? '' : 'running' })}>
              {onlyRunning ? 'Show all' : 'Only running'}
            </Button>
          )}
          {mayPrune && all.length > 0 && (
            <Confirm
              small
              quiet
              what="Removes what is left of sandboxes that are dead or belong to nobody. Running ones and homes stay."
              yes="Remove what is left"
              onYes={() => prune.run(false)}
            >
              Clean up
            </Confirm>
          )}
          {mayPrune && running > 0 && (
            <Confirm
              small
              quiet
              what="Ends every sandbox in which nothing runs now, with its /tmp and writable root, and removes what is left of dead ones. Homes stay."
              yes="End idle sandboxes"
              onYes={() => prune.run(true)}
            >
              End idle
            </Confirm>
          )}
        </>
      }
    >
      {error && <ErrorBox told={error} onRetry={reload} />}
      {prune.error && <ErrorBox told={prune.error} onClose={prune.clear} />}
      {loading && <Loading />}
      {data && (
        <Table
          label="Sandboxes"
          rows={rows}
          columns={COLUMNS}
          rowKey={(row) => row.id}
          opened={opened?.id}
          onOpen={(row) => setQuery({ sandbox: row.id === opened?.id ? '' : row.id }, { replace: false })}
          empty={
            <Empty title="No sandbox runs" command="moltis exec --session demo 'uname -a'">
              A session’s first command opens its sandbox, which stays until it is idle for long enough:
            </Empty>
          }
        />
      )}
      {opened && <Opened key={opened.id} sandbox={opened} may={mayPrune} onDone={reload} />}
    </Panel>
  );
}

function Opened({ sandbox, may, onDone }: { sandbox: Sandbox; may: boolean; onDone: () => void }) {
  const { id, session, running, background, activity, provider } = sandbox;
  const act = useAct(async (what: 'stop' | 'remove') => {
    if (what === 'stop') await api.post('/api/v1/sandboxes/{sandbox}/stop', { path: { sandbox: id } });
    else await api.delete('/api/v1/sandboxes/{sandbox}', { path: { sandbox: id } });
    announce(what === 'stop' ? 'The sandbox has ended' : 'The sandbox is removed');
    if (what === 'remove') setQuery({ sandbox: '' });
    onDone();
  });
  const operations = Math.max(activity?.operations ?? 0, background);
  const doing = operations === 0 ? null : operations === 1 ? 'what runs in it (1 operation)' : `what runs in it (${operations} operations)`;
  return (
    <div class="opened">
      <dl class="facts">
        <dt>Sandbox</dt>
        <dd>
          <span class="machine">{id}</span> <Copy text={id} />
        </dd>
        {provider && (
          <>
            <dt>At the provider</dt>
            <dd>
              <span class="machine">{oneLine(provider.name)}</span>, {oneLine(provider.state)}
              {!provider.known &&
                ': nothing here knows it. A process that was killed left it, or a data directory that was lost, and it may cost money.'}
            </dd>
          </>
        )}
        {session !== undefined && (
          <>
            <dt>Session</dt>
            <dd>
              <Link to={address(['sessions', session])}>
                <span class="machine">{oneLine(session)}</span>
              </Link>
            </dd>
          </>
        )}
      </dl>
      {act.error && <ErrorBox told={act.error} onClose={act.clear} />}
      <div class="row">
        {may && running && !alone(sandbox) && (
          <Confirm
            small
            what={
              <>
                {doing === null ? 'Loses' : `Ends ${doing}, and loses`} <code>/tmp</code> and the writable root of {session === undefined ? 'this sandbox' : <span class="machine">{oneLine(session)}</span>}. The
                session and its home stay.
              </>
            }
            yes="Stop it"
            onYes={() => act.run('stop')}
          >
            Stop…
          </Confirm>
        )}
        {may && <Confirm
          small
          what={<>{doing === null ? 'Removes' : `Ends ${doing}, and removes`} what is left of this sandbox but its home.</>}
          yes="Remove it"
          onYes={() => act.run('remove')}
        >
          Remove…
        </Confirm>}
        <span class="push">
          <Button quiet small onClick={() => setQuery({ sandbox: '' })}>
            Close
          </Button>
        </span>
      </div>
    </div>
  );
}
