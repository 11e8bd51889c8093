// Loads the terminal, which is a large part of the page, when somebody wants one.

import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { asTold, type Told } from '../../api/problem';
import { Loading } from '../../parts/panel';
import { ErrorBox } from '../../parts/told';

type Loaded = ComponentType<{ session: string }>;

export function TerminalPart({ session }: { session: string }) {
  const [loaded, setLoaded] = useState<{ Terminal: Loaded } | null>(null);
  const [error, setError] = useState<Told | null>(null);
  const load = () => {
    setError(null);
    import('./terminal').then(
      ({ Terminal }) => setLoaded({ Terminal }),
      (failed: unknown) => setError({ ...asTold(failed), code: 'terminal-missing', message: 'the terminal cannot be loaded', fix: 'reload the page: the gateway may be a newer one' }),
    );
  };
  useEffect(load, []);
  if (error) return <ErrorBox told={error} onRetry={load} />;
  if (loaded === null) return <Loading what="Loading the terminal" />;
  return <loaded.Terminal session={session} />;
}
