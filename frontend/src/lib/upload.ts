/** Uploads model files in hashed, parallel parts. Interrupted uploads resume. */

import { api, call, must } from "../api/client";
import { ApiError } from "../api/errors";
import type { Artifact, Upload } from "../api/types";
import { selected } from "./selection";

export interface Picked {
  /** Path inside the model folder. */
  path: string;
  file: File;
}

export interface Progress {
  bytes: number;
  total: number;
  /** Bytes sent by this page. */
  bytesPerS: number;
  file: string;
}

const AT_ONCE = 4;
const MOST_TRIES = 8;
const LONGEST_PAUSE_MS = 15_000;

/** Returns the model files of a folder with their relative paths. */
export function useful(picked: Picked[]): Picked[] {
  const paths = selected(picked.map((one) => one.path));
  return picked.filter((one) => paths.has(one.path));
}

/** Removes the common top folder from the paths. */
export function below(picked: Picked[]): Picked[] {
  const first = picked[0]?.path.split("/")[0];
  const isOne = picked.every((one) => one.path.includes("/") && one.path.split("/")[0] === first);
  return isOne ? picked.map((one) => ({ ...one, path: one.path.slice((first?.length ?? 0) + 1) })) : picked;
}

/** Returns all dropped files, with folders read recursively. Throws `ApiError` if a file is gone. */
export async function dropped(items: DataTransferItemList): Promise<Picked[]> {
  // The browser empties the list after the first await.
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter((one) => one !== null);
  const found: Picked[] = [];
  for (const entry of entries) {
    await walk(entry, entry.name, found).catch(() => {
      throw gone(entry.name);
    });
  }
  return below(found);
}

/** The error of a file that can no longer be read. */
export function gone(path: string): ApiError {
  return new ApiError(
    `'${path}' can no longer be read: it was moved, changed or deleted. Choose it again to resume.`,
    -1,
    "file_gone",
  );
}

async function walk(entry: FileSystemEntry, path: string, found: Picked[]): Promise<void> {
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    found.push({ path, file });
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  for (;;) {
    // Entries arrive in batches of up to 100, until a batch is empty.
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return;
    for (const one of some) await walk(one, `${path}/${one.name}`, found);
  }
}

async function digest(piece: ArrayBuffer): Promise<string | null> {
  // Browsers offer digests only over TLS. The server computes them in any case.
  if (!crypto.subtle) return null;
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", piece));
  return `sha-256=:${btoa(String.fromCharCode(...sum))}:`;
}

interface Part {
  picked: Picked;
  /** Part number, from 1. */
  number: number;
  begin: number;
  end: number;
}

function encoded(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}

/** Opens a session, or resumes the open one if its part size matches. */
export async function session(artifact: Artifact, total: number): Promise<Upload> {
  if (artifact.upload_id) {
    const path = { artifact_id: artifact.id, upload_id: artifact.upload_id };
    try {
      return await must(api.GET("/v1/model-artifacts/{artifact_id}/uploads/{upload_id}", { params: { path } }));
    } catch (thrown) {
      // The session has expired or was replaced, so a new one is opened.
      if (!(thrown instanceof ApiError) || thrown.status !== 404) throw thrown;
    }
  }
  const params = { path: { artifact_id: artifact.id } };
  const opened = await must(
    api.POST("/v1/model-artifacts/{artifact_id}/uploads", { params, body: { size_bytes: total } }),
  );
  const path = { artifact_id: artifact.id, upload_id: opened.upload_id };
  return must(api.GET("/v1/model-artifacts/{artifact_id}/uploads/{upload_id}", { params: { path } }));
}

/** Sends missing parts, then completes the upload. Throws `ApiError`. */
export async function send(
  artifact: Artifact,
  files: Picked[],
  signal: AbortSignal,
  tell: (progress: Progress) => void,
): Promise<Artifact> {
  const total = files.reduce((sum, one) => sum + one.file.size, 0);
  const upload = await session(artifact, total);
  const there = new Map(upload.files.map((one) => [one.path, new Set(one.parts.map((part) => part.number))]));
  const parts = files.flatMap((picked) => partsOf(picked, upload.part_size));
  const missing = parts.filter((part) => !there.get(part.picked.path)?.has(part.number));
  let done = total - missing.reduce((sum, part) => sum + part.end - part.begin, 0);
  const begun = performance.now();
  const before = done;
  const queue = [...missing];
  const address = `/v1/model-artifacts/${artifact.id}/uploads/${upload.upload_id}`;

  async function work(): Promise<void> {
    for (let part = queue.shift(); part; part = queue.shift()) {
      signal.throwIfAborted();
      await put(`${address}/files/${encoded(part.picked.path)}/parts/${part.number}`, part, signal);
      done += part.end - part.begin;
      const seconds = (performance.now() - begun) / 1000;
      tell({ bytes: done, total, bytesPerS: seconds > 0 ? (done - before) / seconds : 0, file: part.picked.path });
    }
  }
  tell({ bytes: done, total, bytesPerS: 0, file: "" });
  const ends = await Promise.allSettled(Array.from({ length: AT_ONCE }, work));
  const failed = ends.find((one) => one.status === "rejected");
  // All readable files were sent, so a resumed upload sends only the rest.
  if (failed) throw failed.reason;
  const answer = await must(
    api.POST("/v1/model-artifacts/{artifact_id}/uploads/{upload_id}/complete", {
      params: { path: { artifact_id: artifact.id, upload_id: upload.upload_id } },
    }),
  );
  return answer.artifact;
}

function partsOf(picked: Picked, size: number): Part[] {
  const many = Math.max(1, Math.ceil(picked.file.size / size));
  return Array.from({ length: many }, (_, index) => ({
    picked,
    number: index + 1,
    begin: index * size,
    end: Math.min(picked.file.size, (index + 1) * size),
  }));
}

async function put(address: string, part: Part, signal: AbortSignal): Promise<void> {
  let piece: ArrayBuffer;
  try {
    piece = await part.picked.file.slice(part.begin, part.end).arrayBuffer();
  } catch {
    throw gone(part.picked.path);
  }
  const sum = await digest(piece);
  const headers = { "content-type": "application/octet-stream", ...(sum ? { "content-digest": sum } : {}) };
  await retried(() => call(address, { method: "PUT", signal, headers, body: piece }), signal);
}

/** Repeats a request after a lost connection or a restart of the server. Throws its last `ApiError`. */
export async function retried<T>(send: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await send();
    } catch (thrown) {
      signal?.throwIfAborted();
      const isPassing =
        thrown instanceof ApiError && (thrown.status === 0 || thrown.status >= 500 || thrown.status === 429);
      if (!isPassing || tries >= MOST_TRIES) throw thrown;
      const wait = Math.min(500 * 2 ** tries, LONGEST_PAUSE_MS);
      await new Promise((resolve) => window.setTimeout(resolve, wait));
    }
  }
}
