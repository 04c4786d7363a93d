/** A model's files on their way: hashed and sent in parts, several at a time, gone on with where they stopped. */

import { api, call, must } from "../api/client";
import { ApiError } from "../api/errors";
import type { Artifact, Upload } from "../api/types";

export interface Picked {
  /** Inside the model's folder. */
  path: string;
  file: File;
}

export interface Progress {
  bytes: number;
  total: number;
  /** Of this page's own sending. */
  bytesPerS: number;
  file: string;
}

const AT_ONCE = 4;
const MOST_TRIES = 8;
const LONGEST_PAUSE_MS = 15_000;
/** What models are loaded from, and their papers, as the command line chooses (stoker/client/model_files.py). */
const USEFUL =
  /\.(safetensors|gguf|json|txt|model|jinja|spm|tiktoken|codes|vocab)$|(^|\/)((readme|licen[sc]e|notice)(\.md)?|artifact\.metadata)$/i;
const HIDDEN = /(^|\/)\./;

/** The files of a folder that are useful, by their paths below it. */
export function useful(picked: Picked[]): Picked[] {
  const found = picked.filter((one) => USEFUL.test(one.path) && !HIDDEN.test(one.path));
  const hasSafetensors = found.some((one) => one.path.endsWith(".safetensors"));
  return hasSafetensors ? found.filter((one) => !one.path.endsWith(".gguf")) : found;
}

/** Without the folder that all of them lie in. */
export function below(picked: Picked[]): Picked[] {
  const first = picked[0]?.path.split("/")[0];
  const isOne = picked.every((one) => one.path.includes("/") && one.path.split("/")[0] === first);
  return isOne ? picked.map((one) => ({ ...one, path: one.path.slice((first?.length ?? 0) + 1) })) : picked;
}

/** The files of what was dropped, folders read to their depths. Throws `ApiError` where one is gone. */
export async function dropped(items: DataTransferItemList): Promise<Picked[]> {
  // The list is empty after the first wait.
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter((one) => one !== null);
  const found: Picked[] = [];
  for (const entry of entries) {
    await walk(entry, entry.name, found).catch(() => {
      throw gone(entry.name);
    });
  }
  return below(found);
}

function gone(path: string): ApiError {
  return new ApiError(
    `'${path}' can no longer be read: it was moved, changed or deleted. Choose the folder again to resume.`,
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
    // A hundred at a time, until there are none.
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return;
    for (const one of some) await walk(one, `${path}/${one.name}`, found);
  }
}

async function digest(piece: ArrayBuffer): Promise<string | null> {
  // Pages that came without TLS may not compute digests; the server does in any case.
  if (!crypto.subtle) return null;
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", piece));
  return `sha-256=:${btoa(String.fromCharCode(...sum))}:`;
}

interface Part {
  picked: Picked;
  /** From 1. */
  number: number;
  begin: number;
  end: number;
}

function encoded(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}

/** Open a session, or go on with the one that is open and has the same part size. */
export async function session(artifact: Artifact, total: number): Promise<Upload> {
  if (artifact.upload_id) {
    const path = { artifact_id: artifact.id, upload_id: artifact.upload_id };
    try {
      return await must(api.GET("/v1/model-artifacts/{artifact_id}/uploads/{upload_id}", { params: { path } }));
    } catch (thrown) {
      // It has expired, or was superseded: another begins.
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

/** Send what is missing, then have it inspected. Throws `ApiError`. */
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
  // What can be sent was, so that whoever goes on sends the rest alone.
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
  for (let tries = 1; ; tries += 1) {
    try {
      await call(address, {
        method: "PUT",
        signal,
        headers: { "content-type": "application/octet-stream", ...(sum ? { "content-digest": sum } : {}) },
        body: piece,
      });
      return;
    } catch (thrown) {
      signal.throwIfAborted();
      const isPassing = thrown instanceof ApiError && (thrown.status === 0 || thrown.status >= 500 || thrown.status === 429);
      if (!isPassing || tries >= MOST_TRIES) throw thrown;
      // A connection that was lost, a server that is restarted: what is there stays there.
      const wait = Math.min(500 * 2 ** tries, LONGEST_PAUSE_MS);
      await new Promise((resolve) => window.setTimeout(resolve, wait));
    }
  }
}
