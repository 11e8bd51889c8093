// The editor of what a session sets over the configuration. What takes protection away is shown before it is saved.

import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct, useRead } from '../../api/use';
import { oneLine } from '../../format/escape';
import { announce } from '../../parts/announce';
import { Button, Question } from '../../parts/button';
import { Field, Select, TextArea, TextInput } from '../../parts/field';
import { ErrorBox } from '../../parts/told';
import { configuredOf, filled, patchOf, type Form, wrongOf } from './form';
import { Variables } from './variables';
import { weaker, type Keeps, type Weaker } from './weaken';

/** The fields that chips lead to. */
export type Focus = keyof Form;

export function Editor({
  details,
  focus,
  onClose,
  onSaved,
}: {
  details: Schema<'SessionDetails'>;
  focus: Focus;
  onClose: () => void;
  onSaved: () => void;
}) {
  const backends = useRead('/api/v1/backends');
  const before = details.overrides;
  // What is typed stays though the session is told anew; what is saved is only what was changed here.
  const [form, setForm] = useState<Form>(() => filled(before, details.env));
  const start = useRef(before);
  const [asked, setAsked] = useState<Weaker[] | null>(null);
  const place = useRef<HTMLFormElement>(null);
  const configured = useMemo(() => configuredOf(details.settings), [details.settings]);
  const wrong = wrongOf(form);
  const patch = patchOf(start.current, form);
  const isChanged = Object.keys(patch).length > 0;

  useLayoutEffect(() => {
    const field = focus === 'variables' ? '[role="group"] :is(input, button)' : `[name="${focus}"]`;
    place.current?.querySelector<HTMLElement>(field)?.focus();
    place.current?.scrollIntoView({ block: 'nearest' });
  }, [focus]);

  const save = useAct(async () => {
    await api.patch('/api/v1/sessions/{session}', { path: { session: details.session }, body: patch });
    announce('Saved');
    onSaved();
  });
  const keeps: Keeps = (name) => {
    const found = backends.data?.backends.find((backend) => backend.backend === name)?.guarantees;
    return found && { filesystem: found.filesystem.state === 'held', kernel: found.kernel.state === 'held' };
  };
  const submit = () => {
    if (!isChanged || Object.keys(wrong).length > 0) return;
    const found = weaker(start.current, patch, configured, keeps);
    if (found.length > 0) setAsked(found);
    else void save.run();
  };
  const set = <K extends Focus>(key: K, value: Form[K]) => {
    setAsked(null);
    setForm({ ...form, [key]: value });
  };

  /** Where a field's value comes from. */
  const from = (isSet: boolean, value: string | undefined) =>
    isSet ? `set by this session; the configuration has ${value ?? 'none'}` : `from the configuration: ${value ?? 'none'}`;
  const of = (key: string) => {
    const found = details.settings.find((setting) => setting.key === key);
    return found?.configured === undefined ? undefined : oneLine(found.configured);
  };
  const names = backends.data?.backends.filter((backend) => backend.usable).map((backend) => backend.backend) ?? [];
  const current = before.sandboxBackend;
  const choices = [...new Set(['auto', ...names, ...(current === undefined ? [] : [current])])];
  return (
    <form
      ref={place}
      class="panel editor"
      aria-label="What this session sets"
      onKeyDown={(event) => event.key === 'Escape' && onClose()}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <header>
        <h2>What this session sets</h2>
        <span class="about">A sandbox that runs stays as it is until the next command; the network holds at once.</span>
      </header>
      <div class="body editor-fields">
        <Field label="Sandbox" help="Whether commands run in a sandbox at all." from={from(form.enabled !== '', of('mode') === 'off' || of('sandboxEnabled') === 'false' ? 'off' : 'on')}>
          <Select
            name="enabled"
            value={form.enabled}
            onValue={(value) => set('enabled', value as Form['enabled'])}
            options={[{ value: '', label: 'as configured' }, { value: 'on', label: 'on' }, { value: 'off', label: 'off: straight on the host' }]}
          />
        </Field>
        <Field label="Backend" help="What holds the sandbox." from={from(form.backend !== '', of('backend'))}>
          <Select
            name="backend"
            value={form.backend}
            onValue={(value) => set('backend', value)}
            options={[{ value: '', label: 'as configured' }, ...choices]}
          />
        </Field>
        <Field label="Image" help="A finished image, used as it is; empty: as configured." from={from(form.image !== '', of('image'))}>
          <TextInput name="image" mono value={form.image} onValue={(value) => set('image', value)} />
        </Field>
        <Field label="Network" help="`blocked`: none. `trusted`: the hosts that are allowed, through the proxy. `open`: all." from={from(form.network !== '', of('network'))}>
          <Select
            name="network"
            value={form.network}
            onValue={(value) => set('network', value as Form['network'])}
            options={[{ value: '', label: 'as configured' }, 'blocked', 'trusted', 'open']}
          />
        </Field>
        <Field label="Memory" help="Such as `512M` or `2G`; empty: as configured." from={from(form.memory !== '', of('resource_limits.memory_limit'))} wrong={wrong.memory}>
          <TextInput name="memory" mono value={form.memory} onValue={(value) => set('memory', value)} />
        </Field>
        <Field label="CPUs" help="Cores, such as `0.5` or `2`; empty: as configured." from={from(form.cpus !== '', of('resource_limits.cpu_quota'))} wrong={wrong.cpus}>
          <TextInput name="cpus" mono value={form.cpus} onValue={(value) => set('cpus', value)} />
        </Field>
        <Field label="Processes" help="Processes and threads at once; empty: as configured." from={from(form.pids !== '', of('resource_limits.pids_max'))} wrong={wrong.pids}>
          <TextInput name="pids" mono value={form.pids} onValue={(value) => set('pids', value)} />
        </Field>
        <Field label="Ends when idle for" help="Such as `30m` or `2h`; empty: as configured." from={from(form.idle !== '', of('idle_ttl'))} wrong={wrong.idle}>
          <TextInput name="idle" mono value={form.idle} onValue={(value) => set('idle', value)} />
        </Field>
        <Field label="Workspace" help="A folder of the host, beneath one of `workspace_roots`, that shows at `/workspace`." from={from(form.workspace !== '', of('workspace'))} wrong={wrong.workspace}>
          <TextInput name="workspace" mono value={form.workspace} onValue={(value) => set('workspace', value)} />
        </Field>
        <Field label="Workspace mode" help="Whether commands may change it.">
          <Select
            name="mode"
            value={form.mode}
            onValue={(value) => set('mode', value as Form['mode'])}
            disabled={form.workspace === ''}
            options={[{ value: 'ro', label: 'ro: read only' }, { value: 'rw', label: 'rw: read and write' }]}
          />
        </Field>
        <Field label="Allowed hosts" help="Besides those of the configuration, one a line: `example.com`, `*.example.com`, `host:port`." from={from(form.trusted !== '', of('trusted_domains'))}>
          <TextArea name="trusted" rows={3} value={form.trusted} onValue={(value) => set('trusted', value)} />
        </Field>
        <Field label="Denied hosts" help="They win over what is allowed." from={from(form.denied !== '', of('denied_domains'))}>
          <TextArea name="denied" rows={3} value={form.denied} onValue={(value) => set('denied', value)} />
        </Field>
        <Field label="Hosts that no rule names" help="`deny` them, or `ask` a person while the program waits." from={from(form.unknown !== '', of('on_unknown'))}>
          <Select
            name="unknown"
            value={form.unknown}
            onValue={(value) => set('unknown', value as Form['unknown'])}
            options={[{ value: '', label: 'as configured' }, 'deny', 'ask']}
          />
        </Field>
        <Field label="WASM instructions" help="How many one command may execute on `wasm`; empty: as configured." from={from(form.fuel !== '', of('wasm_fuel_limit'))} wrong={wrong.fuel}>
          <TextInput name="fuel" mono value={form.fuel} onValue={(value) => set('fuel', value)} />
        </Field>
        <div class="whole">
          <Field label="Variables" help="Set for each command of the session. They are kept, and never shown again." wrong={wrong.variables}>
            <Variables value={form.variables} onValue={(value) => set('variables', value)} />
          </Field>
        </div>
      </div>
      <footer class="stack tight">
        {save.error && <ErrorBox told={save.error} onClose={save.clear} />}
        {asked !== null ? (
          <Question
            weakens
            what={
              <>
                <strong>Less is protected then.</strong>
                <ul class="weaker">
                  {asked.map((one) => (
                    <li key={one.what}>
                      {one.what}: <code class="machine">{oneLine(one.before)}</code> →{' '}
                      <code class="machine">{oneLine(one.after)}</code>. <span class="soft">{one.means}</span>
                    </li>
                  ))}
                </ul>
              </>
            }
            yes="Save it all the same"
            no="Change it again"
            busy={save.busy}
            onYes={() => save.run()}
            onNo={() => setAsked(null)}
          />
        ) : (
          <div class="row">
            <Button submit primary busy={save.busy} disabled={!isChanged || Object.keys(wrong).length > 0}>
              Save
            </Button>
            <Button quiet onClick={onClose}>
              Close
            </Button>
            {!isChanged && <span class="soft small">Nothing is changed.</span>}
          </div>
        )}
      </footer>
    </form>
  );
}
