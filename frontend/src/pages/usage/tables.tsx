/** Usage tables by deployment and by key. */

import { page } from "../../api/base";
import type { UsageReport, UsageRow } from "../../api/types";
import { count, credits, plain } from "../../lib/format";
import { Empty, Share } from "../../ui/parts";
import { type Column, Table } from "../../ui/table";

const MOST_ROWS = 200;

const CALLS: Column<UsageRow>[] = [
  { name: "Requests", isNumber: true, cell: (one) => count(one.requests) },
  { name: "Errors", isNumber: true, cell: (one) => count(one.errors) },
  { name: "Input tokens", isNumber: true, cell: (one) => count(one.input_tokens) },
  { name: "Output tokens", isNumber: true, cell: (one) => count(one.output_tokens) },
  { name: "Images", isNumber: true, cell: (one) => count(one.images) },
];

export function ByDeployment({ report }: { report: UsageReport }) {
  const rows = [...report.data].sort((a, b) => b.microcredits - a.microcredits);
  const most = Math.max(1, rows[0]?.microcredits ?? 0);
  return (
    <Most
      label="By deployment"
      report={report}
      rows={rows}
      keyOf={(one) => one.deployment_id ?? "storage"}
      columns={[
        { name: "Deployment", cell: (one) => <bdi>{plain(one.model ?? "Artifact storage", 80)}</bdi> },
        { name: "Share", cell: (one) => <Share value={one.microcredits / most} /> },
        { name: "Credits", isNumber: true, cell: (one) => credits(one.microcredits) },
        {
          name: "GiB-hours",
          isNumber: true,
          cell: (one) => (one.deployment_id ? one.memory_gib_hours : one.storage_gib_hours).toFixed(3),
        },
        ...CALLS,
      ]}
    />
  );
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
        report={report}
        rows={rows}
        keyOf={(one) => one.key_id ?? "none"}
        columns={[
          { name: "Key", cell: (one) => <Caller row={one} /> },
          { name: "Share", cell: (one) => <Share value={one.requests / most} /> },
          ...CALLS,
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

function Most(props: {
  label: string;
  report: UsageReport;
  rows: UsageRow[];
  keyOf: (row: UsageRow) => string;
  columns: Column<UsageRow>[];
}) {
  const { label, report, rows, keyOf, columns } = props;
  return (
    <>
      <Table label={label} columns={columns} rows={rows.slice(0, MOST_ROWS)} keyOf={keyOf} />
      {rows.length > MOST_ROWS && (
        <p class="note">
          Showing the first {MOST_ROWS} of {report.has_more ? "more than " : ""}
          {count(rows.length)} rows. The CSV has all rows.
        </p>
      )}
    </>
  );
}
