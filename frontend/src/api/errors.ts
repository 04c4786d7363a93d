/** An error response of the API, with the server's message. */

interface ErrorBody {
  error?: { type?: string; code?: string; message?: string; param?: string | null };
}

export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    message: string,
    /** HTTP status. 0: no response. */
    readonly status: number,
    readonly code: string,
    readonly param: string | null = null,
    readonly requestId: string | null = null,
    /** Seconds from the Retry-After header. */
    readonly retryAfter: number | null = null,
    /** Loading progress of the model, 0 to 1. */
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

/** Converts any thrown value to an `ApiError` to display. */
export function shown(thrown: unknown): ApiError {
  if (thrown instanceof ApiError) return thrown;
  if (thrown instanceof TypeError) return unreachable();
  return new ApiError(thrown instanceof Error ? thrown.message : String(thrown), -1, "page");
}
