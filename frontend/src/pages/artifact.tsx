/** Artifact page: upload or import progress, details, deployment form. */

import { useEffect, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { page } from "../api/base";
import { api, call, must } from "../api/client";
import { ApiError } from "../api/errors";
import type { Artifact } from "../api/types";
import { bytes, count, duration, many, moment, plain } from "../lib/format";
import { below, useful } from "../lib/upload";
import { onChange } from "../state/events";
import { begin, forget, uploads } from "../state/uploads";
import { deferred } from "../ui/deferred";
import { useActing, useEvery, useLoaded } from "../ui/hooks";
import { Bar, Button, Card, Confirm, ErrorNote, PageHead, Skeleton } from "../ui/parts";
import { Status } from "../ui/status";
import { Deploy } from "./deploy";

const Markdown = deferred(() => import("../ui/markdown"));
const MOVING = new Set(["uploading", "ingesting"]);

export default function ArtifactPage() {
  const { params } = useRoute();
  const id = params.id ?? "";
  const [live, setLive] = useState<Artifact | null>(null);
  const loaded = useLoaded(
    () => must(api.GET("/v1/model-artifacts/{artifact_id}", { params: { path: { artifact_id: id } } })),
    [id],
  );
  useEffect(() => setLive(loaded.value ?? null), [loaded.value]);
  useEffect(
    () =>
      onChange((changed) => {
        if (changed.type === "artifact" && changed.object.id === id) setLive(changed.object);
      }),
    [id],
  );
  const going = uploads.value.get(id);
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `reload` does the same.
  useEffect(() => {
    if (going?.isOver) loaded.reload();
  }, [going?.isOver]);
  const artifact = live?.id === id ? live : null;
  useEvery(1_500, loaded.reload, MOVING.has(artifact?.status ?? ""));
  if (!artifact) {
    return (
      <>
        <PageHead title="Artifact" />
        {loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={5} />}
      </>
    );
  }
  return (
    <>
      <Head artifact={artifact} />
      <Arrival artifact={artifact} onChanged={loaded.reload} />
      {artifact.inspection && <Inspected artifact={artifact} />}
      {artifact.status === "ready" && artifact.inspection && <Deploy artifact={artifact} />}
      {artifact.status === "ready" && <ModelCard artifact={artifact} />}
    </>
  );
}

function Head({ artifact }: { artifact: Artifact }) {
  const { route } = useLocation();
  const [isDeleting, setDeleting] = useState(false);
  const acting = useActing();
  const erase = () =>
    acting.run(async () => {
      forget(artifact.id);
      await must(api.DELETE("/v1/model-artifacts/{artifact_id}", { params: { path: { artifact_id: artifact.id } } }));
      route(page("artifacts"));
    });
  return (
    <>
      <PageHead
        title={artifact.display_name}
        note={
          <>
            {artifact.id} · {artifact.size_bytes > 0 && `${bytes(artifact.size_bytes)} · `}
            {moment(artifact.created_at)}
          </>
        }
      >
        <Button kind="quiet" onClick={() => setDeleting(true)}>
          Delete
        </Button>
      </PageHead>
      {isDeleting && (
        <Confirm
          title={`Delete ${plain(artifact.display_name, 64)}?`}
          action="Delete artifact"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase()}
          onClose={() => setDeleting(false)}
        >
          <p>
            This erases {bytes(artifact.size_bytes)} of files. An artifact cannot be deleted while a deployment uses it.
          </p>
        </Confirm>
      )}
    </>
  );
}

/** Error code → advice for the most frequent failures. */
const REMEDIES: Record<string, string> = {
  no_safe_weights: "Save the model with save_pretrained(safe_serialization=True), then upload that folder.",
  missing_tokenizer:
    "Add the original model's tokenizer.json and tokenizer_config.json to the folder, then upload it again.",
  missing_package: "Ask the server's operator to install the package named in the message.",
};

function Arrival({ artifact, onChanged }: { artifact: Artifact; onChanged: () => void }) {
  const going = uploads.value.get(artifact.id);
  const acting = useActing();
  const progress = going?.progress;
  const hub = artifact.import;
  const left = progress && progress.bytesPerS > 0 ? (progress.total - progress.bytes) / progress.bytesPerS : null;
  const isSending = going && !going.isOver && !going.error;

  const cancelImport = () =>
    acting.run(async () => {
      const path = { artifact_id: artifact.id, import_id: hub?.id ?? "" };
      await must(api.DELETE("/v1/model-artifacts/{artifact_id}/imports/{import_id}", { params: { path } }));
      onChanged();
    });

  return (
    <Card>
      <div class="row">
        <Status value={artifact.status} />
        <span class="grow">{plain(artifact.pipeline ?? "")}</span>
      </div>
      {progress && isSending && (
        <>
          <Bar value={progress.total ? progress.bytes / progress.total : 1} label="Upload" kind="tall" />
          <p class="row">
            <span class="grow">
              {bytes(progress.bytes)} of {bytes(progress.total)}, {bytes(progress.bytesPerS)}/s
              {left !== null && left > 1 && `, ${duration(left)} left`}
            </span>
            <Button class="small" onClick={() => going.abort.abort()}>
              Stop
            </Button>
          </p>
          <p class="note">You can use other console pages during the upload. Keep this browser tab open.</p>
        </>
      )}
      <ErrorNote error={going?.error ?? null} />
      {artifact.status === "uploading" && hub && !isSending && (
        <>
          <Bar value={hub.bytes_total ? hub.bytes / hub.bytes_total : 0} label="Import" kind="tall" />
          <p class="row">
            <span class="grow">
              {bytes(hub.bytes)} of {bytes(hub.bytes_total)} from {plain(hub.repo_id)}, {many(hub.files, "file")}
            </span>
            <Button class="small" isBusy={acting.isBusy} onClick={() => void cancelImport()}>
              Cancel
            </Button>
          </p>
        </>
      )}
      {hub?.error && artifact.status !== "ready" && <p class="bad-text">{plain(hub.error.message, 1000)}</p>}
      {artifact.upload_id && !isSending && !(artifact.status === "uploading" && hub?.status === "in_progress") && (
        <Resume artifact={artifact} />
      )}
      {artifact.failure && (
        <div class="error-note" role="alert">
          <p>{plain(artifact.failure.message, 4000)}</p>
          {REMEDIES[artifact.failure.code] && <p>{REMEDIES[artifact.failure.code]}</p>}
        </div>
      )}
      {artifact.status === "created" && !isSending && !artifact.upload_id && <Resume artifact={artifact} />}
      <ErrorNote error={acting.error} />
    </Card>
  );
}

/** After a reload the browser cannot read the files, so the user chooses the folder again. Sent parts are kept. */
function Resume({ artifact }: { artifact: Artifact }) {
  const acting = useActing();
  return (
    <div class="warn-note stack">
      <p>
        {artifact.upload_id
          ? "The upload stopped. Choose the same folder again to send only the missing parts."
          : "This artifact has no files yet. Choose its folder."}
      </p>
      <p>
        <label class="button">
          Choose folder
          <input
            type="file"
            multiple
            class="visually-hidden"
            ref={(element) => element?.setAttribute("webkitdirectory", "")}
            onChange={(event) => {
              const all = [...(event.currentTarget.files ?? [])];
              const files = useful(below(all.map((file) => ({ path: file.webkitRelativePath || file.name, file }))));
              void acting.run(async () => void (await begin(artifact.display_name, files, artifact)));
            }}
          />
        </label>
      </p>
      <ErrorNote error={acting.error} />
    </div>
  );
}

function Inspected({ artifact }: { artifact: Artifact }) {
  const found = artifact.inspection;
  if (!found) return null;
  return (
    <Card title="Details">
      <p>
        A <strong>{plain(found.architecture)}</strong>
        {artifact.pipeline && (
          <>
            {" "}
            for <strong>{plain(artifact.pipeline)}</strong>
          </>
        )}{" "}
        with {count(found.parameters)} parameters: {bytes(found.weight_bytes)} of {plain(found.dtype)} weights. Each
        replica needs about {bytes(found.memory_bytes)} of memory. Engines: {found.engines.join(", ")}.
      </p>
      {found.adapter && (
        <p>
          Adapter of rank {found.adapter.rank}, trained on {plain(found.adapter.base)}.
        </p>
      )}
      {artifact.origin && (
        <p class="note">
          Imported from {plain(artifact.origin.hub)}: {plain(artifact.origin.repo_id)} at{" "}
          {plain(artifact.origin.commit.slice(0, 12))}.
        </p>
      )}
      {found.warnings.map((one) => (
        <p key={one} class="warn-note">
          {plain(one, 2000)}
        </p>
      ))}
    </Card>
  );
}

function ModelCard({ artifact }: { artifact: Artifact }) {
  const loaded = useLoaded(async () => {
    try {
      return await (await call(`/v1/model-artifacts/${artifact.id}/card`)).text();
    } catch (thrown) {
      if (thrown instanceof ApiError && thrown.status === 404) return "";
      throw thrown;
    }
  }, [artifact.id, artifact.updated_at]);
  if (!loaded.value) return <ErrorNote error={loaded.error} />;
  return (
    <Card title="Model card">
      <Markdown text={loaded.value} />
    </Card>
  );
}
