// Every key of the configuration, to be found and changed.

import { api } from '../../api/client';
import { useAct } from '../../api/use';
import { oneLine } from '../../format/escape';
import { announce } from '../../parts/announce';
import { Button } from '../../parts/button';
import { Empty } from '../../parts/empty';
import { TextInput } from '../../parts/field';
import { Panel } from '../../parts/panel';
import { Table } from '../../parts/table';
import { ErrorBox } from '../../parts/told';
import { setQuery } from '../../router';
import { from, type Setting } from './draft';
import { SettingsForm } from './form';

export function All({ settings, query, onSaved }: { settings: readonly Setting[]; query: URLSearchParams; onSaved: () => void }) {
  const wanted = query.get('find') ?? '';
  const onlySet = query.get('set') === 'true';
  const rows = settings.filter((one) => (!onlySet || one.origin !== 'default') && matches(one, wanted));
  const opened = settings.find((one) => one.key === query.get('key'));
  const reload = useAct(async () => {
    await api.post('/api/v1/settings/reload');
    announce('The configuration was read anew');
    onSaved();
  });
  return (
    <>
      {opened && !opened.secret && (
        <SettingsForm key={opened.key} group={{ title: opened.key, keys: [opened.key] }} settings={settings} onSaved={onSaved} />
      )}
      <Panel
        title="Every key"
        about={`${rows.length} of ${settings.length}`}
        flush
        actions={
          <>
            <span class="find">
              <TextInput search value={wanted} onValue={(text) => setQuery({ find: text })} placeholder="Find a key" aria-label="Find a key" />
            </span>
            <Button quiet small onClick={() => setQuery({ set: !onlySet })}>
              {onlySet ? 'Show defaults too' : 'Only what is set'}
            </Button>
            <Button quiet small busy={reload.busy} onClick={reload.run} title="A change of the file is seen within two seconds anyway">
              Read the file anew
            </Button>
          </>
        }
      >
        {reload.error && <ErrorBox told={reload.error} onClose={reload.clear} />}
        <Table
          label="Settings"
          rows={rows}
          rowKey={(one) => one.key}
          opened={opened?.key}
          onOpen={(one) => {
            setQuery({ key: one.key === opened?.key ? '' : one.key }, { replace: false });
            scrollTo({ top: 0 });
          }}
          empty={<Empty title="No key is like that" command="moltis config show" />}
          columns={[
            { id: 'key', title: 'Key', width: 'minmax(300px, 1.6fr)', machine: true, cell: (one) => <span title={one.help}>{one.key}</span> },
            {
              id: 'value',
              title: 'Value',
              width: 'minmax(160px, 1.4fr)',
              machine: true,
              cell: (one) => (one.value === undefined ? <span class="soft">–</span> : <span title={oneLine(one.value)}>{oneLine(one.value)}</span>),
            },
            {
              id: 'from',
              title: 'From',
              width: 'minmax(140px, 1fr)',
              cell: (one) => (
                <span class={one.origin === 'default' ? 'soft' : ''} title={one.place}>
                  {from(one)}
                </span>
              ),
            },
            { id: 'live', title: 'Holds', width: '130px', cell: (one) => (one.live ? 'at once' : <span class="soft">at the next start</span>) },
          ]}
        />
      </Panel>
    </>
  );
}

function matches(setting: Setting, wanted: string): boolean {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${setting.key} ${setting.help} ${setting.value ?? ''}`.toLowerCase();
  return words.every((word) => text.includes(word));
}
