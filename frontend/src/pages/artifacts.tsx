/** Artifacts page: list, upload and import. */

import { useEffect, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Artifact } from "../api/types";
import { ago, bytes, moment, plain, shortId } from "../lib/format";
import { onChange } from "../state/events";
import { uploads } from "../state/uploads";
import { Drop } from "../ui/drop";
import { useActing } from "../ui/hooks";
import { merged, usePaged } from "../ui/paged";
import { Bar, Button, Card, Empty, ErrorNote, Field, Name, PageHead } from "../ui/parts";
import { Status } from "../ui/status";
import { Table } from "../ui/table";

const MOST_NAME = 128;
const SORTS: Record<string, [name: string, compare: (a: Artifact, b: Artifact) => number]> = {
  newest: ["Newest first", () => 0],
  name: ["By name", (a, b) => a.display_name.localeCompare(b.display_name)],
  largest: ["Largest first", (a, b) => b.size_bytes - a.size_bytes],
};

export default function Artifacts() {
  const { route } = useLocation();
  const artifacts = usePaged<Artifact>("/v1/model-artifacts");
  const [search, setSearch] = useState("");
  const [sort, setSort] = useState("newest");
  const words = search.trim().toLowerCase();
  const rows = artifacts.rows
    ?.filter((one) => `${one.display_name} ${one.pipeline} ${one.id}`.toLowerCase().includes(words))
    .sort(SORTS[sort]?.[1]);
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
      <Card
        title="All artifacts"
        actions={
          <>
            <input
              type="search"
              class="small"
              placeholder="Filter this page"
              aria-label="Filter artifacts by name, task or ID"
              value={search}
              onInput={(event) => setSearch(event.currentTarget.value)}
            />
            <select
              class="small"
              aria-label="Sort artifacts"
              value={sort}
              onChange={(event) => setSort(event.currentTarget.value)}
            >
              {Object.entries(SORTS).map(([value, [name]]) => (
                <option key={value} value={value}>
                  {name}
                </option>
              ))}
            </select>
          </>
        }
      >
        {artifacts.frame(
          <Table
            label="Artifacts"
            rows={rows}
            keyOf={(one) => one.id}
            columns={[
              {
                name: "Name",
                cell: (one) => (
                  <>
                    <a href={page(`artifacts/${one.id}`)}>
                      <Name text={one.display_name} />
                    </a>{" "}
                    <code class="note" title={one.id}>
                      {shortId(one.id)}
                    </code>
                  </>
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
              { name: "Size", isNumber: true, cell: sizeOf },
              { name: "Created", cell: (one) => <span title={moment(one.created_at)}>{ago(one.created_at)}</span> },
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

interface Arrived {
  bytes: number;
  total: number;
  label: string;
}

/** Progress of an upload from this browser tab, or of a hub import. */
function arriving(artifact: Artifact): Arrived | null {
  if (artifact.status !== "uploading" && artifact.status !== "created") return null;
  const mine = uploads.value.get(artifact.id)?.progress;
  if (mine) return { bytes: mine.bytes, total: mine.total, label: "Upload" };
  const hub = artifact.import;
  return hub?.bytes_total ? { bytes: hub.bytes, total: hub.bytes_total, label: "Import" } : null;
}

function Arriving({ artifact }: { artifact: Artifact }) {
  const now = arriving(artifact);
  return now && <Bar value={now.bytes / Math.max(1, now.total)} label={now.label} />;
}

function sizeOf(artifact: Artifact): string {
  const now = arriving(artifact);
  if (now) return `${bytes(now.bytes)} of ${bytes(now.total)}`;
  return artifact.size_bytes ? bytes(artifact.size_bytes) : "–";
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
