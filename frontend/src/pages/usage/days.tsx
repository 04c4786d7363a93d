/** Bar chart of daily costs: top deployments, all others, storage. */

import type { UsageReport, UsageRow } from "../../api/types";
import { count, credits, date, plain } from "../../lib/format";
import { Empty } from "../../ui/parts";

const HEIGHT = 170;
const WIDTH = 900;
const LABELS = 10;
const WIDEST = 60;
/** Number of deployments with their own colour. */
export const MOST_SHOWN = 6;
const STORAGE_SHADE = 6;
const OTHERS_SHADE = 7;

/** Returns the most expensive deployments, highest cost first. */
export function dearest(report: UsageReport): UsageRow[] {
  return report.data
    .filter((one) => one.deployment_id !== null && one.microcredits > 0)
    .sort((a, b) => b.microcredits - a.microcredits)
    .slice(0, MOST_SHOWN);
}

interface Part {
  name: string;
  shade: number;
  microcredits: number;
}

function partsOf(day: UsageRow, own: ReadonlyMap<string, UsageRow>, shown: readonly UsageRow[]): Part[] {
  const parts = shown.map((one, shade) => ({
    name: plain(one.model ?? one.deployment_id ?? "", 60),
    shade,
    microcredits: own.get(`${day.start} ${one.deployment_id}`)?.microcredits ?? 0,
  }));
  const rest = day.memory_microcredits - parts.reduce((sum, one) => sum + one.microcredits, 0);
  parts.push({ name: "others", shade: OTHERS_SHADE, microcredits: Math.max(0, rest) });
  parts.push({ name: "storage", shade: STORAGE_SHADE, microcredits: day.storage_microcredits });
  return parts;
}

export function Days(props: { days: UsageReport; both: readonly UsageRow[]; shown: UsageRow[] }) {
  const days = props.days.data;
  if (days.length === 0) return <Empty title="No usage in this period." />;
  const own = new Map(props.both.map((one) => [`${one.start} ${one.deployment_id}`, one]));
  const most = Math.max(1, ...days.map((one) => one.microcredits));
  const step = WIDTH / days.length;
  const width = Math.min(WIDEST, step * 0.8);
  const bars = days.map((day) => partsOf(day, own, props.shown));
  const legend = (bars[0] ?? []).filter((_, place) => bars.some((parts) => (parts[place]?.microcredits ?? 0) > 0));
  return (
    <figure class="stack">
      <svg
        class="bars-by-day"
        viewBox={`0 0 ${WIDTH} ${HEIGHT + 22}`}
        role="img"
        aria-label={`Credits per day, max ${credits(most)}`}
      >
        {days.map((day, index) => {
          const x = index * step + (step - width) / 2;
          const parts = bars[index] ?? [];
          let top = HEIGHT;
          return (
            <g key={day.start} data-day={day.start.slice(0, 10)}>
              <title>{told(day, parts)}</title>
              {parts.map((one) => {
                const height = (one.microcredits / most) * HEIGHT;
                top -= height;
                return height > 0 ? (
                  <rect
                    key={one.shade}
                    class={`segment-bar shade-${one.shade}`}
                    data-microcredits={one.microcredits}
                    x={x}
                    width={width}
                    y={top}
                    height={height}
                  />
                ) : null;
              })}
              {index % Math.ceil(days.length / LABELS) === 0 && (
                <text x={x + width / 2} y={HEIGHT + 16} text-anchor="middle">
                  {date(day.start)?.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" })}
                </text>
              )}
            </g>
          );
        })}
      </svg>
      <figcaption class="legend">
        {legend.map((one) => (
          <span key={one.shade}>
            <span class={`swatch shade-${one.shade}`} aria-hidden="true" /> <bdi>{one.name}</bdi>
          </span>
        ))}
        <span>max {credits(most)} credits per day</span>
      </figcaption>
    </figure>
  );
}

function told(day: UsageRow, parts: readonly Part[]): string {
  const lines = parts.filter((one) => one.microcredits > 0).map((one) => `${one.name}: ${credits(one.microcredits)}`);
  return [
    `${day.start.slice(0, 10)}: ${credits(day.microcredits)} credits, ${count(day.requests)} requests`,
    ...lines,
  ].join("\n");
}
