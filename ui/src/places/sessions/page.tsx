// One session: what it is and what it may, and beneath it what it runs, a terminal, its background commands, its files.

import { useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct, useLiveState } from '../../api/use';
import { oneLine } from '../../format/escape';
import { Button, Confirm } from '../../parts/button';
import { Check } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Loading } from '../../parts/panel';
import { When } from '../../parts/time';
import { ErrorBox, Prose } from '../../parts/told';
import { useMay } from '../../layout/me';
import { PlaceHead } from '../../layout/place';
import { address, Link, navigate } from '../../router';
import { SessionFiles } from '../files/session';
import { Commands } from './commands';
import { Editor, type Focus } from './editor';
import { Processes } from './processes';
import { Snapshots } from './snapshots';
import { asker } from './timeline';
import { TerminalPart } from './terminal-part';
import { useSession } from './use-session';

const TABS = [
  ['', 'Commands'],
  ['terminal', 'Terminal'],
  ['background', 'Background'],
  ['files', 'Files'],
  ['snapshots', 'Snapshots'],
] as const;

export function SessionPage({ session, tab }: { session: string; tab: string }) {
  // One that was missing and is made now is looked at from the beginning.
  const [made, setMade] = useState(0);
  return <One key={`${made} ${session}`} session={session} tab={tab} onMade={() => setMade(made + 1)} />;
}

function One({ session, tab, onMade }: { session: string; tab: string; onMade: () => void }) {
  const view = useSession(session);
  // A gateway that is away is told of at the top of the page.
  const connection = useLiveState();
  const [editing, setEditing] = useState<Focus | null>(null);
  const shown = TABS.some(([name]) => name === tab) ? tab : '';
  const name = TABS.find(([word]) => word === shown)?.[1] ?? '';

  const { data, error } = view.details;
  const mayWrite = useMay('operator.write');
  const crumbs = [
    { text: 'Sessions', to: '/sessions' },
    { text: oneLine(session), machine: true, to: address(['sessions', session]) },
    ...(shown === '' ? [] : [{ text: name }]),
  ];
  const running = view.processes.filter((process) => process.running).length;
  if (error?.code === 'session-missing') {
    return (
      <div class="place">
        <PlaceHead crumbs={crumbs} />
        <Missing session={session} mayWrite={mayWrite} onMade={onMade} />
      </div>
    );
  }
  return (
    <div class="place session">
      <PlaceHead crumbs={crumbs}>
        {data && mayWrite && (
          <>
            <Stop session={session} state={data.state} running={running} onDone={view.details.reload} />
            <Remove session={session} running={running} />
          </>
        )}
      </PlaceHead>
      {error && <ErrorBox told={error} onRetry={view.details.reload} />}
      {data ? (
        <Header
          details={data}
          editing={editing}
          {...(mayWrite ? { onEdit: (focus: Focus) => setEditing(editing === focus ? null : focus) } : {})}
        />
      ) : (
        !error && <Loading what="Reading the session" />
      )}
      {data && editing !== null && (
        <Editor
          key={session}
          details={data}
          focus={editing}
          onClose={() => setEditing(null)}
          onSaved={() => {
            setEditing(null);
            view.details.reload();
          }}
        />
      )}
      {view.feed.kind === 'stale' && connection.kind === 'live' && (
        <ErrorBox told={view.feed.why} tone="warn">
          <span class="soft">
            What is shown was so <When millis={view.feed.sinceMillis} />. It is tried again by itself.{' '}
            <Button small quiet onClick={view.retry}>
              Try now
            </Button>
          </span>
        </ErrorBox>
      )}
      <nav class="tabs" aria-label="Parts of the session">
        {TABS.map(([word, title]) => (
          <Link
            key={word}
            to={address(word === '' ? ['sessions', session] : ['sessions', session, word])}
            aria-current={word === shown ? 'page' : undefined}
          >
            {title}
            {word === 'background' && running > 0 && ` ${running}`}
          </Link>
        ))}
      </nav>
      {shown === '' && (
        <Commands
          session={session}
          timeline={view.timeline}
          loaded={view.loaded}
          processes={view.processes}
          mayWrite={mayWrite}
        />
      )}
      {shown === 'terminal' &&
        (mayWrite ? (
          <TerminalPart key={session} session={session} />
        ) : (
          <ErrorBox
            tone="plain"
            told={{ code: 'scope-missing', message: 'A terminal needs a key with `operator.write`.' }}
          />
        ))}
      {shown === 'background' && <Processes session={session} processes={view.processes} mayWrite={mayWrite} />}
      {shown === 'snapshots' && data && (
        <Snapshots key={session} details={data} mayWrite={mayWrite} onChanged={view.details.reload} />
      )}
      {shown === 'files' && <SessionFiles key={session} session={session} mounts={data?.mounts ?? []} mayWrite={mayWrite} />}
    </div>
  );
}

/** Where a value comes from, in a word. */
const ORIGIN: Record<string, string> = {
  default: 'built in',
  file: 'moltis.toml',
  env: 'environment',
  session: 'this session',
  alias: 'environment',
  secrets: 'secrets.toml',
  flag: 'flag',
  api: 'API',
};

/** Backends that start from an image. */
const WITH_IMAGES = new Set(['docker', 'podman', 'apple-container', 'firecracker']);

function Header({
  details,
  editing,
  onEdit,
}: {
  details: Schema<'SessionDetails'>;
  editing: Focus | null;
  onEdit?: (focus: Focus) => void;
}) {
  const of = (key: string) => details.settings.find((setting) => setting.key === key);
  const off = details.overrides.sandboxEnabled === false || (of('mode')?.value === 'off' && details.overrides.sandboxEnabled === undefined);
  const network = of('network')?.value ?? 'blocked';
  const workspace = details.overrides.workspace;
  const hasImages = WITH_IMAGES.has(details.backend ?? of('backend')?.value ?? '');
  const mounts = details.mounts;
  const chip = (focus: Focus, name: string, key: string, shown?: string) => {
    const setting = of(key);
    const value = shown ?? setting?.value;
    return (
      <EditChip
        focus={focus}
        name={name}
        value={value ?? 'none'}
        origin={setting?.origin}
        editing={editing}
        onEdit={onEdit}
      />
    );
  };
  return (
    <div class="session-head">
      <div class="chips" role="group" aria-label="What it is and what it may">
        <Mark kind={details.state} chip />
        {off ? (
          <EditChip focus="enabled" name="sandbox" value="off" weak editing={editing} onEdit={onEdit} />
        ) : (
          <EditChip
            focus="backend"
            name="backend"
            value={details.backend ?? of('backend')?.value ?? 'auto'}
            title={details.because}
            origin={of('backend')?.origin}
            editing={editing}
            onEdit={onEdit}
          />
        )}
        <EditChip
          focus="network"
          name="network"
          value={network}
          weak={network === 'open'}
          origin={of('network')?.origin}
          editing={editing}
          onEdit={onEdit}
        />
        {of('image') && (hasImages || of('image')?.origin === 'session') && chip('image', 'image', 'image')}
        {chip('memory', 'memory', 'resource_limits.memory_limit')}
        {chip('cpus', 'CPUs', 'resource_limits.cpu_quota')}
        {chip('pids', 'processes', 'resource_limits.pids_max')}
        <EditChip
          focus="workspace"
          name="workspace"
          value={workspace ? `${workspace.source} ${workspace.mode ?? 'ro'}` : (of('workspace')?.value ?? 'none')}
          origin={of('workspace')?.origin}
          editing={editing}
          onEdit={onEdit}
        />
        {chip('idle', 'ends when idle', 'idle_ttl')}
        {(of('wasm_fuel_limit')?.origin === 'session' || details.overrides.wasmFuelLimit !== undefined) &&
          chip('fuel', 'instructions', 'wasm_fuel_limit')}
        <EditChip
          focus="variables"
          name="variables"
          value={details.env.length === 0 ? 'none' : details.env.join(' ')}
          editing={editing}
          onEdit={onEdit}
        />
      </div>
      {mounts.length > 0 && (
        <div class="row small soft shows-inside">
          <span>Shows inside:</span>
          {mounts.map((mount) => (
            <span key={mount.target} title={mount.source === undefined ? undefined : `from ${oneLine(mount.source)}`}>
              <span class="machine">{oneLine(mount.target)}</span> {mount.mode === 'rw' ? 'read and write' : 'read only'}
            </span>
          ))}
        </div>
      )}
      <div class="row small soft">
        <span>
          used <When millis={details.lastUsedMillis} /> by {oneLine(asker(details.lastUsedBy))}
        </span>
        <span>
          made <When millis={details.createdMillis} />
        </span>
        <span>{details.commandsRemembered.toLocaleString('en')} commands remembered</span>
        {details.begins && (
          <span>
            begins from <Link to={address(['sessions', details.session, 'snapshots'])}>a snapshot</Link>
          </span>
        )}
      </div>
      {details.fate === 'madeAnew' && (
        <div class="told warn">
          <div>
            <Mark kind="warning">its sandbox is made anew with the next command</Mark>
          </div>
          <div class="soft">What it is to be has changed. What is not in its home is lost then.</div>
        </div>
      )}
      {details.refusal && (
        <ErrorBox
          told={{
            code: details.refusal.code,
            message: details.refusal.detail,
            cause: details.refusal.cause,
            fix: details.refusal.fix,
          }}
        >
          <Mark kind="refused">its next command would be refused</Mark>
        </ErrorBox>
      )}
      {details.notEnforced.length > 0 && (
        <details class="fold">
          <summary>
            <Mark kind="notEnforced">{details.notEnforced.length} not enforced</Mark>
          </summary>
          <dl class="facts">
            {details.notEnforced.map((one) => (
              <>
                <dt class="machine">{oneLine(one.key)}</dt>
                <dd>
                  <Prose text={one.reason} />
                </dd>
              </>
            ))}
          </dl>
        </details>
      )}
      {details.notes.map((note) => (
        <div key={note} class="small soft">
          <Prose text={note} />
        </div>
      ))}
    </div>
  );
}

/** A value that leads to the field that changes it. */
function EditChip({
  focus,
  name,
  value,
  origin,
  title,
  weak = false,
  editing,
  onEdit,
}: {
  focus: Focus;
  name: string;
  value: string;
  origin?: string | undefined;
  title?: string;
  weak?: boolean;
  editing: Focus | null;
  onEdit?: ((focus: Focus) => void) | undefined;
}) {
  const from = origin === undefined ? '' : `from ${ORIGIN[origin] ?? origin}`;
  const about = [title === undefined ? '' : oneLine(title), from].filter(Boolean).join(' – ');
  const inner = (
    <>
      {weak && (
        <span class="weak" aria-hidden="true">
          ▲
        </span>
      )}
      <span class="soft">{name}</span>
      <span class="machine">{oneLine(value)}</span>
      {origin === 'session' && (
        <span class="own" title="set by this session">
          •<span class="unseen"> set by this session</span>
        </span>
      )}
    </>
  );
  const looks = `chip${weak ? ' weak' : ''}${editing === focus ? ' on' : ''}`;
  if (onEdit === undefined) {
    return (
      <span class={looks} title={about || undefined}>
        {inner}
      </span>
    );
  }
  return (
    <button type="button" class={`${looks} edits`} title={`${about || name}. Change it`} aria-expanded={editing === focus} onClick={() => onEdit(focus)}>
      {inner}
    </button>
  );
}

function Stop({ session, state, running, onDone }: { session: string; state: string; running: number; onDone: () => void }) {
  const stop = useAct(async () => {
    await api.post('/api/v1/sessions/{session}/stop', { path: { session } });
    onDone();
  });
  if (state !== 'running' && state !== 'opening') return null;
  return (
    <>
      <Confirm
        small
        what={
          <>
            The sandbox ends with all that runs in it{running > 0 && <strong>: {running} background {running === 1 ? 'command' : 'commands'}</strong>}.
            What is not in its home, as in <code>/tmp</code>, is lost. The session, its home and its history stay.
          </>
        }
        yes="Stop the sandbox"
        onYes={() => stop.run()}
      >
        Stop sandbox
      </Confirm>
      {stop.error && <ErrorBox told={stop.error} onClose={stop.clear} />}
    </>
  );
}

function Remove({ session, running }: { session: string; running: number }) {
  const [purge, setPurge] = useState(false);
  const remove = useAct(async () => {
    await api.delete('/api/v1/sessions/{session}', { path: { session }, query: { purge } });
    navigate('/sessions');
  });
  return (
    <>
      <Confirm
        small
        quiet
        what={
          <>
            The session <code class="machine">{oneLine(session)}</code> is forgotten with what it sets and its history
            {running > 0 && `, and its ${running} background ${running === 1 ? 'command' : 'commands'} end`}.{' '}
            <Check checked={purge} onChecked={setPurge}>
              its own home and the files in it too
            </Check>
          </>
        }
        yes={purge ? 'Remove it with its home' : 'Remove it'}
        onYes={() => remove.run()}
      >
        Remove
      </Confirm>
      {remove.error && <ErrorBox told={remove.error} onClose={remove.clear} />}
    </>
  );
}

function Missing({ session, mayWrite, onMade }: { session: string; mayWrite: boolean; onMade: () => void }) {
  const make = useAct(async () => {
    await api.put('/api/v1/sessions/{session}', { path: { session } });
    onMade();
  });
  return (
    <div class="panel">
      <div class="empty">
        <strong>There is no session with this key</strong>
        <div>It was removed, or never made, or your key does not see it.</div>
        {make.error && <ErrorBox told={make.error} onClose={make.clear} />}
        <span class="row">
          {mayWrite && (
            <Button small busy={make.busy} onClick={() => make.run()}>
              Make it
            </Button>
          )}
          <Link to="/sessions">All sessions</Link>
        </span>
      </div>
    </div>
  );
}
