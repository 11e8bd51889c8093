// Remote sandbox backends: tokens that are written and never shown, and what goes with them.

import { useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct } from '../../api/use';
import { announce } from '../../parts/announce';
import { Button, Confirm } from '../../parts/button';
import { Field, TextInput } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Panel } from '../../parts/panel';
import { ErrorBox, Prose } from '../../parts/told';
import { useBackends } from '../sandboxes/use-backends';
import { fixed, from, type Setting } from './draft';
import { SettingsForm } from './form';
import { PROVIDERS, type Provider } from './groups';

export function Remote({ settings, onSaved }: { settings: readonly Setting[]; onSaved: () => void }) {
  return (
    <>
      <div class="told plain">
        <span>
          A sandbox at a provider is a machine of theirs: a session’s workspace is uploaded to it. Tokens are kept in <code>secrets.toml</code>, which only
          the gateway’s user reads, and never enter a sandbox.
        </span>
      </div>
      {PROVIDERS.map((provider) => (
        <One key={provider.id} provider={provider} settings={settings} onSaved={onSaved} />
      ))}
    </>
  );
}

function One({ provider, settings, onSaved }: { provider: Provider; settings: readonly Setting[]; onSaved: () => void }) {
  const backends = useBackends();
  const backend = backends.data?.backends.find((one) => one.backend === provider.id);
  const secret = settings.find((one) => one.key === provider.secret);
  const [token, setToken] = useState('');
  const [later, setLater] = useState(false);
  const put = useAct(async (value: string | null) => {
    const answer = await api.patch('/api/v1/settings/secrets', { body: { secrets: { [provider.secret]: value } } });
    setToken('');
    setTried(null);
    setLater(answer.atNextStart.length > 0);
    announce(value === null ? 'The token is removed' : 'The token is saved');
    onSaved();
    backends.reload();
  });
  const [tried, setTried] = useState<Schema<'Backend'> | null>(null);
  const test = useAct(async () => {
    setTried(null);
    const answer = await api.get('/api/v1/backends');
    const found = answer.backends.find((one) => one.backend === provider.id) ?? null;
    setTried(found);
    announce(found?.usable ? `${provider.title} takes the token` : `${provider.title} cannot be used`);
    backends.reload();
  });
  const isSet = secret?.value === 'set';
  const byElse = secret !== undefined && isSet && secret.origin !== 'secrets';
  return (
    <>
      <Panel
        title={`Remote sandbox backends: ${provider.title}`}
        about={
          backend ? (
            <Mark kind={backend.usable ? 'usable' : 'notUsable'} title={backend.reason?.message} />
          ) : (
            provider.about
          )
        }
      >
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            if (token.trim() !== '') void put.run(token.trim());
          }}
        >
          {backend?.reason && (
            <p class="small soft">
              <Prose text={backend.reason.message} />
              {backend.reason.fix !== undefined && (
                <>
                  . Fix: <Prose text={backend.reason.fix} />
                </>
              )}
            </p>
          )}
          <Field
            label={<span class="mono">{provider.secret.split('.').at(-1)}</span>}
            help={`${secret?.help ?? ''}. It is written here and never shown again.${secret && !isSet ? '' : ''}`}
            from={
              secret && (
                <>
                  <Mark kind={isSet ? 'held' : 'none'}>{isSet ? 'set' : 'not set'}</Mark> {isSet && from(secret)}
                </>
              )
            }
          >
            <TextInput
              secret
              mono
              value={token}
              onValue={setToken}
              disabled={secret !== undefined && secret.origin === 'env' && fixed(secret) !== null}
              placeholder={isSet ? 'another one, in its place' : ''}
            />
          </Field>
          {put.error && <ErrorBox told={put.error} onClose={put.clear} />}
          {test.error && <ErrorBox told={test.error} onClose={test.clear} />}
          {tried?.reason && <ErrorBox told={tried.reason} onClose={() => setTried(null)} />}
          <div class="row">
            <Button submit primary busy={put.busy} disabled={token.trim() === ''}>
              {isSet ? 'Replace the token' : 'Add the token'}
            </Button>
            {isSet && (
              <Button busy={test.busy} onClick={() => void test.run()}>
                Test the connection
              </Button>
            )}
            {tried?.usable && <Mark kind="usable">it answers, and takes the token</Mark>}
            {isSet && !byElse && (
              <Confirm
                what={`Removes the token from secrets.toml. Sandboxes that run at ${provider.title} are not reached any more until there is one again.`}
                yes="Remove the token"
                onYes={() => put.run(null)}
              >
                Remove…
              </Confirm>
            )}
            {byElse && <span class="small soft">It is not in secrets.toml, so it cannot be removed here.</span>}
            {later && (
              <Mark kind="warning">saved; it holds from the gateway’s next start on</Mark>
            )}
          </div>
        </form>
      </Panel>
      <SettingsForm group={{ title: `${provider.title}: where and how`, keys: provider.keys }} settings={settings} onSaved={onSaved} />
    </>
  );
}
