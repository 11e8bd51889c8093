// Settings: the configuration as it holds, where each value came from, and changes of it.

import { useRead } from '../../api/use';
import { useMay } from '../../layout/me';
import { PlaceHead, type PlaceProps } from '../../layout/place';
import { Empty } from '../../parts/empty';
import { Loading } from '../../parts/panel';
import { ErrorBox } from '../../parts/told';
import { address, Link } from '../../router';
import { All } from './all';
import { SettingsForm } from './form';
import { GROUPS } from './groups';
import { Keys } from './keys';
import { Remote } from './remote';
import './style.css';

const TABS = [
  { id: 'sandboxes', title: 'Sandboxes' },
  { id: 'network', title: 'Network' },
  { id: 'remote', title: 'Remote backends' },
  { id: 'keys', title: 'API keys' },
  { id: 'all', title: 'Every key' },
] as const;

export function Settings({ parts, query }: PlaceProps) {
  const admin = useMay('operator.admin');
  const shown = TABS.find(({ id }) => id === parts[0]) ?? TABS[0];
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Settings', to: '/settings' }, { text: shown.title }]} />
      <nav class="tabs" aria-label="Parts of this place">
        {TABS.map(({ id, title }) => (
          <Link key={id} to={address(['settings', id])} aria-current={id === shown.id ? 'page' : undefined}>
            {title}
          </Link>
        ))}
      </nav>
      {!admin ? (
        <Empty title="Settings are for an administrator">You are logged in with a key that has no `operator.admin`.</Empty>
      ) : shown.id === 'keys' ? (
        <Keys query={query} />
      ) : (
        <Configured shown={shown.id} query={query} />
      )}
    </div>
  );
}

function Configured({ shown, query }: { shown: string; query: URLSearchParams }) {
  const { data, error, loading, reload } = useRead('/api/v1/settings', {}, { topics: ['settings'] });
  if (loading) return <Loading />;
  const settings = data?.settings ?? [];
  return (
    <>
      {error && <ErrorBox told={error} onRetry={reload} />}
      {data?.warnings.map((warning) => <ErrorBox key={warning.code + warning.message} told={warning} tone="warn" />)}
      {GROUPS[shown]?.map((group) => <SettingsForm key={group.title} group={group} settings={settings} onSaved={reload} />)}
      {shown === 'remote' && <Remote settings={settings} onSaved={reload} />}
      {shown === 'all' && <All settings={settings} query={query} onSaved={reload} />}
    </>
  );
}
