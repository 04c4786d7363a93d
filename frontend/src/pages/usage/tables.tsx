/** Usage tables by deployment and by key. */

import { useState } from "preact/hooks";
import { page } from "../../api/base";
import type { UsageReport, UsageRow } from "../../api/types";
import { count, credits, plain } from "../../lib/format";
import { store } from "../../state/store";
import { Button, Empty, Share } from "../../ui/parts";
import { type Column, Table } from "../../ui/table";
import { type Group, gbHours } from "./groups";

const MOST_ROWS = 200;

const FEW_ROWS = 10;

const CALLS: [name: string, of: (row: UsageRow) => number][] = [
  ["Requests", (row) => row.requests],
  ["Errors", (row) => row.errors],
  ["Input tokens", (row) => row.input_tokens],
  ["Output tokens", (row) => row.output_tokens],
  ["Images", (row) => row.images],
];

/** Columns of amounts that are not zero in all rows. */
function calls<T>(rows: readonly T[], amounts: (row: T) => UsageRow): Column<T>[] {
  return CALLS.filter(([, of]) => rows.some((row) => of(amounts(row)) > 0)).map(([name, of]) => ({
    name,
    isNumber: true,
    cell: (row) => count(of(amounts(row))),
  }));
}

export function ByDeployment({ report, groups }: { report: UsageReport; groups: Group[] }) {
  const most = Math.max(1, groups[0]?.total.microcredits ?? 0);
  return (
    <Most
      label="By deployment"
      hasMore={report.has_more}
      rows={groups}
      keyOf={(one) => one.key}
      columns={[
        { name: "Deployment", cell: (one) => <Deployed group={one} /> },
        { name: "Share", cell: ({ total }) => <Share value={total.microcredits / most} /> },
        { name: "Credits", isNumber: true, cell: ({ total }) => credits(total.microcredits) },
        {
          name: "GB-hours",
          isNumber: true,
          cell: ({ total }) => gbHours(total.deployment_id ? total.memory_mib_ms : total.storage_mib_ms).toFixed(3),
        },
        ...calls(groups, (one) => one.total),
      ]}
    />
  );
}

/** Links to a deployment that still exists. */
function Deployed({ group }: { group: Group }) {
  const id = group.ids[0] ?? "";
  const name = <bdi>{group.name}</bdi>;
  return store.deployments.value.has(id) ? <a href={page(`deployments/${id}`)}>{name}</a> : name;
}

export function ByKey({ report }: { report: UsageReport }) {
  const rows = report.data.filter((one) => one.requests > 0).sort((a, b) => b.requests - a.requests);
  const most = Math.max(1, rows[0]?.requests ?? 0);
  if (rows.length === 0) return <Empty title="No calls in this period." />;
  return (
    <>
      <p class="note">Costs belong to deployments, not to keys. This table shows calls without costs.</p>
      <Most
        label="By key"
        hasMore={report.has_more}
        rows={rows}
        keyOf={(one) => one.key_id ?? "none"}
        columns={[
          { name: "Key", cell: (one) => <Caller row={one} /> },
          { name: "Share", cell: (one) => <Share value={one.requests / most} /> },
          ...calls(rows, (one) => one),
        ]}
      />
    </>
  );
}

function Caller({ row }: { row: UsageRow }) {
  if (!row.key_id) {
    return (
      <span title="Checks, trials, mirrors, videos, and calls recorded before keys were tracked">
        No key (internal calls)
      </span>
    );
  }
  return (
    <a href={page("keys")}>
      <bdi>{plain(row.key_name ?? row.key_id, 80)}</bdi>
    </a>
  );
}

function Most<T>(props: {
  label: string;
  hasMore: boolean;
  rows: T[];
  keyOf: (row: T) => string;
  columns: Column<T>[];
}) {
  const { label, hasMore, rows, keyOf, columns } = props;
  const [isAll, setAll] = useState(false);
  return (
    <>
      <Table label={label} columns={columns} rows={rows.slice(0, isAll ? MOST_ROWS : FEW_ROWS)} keyOf={keyOf} />
      {!isAll && rows.length > FEW_ROWS && (
        <div class="actions">
          <Button class="small" onClick={() => setAll(true)}>
            Show all {count(Math.min(rows.length, MOST_ROWS))}
          </Button>
        </div>
      )}
      {isAll && rows.length > MOST_ROWS && (
        <p class="note">
          Showing the first {MOST_ROWS} of {hasMore ? "more than " : ""}
          {count(rows.length)} rows. The CSV has all rows.
        </p>
      )}
    </>
  );
}
