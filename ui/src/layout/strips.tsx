// What stands at the top of every page until it is over: a gateway that is away, a failover, promises that are not kept,
// questions that wait.

import { live } from '../api/live';
import { useLiveState } from '../api/use';
import { oneLine } from '../format/escape';
import { Button } from '../parts/button';
import { Mark } from '../parts/mark';
import { When } from '../parts/time';
import { Prose } from '../parts/told';
import { address, Link } from '../router';
import { useStatus } from './status';
import { unkept } from './unkept';

export function Strips({ waiting }: { waiting: number }) {
  const { data: status } = useStatus();
  const connection = useLiveState();
  return (
    <div class="strips">
      {connection.kind === 'stale' && (
        <div class="strip calm" role="status">
          <Mark kind="stale">not live</Mark>
          <span>
            What is shown was true <When millis={connection.sinceMillis} />: <Prose text={connection.why.message} />. It is tried again.
          </span>
          <Button small quiet onClick={() => live.retry()}>
            Try now
          </Button>
        </div>
      )}
      {status?.ending && (
        <div class="strip calm" role="status">
          <Mark kind="closing">ending</Mark>
          <span>The gateway is about to end. Sandboxes and background commands go on.</span>
        </div>
      )}
      {status?.failedOver.map((over) => (
        <div class="strip bad" role="alert" key={over.from}>
          <Mark kind="warning">failover</Mark>
          <span>
            <span class="mono">{over.from}</span> was given up <When millis={over.sinceMillis} />; new sandboxes are opened by{' '}
            <span class="mono">{over.to}</span>: <Prose text={over.why.message} />
          </span>
          <Link to="/sandboxes">What it keeps</Link>
        </div>
      ))}
      {status &&
        unkept(status).map(({ backend, lacks, sessions, session }) => (
          <div class="strip" role="status" key={backend}>
            <Mark kind="notEnforced" />
            <span>
              {backend !== undefined && (
                <>
                  On <span class="mono">{backend}</span>:{' '}
                </>
              )}
              {lacks.map((one, number) => (
                <span key={one.key} title={one.reason}>
                  {number > 0 && ', '}
                  <span class="mono">{one.key}</span>
                </span>
              ))}
              {session !== undefined && (
                <span class="soft">
                  {' '}
                  – as in{' '}
                  <Link to={address(['sessions', session])}>
                    <span class="machine">{oneLine(session)}</span>
                  </Link>
                  {sessions > 1 && ` and ${(sessions - 1).toLocaleString('en')} more`}
                </span>
              )}
            </span>
            <Link to={address(backend === undefined ? ['sandboxes'] : ['sandboxes', 'backends', backend])}>Why</Link>
          </div>
        ))}
      {waiting > 0 && (
        <div class="strip" role="status">
          <Mark kind="warning">waiting</Mark>
          <span>
            {waiting === 1 ? 'A program asks' : `${waiting} programs ask`} to reach a host that no rule names.
          </span>
          <Link to="/network">Answer</Link>
        </div>
      )}
    </div>
  );
}
