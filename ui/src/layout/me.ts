// Who is logged in, and what he may do.

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { Schema } from '../api/client';

export const Me = createContext<Schema<'Me'>>({ kind: 'key', scope: 'operator.read' });

const ORDER = ['operator.read', 'operator.write', 'operator.admin'];

/** Whether the one who is logged in may do this much. */
export function useMay(scope: 'operator.write' | 'operator.admin'): boolean {
  return ORDER.indexOf(useContext(Me).scope) >= ORDER.indexOf(scope);
}

export function useMe(): Schema<'Me'> {
  return useContext(Me);
}
