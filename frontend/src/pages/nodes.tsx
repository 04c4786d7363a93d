/** Nodes page for operators: machines of a fleet with memory and leases. */

import { page } from "../api/base";
import { isOperator } from "../api/session";
import type { Lease, Node, NodeReplica } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { lookForNodes } from "../state/nodes";
import { type NameOf, useAccountNames } from "../ui/accounts";
import { DeploymentLink } from "../ui/deployment-link";
import { useEvery, useLoaded } from "../ui/hooks";
import { deviceWords, MemoryWords, Waiting } from "../ui/memory";
import { Card, Empty, ErrorNote, PageHead, Share, Skeleton } from "../ui/parts";
import { Status } from "../ui/status";
import { Table } from "../ui/table";

const LOOK_MS = 3_000;
/** Maximum rows shown per node. */
const MOST = 200;

export default function Nodes() {
  const loaded = useLoaded(lookForNodes, []);
  const nameOf = useAccountNames();
  useEvery(LOOK_MS, loaded.reload, isOperator.value);
  if (!isOperator.value) {
    return (
      <>
        <PageHead title="Nodes" />
        <Empty title="Only operators can see this page." />
      </>
    );
  }
  const found = loaded.value;
  return (
    <>
      <PageHead title="Nodes" note={found?.length ? together(found) : undefined} />
      <ErrorNote error={loaded.error} />
      {!found && !loaded.error && <Skeleton rows={6} />}
      {found?.length === 0 && (
        <Empty title="No nodes. This server runs replicas itself.">
          <a class="button" href={page("machine")}>
            View machine
          </a>
        </Empty>
      )}
      {found?.map((one) => (
        <One key={one.id} node={one} nameOf={nameOf} />
      ))}
    </>
  );
}

function together(found: readonly Node[]): string {
  const sum = (of: (one: Node) => number) => found.reduce((total, one) => total + of(one), 0);
  const used = bytes(sum((one) => one.memory.used_bytes));
  const budget = bytes(sum((one) => one.memory.budget_bytes));
  return `${found.length === 1 ? "1 node" : `${found.length} nodes`}, ${used} of ${budget} in use`;
}

function One({ node, nameOf }: { node: Node; nameOf: NameOf }) {
  const { used_bytes: used, budget_bytes: budget } = node.memory;
  const rows = node.leases.flatMap(rowsOf);
  return (
    <Card title={plain(node.name, 64)} actions={<Status value={node.status} />}>
      <p class="note">
        {node.id}, at {plain(node.address, 300)}
      </p>
      {node.problem && (
        <p class="error-note" role="alert">
          {plain(node.problem, 1000)}
        </p>
      )}
      <Share value={used / Math.max(1, budget)} kind="tall" />
      <p>
        <MemoryWords memory={node.memory} />
      </p>
      {node.waiting.length > 0 && <Waiting waiting={node.waiting} />}
      <dl class="facts">
        <Fact name="Processor" value={`${node.processor || "–"}, ${node.cores} cores`} />
        {node.devices.map((one) => (
          <Fact key={one.index} name={`GPU ${one.index}`} value={deviceWords(one)} />
        ))}
        <Fact name="Stoker" value={node.version} />
        <Fact name="Python" value={node.python} />
        <Fact name="Process ID" value={String(node.pid)} />
        <Fact name="Started" value={ago(node.started_at)} />
        <Fact name="Last seen" value={ago(node.seen_at)} />
      </dl>
      {rows.length === 0 ? (
        <p class="note">No leases.</p>
      ) : (
        <Table
          label={`Leases of ${plain(node.name, 64)}`}
          rows={rows.slice(0, MOST)}
          keyOf={(row) => `${row.lease.generation} ${row.replica?.id ?? ""}`}
          columns={[
            {
              name: "Model",
              cell: (row) => (
                <DeploymentLink id={row.lease.deployment_id} model={row.lease.model} account={row.lease.account_id} />
              ),
            },
            { name: "Replica", cell: ({ replica }) => (replica ? <Status value={replica.status} /> : "none") },
            { name: "Engine", cell: ({ replica }) => plain(replica?.engine || "–", 40) },
            { name: "Device", cell: ({ replica }) => plain(replica?.device || "–", 40) },
            { name: "Memory", isNumber: true, cell: ({ replica }) => bytes(replica?.memory_bytes) },
            { name: "GPU memory", isNumber: true, cell: ({ replica }) => bytes(replica?.device_bytes) },
            { name: "In-flight calls", isNumber: true, cell: ({ replica }) => replica?.outstanding ?? "–" },
            { name: "Started", cell: ({ replica }) => (replica ? ago(replica.started_at) : "–") },
            { name: "Process ID", isNumber: true, cell: ({ replica }) => replica?.pid ?? "–" },
            { name: "Lease", isNumber: true, cell: ({ lease }) => lease.generation },
            {
              name: "Account",
              cell: ({ lease }) => <span title={lease.account_id ?? ""}>{nameOf(lease.account_id)}</span>,
            },
          ]}
        />
      )}
      {rows.length > MOST && <p class="note">{rows.length - MOST} more not shown.</p>}
    </Card>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{plain(value, 300)}</dd>
    </div>
  );
}

interface Row {
  lease: Lease;
  replica: NodeReplica | null;
}

/** Returns one row per replica, and one per lease without replicas. */
function rowsOf(lease: Lease): Row[] {
  if (lease.replicas.length === 0) return [{ lease, replica: null }];
  return lease.replicas.map((replica) => ({ lease, replica }));
}
