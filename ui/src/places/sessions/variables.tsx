// The variables of a session: their names are known, what they are set to is told by nobody.

import { Button } from '../../parts/button';
import { TextInput } from '../../parts/field';
import { oneLine } from '../../format/escape';
import type { Variable } from './form';

export function Variables({ id, value, onValue }: { id?: string; value: Variable[]; onValue: (value: Variable[]) => void }) {
  const change = (at: number, part: Partial<Variable>) => onValue(value.map((one, nth) => (nth === at ? { ...one, ...part } : one)));
  const takeOut = (at: number) => {
    if (value[at]?.had) change(at, { change: 'remove', value: '' });
    else onValue(value.filter((_, nth) => nth !== at));
  };
  return (
    <div class="mounts" id={id} role="group" aria-label="Variables">
      {value.map((variable, at) => {
        const about = variable.name === '' ? `variable ${at + 1}` : oneLine(variable.name);
        return (
          <div class="mount" key={at}>
            {variable.had ? (
              <span class="machine name">{oneLine(variable.name)}</span>
            ) : (
              <TextInput
                mono
                autofocus={variable.name === '' && variable.value === ''}
                value={variable.name}
                onValue={(name) => change(at, { name })}
                placeholder="NAME"
                aria-label={`Name of variable ${at + 1}`}
              />
            )}
            <span class="soft" aria-hidden="true">
              =
            </span>
            {variable.change === 'remove' ? (
              <span class="soft">is taken out</span>
            ) : (
              <TextInput
                mono
                value={variable.value}
                onValue={(text) => change(at, { value: text, change: 'set' })}
                placeholder={variable.change === 'keep' ? 'as it is; it is not shown' : 'empty'}
                aria-label={`Value of ${about}`}
              />
            )}
            {variable.had && variable.change !== 'keep' ? (
              <Button quiet small label={`Keep ${about} as it is`} onClick={() => change(at, { change: 'keep', value: '' })}>
                Keep
              </Button>
            ) : (
              <Button quiet small label={`Take ${about} out`} onClick={() => takeOut(at)}>
                Take out
              </Button>
            )}
          </div>
        );
      })}
      <div>
        <Button small onClick={() => onValue([...value, { name: '', value: '', had: false, change: 'set' }])}>
          Add a variable
        </Button>
      </div>
    </div>
  );
}
