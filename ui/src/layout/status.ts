// The state of the gateway, read once for the whole page.

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { AnswerOf } from '../api/client';
import type { Read } from '../api/use';

export type Status = AnswerOf<'/api/v1/status', 'get'>;

export const StatusContext = createContext<Read<Status>>({
  data: undefined,
  error: null,
  loading: true,
  reload: () => undefined,
  put: () => undefined,
});

export function useStatus(): Read<Status> {
  return useContext(StatusContext);
}
