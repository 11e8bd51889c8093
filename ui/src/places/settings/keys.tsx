// API keys: made, shown once, revoked.

import { useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct, useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { announce } from '../../parts/announce';
import { Button, Confirm } from '../../parts/button';
import { Command } from '../../parts/copy';
import { Empty } from '../../parts/empty';
import { Field, Select, TextArea, TextInput } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Table } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { setQuery } from '../../router';

const DAY = 24 * 3600;

export function Keys({ query }: { query: URLSearchParams }) {
  const { data, error, loading, reload } = useRead('/api/v1/keys');
  const opened = data?.keys.find((key) => key.name === query.get('key'));
  const revoke = useAct(async (name: string) => {
    await api.delete('/api/v1/keys/{name}', { path: { name } });
    announce('The key is revoked');
    setQuery({ key: '' });
    reload();
  });
  return (
    <>
      <Make onMade={reload} />
      <Panel title="API keys" about={data && `${data.keys.length}`} flush>
        {error && <ErrorBox told={error} onRetry={reload} />}
        {revoke.error && <ErrorBox told={revoke.error} onClose={revoke.clear} />}
        {loading && <Loading />}
        {data && (
          <Table
            label="API keys"
            rows={data.keys}
            rowKey={(key) => key.name}
            opened={opened?.name}
            onOpen={(key) => setQuery({ key: key.name === opened?.name ? '' : key.name }, { replace: false })}
            empty={
              <Empty title="There are no keys" command="moltis gateway key create NAME --scope operator.write">
                A program needs one to use the API. Make one above, or:
              </Empty>
            }
            columns={[
              { id: 'name', title: 'Name', width: 'minmax(140px, 1fr)', machine: true, cell: (key) => key.name },
              { id: 'scope', title: 'Scope', width: '140px', machine: true, cell: (key) => key.scope },
              {
                id: 'sessions',
                title: 'Sessions',
                width: 'minmax(140px, 1.5fr)',
                machine: true,
                cell: (key) => (key.sessions ? <span title={key.sessions.map(oneLine).join('\n')}>{key.sessions.map(oneLine).join(', ')}</span> : <span class="soft">all</span>),
              },
              { id: 'created', title: 'Created', width: '110px', end: true, cell: (key) => <When millis={key.createdMillis} /> },
              {
                id: 'used',
                title: 'Last used',
                width: '110px',
                end: true,
                cell: (key) => (key.lastUsedMillis === undefined ? <span class="soft">never</span> : <When millis={key.lastUsedMillis} />),
              },
              {
                id: 'expires',
                title: 'Expires',
                width: '110px',
                end: true,
                cell: (key) => (key.expiresMillis === undefined ? <span class="soft">never</span> : <When millis={key.expiresMillis} />),
              },
            ]}
          />
        )}
        {opened && (
          <div class="opened">
            <div class="row">
              <span class="machine">{opened.name}</span>
              <Confirm
                small
                what={`Whoever uses the key ${opened.name} is refused from now on. It cannot be taken back.`}
                yes="Revoke it"
                onYes={() => revoke.run(opened.name)}
              >
                Revoke…
              </Confirm>
              <span class="push">
                <Button quiet small onClick={() => setQuery({ key: '' })}>
                  Close
                </Button>
              </span>
            </div>
          </div>
        )}
      </Panel>
    </>
  );
}

function Make({ onMade }: { onMade: () => void }) {
  const [name, setName] = useState('');
  const [scope, setScope] = useState<Schema<'NewKey'>['scope']>('operator.write');
  const [sessions, setSessions] = useState('');
  const [days, setDays] = useState('');
  const [made, setMade] = useState<string | null>(null);
  const make = useAct(async () => {
    const patterns = sessions
      .split('\n')
      .map((line) => line.trim())
      .filter((line) => line !== '');
    const body: Schema<'NewKey'> = { name: name.trim(), scope };
    if (patterns.length > 0) body.sessions = patterns;
    if (days.trim() !== '') body.expiresSecs = Math.round(Number(days) * DAY);
    const answer = await api.post('/api/v1/keys', { body });
    setMade(answer.key);
    setName('');
    setSessions('');
    announce('The key is made');
    onMade();
  });
  return (
    <Panel title="New key" about="for a program that uses the API">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          setMade(null);
          void make.run();
        }}
      >
        <div class="fields">
          <Field label="Name" help="Under which what it does is written down: letters, digits, `-`, `_` and `.`">
            <TextInput mono value={name} onValue={setName} />
          </Field>
          <Field label="Scope" help="`read` looks, `write` runs commands, `admin` does everything">
            <Select
              value={scope}
              onValue={(word) => setScope(word as typeof scope)}
              options={['operator.read', 'operator.write', 'operator.admin']}
            />
          </Field>
          <Field label="Sessions" help="Patterns, one a line, in which `*` stands for any text; it sees nothing else. Empty: every session">
            <TextArea value={sessions} onValue={setSessions} rows={2} placeholder="ci/*" />
          </Field>
          <Field label="Days until it is refused" help="Empty: it holds until it is revoked">
            <TextInput mono value={days} onValue={setDays} />
          </Field>
        </div>
        {make.error && <ErrorBox told={make.error} onClose={make.clear} />}
        <div class="row">
          <Button submit primary busy={make.busy} disabled={name.trim() === ''}>
            Make the key
          </Button>
        </div>
        {made !== null && (
          <div class="told plain" role="status">
            <span class="what">
              <Mark kind="held">made</Mark> This is shown once. Take it along now:
            </span>
            <Command text={made} />
          </div>
        )}
      </form>
    </Panel>
  );
}
