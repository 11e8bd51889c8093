// What sandboxes tried to reach, as it happens: filtered by the address, with what decided.

import { useEffect, useState } from 'preact/hooks';
import { api, url } from '../../api/client';
import { useAct, useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { useMay, useMe } from '../../layout/me';
import { announce } from '../../parts/announce';
import { Button } from '../../parts/button';
import { Empty } from '../../parts/empty';
import { Select } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Size } from '../../parts/size';
import { Table, type Column } from '../../parts/table';
import { Took, When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { useTyped } from '../../parts/typed';
import { address, Link, setQuery } from '../../router';
import { Chart } from './chart';
import { ACTIONS, PROTOCOLS, SINCE, isPlain, toRequest, type Filter } from './filters';
import type { Row } from './live';
import type { LogView } from './use-log';

const SINCE_WORDS: Record<string, string> = {
  '15m': 'last 15 minutes',
  '1h': 'last hour',
  '24h': 'last 24 hours',
  '7d': 'last 7 days',
};

export function LogPart({ view, filter }: { view: LogView; filter: Filter }) {
  const [opened, setOpened] = useState<Row | null>(null);
  const [host, setHost] = useTyped(filter.domain ?? '', (domain) => setQuery({ domain }));

  const columns: Column<Row>[] = [
    { id: 'when', title: 'When', width: '92px', cell: (row) => <When millis={row.timestamp} /> },
    {
      id: 'action',
      title: 'Said',
      width: '100px',
      cell: (row) => <Mark kind={row.action} />,
    },
    {
      id: 'host',
      title: 'Host',
      width: 'minmax(180px, 1.8fr)',
      machine: true,
      cell: (row) => `${oneLine(row.domain)}:${row.port}`,
    },
    { id: 'protocol', title: 'Protocol', width: '86px', machine: true, cell: (row) => row.protocol },
    {
      id: 'session',
      title: 'Session',
      width: 'minmax(110px, 1.4fr)',
      machine: true,
      cell: (row) => <Link to={address(['sessions', row.session])}>{oneLine(row.session)}</Link>,
    },
    {
      id: 'why',
      title: 'Decided by',
      width: 'minmax(160px, 2.2fr)',
      cell: (row) => (
        <span title={row.reason === undefined ? undefined : oneLine(row.reason)}>
          {row.source}
          {row.reason !== undefined && <span class="soft"> {oneLine(row.reason)}</span>}
        </span>
      ),
    },
    {
      id: 'bytes',
      title: 'Sent / received',
      width: '140px',
      end: true,
      cell: (row) =>
        row.action === 'denied' ? (
          '–'
        ) : row.over ? (
          <>
            <Size bytes={row.sentBytes} /> / <Size bytes={row.receivedBytes} />
          </>
        ) : (
          <span class="soft">open</span>
        ),
    },
    {
      id: 'took',
      title: 'Took',
      width: '86px',
      end: true,
      cell: (row) => (row.over && row.action === 'allowed' ? <Took millis={row.durationMs} /> : ''),
    },
  ];

  const stats = useStats(filter, view.version);
  const current = opened && (view.rows.find((row) => row.key === opened.key) ?? opened);
  return (
    <>
      <div class="filters" role="search" aria-label="Filter the log">
        <input
          type="search"
          class="input filter machine"
          placeholder="Host, such as example.com"
          aria-label="Host: itself and those below it; with :port only that port"
          value={host}
          onInput={(event) => setHost(event.currentTarget.value)}
        />
        <Select
          aria-label="What was said"
          value={filter.action ?? ''}
          onValue={(value) => setQuery({ action: value })}
          options={[{ value: '', label: 'allowed and denied' }, ...ACTIONS]}
        />
        <Select
          aria-label="Protocol"
          value={filter.protocol ?? ''}
          onValue={(value) => setQuery({ protocol: value })}
          options={[{ value: '', label: 'any protocol' }, ...PROTOCOLS]}
        />
        <Select
          aria-label="Since"
          value={filter.since ?? ''}
          onValue={(value) => setQuery({ since: value })}
          options={[{ value: '', label: 'any time' }, ...SINCE.map((value) => ({ value, label: SINCE_WORDS[value] ?? value }))]}
        />
        {filter.session !== undefined && (
          <span class="chip">
            <span class="soft">session</span>
            <span class="machine">{oneLine(filter.session)}</span>
            <Button quiet small label="Any session" onClick={() => setQuery({ session: null })}>
              ✕
            </Button>
          </span>
        )}
        {!isPlain(filter) && (
          <Button quiet small onClick={() => setQuery({ domain: null, action: null, protocol: null, since: null, session: null })}>
            Clear
          </Button>
        )}
      </div>
      {stats.data && <Chart periods={stats.data.overTime.periods} periodMs={stats.data.overTime.periodMs} />}
      {view.error && <ErrorBox told={view.error} onRetry={view.again} />}
      {current && <Detail row={current} onClose={() => setOpened(null)} />}
      <Panel
        title="Log"
        about={view.loading ? undefined : `${view.rows.length.toLocaleString('en')}${view.hasMore ? ' and more' : ''}, newest first`}
        actions={<Export filter={filter} />}
        flush
      >
        {view.loading ? (
          <Loading what="Reading the log" />
        ) : (
          <Table
            label="What sandboxes tried to reach, newest first"
            rows={view.rows}
            columns={columns}
            rowKey={(row) => row.key}
            opened={current?.key}
            onOpen={(row) => setOpened(current?.key === row.key ? null : row)}
            onEnd={view.hasMore ? view.more : undefined}
            empty={
              isPlain(filter) ? (
                <Empty
                  title="Nothing was tried yet"
                  command="moltis exec --session work --network trusted 'curl -sI https://example.com'"
                >
                  Every host that a program in a sandbox with the network <code>trusted</code> tries to reach shows here,
                  with what was said to it:
                </Empty>
              ) : (
                <Empty title="Nothing in the log is like this">
                  <Button
                    small
                    onClick={() => setQuery({ domain: null, action: null, protocol: null, since: null, session: null })}
                  >
                    Show all
                  </Button>
                </Empty>
              )
            }
          />
        )}
      </Panel>
      {stats.data && stats.data.droppedEntries + stats.data.unreadableLines > 0 && (
        <p class="small">
          <Mark kind="warning">
            {stats.data.droppedEntries.toLocaleString('en')} entries could not be written,{' '}
            {stats.data.unreadableLines.toLocaleString('en')} lines cannot be read
          </Mark>
        </p>
      )}
    </>
  );
}

/** What the log says, counted; again a while after something came. */
export function useStats(filter: Filter, version: number) {
  // A length of time is counted from a whole minute, so that the question stays the same for as long.
  const minute = Math.floor(Date.now() / 60_000) * 60_000;
  const stats = useRead('/api/v1/network/stats', { query: { ...toRequest(filter, minute), limit: 200 } });
  useEffect(() => {
    if (version === 0) return;
    const timer = setTimeout(stats.reload, 1_500);
    return () => clearTimeout(timer);
  }, [version]);
  return stats;
}

function Export({ filter }: { filter: Filter }) {
  const link = (format: 'jsonl' | 'csv') =>
    url('/api/v1/network/export', { query: { ...toRequest(filter, Date.now()), format } });
  // The address is made when it is followed: a length of time is counted from then.
  return (
    <span class="row">
      {(['jsonl', 'csv'] as const).map((format) => (
        <a
          key={format}
          class="button quiet small"
          href={link(format)}
          download
          onClick={(event) => (event.currentTarget.href = link(format))}
        >
          Export {format === 'csv' ? 'CSV' : 'JSON lines'}
        </a>
      ))}
    </span>
  );
}

/** One entry in whole, and what can be said of its host. */
function Detail({ row, onClose }: { row: Row; onClose: () => void }) {
  const mayWrite = useMay('operator.write');
  const rule = useAct(async (action: 'allow' | 'deny', session: string | undefined) => {
    const pattern = row.domain;
    await api.post('/api/v1/network/rules', {
      body: { pattern, action, ...(session === undefined ? {} : { session }) },
    });
    announce(`${pattern} is ${action === 'allow' ? 'allowed' : 'denied'} now`);
    setDone(`${oneLine(pattern)} is ${action === 'allow' ? 'allowed' : 'denied'} ${session === undefined ? 'for good' : 'for this session'}`);
  });
  const [done, setDone] = useState<string | null>(null);
  useEffect(() => setDone(null), [row.key]);
  const isBound = useMe().sessions !== undefined;
  return (
    <Panel
      title={`${oneLine(row.domain)}:${row.port}`}
      about={<Mark kind={row.action} />}
      actions={
        <Button quiet small onClick={onClose}>
          Close
        </Button>
      }
    >
      <div class="stack tight">
        <dl class="facts">
          <dt>When</dt>
          <dd>
            <When millis={row.timestamp} /> <span class="soft">{new Date(row.timestamp).toISOString()}</span>
          </dd>
          <dt>Session</dt>
          <dd class="machine">
            <Link to={address(['sessions', row.session])}>{oneLine(row.session)}</Link>{' '}
            <Button quiet small onClick={() => setQuery({ session: row.session })}>
              Only this session
            </Button>
          </dd>
          <dt>Protocol</dt>
          <dd class="machine">{row.protocol}</dd>
          <dt>Decided by</dt>
          <dd>
            {row.source} {row.reason !== undefined && <span class="machine soft">{oneLine(row.reason)}</span>}
          </dd>
          {row.action === 'allowed' && (
            <>
              <dt>Bytes</dt>
              <dd>
                {row.over ? (
                  <>
                    <Size bytes={row.sentBytes} /> sent, <Size bytes={row.receivedBytes} /> received in{' '}
                    <Took millis={row.durationMs} />
                  </>
                ) : (
                  'the connection is open'
                )}
              </dd>
            </>
          )}
        </dl>
        {done !== null && (
          <div class="told plain">
            <Mark kind="held">{done}</Mark>
          </div>
        )}
        {rule.error && <ErrorBox told={rule.error} onClose={rule.clear} />}
        {mayWrite && (
          <div class="row">
            <Button small busy={rule.busy} onClick={() => rule.run('allow', row.session)}>
              Allow for this session
            </Button>
            <Button small busy={rule.busy} onClick={() => rule.run('deny', row.session)}>
              Deny for this session
            </Button>
            {!isBound && (
              <>
                <Button small quiet busy={rule.busy} onClick={() => rule.run('allow', undefined)}>
                  Always allow
                </Button>
                <Button small quiet busy={rule.busy} onClick={() => rule.run('deny', undefined)}>
                  Always deny
                </Button>
              </>
            )}
          </div>
        )}
      </div>
    </Panel>
  );
}
