import { describe, expect, it } from "vitest";
import { ApiError, shown } from "../../src/api/errors";

function response(status: number, headers: Record<string, string> = {}): Response {
  return new Response(null, { status, headers });
}

describe("ApiError.of", () => {
  it("reads the body and the headers", () => {
    const body = {
      error: { type: "invalid", code: "model_loading", message: "Loading.", param: "model", progress: 0.25 },
    };
    const error = ApiError.of(response(503, { "retry-after": "7", "x-request-id": "req_1" }), body);
    expect(error).toMatchObject({
      name: "ApiError",
      message: "Loading.",
      status: 503,
      code: "model_loading",
      param: "model",
      requestId: "req_1",
      retryAfter: 7,
      progress: 0.25,
    });
  });

  it.each([null, undefined, {}, { error: {} }])("describes a response with the body %j by its status", (body) => {
    expect(ApiError.of(response(502), body)).toMatchObject({
      message: "The server returned status 502.",
      status: 502,
      code: "unknown",
      param: null,
      requestId: null,
      retryAfter: null,
      progress: null,
    });
  });

  it("ignores a date to retry after and a progress that is no number", () => {
    const error = ApiError.of(response(503, { "retry-after": "Fri, 27 Nov 2026 07:00:00 GMT" }), {
      error: { progress: "half" },
    });
    expect(error).toMatchObject({ retryAfter: null, progress: null });
  });
});

describe("shown", () => {
  it("keeps errors of the API", () => {
    const error = new ApiError("No.", 404, "not_found");
    expect(shown(error)).toBe(error);
  });

  it("takes a failed fetch for an unreachable server", () => {
    expect(shown(new TypeError("Failed to fetch"))).toMatchObject({ status: 0, code: "unreachable" });
  });

  it("describes other values", () => {
    expect(shown(new RangeError("Too far."))).toMatchObject({ message: "Too far.", status: -1, code: "page" });
    expect(shown("text")).toMatchObject({ message: "text", status: -1 });
  });
});
