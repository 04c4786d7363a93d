import { beforeEach, describe, expect, it, vi } from "vitest";
import { api, call, list, must } from "../../src/api/client";
import { session } from "../../src/api/session";
import type { Session } from "../../src/api/types";

const OPERATOR: Session = { scope: "operator", account_id: null, deployments: null, csrf: "secret", expires_at: "" };

function answer(response: Response | Error): void {
  vi.mocked(fetch).mockImplementation(() =>
    response instanceof Error ? Promise.reject(response) : Promise.resolve(response),
  );
}

/** Returns the last request, as fetch would send it. */
function sent(): Request {
  const [input, options] = vi.mocked(fetch).mock.lastCall ?? [""];
  return input instanceof Request ? input : new Request(new URL(input, location.origin), options);
}

beforeEach(() => {
  vi.mocked(fetch).mockReset();
  session.value = undefined;
});

describe("call", () => {
  it("proves to the server that a change comes from the console", async () => {
    session.value = OPERATOR;
    answer(new Response(null, { status: 204 }));
    await call("/v1/files", { method: "POST", headers: { prefer: "wait=60" } });
    expect(sent().headers.get("x-csrf-token")).toBe("secret");
    expect(sent().headers.get("prefer")).toBe("wait=60");
    await call("/v1/files");
    expect(sent().method).toBe("GET");
    expect(sent().headers.get("x-csrf-token")).toBeNull();
  });

  it("throws the server's error", async () => {
    answer(Response.json({ error: { code: "not_found", message: "No such file." } }, { status: 404 }));
    await expect(call("/v1/files/x")).rejects.toMatchObject({ status: 404, message: "No such file." });
    answer(new Response("<html>", { status: 502 }));
    await expect(call("/v1/files/x")).rejects.toMatchObject({ status: 502, code: "unknown" });
  });

  it("distinguishes an unreachable server from other errors", async () => {
    answer(new TypeError("Failed to fetch"));
    await expect(call("/v1/files")).rejects.toMatchObject({ status: 0, code: "unreachable" });
    answer(new DOMException("stopped", "AbortError"));
    await expect(call("/v1/files")).rejects.toMatchObject({ name: "AbortError" });
  });

  it("ends the session if the server does not accept it", async () => {
    session.value = OPERATOR;
    answer(new Response("{}", { status: 401 }));
    await expect(call("/v1/files")).rejects.toMatchObject({ status: 401 });
    expect(session.value).toBeNull();
  });
});

describe("list", () => {
  it("sends the query", async () => {
    answer(Response.json({ data: [], has_more: false }));
    expect(await list("/v1/files", { limit: 50, after: "a&b" })).toEqual({ data: [], has_more: false });
    expect(sent().url).toBe("https://stoker.test/v1/files?limit=50&after=a%26b");
  });
});

describe("must", () => {
  const path = { artifact_id: "a/b" };

  it("returns the data of a typed call", async () => {
    session.value = OPERATOR;
    answer(Response.json({ id: "a/b" }));
    expect(await must(api.GET("/v1/model-artifacts/{artifact_id}", { params: { path } }))).toEqual({ id: "a/b" });
    expect(sent().url).toBe("https://stoker.test/v1/model-artifacts/a%2Fb");
    answer(new Response(null, { status: 204 }));
    await must(api.DELETE("/v1/model-artifacts/{artifact_id}", { params: { path } }));
    expect(sent().headers.get("x-csrf-token")).toBe("secret");
  });

  it("throws the server's error, or that there is no server", async () => {
    answer(Response.json({ error: { code: "not_found", message: "Gone." } }, { status: 404 }));
    const request = () => must(api.GET("/v1/model-artifacts/{artifact_id}", { params: { path } }));
    await expect(request()).rejects.toMatchObject({ status: 404, code: "not_found", message: "Gone." });
    answer(new TypeError("Failed to fetch"));
    await expect(request()).rejects.toMatchObject({ status: 0, code: "unreachable" });
  });
});
