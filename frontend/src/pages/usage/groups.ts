/** Groups usage rows by deployment. The trials of a model are one group. */

import type { UsageRow } from "../../api/types";
import { plain, shortId } from "../../lib/format";

const TRIAL = "trial_";
/** Ending of the model names of trials. */
const SUFFIX = / \(trial\)$/;
const MIB_MS_PER_GB_HOUR = 1e9 * 3_600_000;
const MIB = 1_048_576;

export interface Group {
  key: string;
  name: string;
  /** IDs of the deployments or trials. Empty: artifact storage. */
  ids: string[];
  /** Sum of the rows. */
  total: UsageRow;
}

function isTrial(row: UsageRow): boolean {
  return row.deployment_id?.startsWith(TRIAL) ?? false;
}

function keyOf(row: UsageRow): string {
  return isTrial(row) ? `trials of ${row.model}` : (row.deployment_id ?? "");
}

function added(a: UsageRow, b: UsageRow): UsageRow {
  const sums = Object.entries(b).map(([name, value]) => [
    name,
    typeof value === "number" ? Number(a[name as keyof UsageRow]) + value : value,
  ]);
  return Object.fromEntries(sums) as UsageRow;
}

/** Returns the groups, highest cost first. */
export function grouped(rows: readonly UsageRow[]): Group[] {
  const groups = new Map<string, Group>();
  for (const row of rows) {
    const key = keyOf(row);
    const known = groups.get(key);
    const ids = [...(known?.ids ?? []), ...(row.deployment_id ? [row.deployment_id] : [])];
    groups.set(key, { key, name: "", ids, total: known ? added(known.total, row) : row });
  }
  const all = [...groups.values()].sort((a, b) => b.total.microcredits - a.total.microcredits);
  const areDeployments = all.filter((one) => !isTrial(one.total));
  return all.map((one) => ({ ...one, name: nameOf(one, areDeployments) }));
}

/** A deleted deployment may have had the same model ID. */
function nameOf({ key, ids, total }: Group, deployments: Group[]): string {
  if (!total.deployment_id) return "Artifact storage";
  const model = plain(total.model ?? total.deployment_id, 80);
  if (isTrial(total)) return ids.length === 1 ? model : `${model.replace(SUFFIX, "")} (${ids.length} trials)`;
  const isAmbiguous = deployments.some((one) => one.key !== key && one.total.model === total.model);
  return isAmbiguous ? `${model} (${shortId(total.deployment_id)})` : model;
}

/** Converts MiB-milliseconds to GB-hours. */
export function gbHours(mibMs: number): number {
  return (mibMs * MIB) / MIB_MS_PER_GB_HOUR;
}
