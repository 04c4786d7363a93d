/** Sends a playground call, waits while the model loads, and reads the response. */

import { call } from "../api/client";
import { ApiError } from "../api/errors";

const WAIT_S = 60;
const MOST_WAITS = 60;
const LONGEST_PAUSE_S = 5;

export interface Sent {
  path: string;
  model: string;
  body: Record<string, unknown>;
  files: Record<string, File>;
}

export type Answer =
  | { kind: "json"; value: unknown; ms: number }
  | { kind: "text"; value: string; ms: number }
  | { kind: "bytes"; value: Blob; ms: number };

function formOf(sent: Sent): FormData {
  const form = new FormData();
  form.append("model", sent.model);
  for (const [name, value] of Object.entries(sent.body)) {
    form.append(name, typeof value === "string" ? value : JSON.stringify(value));
  }
  for (const [name, file] of Object.entries(sent.files)) form.append(name, file, file.name);
  return form;
}

function pause(seconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = window.setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => {
      window.clearTimeout(timer);
      reject(signal.reason as Error);
    });
  });
}

/** Returns the response. Calls `loading` with the loading progress (0 to 1, or null). */
export async function ask(
  sent: Sent,
  signal: AbortSignal,
  loading: (progress: number | null) => void,
): Promise<Answer> {
  const isForm = Object.keys(sent.files).length > 0;
  for (let tries = 0; ; tries += 1) {
    const begun = performance.now();
    try {
      const response = await call(sent.path, {
        method: "POST",
        signal,
        headers: { prefer: `wait=${WAIT_S}`, ...(isForm ? {} : { "content-type": "application/json" }) },
        body: isForm ? formOf(sent) : JSON.stringify({ model: sent.model, ...sent.body }),
      });
      const kind = response.headers.get("content-type") ?? "";
      if (kind.startsWith("application/json")) {
        return { kind: "json", value: await response.json(), ms: performance.now() - begun };
      }
      if (kind.startsWith("text/")) {
        return { kind: "text", value: await response.text(), ms: performance.now() - begun };
      }
      return { kind: "bytes", value: await response.blob(), ms: performance.now() - begun };
    } catch (thrown) {
      const isLoading = thrown instanceof ApiError && thrown.code === "model_loading";
      if (!isLoading || tries >= MOST_WAITS) throw thrown;
      loading(thrown.progress);
      await pause(Math.min(thrown.retryAfter ?? 1, LONGEST_PAUSE_S), signal);
    }
  }
}
