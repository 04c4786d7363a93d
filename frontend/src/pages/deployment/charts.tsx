import { useMemo, useState } from "preact/hooks";
import { json } from "../../api/client";
import type { Deployment, Metrics } from "../../api/types";
import { bytes, count, ms, rate } from "../../lib/format";
import { Chart, type Line, type Range } from "../../ui/chart";
import { useEvery, useLoaded } from "../../ui/hooks";
import { Button, Card, ErrorNote, Skeleton } from "../../ui/parts";

const WINDOWS: [number, string][] = [
  [900, "15 minutes"],
  [3600, "1 hour"],
  [21_600, "6 hours"],
  [86_400, "24 hours"],
];
const REFRESH_MS = 5_000;

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
  const found = loaded.value;
  const charts = useMemo(() => (found ? chartsOf(found) : []), [found]);
  const times = useMemo(() => found?.requests.ok.map((_, index) => found.start + index * found.step_s) ?? [], [found]);

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
            unit={chart.unit}
            range={range}
            onRange={setRange}
          />
        ))}
      </div>
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
