/** What went wrong with a call, in the server's own words. */

interface ErrorBody {
  error?: { type?: string; code?: string; message?: string; param?: string | null };
}

export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    message: string,
    /** 0: the server did not answer. */
    readonly status: number,
    readonly code: string,
    readonly param: string | null = null,
    readonly requestId: string | null = null,
    /** Seconds, where the server says when to ask again. */
    readonly retryAfter: number | null = null,
    /** How far a model has been loaded, 0 to 1. */
    readonly progress: number | null = null,
  ) {
    super(message);
  }

  static of(response: Response, body: unknown): ApiError {
    const said = (body as ErrorBody | null | undefined)?.error;
    const after = Number(response.headers.get("retry-after"));
    const progress = (said as { progress?: unknown } | undefined)?.progress;
    return new ApiError(
      said?.message ?? `The server returned status ${response.status}.`,
      response.status,
      said?.code ?? "unknown",
      said?.param ?? null,
      response.headers.get("x-request-id"),
      response.headers.has("retry-after") && Number.isFinite(after) ? after : null,
      typeof progress === "number" ? progress : null,
    );
  }
}

export function unreachable(): ApiError {
  return new ApiError("The server is not responding. Check that it is running, then try again.", 0, "unreachable");
}

/** Anything that was thrown, as something that can be shown. */
export function shown(thrown: unknown): ApiError {
  if (thrown instanceof ApiError) return thrown;
  if (thrown instanceof TypeError) return unreachable();
  return new ApiError(thrown instanceof Error ? thrown.message : String(thrown), -1, "page");
}
