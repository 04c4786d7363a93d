/** Typed API client, generated from the OpenAPI document. */

import createClient from "openapi-fetch";
import { ROOT, route } from "./base";
import { ApiError, unreachable } from "./errors";
import type { paths } from "./schema";
import { headersOf, look } from "./session";
import type { Page } from "./types";

export const api = createClient<paths>({ baseUrl: location.origin + ROOT.slice(0, -1) });

api.use({
  onRequest({ request }) {
    for (const [name, value] of Object.entries(headersOf(request.method))) {
      request.headers.set(name, value);
    }
    return request;
  },
});

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Returns the response data. Throws `ApiError` on failure. */
export async function must<T>(asked: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await asked;
  } catch (thrown) {
    // fetch throws a TypeError if there is no response. Other errors are bugs of the page.
    if (thrown instanceof TypeError) throw unreachable();
    throw thrown;
  }
  if (answer.response.ok) return answer.data as T;
  await looked(answer.response);
  throw ApiError.of(answer.response, answer.error);
}

/** Checks the session again after a call was rejected as unauthenticated. */
async function looked(response: Response): Promise<void> {
  if (response.status === 401) await look().catch(() => undefined);
}

/** Sends a call that the typed client does not support: bytes, forms, streams. Throws `ApiError`. */
export async function call(path: string, options: RequestInit = {}): Promise<Response> {
  const method = options.method ?? "GET";
  const headers = new Headers(options.headers);
  for (const [name, value] of Object.entries(headersOf(method))) headers.set(name, value);
  let response: Response;
  try {
    response = await fetch(route(path), { ...options, method, headers });
  } catch (thrown) {
    if (thrown instanceof TypeError) throw unreachable();
    throw thrown;
  }
  if (!response.ok) {
    await looked(response);
    throw ApiError.of(response, await response.json().catch(() => null));
  }
  return response;
}

export async function json<T>(path: string, options: RequestInit = {}): Promise<T> {
  return (await (await call(path, options)).json()) as T;
}

/** One page of a list. */
export function list<T>(path: string, query: Record<string, string | number>): Promise<Page<T>> {
  const given = Object.entries(query).map(([name, value]) => [name, String(value)]);
  return json<Page<T>>(`${path}?${new URLSearchParams(given as [string, string][])}`);
}
