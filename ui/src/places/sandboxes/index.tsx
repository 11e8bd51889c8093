// Sandboxes: what holds them, what runs, what they are made from, what they take.

import { PlaceHead, type PlaceProps } from '../../layout/place';
import { address, Link } from '../../router';
import { BackendPage } from './backend';
import { Backends } from './backends';
import { DiskUse } from './disk';
import { Guarantees } from './guarantees';
import { Images } from './images';
import { Running } from './running';
import './style.css';

const TABS = [
  { id: '', title: 'Overview' },
  { id: 'guarantees', title: 'Guarantees' },
  { id: 'images', title: 'Images' },
  { id: 'disk', title: 'Disk use' },
] as const;

export function Sandboxes({ parts, query }: PlaceProps) {
  const [tab = '', name = ''] = parts;
  if (tab === 'backends' && name !== '') return <BackendPage name={name} />;
  const shown = TABS.find(({ id }) => id === tab) ?? TABS[0];
  const crumbs = [{ text: 'Sandboxes', to: '/sandboxes' }, ...(shown.id === '' ? [] : [{ text: shown.title }])];
  return (
    <div class="place">
      <PlaceHead crumbs={crumbs} />
      <nav class="tabs" aria-label="Parts of this place">
        {TABS.map(({ id, title }) => (
          <Link key={id} to={address(['sandboxes', id].filter(Boolean))} aria-current={id === shown.id ? 'page' : undefined}>
            {title}
          </Link>
        ))}
      </nav>
      {shown.id === '' && (
        <>
          <Running query={query} />
          <Backends />
        </>
      )}
      {shown.id === 'guarantees' && <Guarantees />}
      {shown.id === 'images' && <Images query={query} />}
      {shown.id === 'disk' && <DiskUse />}
    </div>
  );
}
