/** Machine page: memory, engines and replicas. */

import { json } from "../api/client";
import { isOperator } from "../api/session";
import type { Machine as Found } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { useAccountNames } from "../ui/accounts";
import { DeploymentLink } from "../ui/deployment-link";
import { useEvery, useLoaded } from "../ui/hooks";
import { deviceWords, MemoryWords, Waiting } from "../ui/memory";
import { Card, Empty, ErrorNote, PageHead, Share, Skeleton } from "../ui/parts";
import { Status } from "../ui/status";
import { Table } from "../ui/table";

const MOST = 500;

export default function Machine() {
  const loaded = useLoaded(() => json<Found>("/v1/machine"), []);
  useEvery(3_000, loaded.reload);
  const found = loaded.value;
  const nameOf = useAccountNames();
  return (
    <>
      <PageHead title="Machine" note={found && `${plain(found.processor, 80)}, ${found.cores} cores`} />
      <ErrorNote error={loaded.error} />
      {!found && !loaded.error && <Skeleton rows={6} />}
      {found && (
        <>
          <Card title="Memory">
            <Share value={found.memory.used_bytes / Math.max(1, found.memory.budget_bytes)} kind="tall" />
            <p>
              <MemoryWords memory={found.memory} />
            </p>
            {found.waiting.length > 0 && <Waiting waiting={found.waiting} />}
          </Card>
          {(found.devices.length > 0 || found.device_problem) && (
            <Card title="GPUs">
              <ul class="events">
                {found.devices.map((one) => (
                  <li key={one.index}>
                    <strong>cuda:{one.index}</strong>
                    <span class="grow note">{plain(deviceWords(one), 300)}</span>
                  </li>
                ))}
                {found.device_problem && <li class="bad-text">{plain(found.device_problem, 300)}</li>}
              </ul>
            </Card>
          )}
          <Card title="Engines">
            <ul class="events">
              {found.engines.map((one) => (
                <li key={one.engine}>
                  <strong>{plain(one.engine, 40)}</strong>
                  <span class={one.available ? "good-text" : "note"}>
                    {one.available ? "available" : "not available"}
                  </span>
                  <span class="grow note">{plain(one.detail ?? "", 300)}</span>
                </li>
              ))}
            </ul>
          </Card>
          <Card title="Replicas">
            {found.replicas.length === 0 ? (
              <Empty title="No models are loaded." />
            ) : (
              <Table
                label="Replicas"
                rows={found.replicas
                  .slice(0, MOST)
                  .map((one, index) => ({ ...one, key: `${one.deployment_id}${index}` }))}
                keyOf={(one) => one.key}
                columns={[
                  {
                    name: "Model",
                    cell: (one) => <DeploymentLink id={one.deployment_id} model={one.model} account={one.account_id} />,
                  },
                  isOperator.value && {
                    name: "Account",
                    cell: (one) => <span title={one.account_id ?? ""}>{nameOf(one.account_id)}</span>,
                  },
                  { name: "Status", cell: (one) => <Status value={one.status} /> },
                  { name: "Engine", cell: (one) => plain(one.engine || "–", 40) },
                  { name: "Device", cell: (one) => plain(one.device || "–", 40) },
                  { name: "Memory", isNumber: true, cell: (one) => bytes(one.memory_bytes) },
                  found.devices.length > 0 && {
                    name: "GPU memory",
                    isNumber: true,
                    cell: (one) => bytes(one.device_bytes),
                  },
                  { name: "Started", cell: (one) => ago(one.started_at) },
                ]}
              />
            )}
          </Card>
        </>
      )}
    </>
  );
}
