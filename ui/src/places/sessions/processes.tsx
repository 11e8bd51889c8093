// The background commands that a session's sandbox knows: what they print, and what can be told to them.

import type { Schema } from '../../api/client';
import { oneLine } from '../../format/escape';
import { Empty } from '../../parts/empty';
import { Mark } from '../../parts/mark';
import { Panel } from '../../parts/panel';
import { Took, When } from '../../parts/time';
import { setQuery, useAddress } from '../../router';
import { Watch } from './command';
import { quoted } from './quoted';
import { ending } from './timeline';

export function Processes({
  session,
  processes,
  mayWrite,
}: {
  session: string;
  processes: readonly Schema<'Process'>[];
  mayWrite: boolean;
}) {
  const { query } = useAddress();
  const opened = query.get('process');
  const newest = [...processes].reverse();
  return (
    <Panel title="Background commands" about="those that its sandbox knows; they go on without whoever started them" flush>
      {newest.length === 0 ? (
        <Empty
          title="None runs, and none is remembered by the sandbox"
          command={`moltis exec --session ${quoted(session)} --background 'python3 -m http.server'`}
        />
      ) : (
        <ol class="timeline" aria-label="Background commands, newest first">
          {newest.map((process) => {
            const open = opened === String(process.process);
            const { mark, word } = ending({ ...process, state: process.running ? 'running' : 'ended' });
            return (
              <li key={process.process} class={open ? 'command-row open' : 'command-row'}>
                <div class="line">
                  <button
                    type="button"
                    class="unfold"
                    aria-expanded={open}
                    onClick={() => setQuery({ process: open ? null : process.process })}
                  >
                    <span class="glyph" aria-hidden="true">
                      {open ? '▾' : '▸'}
                    </span>
                    <span class="machine text">{oneLine(process.command)}</span>
                  </button>
                  <span class="facts-line">
                    <Mark kind={mark}>{word}</Mark>
                    <span class="soft">number {process.process}</span>
                    <span class="soft">pid {process.pid}</span>
                    <span class="took">
                      {process.durationMs === undefined ? '' : <Took millis={process.durationMs} />}
                    </span>
                    <span class="soft when">
                      <When millis={process.startedMillis} />
                    </span>
                  </span>
                </div>
                {open && (
                  <div class="printed">
                    <Watch session={session} process={process.process} label={process.command} mayWrite={mayWrite} />
                  </div>
                )}
              </li>
            );
          })}
        </ol>
      )}
    </Panel>
  );
}
