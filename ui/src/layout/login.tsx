// The login: the admin token or an API key for a cookie, and the secret that goes with it.

import { useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import { asTold, type Told } from '../api/problem';
import { secret } from '../api/secret';
import { Button } from '../parts/button';
import { Command } from '../parts/copy';
import { Field, TextInput } from '../parts/field';
import { ErrorBox } from '../parts/told';
import { useTitle } from '../router';

export function Login({ why }: { why: Told | null }) {
  useTitle('Log in');
  const [token, setToken] = useState('');
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Told | null>(null);
  const place = useRef<HTMLFormElement>(null);
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    if (token.trim() === '') return place.current?.querySelector('input')?.focus();
    setBusy(true);
    setError(null);
    try {
      const answer = await api.post('/api/v1/login', { body: { token: token.trim() } });
      secret.began(answer.secret);
    } catch (failed) {
      setError(asTold(failed));
      setBusy(false);
      place.current?.querySelector('input')?.focus();
    }
  };
  return (
    <main class="login">
      <form class="panel" ref={place} onSubmit={send}>
        <h1>Moltis</h1>
        {why && !error && <ErrorBox told={why} tone="plain" />}
        <Field label="Admin token or API key" help="It is exchanged for a login of seven days, and not kept by this page.">
          <TextInput
            secret
            mono
            autofocus
            name="token"
            value={token}
            onValue={setToken}
          />
        </Field>
        <div class="row">
          <Button submit primary busy={busy}>
            Log in
          </Button>
        </div>
        {error && <ErrorBox told={error} />}
        <div class="stack tight small soft">
          <p>No token at hand? On the gateway’s machine this makes another one, and ends every login:</p>
          <Command text="moltis gateway token" />
        </div>
      </form>
    </main>
  );
}
