// Further folders of the host that show inside, a row each.

import { Button } from '../../parts/button';
import { Select, TextInput } from '../../parts/field';

interface Mount {
  source: string;
  target: string;
  mode?: string;
}

/** The mounts that a draft's text holds; what is none of ours is `null`, and is shown as it stands. */
export function mountsOf(text: string): Mount[] | null {
  if (text.trim() === '') return [];
  try {
    const all = JSON.parse(text) as unknown;
    const known = new Set(['source', 'target', 'mode']);
    const is = (one: unknown) =>
      typeof one === 'object' && one !== null && Object.entries(one).every(([name, value]) => known.has(name) && typeof value === 'string');
    return Array.isArray(all) && all.every(is) ? (all as Mount[]) : null;
  } catch {
    return null;
  }
}

export function Mounts({
  id,
  value,
  onValue,
  disabled,
}: {
  id?: string;
  value: string;
  onValue: (value: string) => void;
  disabled: boolean;
}) {
  const mounts = mountsOf(value) ?? [];
  const put = (all: Mount[]) => onValue(JSON.stringify(all));
  const change = (at: number, part: Partial<Mount>) => put(mounts.map((mount, nth) => (nth === at ? { ...mount, ...part } : mount)));
  return (
    <div class="mounts" id={id} role="group">
      {mounts.map((mount, at) => (
        <div class="mount" key={at}>
          <TextInput
            mono
            value={mount.source}
            onValue={(source) => change(at, { source })}
            disabled={disabled}
            placeholder="folder of the host"
            aria-label={`Folder of the host, mount ${at + 1}`}
          />
          <span class="soft" aria-hidden="true">
            →
          </span>
          <TextInput
            mono
            value={mount.target}
            onValue={(target) => change(at, { target })}
            disabled={disabled}
            placeholder="where inside"
            aria-label={`Where it shows inside, mount ${at + 1}`}
          />
          <Select
            value={mount.mode ?? 'ro'}
            onValue={(mode) => change(at, { mode })}
            disabled={disabled}
            options={['ro', 'rw']}
            aria-label={`Mode, mount ${at + 1}`}
          />
          {!disabled && (
            <Button quiet small label={`Take mount ${at + 1} out`} onClick={() => put(mounts.filter((_, nth) => nth !== at))}>
              Take out
            </Button>
          )}
        </div>
      ))}
      {mounts.length === 0 && <span class="soft small">none</span>}
      {!disabled && (
        <div>
          <Button small onClick={() => put([...mounts, { source: '', target: '', mode: 'ro' }])}>
            Add a folder
          </Button>
        </div>
      )}
    </div>
  );
}
