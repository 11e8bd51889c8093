// What went wrong, as the gateway tells it: a stable code, why, and what to do.

export interface Told {
  code: string;
  message: string;
  cause?: string | undefined;
  fix?: string | undefined;
}

export type ProblemKind = 'refused' | 'unavailable' | 'lost' | 'invalid' | 'unreachable';

/** An error of the gateway, or of the way to it. */
export class ApiError extends Error implements Told {
  readonly code: string;
  readonly status: number;
  readonly kind: ProblemKind;
  override readonly cause: string | undefined;
  readonly fix: string | undefined;

  constructor(told: Told & { status?: number; kind?: ProblemKind }) {
    super(told.message);
    this.name = 'ApiError';
    this.code = told.code;
    this.status = told.status ?? 0;
    this.kind = told.kind ?? 'unavailable';
    this.cause = told.cause;
    this.fix = told.fix;
  }

  /** Whether what was asked for may have been done, and nobody knows. */
  get isLost(): boolean {
    return this.kind === 'lost';
  }
}

const KINDS: ReadonlySet<string> = new Set(['refused', 'unavailable', 'lost', 'invalid']);

/** The error that an answer's body tells, whatever that body is. */
export function problemOf(status: number, body: unknown): ApiError {
  if (typeof body === 'object' && body !== null && 'code' in body && typeof body.code === 'string') {
    const of = body as Record<string, unknown>;
    const text = (name: string) => (typeof of[name] === 'string' ? (of[name] as string) : undefined);
    const kind = text('kind');
    return new ApiError({
      code: body.code,
      message: text('detail') ?? text('message') ?? text('title') ?? body.code,
      cause: text('cause'),
      fix: text('fix'),
      status,
      kind: kind !== undefined && KINDS.has(kind) ? (kind as ProblemKind) : 'unavailable',
    });
  }
  return new ApiError({
    code: `http-${status}`,
    message: `the answer was ${status}, and said no more`,
    fix: 'see the log of the gateway, or of the proxy in front of it',
    status,
  });
}

/** The error of a request that got no answer. */
export function unreachable(cause: unknown): ApiError {
  return new ApiError({
    code: 'gateway-unreachable',
    message: 'the gateway does not answer',
    cause: cause instanceof Error ? cause.message : undefined,
    fix: 'see whether `moltis gateway` runs; this page goes on by itself once it answers',
    kind: 'unreachable',
  });
}

/** Whether a request was given up by the page itself. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'AbortError';
}

/** Anything that was thrown, as something to show. */
export function asTold(error: unknown): Told {
  if (error instanceof ApiError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return { code: 'page-failed', message, fix: 'reload the page' };
}
