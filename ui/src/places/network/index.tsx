// Network: what sandboxes tried to reach, questions that wait, hosts, rules.

import { Button } from '../../parts/button';
import { Mark } from '../../parts/mark';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { PlaceHead, type PlaceProps } from '../../layout/place';
import { address, Link } from '../../router';
import { fromAddress } from './filters';
import { Hosts } from './hosts';
import { LogPart } from './log';
import { Questions } from './questions';
import { Rules } from './rules';
import { useLog } from './use-log';
import './network.css';

const TABS = [
  ['', 'Log'],
  ['hosts', 'Hosts'],
  ['rules', 'Rules'],
] as const;

export function Network({ parts, query }: PlaceProps) {
  const tab = TABS.some(([name]) => name === parts[0]) ? (parts[0] ?? '') : '';
  const title = TABS.find(([name]) => name === tab)?.[1] ?? '';
  const filter = fromAddress(query);
  const view = useLog(filter);
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Network', to: '/network' }, ...(tab === '' ? [] : [{ text: title }])]}>
        <span class="small">
          {view.feed.kind === 'live' ? (
            <Mark kind="live" />
          ) : view.feed.kind === 'stale' ? (
            <span class="row">
              <Mark kind="stale" title={view.feed.why.message}>
                stale: as it was <When millis={view.feed.sinceMillis} />
              </Mark>
              <Button small quiet onClick={view.retry}>
                Try now
              </Button>
            </span>
          ) : (
            <span class="soft">connecting</span>
          )}
        </span>
      </PlaceHead>
      {view.feed.kind === 'ended' && view.feed.why && <ErrorBox told={view.feed.why} />}
      <Questions waiting={view.waiting} />
      <nav class="tabs" aria-label="Parts of the network">
        {TABS.map(([name, title]) => (
          <Link
            key={name}
            to={address(name === '' ? ['network'] : ['network', name], Object.fromEntries(query))}
            aria-current={name === tab ? 'page' : undefined}
          >
            {title}
          </Link>
        ))}
      </nav>
      {tab === '' && <LogPart view={view} filter={filter} />}
      {tab === 'hosts' && <Hosts filter={filter} version={view.version} />}
      {tab === 'rules' && <Rules session={filter.session} />}
    </div>
  );
}
