/** Uploads that continue while other pages are open. */

import { signal } from "@preact/signals";
import { api, must } from "../api/client";
import { type ApiError, shown } from "../api/errors";
import type { Artifact } from "../api/types";
import { type Picked, type Progress, send } from "../lib/upload";

export interface Going {
  artifact: Artifact;
  progress: Progress | null;
  error: ApiError | null;
  isOver: boolean;
  abort: AbortController;
}

export const uploads = signal<ReadonlyMap<string, Going>>(new Map());

function set(id: string, change: Partial<Going>): void {
  const known = uploads.value.get(id);
  if (known) uploads.value = new Map(uploads.value).set(id, { ...known, ...change });
}

/** Uploads files as a new artifact, or resumes an open session. */
export async function begin(name: string, files: Picked[], known?: Artifact): Promise<Artifact> {
  const artifact = known ?? (await must(api.POST("/v1/model-artifacts", { body: { display_name: name } })));
  const abort = new AbortController();
  uploads.value = new Map(uploads.value).set(artifact.id, {
    artifact,
    progress: null,
    error: null,
    isOver: false,
    abort,
  });
  send(artifact, files, abort.signal, (progress) => set(artifact.id, { progress })).then(
    (found) => set(artifact.id, { artifact: found, isOver: true }),
    (thrown: unknown) => set(artifact.id, abort.signal.aborted ? { isOver: true } : { error: shown(thrown) }),
  );
  return artifact;
}

export function forget(id: string): void {
  uploads.value.get(id)?.abort.abort();
  const next = new Map(uploads.value);
  next.delete(id);
  uploads.value = next;
}

window.addEventListener("beforeunload", (event) => {
  if ([...uploads.value.values()].some((one) => !one.isOver && !one.error)) event.preventDefault();
});
