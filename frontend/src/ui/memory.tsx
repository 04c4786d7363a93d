/** Bar of the memory that all models share. */

import { useEffect } from "preact/hooks";
import { page } from "../api/base";
import type { Device, Machine, Waiting as WaitingOne } from "../api/types";
import { bytes, plain } from "../lib/format";
import { store } from "../state/store";
import { Name } from "./parts";

const SHADES = 6;
/** Deployments with the most memory, whose names are loaded for long lists. */
const NAMED = 8;

export function MemoryBar() {
  const now = store.stats.value;
  const { budget_bytes: budget, used_bytes: used } = now?.memory ?? { budget_bytes: 0, used_bytes: 0 };
  const shares = Object.entries(now?.deployments ?? {})
    .filter(([, one]) => one.memory_bytes > 0)
    .map(([id, one]) => ({ id, bytes: one.memory_bytes, model: store.deployments.value.get(id)?.model ?? id }))
    .sort((a, b) => b.bytes - a.bytes);
  const unknown = shares.filter((one) => !store.deployments.value.has(one.id)).slice(0, NAMED);
  // biome-ignore lint/correctness/useExhaustiveDependencies: The joined IDs identify the array.
  useEffect(() => store.loadMissing(unknown.map((one) => one.id)), [unknown.map((one) => one.id).join()]);
  const mine = shares.reduce((sum, one) => sum + one.bytes, 0);
  const rest = Math.max(0, used - mine);
  if (!now) {
    return (
      <>
        <div class="memory-bar empty-bar" />
        <p class="legend" aria-hidden="true">
          &nbsp;
        </p>
      </>
    );
  }
  return (
    <>
      <div
        class="memory-bar"
        role="img"
        aria-label={`${bytes(used)} of ${bytes(budget)} in use: ${shares
          .slice(0, 8)
          .map((one) => `${one.model} ${bytes(one.bytes)}`)
          .join(", ")}`}
      >
        {shares.map((one, index) => (
          <span
            key={one.id}
            class={`segment shade-${index % SHADES}`}
            title={`${plain(one.model, 64)}: ${bytes(one.bytes)}`}
            style={{ width: `${(100 * one.bytes) / Math.max(budget, used, 1)}%` }}
          />
        ))}
        {rest > 0 && (
          <span
            class="segment rest"
            title={`Others: ${bytes(rest)}`}
            style={{ width: `${(100 * rest) / Math.max(budget, used, 1)}%` }}
          />
        )}
      </div>
      <p class="legend">
        <strong>{bytes(used)}</strong> of {bytes(budget)} in use
        {shares.slice(0, 5).map((one, index) => (
          <a key={one.id} href={page(`deployments/${one.id}`)}>
            <span class={`swatch shade-${index % SHADES}`} aria-hidden="true" />
            <Name text={one.model} /> {bytes(one.bytes)}
          </a>
        ))}
        {shares.length > 5 && <span>and {shares.length - 5} more</span>}
      </p>
    </>
  );
}

/** Summary of the memory of a machine or node. Claims exclude libraries that replicas share. */
export function MemoryWords({ memory }: { memory: Machine["memory"] }) {
  return (
    <>
      {bytes(memory.used_bytes)} of {bytes(memory.budget_bytes)} in use, {bytes(memory.held_bytes)} claimed,{" "}
      {bytes(memory.reserved_bytes)} reserved for hot models. The machine has {bytes(memory.total_bytes)}.
    </>
  );
}

/** Memory of a GPU in words. */
export function deviceWords(one: Device): string {
  const used = one.used_bytes === null ? "" : `, ${bytes(one.used_bytes)} in use`;
  const other = one.other_bytes ? `, ${bytes(one.other_bytes)} by other processes` : "";
  const claimed = one.budget_bytes ? `${bytes(one.held_bytes)} of ${bytes(one.budget_bytes)} claimed` : "not found";
  return `${one.name}, ${claimed}${used}${other}`;
}

export function Waiting({ waiting }: { waiting: readonly WaitingOne[] }) {
  return (
    <div class="waiting" role="status">
      <p>
        <strong>{waiting.length === 1 ? "1 model waiting" : `${waiting.length} models waiting`} for memory</strong>
      </p>
      <ul>
        {waiting.slice(0, 20).map((one, index) => (
          <li key={`${one.deployment_id}${index}`}>
            <Name text={one.model} /> needs {bytes(one.bytes)}: {plain(one.reason)}
          </li>
        ))}
      </ul>
    </div>
  );
}
