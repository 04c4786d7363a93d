/** Trials: engine configurations measured on this machine. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import type { Deployment, DeploymentUpdate, Trial, TrialRow } from "../../api/types";
import { ago, bytes, ms, percent, plain, rate } from "../../lib/format";
import { store } from "../../state/store";
import { useActing, useEvery } from "../../ui/hooks";
import { usePaged } from "../../ui/paged";
import { Bar, Button, Card, Confirm, Empty, ErrorNote } from "../../ui/parts";
import { Status } from "../../ui/status";
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
                <span class="grow">{one.rows.length} configurations</span>
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
  return (
    <div class="stack">
      <div class="row">
        <Status value={trial.status} />
        <span class="note">{ago(trial.created_at)}</span>
        {!OVER.has(trial.status) && <Bar value={trial.progress} label="Trial" />}
      </div>
      {trial.error && <p class="bad-text">{plain(trial.error.message, 1000)}</p>}
      {measured.length > 1 && <Scatter rows={measured} nameOf={named} />}
      <div class="table-wrap" tabIndex={0} role="region" aria-label="Trial results">
        <table>
          <thead>
            <tr>
              <th scope="col">Configuration</th>
              <th scope="col">Result</th>
              <th scope="col" class="number">
                Latency
              </th>
              <th scope="col" class="number">
                Inputs per second
              </th>
              <th scope="col" class="number">
                Memory
              </th>
              <th scope="col" class="number">
                Agreement
              </th>
              <th scope="col">
                <span class="visually-hidden">Apply</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {trial.rows.map((row) => (
              <tr key={named(row)}>
                <td>{named(row)}</td>
                <td>
                  <Status value={row.status} />
                  {row.reason && <span class="note block">{plain(row.reason, 300)}</span>}
                </td>
                <td class="number">{ms(row.alone_ms)}</td>
                <td class="number">
                  {rate(row.items_per_s)}
                  {first?.items_per_s && row.items_per_s && row !== first && (
                    <span class="note block">{(row.items_per_s / first.items_per_s).toFixed(2)}×</span>
                  )}
                </td>
                <td class="number">{bytes(row.memory_bytes)}</td>
                <td class="number">
                  {row.measure === "cosine" ? row.agreement?.toFixed(5) : percent(row.agreement, 1)}
                </td>
                <td>
                  {row.items_per_s != null &&
                    (row.engine === deployment.engine && row.dtype === deployment.dtype ? (
                      <span class="note">in use</span>
                    ) : (
                      <Button class="small" onClick={() => props.onUse(row)}>
                        Apply
                      </Button>
                    ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
