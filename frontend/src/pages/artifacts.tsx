/** Artifacts page: list, upload and import. */

import { useEffect, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Artifact } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { onChange } from "../state/events";
import { uploads } from "../state/uploads";
import { Drop } from "../ui/drop";
import { useActing } from "../ui/hooks";
import { merged, usePaged } from "../ui/paged";
import { Bar, Button, Card, Empty, ErrorNote, Field, Name, PageHead } from "../ui/parts";
import { Status } from "../ui/status";
import { Table } from "../ui/table";

const MOST_NAME = 128;

export default function Artifacts() {
  const { route } = useLocation();
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
        <Card title="Upload a model">
          <Drop onBegun={(artifact) => route(page(`artifacts/${artifact.id}`))} />
        </Card>
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
