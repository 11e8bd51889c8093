// What is allowed and denied: by the configuration, for good, and for a session; and what would be said of a host.

import { useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct, useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { useMay, useMe } from '../../layout/me';
import { announce } from '../../parts/announce';
import { Button, Question } from '../../parts/button';
import { Empty } from '../../parts/empty';
import { Field, Select, TextInput } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Table, type Column } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox, Prose } from '../../parts/told';
import { setQuery } from '../../router';
import { asker } from '../sessions/timeline';

type Rule = Schema<'NetworkRule'>;

const ORIGIN: Record<Rule['origin'], string> = {
  config: 'configuration',
  rule: 'for good',
  session: 'this session',
};

export function Rules({ session }: { session: string | undefined }) {
  const mayWrite = useMay('operator.write');
  const rules = useRead(
    '/api/v1/network/rules',
    session === undefined ? {} : { query: { session } },
    { topics: ['network', 'settings', 'sessions'] },
  );
  const isBound = useMe().sessions !== undefined;
  const forget = useAct(async (pattern: string) => {
    await api.delete('/api/v1/network/rules', { query: { pattern } });
    rules.reload();
    announce('Forgotten');
  });
  const columns: Column<Rule>[] = [
    { id: 'pattern', title: 'Pattern', width: 'minmax(180px, 2fr)', machine: true, cell: (row) => oneLine(row.pattern) },
    {
      id: 'action',
      title: 'What it does',
      width: '120px',
      cell: (row) => <Mark kind={row.action === 'allow' ? 'allowed' : 'denied'}>{row.action}</Mark>,
    },
    { id: 'origin', title: 'From', width: '130px', cell: (row) => ORIGIN[row.origin] },
    {
      id: 'made',
      title: 'Made',
      width: 'minmax(150px, 1.4fr)',
      cell: (row) =>
        row.madeMillis === undefined ? (
          <span class="soft">–</span>
        ) : (
          <>
            <When millis={row.madeMillis} /> {row.madeBy && <span class="soft">by {oneLine(asker(row.madeBy))}</span>}
          </>
        ),
    },
    {
      id: 'act',
      title: '',
      width: 'minmax(90px, 1fr)',
      end: true,
      cell: (row) =>
        row.origin === 'rule' && mayWrite && !isBound ? (
          <Button quiet small danger label={`Forget the rule ${row.pattern}`} onClick={() => setForgetting(row)}>
            Forget
          </Button>
        ) : null,
    },
  ];
  const [forgetting, setForgetting] = useState<Rule | null>(null);
  return (
    <>
      {mayWrite && <NewRule session={session} isBound={isBound} onMade={rules.reload} />}
      {forget.error && <ErrorBox told={forget.error} onClose={forget.clear} />}
      {forgetting && (
        <Question
          weakens={forgetting.action === 'deny'}
          what={
            <>
              The rule that {forgetting.action === 'allow' ? 'allows' : 'denies'}{' '}
              <code class="machine">{oneLine(forgetting.pattern)}</code> for every session is forgotten. What it let
              through is cut.
            </>
          }
          yes="Forget it"
          busy={forget.busy}
          onYes={async () => {
            await forget.run(forgetting.pattern);
            setForgetting(null);
          }}
          onNo={() => setForgetting(null)}
        />
      )}
      <Panel
        title="Rules"
        about={session === undefined ? 'of the configuration and for good; denied wins' : 'also those of the session; denied wins'}
        actions={
          session !== undefined && (
            <span class="chip">
              <span class="soft">session</span>
              <span class="machine">{oneLine(session)}</span>
              <Button quiet small label="Without those of a session" onClick={() => setQuery({ session: null })}>
                ✕
              </Button>
            </span>
          )
        }
        flush
      >
        {rules.error && <ErrorBox told={rules.error} onRetry={rules.reload} />}
        {rules.loading ? (
          <Loading what="Reading rules" />
        ) : (
          <Table
            label="Rules"
            rows={rules.data?.rules ?? []}
            columns={columns}
            rowKey={(row) => `${row.origin} ${row.action} ${row.pattern}`}
            empty={
              <Empty title="No rule: with the network `trusted` nothing is reached" command="moltis network allow example.com">
                A rule for good holds for every session:
              </Empty>
            }
          />
        )}
      </Panel>
      <Test session={session} />
    </>
  );
}

function NewRule({ session, isBound, onMade }: { session: string | undefined; isBound: boolean; onMade: () => void }) {
  const [pattern, setPattern] = useState('');
  const [action, setAction] = useState<'allow' | 'deny'>('allow');
  const [asked, setAsked] = useState(false);
  const forSession = session !== undefined;
  const make = useAct(async () => {
    await api.post('/api/v1/network/rules', {
      body: { pattern: pattern.trim(), action, ...(session === undefined ? {} : { session }) },
    });
    setPattern('');
    onMade();
    announce('It holds');
  });
  if (isBound && !forSession) return null;
  const submit = () => {
    if (pattern.trim() === '') return;
    // What lets every session reach more is shown first.
    if (action === 'allow' && !forSession) setAsked(true);
    else void make.run();
  };
  return (
    <form
      class="panel"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <div class="body stack tight">
        <div class="rule-line">
          <Field
            label={forSession ? 'New rule for this session' : 'New rule for good'}
            help="`example.com`, `*.example.com` (only what is below it) or `*`, with `:port` if need be."
          >
            <TextInput
              mono
              value={pattern}
              onValue={(value) => {
                setPattern(value);
                setAsked(false);
              }}
              placeholder="*.example.com"
            />
          </Field>
          <Select
            aria-label="What it does"
            value={action}
            onValue={(value) => {
              setAction(value as 'allow' | 'deny');
              setAsked(false);
            }}
            options={['allow', 'deny']}
          />
          <Button submit primary busy={make.busy} disabled={pattern.trim() === ''}>
            Make it
          </Button>
        </div>
        {asked && (
          <Question
            weakens
            what={
              <>
                Every session whose network is <code>trusted</code> reaches{' '}
                <code class="machine">{oneLine(pattern.trim())}</code> from now on.
              </>
            }
            yes="Allow it for all"
            no="Back"
            busy={make.busy}
            onYes={async () => {
              await make.run();
              setAsked(false);
            }}
            onNo={() => setAsked(false)}
          />
        )}
        {make.error && <ErrorBox told={make.error} onClose={make.clear} />}
      </div>
    </form>
  );
}

function Test({ session }: { session: string | undefined }) {
  const [host, setHost] = useState('');
  const [told, setTold] = useState<Schema<'Tested'> | null>(null);
  const test = useAct(async () => {
    const found = /^(.*?)(?::(\d+))?$/.exec(host.trim());
    const name = (found?.[1] ?? host).replace(/^\[|\]$/g, '');
    const port = found?.[2] === undefined ? undefined : Number(found[2]);
    setTold(
      await api.post('/api/v1/network/test', {
        body: { host: name, ...(port === undefined ? {} : { port }), ...(session === undefined ? {} : { session }) },
      }),
    );
  });
  return (
    <Panel title="What would be said?" about="nothing is connected to">
      <form
        class="stack tight"
        onSubmit={(event) => {
          event.preventDefault();
          if (host.trim() !== '') void test.run();
        }}
      >
        <div class="row">
          <input
            class="input machine"
            aria-label="Host, with :port if it is not 443"
            placeholder="example.com:443"
            value={host}
            onInput={(event) => setHost(event.currentTarget.value)}
          />
          <Button submit busy={test.busy} disabled={host.trim() === ''}>
            Ask
          </Button>
        </div>
        {test.error && <ErrorBox told={test.error} onClose={test.clear} />}
        {told && (
          <div class="stack tight" role="status">
            <div>
              <Mark kind={told.action}>
                {told.action}
                {told.asks && ', and a person would be asked first'}
              </Mark>{' '}
              <span class="machine">
                {oneLine(told.domain)}:{told.port}
              </span>{' '}
              <span class="soft">by {told.source}</span>
            </div>
            <div>
              <Prose text={told.why} />
            </div>
            {told.addresses.length > 0 && (
              <div class="small soft">
                {told.addresses.map((one) => (
                  <div key={one.address} class="machine">
                    {oneLine(one.address)} {one.refused !== undefined && `– ${oneLine(one.refused)}`}
                  </div>
                ))}
              </div>
            )}
          </div>
        )}
      </form>
    </Panel>
  );
}
