// What there is of a sandbox, in the words of `moltis sandbox ps`.

import type { Schema } from '../../api/client';
import type { MarkKind } from '../../parts/mark';

type Sandbox = Pick<Schema<'Sandbox'>, 'running' | 'provider'>;

/** Whether a provider alone knows of it. */
export function alone({ provider }: Sandbox): boolean {
  return provider !== undefined && !provider.known;
}

/** A word or two, and how they are marked. */
export function stateOf(sandbox: Sandbox): { kind: MarkKind; word: string } {
  const { running, provider } = sandbox;
  if (provider && alone(sandbox)) return { kind: 'warning', word: `${provider.state}, unknown here` };
  if (provider && !running) return { kind: 'gone', word: provider.state };
  return running ? { kind: 'running', word: 'running' } : { kind: 'gone', word: 'gone' };
}

/** Why nobody says what a sandbox that runs takes. */
export function unmeasured(backend: string): string {
  if (backend === 'wasm') return 'It is a part of this process, and not counted apart';
  if (backend === 'vercel' || backend === 'daytona') return 'The provider does not tell';
  return 'It could not be asked';
}
