// The files of a session, as its sandbox has them.

import { useEffect, useMemo, useState } from 'preact/hooks';
import type { Schema } from '../../api/client';
import { asTold, isAbort, type Told } from '../../api/problem';
import { oneLine } from '../../format/escape';
import { Button } from '../../parts/button';
import { Loading } from '../../parts/panel';
import { ErrorBox } from '../../parts/told';
import { setQuery, useAddress } from '../../router';
import { quoted } from '../sessions/quoted';
import { placeOf } from './api';
import { Browser } from './browser';
import { fromAddress, toAddress } from './path';
import './files.css';

export function SessionFiles({
  session,
  mounts,
  mayWrite,
}: {
  session: string;
  mounts: readonly Schema<'SessionMount'>[];
  mayWrite: boolean;
}) {
  const { query } = useAddress();
  const place = useMemo(() => placeOf(session), [session]);
  const asked = query.get('path');
  const [begins, setBegins] = useState<string | null>(null);
  const [error, setError] = useState<Told | null>(null);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (asked !== null) return;
    const abort = new AbortController();
    setError(null);
    place.beginning(abort.signal).then(setBegins, (failed: unknown) => {
      if (!isAbort(failed)) setError(asTold(failed));
    });
    return () => abort.abort();
  }, [place, asked === null, tries]);
  const [typed, setTyped] = useState('');
  const path = asked === null ? begins : fromAddress(asked);
  const places = [...new Set([...(begins === null ? [] : [begins]), '/tmp', ...mounts.map((mount) => mount.target)])];
  return (
    <>
      <div class="row small">
        <span class="soft">Go to</span>
        {places.map((folder) => (
          <Button key={folder} small quiet onClick={() => setQuery({ path: toAddress(folder), view: null }, {})}>
            <span class="machine">{oneLine(folder)}</span>
          </Button>
        ))}
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            if (typed.startsWith('/')) setQuery({ path: typed, view: null }, {});
          }}
        >
          <input
            class="input machine"
            aria-label="A path from the root to go to"
            placeholder="/a/path"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
          <Button submit small disabled={!typed.startsWith('/')}>
            Go
          </Button>
        </form>
      </div>
      {error !== null && asked === null && <ErrorBox told={error} onRetry={() => setTries(tries + 1)} />}
      {path === null ? (
        error === null && <Loading what="Looking where the session begins; a sandbox that does not run is started" />
      ) : (
        <Browser
          place={place}
          path={path}
          view={query.get('view')}
          mayWrite={mayWrite}
          empty={{ title: 'Nothing is here', command: `moltis cp notes.txt ${quoted(session)}:/tmp/notes.txt` }}
        />
      )}
    </>
  );
}
