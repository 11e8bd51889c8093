// Every session: found by a part of its key, with what it is and when it was last used.

import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { live } from '../../api/live';
import { asTold, isAbort, type Told } from '../../api/problem';
import { useAct } from '../../api/use';
import { oneLine } from '../../format/escape';
import { Button } from '../../parts/button';
import { Empty } from '../../parts/empty';
import { Field, TextInput } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Table, type Column } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { useTyped } from '../../parts/typed';
import { useMay } from '../../layout/me';
import { PlaceHead } from '../../layout/place';
import { address, Link, navigate, setQuery, useAddress } from '../../router';
import { asker } from './timeline';

type Session = Schema<'Session'>;

/** Sessions of one page: for so many the gateway looks up whether their sandboxes run. */
const PAGE = 200;

interface Found {
  sessions: Session[];
  next: string | undefined;
}

/** Sessions that hold a text in their keys, page by page; read anew when something has changed. */
function useSessions(contains: string) {
  const [found, setFound] = useState<Found | null>(null);
  const [error, setError] = useState<Told | null>(null);
  const [busy, setBusy] = useState(false);
  const held = useRef<Found | null>(null);
  const running = useRef<AbortController | null>(null);

  const read = useCallback(
    async (least: number, from?: Found) => {
      running.current?.abort();
      const mine = new AbortController();
      running.current = mine;
      setBusy(true);
      const sessions = from ? [...from.sessions] : [];
      let cursor = from?.next;
      try {
        do {
          const query = { limit: PAGE, ...(contains ? { contains } : {}), ...(cursor ? { cursor } : {}) };
          const page = await api.get('/api/v1/sessions', { query, signal: mine.signal });
          sessions.push(...page.sessions);
          cursor = page.next;
        } while (cursor !== undefined && sessions.length < least);
        held.current = { sessions, next: cursor };
        setFound(held.current);
        setError(null);
      } catch (failed) {
        if (!isAbort(failed)) setError(asTold(failed));
      } finally {
        if (running.current === mine) {
          running.current = null;
          setBusy(false);
        }
      }
    },
    [contains],
  );

  useEffect(() => {
    held.current = null;
    void read(PAGE);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = live.listen((topics) => {
      if (!topics.has('sessions') && !topics.has('sandboxes')) return;
      // Not for each of many changes, and as many rows as are there now.
      timer ??= setTimeout(() => {
        timer = undefined;
        void read(held.current?.sessions.length ?? PAGE);
      }, 1000);
    });
    return () => {
      stop();
      clearTimeout(timer);
      running.current?.abort();
    };
  }, [read]);

  const more = useCallback(() => {
    const now = held.current;
    if (now?.next !== undefined && running.current === null) void read(now.sessions.length + 1, now);
  }, [read]);
  return { found, error, busy, more, again: () => void read(PAGE) };
}

const columns: Column<Session>[] = [
  {
    id: 'session',
    title: 'Session',
    width: 'minmax(200px, 3fr)',
    machine: true,
    cell: (row) => <Link to={address(['sessions', row.session])}>{oneLine(row.session)}</Link>,
  },
  {
    id: 'state',
    title: 'Sandbox',
    width: '120px',
    cell: (row) => <Mark kind={row.state} />,
  },
  { id: 'backend', title: 'Backend', width: '130px', machine: true, cell: (row) => row.backend ?? '–' },
  {
    id: 'sets',
    title: 'Sets',
    width: 'minmax(140px, 2fr)',
    cell: (row) => <Sets overrides={row.overrides} />,
  },
  { id: 'used', title: 'Last used', width: '110px', cell: (row) => <When millis={row.lastUsedMillis} /> },
  { id: 'by', title: 'By', width: 'minmax(120px, 1fr)', cell: (row) => oneLine(asker(row.lastUsedBy)) },
];

/** What a session sets of its own, in a few words; what takes protection away is marked. */
function Sets({ overrides }: { overrides: Schema<'Overrides'> }) {
  const weak: string[] = [];
  const plain: string[] = [];
  if (overrides.sandboxEnabled === false) weak.push('sandbox off');
  if (overrides.network === 'open') weak.push('network open');
  else if (overrides.network) plain.push(`network ${overrides.network}`);
  if (overrides.sandboxBackend) plain.push(overrides.sandboxBackend);
  if (overrides.sandboxImage) plain.push('image');
  if (overrides.limits && Object.keys(overrides.limits).length > 0) plain.push('limits');
  if (overrides.workspace) plain.push(`workspace ${overrides.workspace.mode ?? 'ro'}`);
  if (overrides.trustedDomains || overrides.deniedDomains) plain.push('hosts');
  if (weak.length + plain.length === 0) return <span class="soft">as configured</span>;
  return (
    <>
      {weak.length > 0 && <Mark kind="warning">{weak.join(', ')}</Mark>}
      {weak.length > 0 && plain.length > 0 && ' · '}
      {plain.join(', ')}
    </>
  );
}

export function SessionList() {
  const { query } = useAddress();
  const wanted = query.get('contains') ?? '';
  const [typed, setTyped] = useTyped(wanted, (contains) => setQuery({ contains }));
  const { found, error, busy, more, again } = useSessions(wanted);
  const [making, setMaking] = useState(false);
  const mayWrite = useMay('operator.write');

  const whole = found !== null && found.next === undefined;
  const rows = useMemo(() => {
    if (found === null) return [];
    // What was used last comes first where all are here; else they come in the order of their keys.
    return whole ? [...found.sessions].sort((a, b) => b.lastUsedMillis - a.lastUsedMillis) : found.sessions;
  }, [found, whole]);

  const count = found === null ? '' : `${found.sessions.length.toLocaleString('en')}${whole ? '' : ' and more'}`;
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Sessions' }]}>
        <input
          type="search"
          class="input filter"
          placeholder="Filter by key"
          aria-label="Filter sessions by a part of their keys"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        {mayWrite && (
          <Button onClick={() => setMaking(!making)} expanded={making}>
            New session
          </Button>
        )}
      </PlaceHead>
      {making && <NewSession onClose={() => setMaking(false)} />}
      {error && <ErrorBox told={error} onRetry={again} />}
      <Panel
        title={wanted ? `Keys with “${oneLine(wanted)}”` : 'All sessions'}
        about={count && (whole ? `${count}, last used first` : `${count}, by key`)}
        flush
      >
        {found === null ? (
          !error && <Loading what="Reading sessions" />
        ) : (
          <Table
            label="Sessions"
            rows={rows}
            columns={columns}
            rowKey={(row) => row.session}
            onOpen={(row) => navigate(address(['sessions', row.session]))}
            onEnd={more}
            empty={
              wanted ? (
                <Empty title="No session has this in its key">
                  <Button small onClick={() => setQuery({ contains: '' })}>
                    Show all
                  </Button>
                </Empty>
              ) : (
                <Empty title="No session yet" command="moltis exec --session work 'uname -a'">
                  A session keeps its home, its settings and its history. The first command with a key makes it:
                </Empty>
              )
            }
          />
        )}
        {busy && found?.next !== undefined && <Loading what="Reading more" />}
      </Panel>
    </div>
  );
}

function NewSession({ onClose }: { onClose: () => void }) {
  const [key, setKey] = useState('');
  const make = useAct(async () => {
    await api.put('/api/v1/sessions/{session}', { path: { session: key } });
    navigate(address(['sessions', key]));
  });
  return (
    <form
      class="panel"
      onSubmit={(event) => {
        event.preventDefault();
        if (key !== '') void make.run();
      }}
    >
      <div class="body stack tight">
        <Field label="Key" help="Any text of up to 512 bytes, such as `team/review-17`. What is there already is opened.">
          <TextInput value={key} onValue={setKey} mono autofocus />
        </Field>
        {make.error && <ErrorBox told={make.error} onClose={make.clear} />}
        <div class="row">
          <Button submit primary busy={make.busy} disabled={key === ''}>
            Open
          </Button>
          <Button quiet onClick={onClose}>
            Cancel
          </Button>
        </div>
      </div>
    </form>
  );
}
