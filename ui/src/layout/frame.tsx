// The frame around every place: what the gateway is and does, what is not as it should be, the five places.

import type { FunctionComponent } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { api } from '../api/client';
import { secret } from '../api/secret';
import { useRead } from '../api/use';
import { Button } from '../parts/button';
import { Empty } from '../parts/empty';
import { Mark } from '../parts/mark';
import { Files } from '../places/files';
import { Network } from '../places/network';
import { Sandboxes } from '../places/sandboxes';
import { Sessions } from '../places/sessions';
import { Settings } from '../places/settings';
import { address, Link, navigate, useAddress, useTitle } from '../router';
import { keepFocus } from './focus';
import { ICONS } from './icons';
import { useMay } from './me';
import type { PlaceProps } from './place';
import { StatusContext, useStatus } from './status';
import { Strips } from './strips';
import { countOf, unkept } from './unkept';

interface Place {
  id: keyof typeof ICONS;
  title: string;
  show: FunctionComponent<PlaceProps>;
}

const PLACES: readonly Place[] = [
  { id: 'sandboxes', title: 'Sandboxes', show: Sandboxes },
  { id: 'sessions', title: 'Sessions', show: Sessions },
  { id: 'network', title: 'Network', show: Network },
  { id: 'files', title: 'Files', show: Files },
  { id: 'settings', title: 'Settings', show: Settings },
];

export function Frame() {
  const { parts, query } = useAddress();
  const status = useRead('/api/v1/status', {}, { topics: ['status', 'sandboxes', 'settings'], every: 30_000 });
  const approvals = useRead('/api/v1/network/approvals', {}, { topics: ['approvals'], every: 60_000 });
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useEffect(() => (main.current ? keepFocus(main.current) : undefined), []);
  const [name = '', ...rest] = parts;

  useEffect(() => {
    if (name === '') navigate('/sandboxes', { replace: true });
  }, [name]);

  // Another place is read from its beginning, by eye and by ear.
  const where = parts.join('/');
  useLayoutEffect(() => {
    if (first.current) first.current = false;
    else main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [where]);

  const place = PLACES.find((place) => place.id === name);
  const waiting = approvals.data?.approvals.length ?? 0;
  return (
    <StatusContext.Provider value={status}>
      <div class="frame">
        <a
          class="skip"
          href="#main"
          onClick={(event) => {
            event.preventDefault();
            main.current?.focus();
          }}
        >
          Skip to the content
        </a>
        <Bar />
        <nav class="rail" aria-label="Places">
          <ul>
            {PLACES.map(({ id, title }) => (
              <li key={id}>
                <Link to={address([id])} aria-current={id === name ? 'page' : undefined}>
                  {ICONS[id]}
                  {title}
                  {id === 'network' && waiting > 0 && (
                    <span class="count">
                      <Mark kind="warning">
                        {waiting}
                        <span class="unseen"> questions wait</span>
                      </Mark>
                    </span>
                  )}
                </Link>
              </li>
            ))}
          </ul>
          <div class="foot">
            <span>{status.data && `version ${status.data.version}`}</span>
            <LogOut />
          </div>
        </nav>
        <main class="main" id="main" ref={main} tabIndex={-1}>
          <Strips waiting={waiting} />
          {place ? <place.show key={place.id} parts={rest} query={query} /> : name !== '' && <Nowhere />}
        </main>
      </div>
    </StatusContext.Provider>
  );
}

function Bar() {
  const { data: told } = useStatus();
  const count = told ? countOf(unkept(told)) : 0;
  return (
    <header class="bar">
      <Link class="name" to="/sandboxes">
        moltis
      </Link>
      <span class="states">
        {told && (
          <Link to="/sandboxes" title="The backend of a session that sets nothing">
            <span class="wide">sandbox: </span>
            {told.backend ? <span class="mono">{told.backend}</span> : <Mark kind="refused">no backend</Mark>}
          </Link>
        )}
        {told && (
          <Link to={address(['sandboxes'], { show: 'running' })}>
            <Mark kind={told.sandboxesRunning > 0 ? 'running' : 'none'}>{told.sandboxesRunning} running</Mark>
          </Link>
        )}
        {count > 0 && (
          <Link to="/sandboxes">
            <Mark kind="notEnforced">
              {count} <span class="wide">not enforced</span>
            </Mark>
          </Link>
        )}
      </span>
    </header>
  );
}

function LogOut() {
  const leave = async () => {
    // A gateway that is away forgets the login by its time.
    await api.post('/api/v1/logout').catch(() => undefined);
    secret.ended();
  };
  return (
    <Button quiet small onClick={leave}>
      Log out
    </Button>
  );
}

function Nowhere() {
  useTitle('Not found');
  const admin = useMay('operator.admin');
  return (
    <div class="place">
      <Empty title="There is nothing at this address">
        <Link to={admin ? '/sandboxes' : '/sessions'}>Go to what there is</Link>
      </Empty>
    </div>
  );
}
