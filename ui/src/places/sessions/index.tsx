// Sessions: all of them, or one.

import type { PlaceProps } from '../../layout/place';
import { SessionList } from './list';
import { SessionPage } from './page';
import './sessions.css';

export function Sessions({ parts }: PlaceProps) {
  const [session, tab = ''] = parts;
  return session === undefined ? <SessionList /> : <SessionPage session={session} tab={tab} />;
}
