// What is asked before an upload: what is to become of names that are taken, and of files that often hold secrets.

import { useState } from 'preact/hooks';
import { size } from '../../format/size';
import { Button } from '../../parts/button';
import { Check, Select } from '../../parts/field';
import { Mark } from '../../parts/mark';
import { Panel } from '../../parts/panel';
import { shown } from './path';
import { isSecret, MAX_FILE, plan, type Chosen, type Decision, type Plan, type There } from './plan';
import type { Work } from './uploads';

export interface Waiting {
  folder: string;
  files: Chosen<File>[];
  emptyFolders: string[];
  unread: string[];
  more: boolean;
  there: There;
}

/** Names that are shown of a long list. */
const SHOWN = 50;

const WORDS: Record<Decision, string> = { replace: 'replace', keepBoth: 'keep both', skip: 'skip' };

/** Files of a dropped folder that often hold secrets: one that was chosen by itself was meant. */
export function secretsOf(files: readonly Chosen<File>[]): Chosen<File>[] {
  return files.filter((file) => file.path.includes('/') && isSecret(file.path));
}

/** Whether an upload can begin without a question. */
export function needsNoWord(waiting: Waiting): Plan<File> | null {
  if (waiting.unread.length > 0 || waiting.more || secretsOf(waiting.files).length > 0) return null;
  const made = plan(waiting.files, waiting.there, new Map(), undefined, waiting.emptyFolders);
  return made.open.length === 0 && made.tooLarge.length === 0 ? made : null;
}

export function workOf(folder: string, made: Plan<File>): Work {
  return { folder, uploads: made.uploads, folders: made.folders };
}

export function Conflicts({
  waiting,
  onGo,
  onCancel,
}: {
  waiting: Waiting;
  onGo: (work: Work) => void;
  onCancel: () => void;
}) {
  const [decided, setDecided] = useState<ReadonlyMap<string, Decision>>(new Map());
  const [forAll, setForAll] = useState<Decision | undefined>(undefined);
  const [withSecrets, setWithSecrets] = useState(false);
  const secrets = secretsOf(waiting.files);
  const left = new Set(withSecrets ? [] : secrets.map((file) => file.path));
  const files = waiting.files.filter((file) => !left.has(file.path));
  const made = plan(files, waiting.there, decided, forAll, waiting.emptyFolders);
  const all = plan(files, waiting.there, new Map(), undefined, waiting.emptyFolders).open;
  const choose = (path: string, word: Decision) => setDecided(new Map(decided).set(path, word));
  const replaced = made.uploads.filter((upload) => upload.replace).length;
  return (
    <Panel
      title="Before it is uploaded"
      about={`${files.length.toLocaleString('en')} ${files.length === 1 ? 'file' : 'files'} into ${shown(waiting.folder)}`}
      footer={
        <>
          <Button
            primary
            danger={replaced > 0}
            disabled={made.open.length > 0 || made.uploads.length + made.folders.length === 0}
            onClick={() => onGo(workOf(waiting.folder, made))}
          >
            Upload {made.uploads.length.toLocaleString('en')}
            {replaced > 0 && `, replace ${replaced.toLocaleString('en')}`}
          </Button>
          <Button quiet onClick={onCancel}>
            Cancel
          </Button>
          <span class="small soft">
            {made.open.length > 0
              ? `${made.open.length.toLocaleString('en')} to decide`
              : `${size(made.bytes)}${made.skipped.length > 0 ? `, ${made.skipped.length.toLocaleString('en')} skipped` : ''}`}
          </span>
        </>
      }
    >
      <div class="stack">
        {secrets.length > 0 && (
          <div class="told warn">
            <Mark kind="warning">
              {secrets.length} {secrets.length === 1 ? 'file often holds' : 'files often hold'} secrets
            </Mark>
            <Names paths={secrets.map((file) => file.path)} />
            <Check checked={withSecrets} onChecked={setWithSecrets}>
              Upload them too: every sandbox that is shown these files can read them
            </Check>
          </div>
        )}
        {made.tooLarge.length > 0 && (
          <div class="told warn">
            <Mark kind="warning">
              {made.tooLarge.length} over {size(MAX_FILE)}, the most that a file may have, {made.tooLarge.length === 1 ? 'is' : 'are'} not sent
            </Mark>
            <Names paths={made.tooLarge} />
          </div>
        )}
        {waiting.unread.length > 0 && (
          <div class="told warn">
            <Mark kind="warning">{waiting.unread.length} cannot be read by the browser</Mark>
            <Names paths={waiting.unread} />
          </div>
        )}
        {waiting.more && (
          <div class="told warn">
            <Mark kind="warning">There are more files than are sent at once: only the first {waiting.files.length.toLocaleString('en')} are taken</Mark>
          </div>
        )}
        {all.length > 0 && (
          <>
            <fieldset class="row">
              <legend>
                {all.length.toLocaleString('en')} {all.length === 1 ? 'name is' : 'names are'} taken. For all:
              </legend>
              {(['replace', 'keepBoth', 'skip'] as const).map((word) => (
                <label key={word} class="choice">
                  <input
                    type="radio"
                    name="for-all"
                    checked={forAll === word}
                    onChange={() => {
                      setForAll(word);
                      setDecided(new Map());
                    }}
                  />
                  {WORDS[word]}
                </label>
              ))}
            </fieldset>
            <ul class="conflicts">
              {all.slice(0, SHOWN).map((found) => {
                const word = decided.get(found.path) ?? (forAll !== undefined && found.choices.includes(forAll) ? forAll : '');
                return (
                  <li key={found.path}>
                    <span class="machine">{shown(found.path)}</span>
                    <span class="soft small">
                      {found.at === found.path
                        ? `a ${found.with === 'directory' ? 'folder' : found.with === 'file' ? 'file' : 'link or device'} has this name`
                        : `${shown(found.at)} is no folder`}
                    </span>
                    <Select
                      aria-label={`What becomes of ${shown(found.path)}`}
                      value={word}
                      onValue={(value) => value !== '' && choose(found.path, value as Decision)}
                      options={[{ value: '', label: 'decide' }, ...found.choices.map((choice) => ({ value: choice, label: WORDS[choice] }))]}
                    />
                  </li>
                );
              })}
            </ul>
            {all.length > SHOWN && (
              <p class="small soft">And {(all.length - SHOWN).toLocaleString('en')} more, to which what is said for all applies.</p>
            )}
          </>
        )}
      </div>
    </Panel>
  );
}

function Names({ paths }: { paths: readonly string[] }) {
  return (
    <ul class="names machine">
      {paths.slice(0, 8).map((path) => (
        <li key={path}>{shown(path)}</li>
      ))}
      {paths.length > 8 && <li class="soft">and {paths.length - 8} more</li>}
    </ul>
  );
}
