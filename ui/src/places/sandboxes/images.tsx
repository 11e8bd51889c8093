// Images that Moltis has built: what they hold, building one, removing them.

import { useEffect, useRef, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { asTold, isAbort } from '../../api/problem';
import { useAct, useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { size } from '../../format/size';
import { useMay } from '../../layout/me';
import { announce } from '../../parts/announce';
import { Button, Confirm } from '../../parts/button';
import { Copy } from '../../parts/copy';
import { Empty } from '../../parts/empty';
import { Check, Field, Select, TextInput } from '../../parts/field';
import { Log } from '../../parts/log';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { Progress } from '../../parts/progress';
import { Size } from '../../parts/size';
import { Table } from '../../parts/table';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { setQuery } from '../../router';
import { after, begun, type Building } from './build';
import { useBackends } from './use-backends';

export function Images({ query }: { query: URLSearchParams }) {
  const { data, error, loading, reload } = useRead('/api/v1/images', {}, { topics: ['sandboxes', 'settings'] });
  const may = useMay('operator.write');
  const key = (image: Schema<'Image'>) => `${image.backend} ${image.tag}`;
  const opened = data?.images.find((image) => key(image) === query.get('image'));
  const clean = useAct(async () => {
    const cleaned = await api.post('/api/v1/images/clean');
    announce(`${cleaned.removed.length} images removed, ${size(cleaned.freedBytes)} freed`);
    reload();
  });
  const unused = data?.images.filter((image) => !image.inUse) ?? [];
  return (
    <>
      {may && <Build onBuilt={reload} />}
      <Panel
        title="Images"
        about={data && `${data.images.length} built by Moltis`}
        flush
        actions={
          may &&
          unused.length > 0 && (
            <Confirm
              small
              quiet
              what={`Removes the ${unused.length === 1 ? 'image' : `${unused.length} images`} that neither a session nor a container uses (${size(unused.reduce((sum, image) => sum + image.sizeBytes, 0))}). They are built again when they are needed.`}
              yes="Remove unused images"
              onYes={clean.run}
            >
              Remove unused
            </Confirm>
          )
        }
      >
        {error && <ErrorBox told={error} onRetry={reload} />}
        {clean.error && <ErrorBox told={clean.error} onClose={clean.clear} />}
        {data?.warnings.map((warning) => <ErrorBox key={warning.code + warning.message} told={warning} tone="warn" />)}
        {loading && <Loading />}
        {data && (
          <Table
            label="Images"
            rows={data.images}
            rowKey={key}
            opened={opened && key(opened)}
            onOpen={(image) => setQuery({ image: opened === image ? '' : key(image) }, { replace: false })}
            empty={
              <Empty title="No image was built yet" command="moltis sandbox build">
                Containers start from an image with your packages. The first command builds it, or:
              </Empty>
            }
            columns={[
              { id: 'tag', title: 'Tag', width: 'minmax(220px, 2fr)', machine: true, cell: (image) => <span title={image.tag}>{oneLine(image.tag)}</span> },
              { id: 'backend', title: 'Backend', width: '120px', machine: true, cell: (image) => image.backend },
              { id: 'base', title: 'Base', width: 'minmax(180px, 1.4fr)', machine: true, cell: (image) => <span title={image.base}>{oneLine(image.base)}</span> },
              { id: 'packages', title: 'Packages', width: '90px', end: true, cell: (image) => <span title={image.packages.join(', ')}>{image.packages.length}</span> },
              { id: 'size', title: 'Size', width: '90px', end: true, cell: (image) => <Size bytes={image.sizeBytes} /> },
              { id: 'created', title: 'Created', width: '100px', end: true, cell: (image) => <When millis={image.createdMillis} /> },
              { id: 'use', title: 'Use', width: '90px', cell: (image) => (image.inUse ? <Mark kind="held">in use</Mark> : <span class="soft">unused</span>) },
            ]}
          />
        )}
        {opened && <Opened key={key(opened)} image={opened} onDone={reload} />}
      </Panel>
    </>
  );
}

function Opened({ image, onDone }: { image: Schema<'Image'>; onDone: () => void }) {
  const may = useMay('operator.write');
  const remove = useAct(async () => {
    await api.delete('/api/v1/images', { query: { tag: image.tag, backend: image.backend } });
    announce('The image is removed');
    setQuery({ image: '' });
    onDone();
  });
  return (
    <div class="opened">
      <dl class="facts">
        <dt>Tag</dt>
        <dd>
          <span class="machine">{oneLine(image.tag)}</span> <Copy text={image.tag} />
        </dd>
        <dt>Id</dt>
        <dd class="machine">{oneLine(image.id)}</dd>
        <dt>Packages</dt>
        <dd class="machine">{image.packages.map(oneLine).join(' ') || 'none'}</dd>
      </dl>
      {remove.error && <ErrorBox told={remove.error} onClose={remove.clear} />}
      <div class="row">
        {may && (
          <Confirm
            small
            what={
              <>
                Removes <span class="machine">{oneLine(image.tag)}</span> ({size(image.sizeBytes)}) from {image.backend}. It is built again when it is
                needed.
              </>
            }
            yes="Remove it"
            onYes={remove.run}
          >
            Remove…
          </Confirm>
        )}
        <span class="push">
          <Button quiet small onClick={() => setQuery({ image: '' })}>
            Close
          </Button>
        </span>
      </div>
    </div>
  );
}

function Build({ onBuilt }: { onBuilt: () => void }) {
  const backends = useBackends();
  const [backend, setBackend] = useState('');
  const [base, setBase] = useState('');
  const [fresh, setFresh] = useState(false);
  const [building, setBuilding] = useState<Building | null>(null);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const running = building !== null && building.done === null && building.failed === null;

  const start = async () => {
    const mine = new AbortController();
    abort.current = mine;
    let now = begun();
    setBuilding(now);
    const body = { ...(backend === '' ? {} : { backend }), ...(base.trim() === '' ? {} : { base: base.trim() }), fresh };
    try {
      for await (const event of api.events('post', '/api/v1/images/build', { body, signal: mine.signal })) {
        now = after(now, event);
        setBuilding(now);
      }
      if (now.done === null && now.failed === null) {
        now = { ...now, failed: { code: 'stream-ended', message: 'the build’s events have ended before the build', fix: 'build again: what is ready is kept' } };
      }
    } catch (error) {
      const told = isAbort(error) ? { code: 'given-up', message: 'the build was given up' } : asTold(error);
      now = { ...now, failed: told };
    }
    setBuilding(now);
    announce(now.failed ? 'The build has failed' : 'The image is ready');
    if (now.done) onBuilt();
  };

  const withImages = backends.data?.backends.filter((one) => one.usable && one.guarantees?.images.state === 'held') ?? [];
  return (
    <Panel title="Build" about="makes the configuration’s image ready, with its packages, before a command waits for it">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (!running) void start();
        }}
      >
        <div class="fields">
          <Field label="Backend" help="The one that a command would run on, where none is chosen">
            <Select
              value={backend}
              onValue={setBackend}
              options={[{ value: '', label: 'as a command would' }, ...withImages.map((one) => one.backend)]}
            />
          </Field>
          <Field label="Base" help="An image instead of the configuration’s">
            <TextInput mono value={base} onValue={setBase} placeholder="as configured" />
          </Field>
        </div>
        <Check checked={fresh} onChecked={setFresh}>
          Fetch and build although it is there
        </Check>
        <div class="row">
          <Button submit primary busy={running}>
            Build
          </Button>
          {running && <Button onClick={() => abort.current?.abort()}>Give up</Button>}
        </div>
      </form>
      {building && (
        <div class="stack tight built">
          {running && (
            <Progress
              label={building.fetched ? `${building.step ?? 'Fetching'}: ${size(building.fetched.bytes)}` : (building.step ?? 'Starting')}
              done={building.fetched?.bytes}
              of={building.fetched?.total}
            />
          )}
          {building.lines > 0 && <Log label="Build log" text={building.log.text} cut={building.log.cut} />}
          {building.failed && <ErrorBox told={building.failed} />}
          {building.done && (
            <div class="told plain" role="status">
              <Mark kind="held">ready</Mark>
              <span>
                {building.done.image ? (
                  <>
                    <span class="machine">{oneLine(building.done.image.tag)}</span> on {building.done.backend}
                    {building.done.image.new ? ' was built' : ' was there already'}.
                  </>
                ) : (
                  <>{building.done.backend} has no images: there is nothing to build.</>
                )}
                {building.done.prepared.length > 0 && ` Prepared: ${building.done.prepared.map((one) => oneLine(one.name)).join(', ')}.`}
              </span>
            </div>
          )}
        </div>
      )}
    </Panel>
  );
}
