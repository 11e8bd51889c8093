// Questions about hosts that no rule names: a program waits for the answer.

import { useState } from 'preact/hooks';
import { api, type Schema } from '../../api/client';
import { useAct } from '../../api/use';
import { oneLine } from '../../format/escape';
import { useMay, useMe } from '../../layout/me';
import { announce } from '../../parts/announce';
import { Button, Question } from '../../parts/button';
import { Mark } from '../../parts/mark';
import { When } from '../../parts/time';
import { ErrorBox } from '../../parts/told';
import { address, Link } from '../../router';
import type { Approval } from './live';

type Decision = Parameters<typeof decide>[1];

function decide(id: number, decision: NonNullable<Schema<'Approval'>['decision']>) {
  return api.post('/api/v1/network/approvals/{approval}', { path: { approval: id }, body: { decision } });
}

export function Questions({ waiting }: { waiting: readonly Approval[] }) {
  if (waiting.length === 0) return null;
  return (
    <section class="panel questions" aria-label="Questions that wait">
      <header>
        <Mark kind="warning">
          {waiting.length} {waiting.length === 1 ? 'question waits' : 'questions wait'}
        </Mark>
        <span class="about">A program inside waits for the answer; without one it is denied.</span>
      </header>
      <ul>
        {waiting.map((approval) => (
          <Item key={approval.id} approval={approval} />
        ))}
      </ul>
    </section>
  );
}

function Item({ approval }: { approval: Approval }) {
  const [always, setAlways] = useState(false);
  const mayWrite = useMay('operator.write');
  const act = useAct(async (decision: Decision) => {
    await decide(approval.id, decision);
    announce(decision.startsWith('deny') ? 'Denied' : 'Allowed');
  });
  const host = oneLine(approval.host);
  // What holds for all is not for a key that sees some sessions.
  const isBound = useMe().sessions !== undefined;
  return (
    <li>
      <div class="row">
        <span class="machine host">
          {host}:{approval.port}
        </span>
        <span class="soft small">
          {approval.protocol}, asked <When millis={approval.askedMillis} /> by{' '}
          <Link to={address(['sessions', approval.session])}>
            <span class="machine">{oneLine(approval.session)}</span>
          </Link>
          , ends <When millis={approval.expiresMillis} />
        </span>
        {mayWrite && !always && (
          <span class="row push">
            <Button small primary busy={act.busy} onClick={() => act.run('session')}>
              Allow for this session
            </Button>
            {!isBound && (
              <Button small disabled={act.busy} onClick={() => setAlways(true)}>
                Always allow…
              </Button>
            )}
            <Button small quiet disabled={act.busy} onClick={() => act.run('once')}>
              Once
            </Button>
            <Button small danger disabled={act.busy} onClick={() => act.run('deny')}>
              Deny
            </Button>
          </span>
        )}
      </div>
      {always && (
        <Question
          weakens
          what={
            <>
              Every session whose network is <code>trusted</code> reaches <code class="machine">{host}</code> from now on,
              until the rule is forgotten.
            </>
          }
          yes="Always allow it"
          no="Back"
          busy={act.busy}
          onYes={() => act.run('always')}
          onNo={() => setAlways(false)}
        />
      )}
      {act.error && <ErrorBox told={act.error} onClose={act.clear} />}
    </li>
  );
}
