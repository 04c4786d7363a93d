import { useMemo, useState } from "preact/hooks";
import { json, list } from "../../api/client";
import type { Deployment, DeploymentEvent, Metrics, Version } from "../../api/types";
import { bytes, clock, count, date, ms, rate } from "../../lib/format";
import { store } from "../../state/store";
import { Chart, type Line, type Mark, type Range } from "../../ui/chart";
import { useEvery, useLoaded } from "../../ui/hooks";
import { Button, Card, ErrorNote, Skeleton } from "../../ui/parts";

const WINDOWS: [number, string][] = [
  [900, "15 minutes"],
  [3600, "1 hour"],
  [21_600, "6 hours"],
  [86_400, "24 hours"],
];
const REFRESH_MS = 5_000;

/** Maximum marks listed above the charts. */
const MOST_MARKS = 8;

/** Returns when versions went live and replicas started, oldest first. */
async function marksOf(id: string): Promise<Mark[]> {
  const query = { limit: 100 };
  const [versions, events] = await Promise.all([
    list<Version>(`/v1/deployments/${id}/versions`, query),
    list<DeploymentEvent>(`/v1/deployments/${id}/events`, query),
  ]);
  const seconds = (moment: string) => (date(moment)?.getTime() ?? 0) / 1000;
  return [
    ...versions.data.flatMap((one) =>
      one.promoted_at ? [{ at: seconds(one.promoted_at), name: `version ${one.number} live` }] : [],
    ),
    ...events.data
      .filter((one) => one.reason === "loaded")
      .map((one) => ({ at: seconds(one.created_at), name: "replica ready" })),
  ].sort((a, b) => a.at - b.at);
}

function amount(value: number | null): string {
  return value == null ? "–" : value >= 10_000 ? `${Math.round(value / 1000)}k` : String(Number(value.toFixed(1)));
}

export default function Charts({ deployment }: { deployment: Deployment }) {
  const [seconds, setSeconds] = useState(900);
  const [range, setRange] = useState<Range>(null);
  const loaded = useLoaded(
    () => json<Metrics>(`/v1/deployments/${deployment.id}/metrics?window_s=${seconds}`),
    [deployment.id, seconds],
  );
  // Zoomed charts are not refreshed.
  useEvery(REFRESH_MS, loaded.reload, range === null);
  const heard = store.notices.value.find((one) => one.deployment_id === deployment.id)?.created_at;
  const happened = useLoaded(() => marksOf(deployment.id), [deployment.id, deployment.version_id, heard]);
  const found = loaded.value;
  const charts = useMemo(() => (found ? chartsOf(found) : []), [found]);
  const times = useMemo(() => found?.requests.ok.map((_, index) => found.start + index * found.step_s) ?? [], [found]);
  const marks = useMemo(
    () => happened.value?.filter((one) => one.at >= (times[0] ?? Infinity)) ?? [],
    [happened.value, times],
  );

  return (
    <Card
      title="Metrics"
      actions={
        <>
          {range && (
            <Button class="small" onClick={() => setRange(null)}>
              Reset zoom
            </Button>
          )}
          <select
            class="small"
            aria-label="Time range"
            value={String(seconds)}
            onChange={(event) => {
              setRange(null);
              setSeconds(Number(event.currentTarget.value));
            }}
          >
            {WINDOWS.map(([value, name]) => (
              <option key={value} value={String(value)}>
                {name}
              </option>
            ))}
          </select>
        </>
      }
    >
      <p class="note">Drag in a chart to zoom. All charts zoom together.</p>
      <ErrorNote error={loaded.error} />
      {!found && !loaded.error && <Skeleton rows={6} />}
      <div class="charts">
        {charts.map((chart) => (
          <Chart
            key={chart.title}
            title={chart.title}
            times={times}
            lines={chart.lines}
            marks={marks}
            unit={chart.unit}
            range={range}
            onRange={setRange}
          />
        ))}
      </div>
      {marks.length > 0 && (
        <p class="note">
          Dashed lines:{" "}
          {marks
            .slice(-MOST_MARKS)
            .map((one) => `${one.name} ${clock(one.at)}`)
            .join(", ")}
        </p>
      )}
    </Card>
  );
}

/** Converts counts per step to rates per second. */
function aSecond(counts: (number | null)[], step: number): (number | null)[] {
  return counts.map((one) => (one === null ? null : one / step));
}

function chartsOf(found: Metrics): { title: string; lines: Line[]; unit: (value: number | null) => string }[] {
  return [
    {
      title: "Requests by outcome",
      unit: rate,
      lines: [
        { name: "ok", shade: 2, values: aSecond(found.requests.ok, found.step_s), isFilled: true },
        { name: "client errors", shade: 4, values: aSecond(found.requests.client_error, found.step_s) },
        { name: "server errors", shade: 5, values: aSecond(found.requests.server_error, found.step_s) },
      ],
    },
    {
      title: "Latency",
      unit: ms,
      lines: [
        { name: "p50", shade: 0, values: found.latency_ms.p50 },
        { name: "p90", shade: 3, values: found.latency_ms.p90 },
        { name: "p99", shade: 1, values: found.latency_ms.p99 },
      ],
    },
    {
      title: "Queue",
      unit: amount,
      lines: [{ name: "queued or running", shade: 1, values: found.queue, isFilled: true }],
    },
    { title: "Batch size", unit: amount, lines: [{ name: "mean", shade: 0, values: found.batch_size }] },
    {
      title: "Tokens per second",
      unit: count,
      lines: [{ name: "input and output", shade: 6, values: aSecond(found.tokens, found.step_s), isFilled: true }],
    },
    {
      title: "Replicas",
      unit: amount,
      lines: [{ name: "replicas", shade: 2, values: found.replicas, isStepped: true }],
    },
    { title: "Memory", unit: bytes, lines: [{ name: "in use", shade: 3, values: found.memory_bytes, isFilled: true }] },
  ];
}
