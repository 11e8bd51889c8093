// What the data directory takes, and what is free.

import { useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { Button } from '../../parts/button';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Size } from '../../parts/size';
import { Table } from '../../parts/table';
import { ErrorBox } from '../../parts/told';

export function DiskUse() {
  const { data, error, loading, reload } = useRead('/api/v1/disk');
  const sum = data?.parts.reduce((all, part) => all + part.bytes, 0) ?? 0;
  const low = data !== undefined && data.freeBytes < data.floorBytes * 2;
  return (
    <>
      <Panel
        title="Data directory"
        flush
        about={
          data && (
            <>
              <Size bytes={sum} /> in use, <Size bytes={data.freeBytes} /> free;{' '}
              {low ? (
                <Mark kind="warning">
                  no new command starts below <Size bytes={data.floorBytes} />
                </Mark>
              ) : (
                <>
                  below <Size bytes={data.floorBytes} /> no new command starts
                </>
              )}
            </>
          )
        }
        actions={
          <Button quiet small onClick={reload}>
            Measure again
          </Button>
        }
      >
        {error && <ErrorBox told={error} onRetry={reload} />}
        {loading && <Loading what="Measuring" />}
        {data && (
          <Table
            label="Parts of the data directory"
            rows={data.parts}
            rowKey={(part) => part.path}
            empty={null}
            columns={[
              { id: 'name', title: 'Part', width: 'minmax(140px, 1fr)', cell: (part) => part.name },
              {
                id: 'path',
                title: 'Folder',
                width: 'minmax(220px, 2fr)',
                machine: true,
                cell: (part) => <span title={oneLine(part.path)}>{oneLine(part.path)}</span>,
              },
              { id: 'entries', title: 'Entries', width: '90px', end: true, cell: (part) => part.entries.toLocaleString('en') },
              { id: 'bytes', title: 'Size', width: '100px', end: true, cell: (part) => <Size bytes={part.bytes} /> },
              {
                id: 'unseen',
                title: '',
                width: '150px',
                cell: (part) =>
                  part.unseen && (
                    <Mark kind="warning" title={`${oneLine(part.unseen.first) || '.'} is ${part.unseen.why}`}>
                      {part.unseen.folders} not seen
                    </Mark>
                  ),
              },
            ]}
          />
        )}
      </Panel>
      {data && data.images.length > 0 && (
        <Panel title="Images" about="kept by the engines in places of their own; layers that they share count for each" flush>
          <Table
            label="Images by backend"
            rows={data.images}
            rowKey={(one) => one.backend}
            empty={null}
            columns={[
              { id: 'backend', title: 'Backend', width: 'minmax(140px, 1fr)', machine: true, cell: (one) => one.backend },
              { id: 'images', title: 'Images', width: '100px', end: true, cell: (one) => one.images },
              { id: 'bytes', title: 'Size', width: '110px', end: true, cell: (one) => <Size bytes={one.bytes} /> },
            ]}
          />
        </Panel>
      )}
    </>
  );
}
