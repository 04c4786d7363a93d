/** Uploads a file for batches or other uses. A large file is sent in parts. */

import { api, json, must } from "../api/client";
import type { File as Stored } from "../api/types";
import { gone, retried } from "./upload";

const PART = 8 * 1024 * 1024;

export type FilePurpose = "batch" | "user_data";

async function post<T>(path: string, form: FormData): Promise<T> {
  // A repeated request with the same key stores its content once.
  const headers = { "idempotency-key": `${Date.now()}-${Math.random()}` };
  return retried(() => json<T>(path, { method: "POST", headers, body: form }));
}

/** Sends a file. `tell` receives the sent share, 0 to 1. Throws `ApiError`. */
export async function sendFile(file: File, purpose: FilePurpose, tell: (share: number) => void): Promise<Stored> {
  const form = new FormData();
  if (file.size <= PART) {
    form.set("purpose", purpose);
    form.set("file", file, file.name);
    return post("/v1/files", form);
  }
  const body = {
    filename: file.name,
    purpose,
    bytes: file.size,
    mime_type: file.type || "application/octet-stream",
  };
  const path = { file_upload_id: (await must(api.POST("/v1/uploads", { body }))).id };
  try {
    const parts: string[] = [];
    for (let begin = 0; begin < file.size; begin += PART) {
      // Read first: a file that changed meanwhile would look like an unreachable server.
      const piece = await file
        .slice(begin, begin + PART)
        .arrayBuffer()
        .catch(() => {
          throw gone(file.name);
        });
      form.set("data", new Blob([piece]));
      parts.push((await post<{ id: string }>(`/v1/uploads/${path.file_upload_id}/parts`, form)).id);
      tell(Math.min(1, (begin + PART) / file.size));
    }
    const done = await must(
      api.POST("/v1/uploads/{file_upload_id}/complete", { params: { path }, body: { part_ids: parts } }),
    );
    return done.file as Stored;
  } catch (thrown) {
    // Its parts count for the account until they are deleted.
    await must(api.POST("/v1/uploads/{file_upload_id}/cancel", { params: { path } })).catch(() => undefined);
    throw thrown;
  }
}
