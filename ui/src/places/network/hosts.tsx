// Hosts, counted: how often each was allowed and denied, and what went over.

import type { Schema } from '../../api/client';
import { oneLine } from '../../format/escape';
import { Empty } from '../../parts/empty';
import { Loading, Panel } from '../../parts/panel';
import { Size } from '../../parts/size';
import { Table, type Column } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { address, navigate } from '../../router';
import { toAddress, type Filter } from './filters';
import { useStats } from './log';

type Counted = Schema<'NetworkStats'>['domains'][number];

export function Hosts({ filter, version }: { filter: Filter; version: number }) {
  const stats = useStats(filter, version);
  const most = Math.max(1, ...(stats.data?.domains ?? []).map((row) => row.allowed + row.denied));
  const columns: Column<Counted>[] = [
    { id: 'domain', title: 'Host', width: 'minmax(180px, 2fr)', machine: true, cell: (row) => oneLine(row.domain) },
    {
      id: 'share',
      title: 'How often',
      width: 'minmax(120px, 1.4fr)',
      cell: (row) => (
        <svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
          <rect class="allowed" x="0" y="0" height="8" width={(row.allowed / most) * 100} />
          <rect class="denied" x={(row.allowed / most) * 100} y="0" height="8" width={(row.denied / most) * 100} />
        </svg>
      ),
    },
    { id: 'allowed', title: 'Allowed', width: '84px', end: true, cell: (row) => row.allowed.toLocaleString('en') },
    { id: 'denied', title: 'Denied', width: '84px', end: true, cell: (row) => row.denied.toLocaleString('en') },
    { id: 'sent', title: 'Sent', width: '90px', end: true, cell: (row) => <Size bytes={row.sentBytes} /> },
    { id: 'received', title: 'Received', width: '90px', end: true, cell: (row) => <Size bytes={row.receivedBytes} /> },
    { id: 'last', title: 'Last', width: '96px', cell: (row) => <When millis={row.lastMillis} /> },
  ];
  const others = stats.data?.others;
  const left = others === undefined ? 0 : others.allowed + others.denied;
  return (
    <Panel
      title="Hosts"
      about="the most used first; a row leads to its entries"
      flush
      footer={left > 0 && <span class="small soft">{left.toLocaleString('en')} more of hosts that are not named here</span>}
    >
      {stats.error && <ErrorBox told={stats.error} onRetry={stats.reload} />}
      {stats.loading ? (
        <Loading what="Counting" />
      ) : (
        <Table
          label="Hosts, the most used first"
          rows={stats.data?.domains ?? []}
          columns={columns}
          rowKey={(row) => row.domain}
          onOpen={(row) => {
            const query = toAddress({ ...filter, domain: row.domain });
            navigate(`${address(['network'])}?${query}`);
          }}
          empty={<Empty title="Nothing was tried yet" command="moltis network stats" />}
        />
      )}
    </Panel>
  );
}
