// The files of a session, as its sandbox has them.

import { useEffect, useMemo, useState } from 'preact/hooks';
import type { Schema } from '../../api/client';
import { oneLine } from '../../format/escape';
import { Button } from '../../parts/button';
import { Loading } from '../../parts/panel';
import { setQuery, useAddress } from '../../router';
import { quoted } from '../sessions/quoted';
import { placeOf } from './api';
import { Browser } from './browser';
import { fromAddress, toAddress } from './path';
import './files.css';

/** Folders in which a session begins, the first that is there. */
const BEGINNINGS = ['/workspace', '/home/sandbox', '/'];

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
  useEffect(() => {
    if (asked !== null || begins !== null) return;
    let gone = false;
    const look = async () => {
      for (const folder of BEGINNINGS) {
        const found = await place.list(folder).then(
          () => true,
          () => false,
        );
        if (gone) return;
        if (found) return setBegins(folder);
      }
      setBegins('/');
    };
    void look();
    return () => {
      gone = true;
    };
  }, [place, asked]);
  const [typed, setTyped] = useState('');
  const path = asked === null ? begins : fromAddress(asked);
  const places = [...new Set(['/home/sandbox', '/tmp', ...mounts.map((mount) => mount.target)])];
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
      {path === null ? (
        <Loading what="Looking where the session begins; a sandbox that does not run is started" />
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
