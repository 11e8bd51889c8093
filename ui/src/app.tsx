// Who is here: the login, or the frame with the place that the address names.

import { useCallback, useEffect, useState } from 'preact/hooks';
import { api, onUnauthorised, type Schema } from './api/client';
import { live } from './api/live';
import { ApiError, asTold, type Told } from './api/problem';
import { secret } from './api/secret';
import { forgetAll } from './api/use';
import { Frame } from './layout/frame';
import { Login } from './layout/login';
import { Me } from './layout/me';
import { ErrorBox } from './parts/told';

type State =
  | { kind: 'asking' }
  | { kind: 'out'; why: Told | null }
  | { kind: 'in'; me: Schema<'Me'> }
  | { kind: 'failed'; told: Told };

export function App() {
  const [state, setState] = useState<State>({ kind: 'asking' });

  const ask = useCallback(async () => {
    try {
      // Without the secret nothing but looking would work.
      if (secret.value === null && !(await secret.askOthers())) return setState({ kind: 'out', why: null });
      const me = await api.get('/api/v1/me');
      setState({ kind: 'in', me });
    } catch (error) {
      const out = error instanceof ApiError && error.status === 401;
      setState(out ? { kind: 'out', why: null } : { kind: 'failed', told: asTold(error) });
    }
  }, []);

  useEffect(() => {
    void ask();
    const stops = [
      onUnauthorised(() => {
        const told = { code: 'login-over', message: 'the login is over', fix: 'log in again: nothing is lost' };
        setState((before) => (before.kind === 'out' ? before : { kind: 'out', why: before.kind === 'in' ? told : null }));
      }),
      // Another tab has logged in or out.
      secret.listen(() => {
        if (secret.value === null) setState((before) => (before.kind === 'in' ? { kind: 'out', why: null } : before));
        else void ask();
      }),
    ];
    return () => stops.forEach((stop) => stop());
  }, []);

  const isIn = state.kind === 'in';
  useEffect(() => {
    if (!isIn) return;
    live.start();
    return () => {
      live.stop();
      forgetAll();
    };
  }, [isIn]);

  // A gateway that is not there yet comes back by itself.
  useEffect(() => {
    if (state.kind !== 'failed') return;
    const timer = setTimeout(() => void ask(), 2000);
    return () => clearTimeout(timer);
  }, [state]);

  switch (state.kind) {
    case 'asking':
      return null;
    case 'out':
      return <Login why={state.why} />;
    case 'failed':
      return (
        <div class="login">
          <ErrorBox told={state.told} onRetry={ask} />
        </div>
      );
    case 'in':
      return (
        <Me.Provider value={state.me}>
          <Frame />
        </Me.Provider>
      );
  }
}
