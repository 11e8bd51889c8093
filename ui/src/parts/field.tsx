// A field of a form: its name, what it does in one line, its default, where its value came from, what is wrong with it.

import { cloneElement, type ComponentChildren, type VNode } from 'preact';
import { useId } from 'preact/hooks';
import { Prose } from './told';

type ControlNode = VNode<{ id?: string; 'aria-describedby'?: string | undefined; 'aria-invalid'?: 'true' | undefined }>;

export function Field({
  label,
  help,
  from,
  wrong,
  children,
}: {
  label: ComponentChildren;
  help?: string | undefined;
  /** Where the value came from, and the default. */
  from?: ComponentChildren;
  wrong?: string | undefined;
  children: ControlNode;
}) {
  const id = useId();
  const described = [help !== undefined ? `${id}-help` : '', wrong !== undefined ? `${id}-wrong` : ''];
  const control = cloneElement(children, {
    id,
    'aria-describedby': described.filter(Boolean).join(' ') || undefined,
    'aria-invalid': wrong !== undefined ? 'true' : undefined,
  });
  return (
    <div class={wrong === undefined ? 'field' : 'field invalid'}>
      <div class="label">
        <label for={id}>{label}</label>
        {from && <span class="from">{from}</span>}
      </div>
      {control}
      {wrong !== undefined && (
        <div class="wrong" id={`${id}-wrong`} role="alert">
          <span aria-hidden="true">✕ </span>
          <Prose text={wrong} />
        </div>
      )}
      {help !== undefined && (
        <div class="help" id={`${id}-help`}>
          <Prose text={help} />
        </div>
      )}
    </div>
  );
}

/** What every control may be given. `Field` gives it its name and what is said of it. */
interface Control {
  id?: string;
  name?: string;
  disabled?: boolean | undefined;
  placeholder?: string | undefined;
  autofocus?: boolean;
  'aria-label'?: string;
  'aria-describedby'?: string | undefined;
  'aria-invalid'?: 'true' | undefined;
}

type TextProps = Control & { value: string; onValue: (value: string) => void };

/** The browser's own `autofocus` works once in a page, and not after somebody has clicked. */
const focus = (element: HTMLInputElement | null) => element?.focus();

export function TextInput({
  value,
  onValue,
  mono = false,
  secret = false,
  search = false,
  autofocus = false,
  ...rest
}: TextProps & { mono?: boolean; secret?: boolean; search?: boolean }) {
  const all = {
    spellcheck: false,
    class: mono ? 'input machine' : 'input',
    value,
    onInput: (event: { currentTarget: HTMLInputElement }) => onValue(event.currentTarget.value),
    ...(autofocus ? { ref: focus } : {}),
    ...rest,
  };
  if (secret) return <input type="password" autocomplete="current-password" {...all} />;
  if (search) return <input type="search" autocomplete="off" {...all} />;
  return <input type="text" autocomplete="off" {...all} />;
}

export function TextArea({ value, onValue, ...rest }: TextProps & { rows?: number }) {
  return (
    <textarea
      autocomplete="off"
      spellcheck={false}
      class="input"
      value={value}
      onInput={(event) => onValue(event.currentTarget.value)}
      {...rest}
    />
  );
}

export function Select({
  value,
  onValue,
  options,
  ...rest
}: Omit<TextProps, 'placeholder'> & { options: readonly (string | { value: string; label: string })[] }) {
  return (
    <select class="input" value={value} onChange={(event) => onValue(event.currentTarget.value)} {...rest}>
      {options.map((option) => {
        const { value: word, label } = typeof option === 'string' ? { value: option, label: option } : option;
        return (
          <option key={word} value={word} selected={word === value}>
            {label}
          </option>
        );
      })}
    </select>
  );
}

export function Check({
  checked,
  onChecked,
  children,
  ...rest
}: {
  checked: boolean;
  onChecked: (checked: boolean) => void;
  children?: ComponentChildren;
} & Omit<Control, 'placeholder'>) {
  return (
    <label class="choice">
      <input type="checkbox" checked={checked} onChange={(event) => onChecked(event.currentTarget.checked)} {...rest} />
      {children}
    </label>
  );
}
