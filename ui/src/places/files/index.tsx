// Managed files: those that every sandbox can be shown, whatever becomes of its home.

import { useMemo } from 'preact/hooks';
import { useMay, useMe } from '../../layout/me';
import { PlaceHead, type PlaceProps } from '../../layout/place';
import { ErrorBox } from '../../parts/told';
import { placeOf } from './api';
import { Browser } from './browser';
import { fromAddress } from './path';
import './files.css';

/** How often it is looked whether a sandbox has written something. */
const LOOK = 10_000;

export function Files({ query }: PlaceProps) {
  const mayWrite = useMay('operator.write');
  const isBound = useMe().sessions !== undefined;
  const place = useMemo(() => placeOf(null), []);
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Files' }]}>
        <span class="small soft">
          Shown in sandboxes at <code class="machine">/home/sandbox/files</code>. At most 1 GiB a file.
        </span>
      </PlaceHead>
      {isBound ? (
        <ErrorBox
          tone="plain"
          told={{
            code: 'key-bound',
            message: 'Your key is bound to some sessions, and managed files are those of all.',
            fix: 'look at the files of a session instead',
          }}
        />
      ) : (
        <Browser
          place={place}
          path={fromAddress(query.get('path'))}
          view={query.get('view')}
          mayWrite={mayWrite}
          every={LOOK}
          empty={{ title: 'No managed file yet', command: 'moltis files put notes.txt' }}
        />
      )}
    </div>
  );
}
