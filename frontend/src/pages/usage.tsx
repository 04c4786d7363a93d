/** What was used, by day and by deployment, and what is left. */

import { useState } from "preact/hooks";
import { api, call, must } from "../api/client";
import type { Transfer, UsageReport, UsageRow } from "../api/types";
import { bytes, count, credits, date, moment, plain } from "../lib/format";
import { stats } from "../state/store";
import { useActing, useLoaded } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Empty, ErrorNote, PageHead, Share, Skeleton } from "../ui/parts";

const DAY_MS = 86_400_000;
const RANGES: [number, string][] = [
  [7, "7 days"],
  [30, "30 days"],
  [90, "90 days"],
];

export default function Usage() {
  const [days, setDays] = useState(30);
  const start = new Date(Math.floor(Date.now() / 3_600_000) * 3_600_000 - days * DAY_MS).toISOString();
  const read = (group: "day" | "deployment") => () =>
    must(api.GET("/v1/usage", { params: { query: { start, group_by: group } } })) as Promise<UsageReport>;
  const byDay = useLoaded(read("day"), [days]);
  const byDeployment = useLoaded(read("deployment"), [days]);
  const acting = useActing();

  const download = () =>
    acting.run(async () => {
      const query = new URLSearchParams({ start, group_by: "day", format: "csv" });
      const blob = await (await call(`/v1/usage?${query}`)).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `usage-${start.slice(0, 10)}.csv`;
      link.click();
      window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });

  return (
    <>
      <PageHead title="Usage and credits">
        <select aria-label="Time" class="small" value={String(days)} onChange={(event) => setDays(Number(event.currentTarget.value))}>
          {RANGES.map(([value, name]) => (
            <option key={value} value={String(value)}>
              {name}
            </option>
          ))}
        </select>
        <Button isBusy={acting.isBusy} onClick={() => void download()}>
          CSV
        </Button>
      </PageHead>
      <ErrorNote error={acting.error ?? byDay.error ?? byDeployment.error} />
      <div class="columns">
        <Balance />
        {byDay.value && (
          <Card title={`The last ${days} days`} class="wide">
            <p class="figure">{credits(byDay.value.total.microcredits)} credits</p>
            <p class="note">
              {credits(byDay.value.total.memory_microcredits)} for memory, {credits(byDay.value.total.storage_microcredits)} for
              storage; {count(byDay.value.total.requests)} requests, {count(byDay.value.total.errors)} of them with an error;{" "}
              {count(byDay.value.total.input_tokens)} tokens read, {count(byDay.value.total.output_tokens)} written.
            </p>
          </Card>
        )}
      </div>
      <Card title="By day">{byDay.value ? <Days rows={byDay.value.data} /> : <Skeleton rows={4} />}</Card>
      <Card title="By deployment">
        {byDeployment.value ? <ByDeployment report={byDeployment.value} /> : <Skeleton rows={4} />}
      </Card>
      <Transfers />
    </>
  );
}

function Balance() {
  const loaded = useLoaded(() => must(api.GET("/v1/credits", {})), [stats.value?.credits?.balance]);
  const found = loaded.value;
  const left = stats.value?.credits?.days_left;
  return (
    <Card title="Credits left">
      <ErrorNote error={loaded.error} />
      {found && (
        <p>
          <span class="figure">{credits(found.balance_microcredits)}</span>
          <span class="note block">
            {left != null && left < 3650 && `They last ${Math.floor(left)} days as things go now. `}
            {credits(found.price.memory_microcredits_per_gib_hour)} for a GiB of memory an hour,{" "}
            {credits(found.price.storage_microcredits_per_gib_month)} for a GiB of storage a month.
          </span>
        </p>
      )}
    </Card>
  );
}

const HEIGHT = 170;
const WIDTH = 900;

/** A day a bar: memory below, storage above. */
function Days({ rows }: { rows: UsageRow[] }) {
  const days = [...rows].sort((a, b) => a.start.localeCompare(b.start));
  const most = Math.max(1, ...days.map((one) => one.microcredits));
  if (days.length === 0) return <Empty title="Nothing was used in this time." />;
  const step = WIDTH / days.length;
  const high = (value: number) => (value / most) * HEIGHT;
  return (
    <figure class="stack">
      <svg class="bars-by-day" viewBox={`0 0 ${WIDTH} ${HEIGHT + 22}`} role="img" aria-label={`Credits a day, at most ${credits(most)}`}>
        {days.map((one, index) => {
          const memory = high(one.memory_microcredits);
          const storage = high(one.storage_microcredits);
          const width = Math.min(60, step * 0.8);
          const x = index * step + (step - width) / 2;
          return (
            <g key={one.start}>
              <title>{`${one.start.slice(0, 10)}: ${credits(one.microcredits)} credits, ${count(one.requests)} requests`}</title>
              <rect class="segment-bar shade-0" x={x} width={width} y={HEIGHT - memory} height={memory} />
              <rect class="segment-bar shade-1" x={x} width={width} y={HEIGHT - memory - storage} height={storage} />
              {(index % Math.ceil(days.length / 10) === 0) && (
                <text x={x + width / 2} y={HEIGHT + 16} text-anchor="middle">
                  {date(one.start)?.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" })}
                </text>
              )}
            </g>
          );
        })}
      </svg>
      <figcaption class="legend">
        <span>
          <span class="swatch shade-0" aria-hidden="true" /> memory
        </span>
        <span>
          <span class="swatch shade-1" aria-hidden="true" /> storage
        </span>
        <span>at most {credits(most)} credits a day</span>
      </figcaption>
    </figure>
  );
}

function ByDeployment({ report }: { report: UsageReport }) {
  const rows = [...report.data].sort((a, b) => b.microcredits - a.microcredits);
  const most = Math.max(1, ...rows.map((one) => one.microcredits));
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="By deployment">
      <table>
        <thead>
          <tr>
            <th scope="col">Deployment</th>
            <th scope="col">Share</th>
            <th scope="col" class="number">
              Credits
            </th>
            <th scope="col" class="number">
              GiB-hours
            </th>
            <th scope="col" class="number">
              Requests
            </th>
            <th scope="col" class="number">
              Errors
            </th>
            <th scope="col" class="number">
              Tokens
            </th>
            <th scope="col" class="number">
              Images
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, 500).map((one) => (
            <tr key={one.deployment_id ?? "storage"}>
              <td>
                <bdi>{plain(one.model ?? "Storage of artifacts", 80)}</bdi>
              </td>
              <td>
                <Share value={one.microcredits / most} />
              </td>
              <td class="number">{credits(one.microcredits)}</td>
              <td class="number">{(one.deployment_id ? one.memory_gib_hours : one.storage_gib_hours).toFixed(3)}</td>
              <td class="number">{count(one.requests)}</td>
              <td class="number">{count(one.errors)}</td>
              <td class="number">{count(one.input_tokens + one.output_tokens)}</td>
              <td class="number">{count(one.images)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
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
          <Empty title="Nothing was granted or charged yet." />,
        )}
      </Card>
      <Card title="What the account may have">
        <ErrorNote error={quotas.error} />
        <dl class="facts">
          {Object.entries(quotas.value?.quotas ?? {}).map(([name, one]) => {
            const shown = name === "storage_bytes" ? bytes : count;
            return (
              <div key={name}>
                <dt>{name === "storage_bytes" ? "storage" : name.replaceAll("_", " ")}</dt>
                <dd>
                  {shown(one?.used)} <span class="note">{one?.limit == null ? "of any" : `of ${shown(one.limit)}`}</span>
                </dd>
              </div>
            );
          })}
        </dl>
      </Card>
    </div>
  );
}
