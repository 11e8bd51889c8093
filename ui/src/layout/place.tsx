// What every place is given, and its head.

import { Fragment, type ComponentChildren } from 'preact';
import { Link, useTitle } from '../router';

export interface PlaceProps {
  /** What follows the place's own name in the address. */
  parts: string[];
  query: URLSearchParams;
}

export interface Crumb {
  text: string;
  to?: string;
  /** What a machine or a user wrote. */
  machine?: boolean;
}

/** The head of a place: where it is, as links, and what can be done there. It also names the page. */
export function PlaceHead({ crumbs, children }: { crumbs: readonly Crumb[]; children?: ComponentChildren }) {
  useTitle(...crumbs.map((crumb) => crumb.text).reverse());
  return (
    <header>
      <h1 class="crumbs">
        {crumbs.map((crumb, number) => {
          const text = crumb.machine ? <span class="machine">{crumb.text}</span> : crumb.text;
          return (
            <Fragment key={number}>
              {number > 0 && (
                <span class="soft" aria-hidden="true">
                  ›
                </span>
              )}
              {crumb.to !== undefined && number < crumbs.length - 1 ? <Link to={crumb.to}>{text}</Link> : <span>{text}</span>}
            </Fragment>
          );
        })}
      </h1>
      {children && <span class="row push">{children}</span>}
    </header>
  );
}
