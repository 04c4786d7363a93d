/** Batches page, and the page of one batch. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { page } from "../api/base";
import { api, call, must } from "../api/client";
import type { Batch } from "../api/types";
import { ago, count, duration, moment, plain, shortId } from "../lib/format";
import { saveAs } from "../lib/save";
import { onChange } from "../state/events";
import { useActing, useEvery, useLoaded } from "../ui/hooks";
import { merged, usePaged } from "../ui/paged";
import { Bar, Button, Card, Confirm, Empty, ErrorNote, PageHead, Skeleton } from "../ui/parts";
import { Status } from "../ui/status";
import { Table } from "../ui/table";
import { BatchForm } from "./batch-form";

const ENDS = ["completed", "failed", "expired", "cancelled"] as const;
const POLL_MS = 5_000;
const STATUSES = ["validating", "in_progress", "finalizing", "cancelling"];
const SORTS: Record<string, [name: string, compare: (a: Batch, b: Batch) => number]> = {
  newest: ["Newest first", () => 0],
  model: ["By model", (a, b) => (a.model ?? "").localeCompare(b.model ?? "")],
  active: ["Active first", (a, b) => Number(isOver(a)) - Number(isOver(b))],
  failed: ["Most failed lines", (a, b) => b.request_counts.failed - a.request_counts.failed],
};

const isOver = (batch: Batch) => !STATUSES.includes(batch.status);
const doneOf = ({ request_counts: lines }: Batch) => lines.completed + lines.failed;

function linesOf({ request_counts: lines }: Batch): string {
  if (!lines.total) return "–";
  return `${count(lines.completed)} of ${count(lines.total)}${lines.failed ? `, ${count(lines.failed)} failed` : ""}`;
}

function State({ batch }: { batch: Batch }) {
  return (
    <>
      <Status value={batch.paused ? "paused" : batch.status} />
      {!isOver(batch) && <Bar value={doneOf(batch) / Math.max(1, batch.request_counts.total)} label="Batch" />}
    </>
  );
}

export default function Batches() {
  const { route } = useLocation();
  const batches = usePaged<Batch>("/v1/batches");
  const [isMaking, setMaking] = useState(false);
  const [sort, setSort] = useState("newest");
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `change` does the same.
  useEffect(
    () =>
      onChange((changed) => {
        if (changed.type === "batch") batches.change((rows) => merged(rows, changed.object));
      }),
    [],
  );
  useEvery(POLL_MS, batches.reload, batches.rows?.some((one) => !isOver(one)) ?? false);
  const begin = (
    <Button kind="primary" onClick={() => setMaking(true)}>
      New batch
    </Button>
  );
  return (
    <>
      <PageHead title="Batches" note="Files of requests that are answered in the background.">
        <select
          class="small"
          aria-label="Sort batches of this page"
          value={sort}
          onChange={(event) => setSort(event.currentTarget.value)}
        >
          {Object.entries(SORTS).map(([value, [name]]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
        </select>
        {begin}
      </PageHead>
      <Card>
        {batches.frame(
          <Table
            label="Batches"
            rows={batches.rows && [...batches.rows].sort(SORTS[sort]?.[1])}
            keyOf={(one) => one.id}
            columns={[
              {
                name: "Batch",
                cell: (one) => (
                  <a href={page(`batches/${one.id}`)} title={one.id}>
                    {shortId(one.id)}
                  </a>
                ),
              },
              { name: "Status", cell: (one) => <State batch={one} /> },
              { name: "Model", cell: (one) => <bdi>{plain(one.model ?? "–", 80)}</bdi> },
              { name: "Endpoint", cell: (one) => <code>{plain(one.endpoint, 80)}</code> },
              { name: "Lines completed", isNumber: true, cell: linesOf },
              { name: "Created", cell: (one) => <span title={moment(one.created_at)}>{ago(one.created_at)}</span> },
            ]}
          />,
          <Empty title="No batches yet.">
            <p>A batch answers a JSONL file, one request a line.</p>
            {begin}
          </Empty>,
        )}
      </Card>
      {isMaking && <BatchForm onClose={() => setMaking(false)} onDone={(made) => route(page(`batches/${made.id}`))} />}
    </>
  );
}

/** Expected time to the end at the average rate so far. */
function restOf(batch: Batch): string {
  const done = doneOf(batch);
  const seconds = Date.now() / 1000 - (batch.in_progress_at ?? 0);
  if (batch.status !== "in_progress" || batch.paused || !done || seconds <= 0) return "";
  return duration(((batch.request_counts.total - done) * seconds) / done);
}

export function BatchPage() {
  const { params } = useRoute();
  const id = params.id ?? "";
  const path = { path: { batch_id: id } };
  const loaded = useLoaded(() => must(api.GET("/v1/batches/{batch_id}", { params: path })), [id]);
  const [changed, setChanged] = useState<Batch | null>(null);
  const [isCancelling, setCancelling] = useState(false);
  const acting = useActing();
  const saving = useActing();
  useEffect(() => setChanged(null), [loaded.value]);
  useEffect(() => onChange((now) => now.type === "batch" && now.object.id === id && setChanged(now.object)), [id]);
  const batch = changed?.id === id ? changed : loaded.value;
  useEvery(POLL_MS, loaded.reload, !batch || !isOver(batch));
  if (!batch) {
    return (
      <>
        <PageHead title="Batch" />
        <ErrorNote error={loaded.error} />
        {!loaded.error && <Skeleton rows={4} />}
      </>
    );
  }
  const cancel = () =>
    acting.run(async () => {
      setChanged(await must(api.POST("/v1/batches/{batch_id}/cancel", { params: path })));
      setCancelling(false);
    });
  const save = (file: string, name: string) =>
    saving.run(async () => saveAs(await (await call(`/v1/files/${file}/content`)).blob(), `${id}.${name}.jsonl`));
  const end = ENDS.map((one) => batch[`${one}_at`]).find(Boolean);
  const facts: Record<string, ComponentChildren> = {
    "Lines completed": linesOf(batch),
    "Time left": restOf(batch),
    Model: batch.model && plain(batch.model, 128),
    Endpoint: <code>{plain(batch.endpoint, 128)}</code>,
    "Input tokens": batch.usage.input_tokens > 0 && count(batch.usage.input_tokens),
    "Output tokens": batch.usage.output_tokens > 0 && count(batch.usage.output_tokens),
    Created: moment(batch.created_at),
    Started: batch.in_progress_at && moment(batch.in_progress_at),
    [end ? "Ended" : "Expires"]: moment(end ?? batch.expires_at),
    Batch: <code>{batch.id}</code>,
    "Input file": <code>{batch.input_file_id}</code>,
    "Output file": batch.output_file_id && <code>{batch.output_file_id}</code>,
    "Error file": batch.error_file_id && <code>{batch.error_file_id}</code>,
    Metadata: Object.entries(batch.metadata ?? {})
      .map(([name, value]) => `${plain(name, 64)}: ${plain(value, 512)}`)
      .join(", "),
  };
  return (
    <>
      <PageHead title={`Batch ${shortId(id)}`} note={<a href={page("batches")}>All batches</a>}>
        {batch.output_file_id && (
          <Button kind="primary" isBusy={saving.isBusy} onClick={() => void save(batch.output_file_id ?? "", "output")}>
            Download answers
          </Button>
        )}
        {batch.error_file_id && (
          <Button isBusy={saving.isBusy} onClick={() => void save(batch.error_file_id ?? "", "errors")}>
            Download failed lines
          </Button>
        )}
        {!isOver(batch) && batch.status !== "cancelling" && (
          <Button onClick={() => setCancelling(true)}>Cancel batch</Button>
        )}
      </PageHead>
      <ErrorNote error={saving.error ?? loaded.error} />
      <Card>
        <div>
          <State batch={batch} />
        </div>
        {batch.paused && <p class="warn-note">Paused: {plain(batch.paused.message, 1000)}</p>}
        <dl class="facts">
          {Object.entries(facts).map(
            ([name, value]) =>
              value && (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </div>
              ),
          )}
        </dl>
      </Card>
      {batch.errors && (
        <Card title="Errors of the file">
          <Table
            label="Errors of the file"
            rows={batch.errors.data}
            keyOf={(one) => `${one.line} ${one.code} ${one.message}`}
            columns={[
              { name: "Line", isNumber: true, cell: (one) => one.line ?? "–" },
              { name: "Error", cell: (one) => plain(one.message, 1000) },
              { name: "Code", cell: (one) => <code>{one.code}</code> },
            ]}
          />
        </Card>
      )}
      {isCancelling && (
        <Confirm
          title={`Cancel batch ${shortId(id)}?`}
          action="Cancel batch"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void cancel()}
          onClose={() => setCancelling(false)}
        >
          <p>Answers that are computed already are kept. The other lines are not computed.</p>
        </Confirm>
      )}
    </>
  );
}
