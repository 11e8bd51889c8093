// Backends as they are now: asked again while somebody looks, since engines start and stop by themselves.

import { useRead } from '../../api/use';

export function useBackends() {
  return useRead('/api/v1/backends', {}, { topics: ['status', 'settings'], every: 30_000 });
}
