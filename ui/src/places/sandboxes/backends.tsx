// Every backend: whether it is usable, what it keeps, what would mend it.

import type { Schema } from '../../api/client';
import { useStatus } from '../../layout/status';
import { Button } from '../../parts/button';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { commandOf, ErrorBox, Prose } from '../../parts/told';
import { Copy } from '../../parts/copy';
import { address, Link } from '../../router';
import { GROUPS, PROMISES, share, type Promises } from './promises';
import { useBackends } from './use-backends';

const REMOTE = new Set(['vercel', 'daytona']);

export function Backends() {
  const { data, error, loading, reload } = useBackends();
  const { data: status } = useStatus();
  const usable = data?.backends.filter((one) => one.usable).length;
  return (
    <Panel
      title="Backends"
      about={usable === undefined ? undefined : `${usable} usable, strongest first`}
      flush
      actions={
        <Button quiet small onClick={reload}>
          Look again
        </Button>
      }
    >
      {error && <ErrorBox told={error} onRetry={reload} />}
      {loading && <Loading what="Looking at each backend" />}
      {data?.warnings.map((warning) => <ErrorBox key={warning.code} told={warning} tone="warn" />)}
      {data && (
        <ul class="backends">
          {sorted(data.backends).map((backend) => (
            <Row key={backend.backend} backend={backend} isDefault={backend.backend === status?.backend} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

/** Those that are usable first, each in the order of `auto`: what is to be mended does not hide what is there. */
function sorted(all: readonly Schema<'Backend'>[]) {
  return [...all.filter((one) => one.usable), ...all.filter((one) => !one.usable)];
}

function Row({ backend, isDefault }: { backend: Schema<'Backend'>; isDefault: boolean }) {
  const { backend: name, usable, version, guarantees, reason, failedOver } = backend;
  const command = reason?.fix === undefined ? null : commandOf(reason.fix);
  return (
    <li class={usable ? 'usable' : ''}>
      <span class="which">
        <Mark kind={usable ? 'usable' : 'notUsable'}>
          <Link class="mono" to={address(['sandboxes', 'backends', name])}>
            {name}
          </Link>
          <span class="unseen">{usable ? ', usable' : ', not usable'}</span>
        </Mark>
      </span>
      {usable ? (
        <>
          <span class="version small soft">
            {isDefault && <span class="chip">default</span>} {version}
            {failedOver && <Mark kind="warning">given up for {failedOver.to}</Mark>}
          </span>
          <span class="kept">{guarantees && GROUPS.map((group) => <Kept key={group.title} {...group} guarantees={guarantees} />)}</span>
        </>
      ) : (
        <span class="why small">
          <span>
            <span class="soft">not usable: </span>
            {reason && <Prose text={reason.message} />}
          </span>
          {reason?.fix !== undefined && (
            <span class="fix">
              <span class="soft">Fix: </span>
              <Prose text={reason.fix} />
              {command !== null && <Copy text={command} />}
              {REMOTE.has(name) && reason.code !== 'backend-not-built' && (
                <>
                  {' '}
                  <Link to="/settings/remote">Add the token</Link>
                </>
              )}
            </span>
          )}
        </span>
      )}
      <span class="more">
        <Link class="button quiet small" to={address(['sandboxes', 'backends', name])} aria-label={`Details of ${name}`}>
          Details
        </Link>
      </span>
    </li>
  );
}

const GLYPHS = { held: '✓', partly: '~', notEnforced: '–' } as const;
const WORDS = { held: 'held', partly: 'partly held', notEnforced: 'not enforced' } as const;

function Kept({ title, of, guarantees }: { title: string; of: (typeof GROUPS)[number]['of']; guarantees: Promises }) {
  const state = share(guarantees, of);
  const each = of.map((id) => {
    const { state, reason } = guarantees[id];
    const named = PROMISES.find((promise) => promise.id === id)?.title ?? id;
    return `${named}: ${state === 'held' ? 'held' : `not enforced${reason ? `, ${reason}` : ''}`}`;
  });
  return (
    <span class={`kept-one ${state}`} title={each.join('\n')}>
      {title} <span aria-hidden="true">{GLYPHS[state]}</span>
      <span class="unseen">{WORDS[state]}</span>
    </span>
  );
}
