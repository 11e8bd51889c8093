// A form of settings: what each is for, its default, where its value came from; saving shows what a change weakens first.

import { useState } from 'preact/hooks';
import { api, type AnswerOf } from '../../api/client';
import { asTold, type Told } from '../../api/problem';
import { oneLine } from '../../format/escape';
import { useMay } from '../../layout/me';
import { announce } from '../../parts/announce';
import { Button, Question } from '../../parts/button';
import { Field, Select, TextArea, TextInput } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Panel } from '../../parts/panel';
import { ErrorBox, Prose } from '../../parts/told';
import { lost } from '../sandboxes/promises';
import { useBackends } from '../sandboxes/use-backends';
import { about, differs, fixed, from, textOf, valueOf, without, type Draft, type Setting } from './draft';
import type { Group } from './groups';
import { Mounts, mountsOf } from './mounts';
import { weakens } from './weaken';

type Reloaded = AnswerOf<'/api/v1/settings', 'patch'>;

const BACKEND = 'tools.exec.sandbox.backend';
const MOUNTS = 'tools.exec.sandbox.mounts';

interface Change {
  setting: Setting;
  value: unknown;
  why: string | null;
}

export function SettingsForm({ group, settings, onSaved }: { group: Group; settings: readonly Setting[]; onSaved: () => void }) {
  const [drafts, setDrafts] = useState<Record<string, Draft>>({});
  const [asked, setAsked] = useState<Change[] | null>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Told | null>(null);
  const [saved, setSaved] = useState<Reloaded | null>(null);
  const { data: backends } = useBackends();
  const may = useMay('operator.admin');

  // Until the settings are read again what was just saved is what the next change is compared with.
  const [just, setJust] = useState<{ before: readonly Setting[]; values: ReadonlyMap<string, unknown> } | null>(null);
  const held = (setting: Setting): Setting => {
    if (just === null || just.before !== settings || !just.values.has(setting.key)) return setting;
    const value = just.values.get(setting.key);
    return value === null ? { ...setting, now: fallback(setting), origin: 'default' } : { ...setting, now: value, origin: 'file' };
  };

  const shown = group.keys
    .map((key) => settings.find((one) => one.key === key))
    .filter((one) => one !== undefined)
    .map(held);
  const changed = shown.filter((setting) => {
    const draft = drafts[setting.key];
    return draft !== undefined && differs(setting, draft);
  });
  const wrong = error && about(error.message, shown.map((setting) => setting.key));

  const edit = (key: string, draft: Draft) => {
    setDrafts((before) => ({ ...before, [key]: draft }));
    setAsked(null);
    setSaved(null);
    if (wrong === key) setError(null);
  };

  const why = (setting: Setting, value: unknown): string | null => {
    if (setting.key === BACKEND) {
      const of = (name: unknown) => backends?.backends.find((one) => one.backend === name)?.guarantees;
      const strongest = backends?.backends.find((one) => one.usable)?.backend;
      const [was, is] = [setting.now ?? 'auto', value ?? 'auto'].map((word) => (word === 'auto' ? strongest : word));
      const without = lost(of(was), of(is));
      return without.length > 0 ? `not held by ${String(is)} any more: ${without.join(', ')}` : null;
    }
    return weakens(setting.key, setting.now, value, fallback(setting));
  };

  const save = async (changes: readonly Change[]) => {
    setBusy(true);
    setError(null);
    try {
      const body = { changes: Object.fromEntries(changes.map(({ setting, value }) => [setting.key, value])) };
      const answer = await api.patch('/api/v1/settings', { body });
      setSaved(answer);
      setJust({ before: settings, values: new Map(changes.map(({ setting, value }) => [setting.key, value])) });
      setDrafts({});
      announce('Saved');
      onSaved();
    } catch (failed) {
      setError(asTold(failed));
    } finally {
      setBusy(false);
      setAsked(null);
    }
  };

  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    if (busy || changed.length === 0) return;
    const changes: Change[] = [];
    for (const setting of changed) {
      const value = valueOf(setting, drafts[setting.key] ?? { kind: 'default' });
      if (!value.ok) return setError({ code: 'value-invalid', message: `\`${setting.key}\`: ${value.why}` });
      changes.push({ setting, value: value.value, why: why(setting, value.value) });
    }
    if (changes.some((change) => change.why !== null)) setAsked(changes);
    else void save(changes);
  };

  return (
    <form onSubmit={submit}>
      <Panel
        title={group.title}
        about={group.about}
        footer={
          <>
            {asked ? (
              <div class="asked">
                <Question
                  weakens
                  busy={busy}
                  yes="Save it"
                  no="Do not save"
                  onYes={() => save(asked)}
                  onNo={() => setAsked(null)}
                  what={<Changes changes={asked} />}
                />
              </div>
            ) : (
              <>
                <Button submit primary disabled={changed.length === 0 || !may} busy={busy}>
                  Save{changed.length > 0 && ` ${changed.length} ${changed.length === 1 ? 'change' : 'changes'}`}
                </Button>
                {changed.length > 0 && <Button onClick={() => (setDrafts({}), setError(null))}>Discard</Button>}
              </>
            )}
            {saved && !asked && <Saved saved={saved} />}
          </>
        }
      >
        <div class="settings">
          {shown.map((setting) => (
            <One
              key={setting.key}
              setting={setting}
              draft={drafts[setting.key]}
              wrong={wrong === setting.key ? error : null}
              onDraft={(draft) => edit(setting.key, draft)}
            />
          ))}
        </div>
        {error && wrong === null && <ErrorBox told={error} onClose={() => setError(null)} />}
      </Panel>
    </form>
  );
}

/** The default as a value, where it is one. */
function fallback(setting: Setting): unknown {
  if (setting.default === undefined) return undefined;
  if (setting.origin === 'default') return setting.now;
  try {
    // TOML's texts, numbers, flags and lists of texts are JSON's.
    return JSON.parse(setting.default) as unknown;
  } catch {
    return undefined;
  }
}

function Changes({ changes }: { changes: readonly Change[] }) {
  const text = (value: unknown) => (value === null || value === undefined ? 'default' : oneLine(typeof value === 'string' ? value : JSON.stringify(value)));
  return (
    <div class="stack tight">
      <strong>This protects less than before:</strong>
      <ul class="changes">
        {changes.map(({ setting, value, why }) => (
          <li key={setting.key}>
            <span class="machine">{setting.key.split('.').at(-1)}</span>: <span class="machine">{text(setting.now)}</span>{' '}
            <span aria-label="becomes">→</span> <span class="machine">{text(value)}</span>
            {why !== null && (
              <>
                {' '}
                <Mark kind="warning">
                  <Prose text={why} />
                </Mark>
              </>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Saved({ saved }: { saved: Reloaded }) {
  const names = (keys: readonly string[]) => keys.map((key) => key.split('.').at(-1)).join(', ');
  return (
    <span class="row small" role="status">
      {saved.changed.length > 0 && <Mark kind="held">saved, and holds now</Mark>}
      {saved.atNextStart.length > 0 && (
        <Mark kind="warning">saved; {names(saved.atNextStart)} holds from the gateway’s next start on</Mark>
      )}
      {saved.changed.length === 0 && saved.atNextStart.length === 0 && <Mark kind="ended">saved; nothing has changed</Mark>}
    </span>
  );
}

function One({
  setting,
  draft,
  wrong,
  onDraft,
}: {
  setting: Setting;
  draft: Draft | undefined;
  wrong: Told | null;
  onDraft: (draft: Draft) => void;
}) {
  const name = setting.key.split('.').at(-1) ?? setting.key;
  const isDefault = draft?.kind === 'default';
  const why = fixed(setting);
  const off = why !== null;
  const text = draft === undefined ? textOf(setting) : draft.kind === 'text' ? draft.text : '';
  const put = (text: string) => onDraft({ kind: 'text', text });
  const changed = draft !== undefined && differs(setting, draft);
  // A default that is found out later is told in words.
  const inWords = setting.default !== undefined && setting.now === undefined;
  return (
    <div class={['setting', changed ? 'changed' : '', setting.key === MOUNTS ? 'wide' : ''].join(' ')}>
      <Field
        label={<span class="mono">{name}</span>}
        help={`${setting.help}.${inWords ? ` Default: ${setting.default}.` : ''}${off ? ` ${why}` : ''}`}
        wrong={wrong ? [without(wrong.message, setting.key), wrong.fix].filter(Boolean).join(' – ') : undefined}
        from={
          <>
            {changed ? <Mark kind="warning">changed, not saved</Mark> : <span title={setting.place}>{from(setting)}</span>}
            {setting.default !== undefined && setting.origin !== 'default' && (
              <>
                {' · '}default: <span class="mono">{short(setting.default)}</span>
              </>
            )}
            {!setting.live && ' · holds from the next start on'}
            {!off && (changed || setting.origin === 'file') && (
              <>
                {' · '}
                <button
                  type="button"
                  class="link"
                  onClick={() => onDraft(changed ? { kind: 'text', text: textOf(setting) } : { kind: 'default' })}
                >
                  {changed ? 'undo' : 'use the default'}
                </button>
              </>
            )}
          </>
        }
      >
        {setting.words ? (
          <Select
            value={isDefault ? '' : text}
            onValue={(word) => (word === '' ? onDraft({ kind: 'default' }) : put(word))}
            disabled={off}
            options={[
              ...(isDefault || text === '' ? [{ value: '', label: 'default' }] : []),
              ...setting.words,
            ]}
          />
        ) : setting.form === 'flag' ? (
          <Select
            value={isDefault ? '' : text}
            onValue={(word) => (word === '' ? onDraft({ kind: 'default' }) : put(word))}
            disabled={off}
            options={[
              ...(isDefault || text === '' ? [{ value: '', label: 'default' }] : []),
              { value: 'false', label: 'no' },
              { value: 'true', label: 'yes' },
            ]}
          />
        ) : setting.key === MOUNTS && mountsOf(text) !== null ? (
          <Mounts value={text} onValue={put} disabled={off} />
        ) : setting.form === 'list' || setting.form === 'table' ? (
          <TextArea
            value={text}
            onValue={put}
            disabled={off}
            rows={Math.min(8, Math.max(2, text.split('\n').length))}
            placeholder={isDefault ? 'default' : setting.form === 'list' ? 'one a line' : '[]'}
          />
        ) : (
          <TextInput
            mono
            value={text}
            onValue={put}
            disabled={off}
            placeholder={isDefault || setting.default !== undefined ? 'default' : setting.kind.replaceAll('`', '')}
          />
        )}
      </Field>
    </div>
  );
}

function short(text: string): string {
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}
