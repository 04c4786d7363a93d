/** Artifacts page: list, upload and import. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Artifact } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { below, dropped, type Picked, useful } from "../lib/upload";
import { onChange } from "../state/events";
import { begin, uploads } from "../state/uploads";
import { useActing } from "../ui/hooks";
import { merged, usePaged } from "../ui/paged";
import { Bar, Button, Card, Empty, ErrorNote, Field, Name, PageHead } from "../ui/parts";
import { Status } from "../ui/status";
import { Table } from "../ui/table";

const MOST_NAME = 128;

export default function Artifacts() {
  const artifacts = usePaged<Artifact>("/v1/model-artifacts");
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `change` does the same.
  useEffect(
    () =>
      onChange((changed) => {
        if (changed.type === "artifact") artifacts.change((rows) => merged(rows, changed.object));
        if (changed.type === "artifact.deleted") {
          artifacts.change((rows) => rows.filter((one) => one.id !== changed.object.id));
        }
      }),
    [],
  );
  return (
    <>
      <PageHead title="Artifacts" note="Models: their weights, configuration and tokenizer." />
      <div class="halves">
        <Drop />
        <Import />
      </div>
      <Card title="All artifacts">
        {artifacts.frame(
          <Table
            label="Artifacts"
            rows={artifacts.rows}
            keyOf={(one) => one.id}
            columns={[
              {
                name: "Name",
                cell: (one) => (
                  <a href={page(`artifacts/${one.id}`)}>
                    <Name text={one.display_name} />
                  </a>
                ),
              },
              {
                name: "Status",
                cell: (one) => (
                  <>
                    <Status value={one.status} />
                    <Arriving artifact={one} />
                  </>
                ),
              },
              { name: "Task", cell: (one) => plain(one.pipeline ?? "–", 60) },
              { name: "Size", isNumber: true, cell: (one) => bytes(one.size_bytes) },
              { name: "Updated", cell: (one) => ago(one.updated_at) },
            ]}
          />,
          <Empty title="No artifacts yet.">
            <p>Upload a model folder above, or import a model from a hub.</p>
          </Empty>,
        )}
      </Card>
    </>
  );
}

function Arriving({ artifact }: { artifact: Artifact }) {
  const mine = uploads.value.get(artifact.id)?.progress;
  const hub = artifact.status === "uploading" ? artifact.import : null;
  if (mine && mine.bytes < mine.total) return <Bar value={mine.bytes / mine.total} label="Upload" />;
  if (hub && hub.bytes_total > 0) return <Bar value={hub.bytes / hub.bytes_total} label="Import" />;
  return null;
}

function Drop() {
  const { route } = useLocation();
  const [isOver, setOver] = useState(false);
  const folder = useRef<HTMLInputElement>(null);
  const acting = useActing();
  const [note, setNote] = useState("");
  useEffect(() => folder.current?.setAttribute("webkitdirectory", ""), []);

  async function take(name: string, all: Picked[]): Promise<void> {
    const files = useful(all);
    if (files.length === 0) {
      setNote("No model files found. Choose a folder with config.json and safetensors weights, or one GGUF file.");
      return;
    }
    setNote("");
    await acting.run(async () => {
      const artifact = await begin(name.slice(0, MOST_NAME) || "model", files);
      route(page(`artifacts/${artifact.id}`));
    });
  }

  function chosen(files: FileList | null): void {
    const all = [...(files ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
    const name = all[0]?.path.split("/")[0]?.replace(/\.(gguf|safetensors)$/, "") ?? "";
    if (all.length > 0) void take(name, below(all));
  }

  async function onDrop(event: DragEvent): Promise<void> {
    event.preventDefault();
    setOver(false);
    const items = event.dataTransfer?.items;
    const name = items?.[0]?.webkitGetAsEntry()?.name.replace(/\.(gguf|safetensors)$/, "") ?? "model";
    if (items) await acting.run(async () => take(name, await dropped(items)));
  }

  return (
    <Card title="Upload a model">
      <div
        class={isOver ? "drop over" : "drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => void onDrop(event)}
      >
        <div class="stack center">
          <p>
            <strong>Drop a model folder here</strong>, or one GGUF file
          </p>
          <div class="row center">
            <label class="button">
              Choose folder
              <input
                ref={folder}
                type="file"
                multiple
                class="visually-hidden"
                onChange={(event) => chosen(event.currentTarget.files)}
              />
            </label>
            <label class="button">
              Choose file
              <input
                type="file"
                accept=".gguf"
                class="visually-hidden"
                onChange={(event) => chosen(event.currentTarget.files)}
              />
            </label>
          </div>
          <p class="note">Files are sent in parallel parts. An interrupted upload resumes where it stopped.</p>
        </div>
      </div>
      {note && (
        <p class="warn-note" role="alert">
          {note}
        </p>
      )}
      <ErrorNote error={acting.error} />
    </Card>
  );
}

function Import() {
  const { route } = useLocation();
  const [repo, setRepo] = useState("");
  const [revision, setRevision] = useState("main");
  const [token, setToken] = useState("");
  const acting = useActing();

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await acting.run(async () => {
      const body = { display_name: repo.trim().slice(0, MOST_NAME) };
      const made = await must(api.POST("/v1/model-artifacts", { body }));
      const params = { path: { artifact_id: made.id } };
      try {
        await must(
          api.POST("/v1/model-artifacts/{artifact_id}/imports", {
            params,
            body: { repo_id: repo.trim(), revision: revision.trim() || "main", ...(token ? { token } : {}) },
          }),
        );
      } catch (thrown) {
        // If the import cannot start, the new artifact is deleted.
        await must(api.DELETE("/v1/model-artifacts/{artifact_id}", { params })).catch(() => undefined);
        throw thrown;
      }
      route(page(`artifacts/${made.id}`));
    });
  }

  return (
    <Card title="Import from a hub">
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="Repository" hint="For example, org/name. The server downloads it.">
          {(id, hint) => (
            <input
              id={id}
              type="text"
              required
              maxLength={256}
              placeholder="org/name"
              spellcheck={false}
              aria-describedby={hint}
              value={repo}
              onInput={(event) => setRepo(event.currentTarget.value)}
            />
          )}
        </Field>
        <div class="fields">
          <Field label="Branch, tag or commit">
            {(id) => (
              <input
                id={id}
                type="text"
                maxLength={256}
                value={revision}
                onInput={(event) => setRevision(event.currentTarget.value)}
              />
            )}
          </Field>
          <Field label="Token (optional)">
            {(id) => (
              <input
                id={id}
                type="password"
                autocomplete="off"
                maxLength={512}
                value={token}
                onInput={(event) => setToken(event.currentTarget.value)}
              />
            )}
          </Field>
        </div>
        <ErrorNote error={acting.error} />
        <div class="actions">
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!repo.trim()}>
            Import
          </Button>
        </div>
      </form>
    </Card>
  );
}
