/** Usage page: usage by day, deployment and key, credits and quotas. */

import { useState } from "preact/hooks";
import { api, must } from "../api/client";
import type { Credits, Transfer } from "../api/types";
import { bytes, count, credits, moment, plain } from "../lib/format";
import { store } from "../state/store";
import { useActing, useLoaded } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Empty, ErrorNote, PageHead, Skeleton } from "../ui/parts";
import { Days, dearest } from "./usage/days";
import { read, save } from "./usage/reports";
import { ByDeployment, ByKey } from "./usage/tables";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
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
  const shown = byDeployment.value && dearest(byDeployment.value);
  const ids = shown?.map((one) => one.deployment_id ?? "");
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
                    {credits(total.memory_microcredits)} for memory, {credits(total.storage_microcredits)} for storage.{" "}
                    {count(total.requests)} requests, {count(total.errors)} errors, {count(total.input_tokens)} input
                    tokens, {count(total.output_tokens)} output tokens.
                  </p>
                </>
              )}
            </Card>
          </div>
          <Card title="By day and deployment" actions={<Csv start={start} group="day,deployment" />}>
            {byDay.value && shown && <Days days={byDay.value} both={both.value?.data ?? []} shown={shown} />}
          </Card>
          <Card title="By deployment" actions={<Csv start={start} group="deployment" />}>
            {byDeployment.value && <ByDeployment report={byDeployment.value} />}
          </Card>
          <Card title="By key" actions={<Csv start={start} group="key" />}>
            {byKey.value && <ByKey report={byKey.value} />}
          </Card>
          <Transfers />
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

function Balance({ found }: { found: Credits | undefined }) {
  const left = store.stats.value?.credits?.days_left;
  return (
    <Card title="Credits left">
      {found && (
        <p>
          <span class="figure">{credits(found.balance_microcredits)}</span>
          <span class="note block">
            {left != null && left < 3650 && `Enough for ${Math.floor(left)} days at the current rate. `}
            {credits(found.price.memory_microcredits_per_gib_hour)} per GiB-hour of memory,{" "}
            {credits(found.price.storage_microcredits_per_gib_month)} per GiB-month of storage.
          </span>
        </p>
      )}
    </Card>
  );
}

function Transfers() {
  const transfers = usePaged<Transfer>("/v1/credits/transfers");
  const quotas = useLoaded(() => must(api.GET("/v1/quotas", {})), []);
  return (
    <div class="halves">
      <Card title="Grants and charges">
        {transfers.frame(
          <ul class="events">
            {transfers.rows?.map((one) => (
              <li key={one.id}>
                <time dateTime={one.created_at}>{moment(one.created_at)}</time>
                <span class="grow">
                  {one.kind} {one.note && <bdi>{plain(one.note, 200)}</bdi>}
                </span>
                <span class="number">{credits(one.microcredits)}</span>
              </li>
            ))}
          </ul>,
          <Empty title="No grants or charges yet." />,
        )}
      </Card>
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
    </div>
  );
}
