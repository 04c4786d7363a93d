/** Trials: engine configurations measured on this machine. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import type { Deployment, DeploymentUpdate, Trial, TrialRow } from "../../api/types";
import { ago, bytes, many, ms, percent, plain, rate } from "../../lib/format";
import { store } from "../../state/store";
import { useActing, useEvery } from "../../ui/hooks";
import { usePaged } from "../../ui/paged";
import { Bar, Button, Card, Confirm, Empty, ErrorNote } from "../../ui/parts";
import { Status } from "../../ui/status";
import { Table } from "../../ui/table";
import { Scatter } from "./scatter";

const OVER = new Set(["completed", "failed", "cancelled"]);

export function named(row: TrialRow): string {
  return [row.engine, row.dtype, row.weight_format && `weights ${row.weight_format}`].filter(Boolean).join(" · ");
}

export default function Trials({ deployment }: { deployment: Deployment }) {
  const trials = usePaged<Trial>(`/v1/deployments/${deployment.id}/trials`);
  const acting = useActing();
  const latest = trials.rows?.[0];
  const [wanted, setWanted] = useState<TrialRow | null>(null);
  useEvery(1_500, trials.reload, trials.rows?.some((one) => !OVER.has(one.status)) ?? false);
  const params = { path: { deployment_id: deployment.id } };

  const begin = () =>
    acting.run(async () => {
      await must(api.POST("/v1/deployments/{deployment_id}/trials", { params, body: {} }));
      trials.reload();
    });
  const use = (row: TrialRow) =>
    acting.run(async () => {
      const body = {
        engine: row.engine,
        dtype: row.dtype,
        config: { weight_format: row.weight_format ?? null },
      } as DeploymentUpdate;
      await store.answered(must(api.PATCH("/v1/deployments/{deployment_id}", { params, body })));
      setWanted(null);
    });

  return (
    <>
      <Card
        title="Trials"
        actions={
          <Button kind="primary" isBusy={acting.isBusy} onClick={() => void begin()}>
            Run trial
          </Button>
        }
      >
        <p class="note">
          A trial loads each engine, precision and weight format, and times it on generated inputs. It compares the
          answers with torch in float32. Live calls have priority.
        </p>
        {!wanted && <ErrorNote error={acting.error} />}
        {trials.frame(
          latest && <Found trial={latest} deployment={deployment} onUse={setWanted} />,
          <Empty title="No trials yet." />,
        )}
      </Card>
      {trials.rows && trials.rows.length > 1 && (
        <Card title="Earlier trials">
          <ul class="events">
            {trials.rows.slice(1).map((one) => (
              <li key={one.id}>
                <Status value={one.status} />
                <span class="grow">{many(one.rows.length, "configuration")}</span>
                <span class="note">{ago(one.created_at)}</span>
              </li>
            ))}
          </ul>
        </Card>
      )}
      {wanted && (
        <Confirm
          title={`Switch ${plain(deployment.model, 64)} to ${named(wanted)}?`}
          action="Create version"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void use(wanted)}
          onClose={() => setWanted(null)}
        >
          <p>
            This creates a new version. It goes live after it is loaded and passes its checks.
            {wanted.status === "differs" && " Its answers differ from float32. Compare your own inputs first."}
          </p>
        </Confirm>
      )}
    </>
  );
}

function Found(props: { trial: Trial; deployment: Deployment; onUse: (row: TrialRow) => void }) {
  const { trial, deployment } = props;
  const measured = trial.rows.filter((one) => one.items_per_s != null);
  const first = measured[0];
  const agreeing = measured.filter((one) => one.status === "measured");
  const winner =
    OVER.has(trial.status) && agreeing.length > 1
      ? agreeing.reduce((a, b) => ((b.items_per_s ?? 0) > (a.items_per_s ?? 0) ? b : a))
      : undefined;
  return (
    <div class="stack">
      <div class="row">
        <Status value={trial.status} />
        <span class="note">{ago(trial.created_at)}</span>
        {!OVER.has(trial.status) && <Bar value={trial.progress} label="Trial" />}
      </div>
      {trial.error && <p class="bad-text">{plain(trial.error.message, 1000)}</p>}
      {measured.length > 1 && <Scatter rows={measured} nameOf={named} winner={winner} />}
      <Table
        label="Trial results"
        rows={trial.rows}
        keyOf={named}
        columns={[
          {
            name: "Configuration",
            cell: (row) => (
              <>
                {named(row)} {row === winner && <strong class="good-text">fastest</strong>}
                {row === first && <span class="note">reference</span>}
              </>
            ),
          },
          {
            name: "Result",
            cell: (row) => (
              <span>
                <Status value={row.status} />
                {row.reason && <span class="note block">{plain(row.reason, 300)}</span>}
              </span>
            ),
          },
          { name: "Latency", isNumber: true, cell: (row) => ms(row.alone_ms) },
          { name: "Inputs per second", isNumber: true, cell: (row) => rate(row.items_per_s) },
          {
            name: "Speedup",
            isNumber: true,
            cell: (row) =>
              first?.items_per_s && row.items_per_s ? `${(row.items_per_s / first.items_per_s).toFixed(2)}×` : "–",
          },
          { name: "Memory", isNumber: true, cell: (row) => bytes(row.memory_bytes) },
          { name: "Agreement", isNumber: true, cell: agreement },
          {
            name: "Apply",
            isQuiet: true,
            cell: (row) =>
              row.items_per_s != null &&
              (isUsed(row, deployment) ? (
                <span class="note">in use</span>
              ) : (
                <Button class="small" aria-label={`Apply ${named(row)}`} onClick={() => props.onUse(row)}>
                  Apply
                </Button>
              )),
          },
        ]}
      />
      <p class="note">
        Agreement compares the answers with the reference: the share of equal labels or texts, or the lowest cosine
        similarity. Speedup compares inputs per second.
      </p>
    </div>
  );
}

function agreement(row: TrialRow): string {
  if (row.agreement == null) return "–";
  return row.measure === "cosine" ? row.agreement.toFixed(5) : percent(row.agreement, 1);
}

function isUsed(row: TrialRow, { engine, dtype, config }: Deployment): boolean {
  return row.engine === engine && row.dtype === dtype && (row.weight_format ?? null) === (config.weight_format ?? null);
}
