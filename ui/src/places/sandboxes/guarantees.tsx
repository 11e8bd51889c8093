// What each usable backend keeps here, side by side.

import { Empty } from '../../parts/empty';
import { Mark } from '../../parts/mark';
import { Loading, Panel } from '../../parts/panel';
import { ErrorBox } from '../../parts/told';
import { address, Link } from '../../router';
import { PROMISES } from './promises';
import { useBackends } from './use-backends';

export function Guarantees() {
  const { data, error, loading, reload } = useBackends();
  const usable = data?.backends.filter((one) => one.guarantees !== undefined) ?? [];
  return (
    <Panel title="Guarantees" about="what each usable backend keeps on this machine, now; a demand for what is not held is refused" flush>
      {error && <ErrorBox told={error} onRetry={reload} />}
      {loading && <Loading />}
      {data && usable.length === 0 && <Empty title="No backend is usable" command="moltis sandbox status" />}
      {usable.length > 0 && (
        <div class="matrix" tabIndex={0} role="region" aria-label="Guarantees, which can be scrolled">
          <table>
            <thead>
              <tr>
                <th scope="col">Promise</th>
                {usable.map((one) => (
                  <th scope="col" key={one.backend}>
                    <Link class="mono" to={address(['sandboxes', 'backends', one.backend])}>
                      {one.backend}
                    </Link>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {PROMISES.map(({ id, title, means }) => (
                <tr key={id}>
                  <th scope="row" title={means}>
                    {title}
                  </th>
                  {usable.map((one) => {
                    const promise = one.guarantees?.[id];
                    return <td key={one.backend}>{promise && <Mark kind={promise.state} title={promise.reason ?? means} />}</td>;
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}
