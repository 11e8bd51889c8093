// One backend: how it stands, and every promise with the reason where it is not kept.

import { Fragment } from 'preact';
import { PlaceHead } from '../../layout/place';
import { useStatus } from '../../layout/status';
import { Empty } from '../../parts/empty';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Table } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox, Prose } from '../../parts/told';
import { Link } from '../../router';
import { PROMISES } from './promises';
import { useBackends } from './use-backends';

export function BackendPage({ name }: { name: string }) {
  const { data, error, loading, reload } = useBackends();
  const { data: status } = useStatus();
  const backend = data?.backends.find((one) => one.backend === name);
  const guarantees = backend?.guarantees;
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Sandboxes', to: '/sandboxes' }, { text: name, machine: true }]} />
      {error && <ErrorBox told={error} onRetry={reload} />}
      {loading && <Loading />}
      {data && !backend && (
        <Empty title="There is no backend of this name" command="moltis sandbox status">
          These there are: {data.backends.map((one) => one.backend).join(', ')}
        </Empty>
      )}
      {backend && (
        <>
          <Panel title="State">
            <dl class="facts">
              <dt>Now</dt>
              <dd>
                <Mark kind={backend.usable ? 'usable' : 'notUsable'} />
              </dd>
              {backend.version !== undefined && (
                <>
                  <dt>Version</dt>
                  <dd>{backend.version}</dd>
                </>
              )}
              <dt>Default</dt>
              <dd>
                {status?.backend === name ? 'sessions that set nothing run here' : 'no; a session can choose it'}{' '}
                <Link to="/settings/sandboxes">Change</Link>
              </dd>
              {backend.notes?.map((note, number) => (
                <Fragment key={number}>
                  <dt>{number === 0 ? 'Notes' : ''}</dt>
                  <dd>
                    <Prose text={note} />
                  </dd>
                </Fragment>
              ))}
            </dl>
          </Panel>
          {backend.failedOver && (
            <ErrorBox told={backend.failedOver.why}>
              <span>
                Given up <When millis={backend.failedOver.sinceMillis} /> for <span class="mono">{backend.failedOver.to}</span>.
              </span>
            </ErrorBox>
          )}
          {backend.reason && <ErrorBox told={backend.reason} onRetry={reload} />}
          {backend.leftOff && backend.leftOff.length > 0 && (
            <Panel title="Built-in defaults that it does not keep" about="nobody asked for them; a demand would be refused">
              <dl class="facts">
                {backend.leftOff.map((one) => (
                  <Fragment key={one.key}>
                    <dt>
                      <span class="mono">{one.key}</span>
                    </dt>
                    <dd>
                      <Mark kind="notEnforced" />: <Prose text={one.reason} />
                    </dd>
                  </Fragment>
                ))}
              </dl>
            </Panel>
          )}
          {guarantees && (
            <Panel title="Guarantees" about="as found on this machine, now" flush>
              <Table
                label={`What ${name} keeps`}
                rows={PROMISES}
                rowKey={(row) => row.id}
                empty={null}
                columns={[
                  { id: 'title', title: 'Promise', width: 'minmax(130px, 0.7fr)', cell: (row) => row.title },
                  { id: 'state', title: 'State', width: '130px', cell: (row) => <Mark kind={guarantees[row.id].state} /> },
                  {
                    id: 'reason',
                    title: 'Means, or why not',
                    width: 'minmax(260px, 3fr)',
                    cell: (row) => {
                      const text = guarantees[row.id].reason ?? row.means;
                      return (
                        <span class="soft" title={text}>
                          <Prose text={text} />
                        </span>
                      );
                    },
                  },
                ]}
              />
            </Panel>
          )}
        </>
      )}
    </div>
  );
}
