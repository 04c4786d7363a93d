/** Usage page: usage by day, deployment and key, credits and quotas. */

import { useState } from "preact/hooks";
import { api, must } from "../api/client";
import type { Credits } from "../api/types";
import { bytes, count, credits, many } from "../lib/format";
import { store } from "../state/store";
import { useActing, useLoaded } from "../ui/hooks";
import { Button, Card, ErrorNote, PageHead, Skeleton } from "../ui/parts";
import { Days, dearest } from "./usage/days";
import { grouped } from "./usage/groups";
import { read, save } from "./usage/reports";
import { ByDeployment, ByKey } from "./usage/tables";
import { Transfers } from "./usage/transfers";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const GB_PER_GIB = 1.073741824;
const RANGES: [number, string][] = [
  [7, "7 days"],
  [30, "30 days"],
  [90, "90 days"],
];

export default function Usage() {
  const [days, setDays] = useState(30);
  const start = new Date(Math.floor(Date.now() / HOUR_MS) * HOUR_MS - days * DAY_MS).toISOString();
  const byDay = useLoaded(() => read({ start, group_by: "day" }), [days]);
  const byDeployment = useLoaded(() => read({ start, group_by: "deployment" }), [days]);
  const byKey = useLoaded(() => read({ start, group_by: "key" }), [days]);
  const groups = byDeployment.value && grouped(byDeployment.value.data);
  const shown = groups && dearest(groups);
  const ids = shown?.flatMap((one) => one.ids);
  // An empty filter would select all.
  const both = useLoaded(
    async () => (ids?.length ? read({ start, group_by: "day,deployment", deployment_id: ids }) : undefined),
    [days, ids?.join()],
  );
  const balance = useLoaded(() => must(api.GET("/v1/credits", {})), [store.stats.value?.credits?.balance]);
  const total = byDay.value?.total;
  // Loads all reports together to avoid layout shifts.
  const areHere =
    [byDay, byDeployment, byKey, balance].every((one) => one.value || one.error) &&
    (both.value || both.error || !ids?.length);

  return (
    <>
      <PageHead title="Usage and credits">
        <select
          aria-label="Time range"
          class="small"
          value={String(days)}
          onChange={(event) => setDays(Number(event.currentTarget.value))}
        >
          {RANGES.map(([value, name]) => (
            <option key={value} value={String(value)}>
              {name}
            </option>
          ))}
        </select>
      </PageHead>
      <ErrorNote error={byDay.error ?? byDeployment.error ?? both.error ?? byKey.error ?? balance.error} />
      {!areHere && <Skeleton rows={8} />}
      {areHere && (
        <>
          <div class="columns">
            <Balance found={balance.value} />
            <Card title={`Last ${days} days`} class="wide">
              {total && (
                <>
                  <p class="figure">{credits(total.microcredits)} credits</p>
                  <p class="note">
                    {credits(total.memory_microcredits)} for memory
                    {total.flex_mib_ms > 0 && ` (${credits(total.flex_microcredits)} of it for background work)`},{" "}
                    {credits(total.storage_microcredits)} for storage. {many(total.requests, "request")},{" "}
                    {many(total.errors, "error")}, {many(total.input_tokens, "input token")},{" "}
                    {many(total.output_tokens, "output token")}.
                  </p>
                </>
              )}
            </Card>
          </div>
          <Card title="By day and deployment" actions={<Csv start={start} group="day,deployment" />}>
            {byDay.value && shown && <Days days={byDay.value} both={both.value?.data ?? []} shown={shown} />}
          </Card>
          <Card title="By deployment" actions={<Csv start={start} group="deployment" />}>
            {byDeployment.value && groups && <ByDeployment report={byDeployment.value} groups={groups} />}
          </Card>
          <Card title="By key" actions={<Csv start={start} group="key" />}>
            {byKey.value && <ByKey report={byKey.value} />}
          </Card>
          <div class="halves">
            <Transfers />
            <Quotas />
          </div>
        </>
      )}
    </>
  );
}

function Csv({ start, group }: { start: string; group: string }) {
  const acting = useActing();
  return (
    <>
      <ErrorNote error={acting.error} />
      <Button
        class="small"
        isBusy={acting.isBusy}
        aria-label={`Export CSV by ${group.replace(",", " and ")}`}
        onClick={() => void acting.run(() => save({ start, group_by: group }))}
      >
        Export CSV
      </Button>
    </>
  );
}

/** Converts a price per GiB to credits per GB, the unit of memory on all pages. */
function perGb(microcredits: number): string {
  return String(Number((microcredits / 1e6 / GB_PER_GIB).toPrecision(3)));
}

function Balance({ found }: { found: Credits | undefined }) {
  const left = store.stats.value?.credits?.days_left;
  return (
    <Card title="Credits left">
      {found && (
        <p>
          <span class="figure">{credits(found.balance_microcredits)}</span>
          <span class="note block">
            {left != null && left < 3650 && `Enough for ${many(Math.floor(left), "day")} at the current rate. `}
            {perGb(found.price.memory_microcredits_per_gib_hour)} per GB-hour of memory (
            {perGb(found.price.flex_microcredits_per_gib_hour)} during background work),{" "}
            {perGb(found.price.storage_microcredits_per_gib_month)} per GB-month of storage.
          </span>
        </p>
      )}
    </Card>
  );
}

function Quotas() {
  const quotas = useLoaded(() => must(api.GET("/v1/quotas", {})), []);
  return (
    <Card title="Quotas">
      <ErrorNote error={quotas.error} />
      <dl class="facts">
        {Object.entries(quotas.value?.quotas ?? {}).map(([name, one]) => {
          const shown = name === "storage_bytes" ? bytes : count;
          return (
            <div key={name}>
              <dt>{name === "storage_bytes" ? "storage" : name.replaceAll("_", " ")}</dt>
              <dd>
                {shown(one?.used)}{" "}
                <span class="note">{one?.limit == null ? "(no limit)" : `of ${shown(one.limit)}`}</span>
              </dd>
            </div>
          );
        })}
      </dl>
    </Card>
  );
}
