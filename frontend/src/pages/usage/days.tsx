/** Bar chart of daily costs: top deployments, all others, storage. */

import type { UsageReport, UsageRow } from "../../api/types";
import { count, credits, date } from "../../lib/format";
import { usePhone } from "../../ui/hooks";
import { Empty } from "../../ui/parts";
import type { Group } from "./groups";

const HEIGHT = 170;
const TOP = 18;
const LEFT = 56;
const RIGHT = 16;
const WIDE = 900;
/** The plot is as wide as a phone, so that its text is not scaled down. */
const NARROW = 340;
/** Space in the plot for one label of a day. */
const LABEL = 60;
const WIDEST = 60;
/** Bars narrower than this have no room for a number. */
const NUMBERED = 46;
/** Fewest days shown. */
const FEWEST = 7;
const DAY_MS = 86_400_000;
/** Number of deployments with their own colour. */
const MOST_SHOWN = 6;
/** Limit of the API's filter. */
const MOST_IDS = 20;
const STORAGE_SHADE = 6;
const OTHERS_SHADE = 7;

/** Returns the most expensive groups, highest cost first. */
export function dearest(groups: readonly Group[]): Group[] {
  let ids = 0;
  return groups
    .filter((one) => one.ids.length > 0 && one.total.microcredits > 0)
    .slice(0, MOST_SHOWN)
    .filter((one) => {
      ids += one.ids.length;
      return ids <= MOST_IDS;
    });
}

interface Part {
  name: string;
  shade: number;
  microcredits: number;
}

function partsOf(day: UsageRow, own: ReadonlyMap<string, number>, shown: readonly Group[]): Part[] {
  const parts = shown.map(({ name, ids }, shade) => ({
    name,
    shade,
    microcredits: ids.reduce((sum, id) => sum + (own.get(`${day.start} ${id}`) ?? 0), 0),
  }));
  const rest = day.memory_microcredits - parts.reduce((sum, one) => sum + one.microcredits, 0);
  parts.push({ name: "others", shade: OTHERS_SHADE, microcredits: Math.max(0, rest) });
  parts.push({ name: "storage", shade: STORAGE_SHADE, microcredits: day.storage_microcredits });
  return parts;
}

function numberOf(day: string): number {
  return Math.floor(Date.parse(day) / DAY_MS);
}

export function Days(props: { days: UsageReport; both: readonly UsageRow[]; shown: Group[] }) {
  const days = props.days.data;
  const width = usePhone() ? NARROW : WIDE;
  if (days.length === 0) return <Empty title="No usage in this period." />;
  const own = new Map(props.both.map((one) => [`${one.start} ${one.deployment_id}`, one.microcredits]));
  const most = Math.max(1, ...days.map((one) => one.microcredits));
  const today = numberOf(new Date().toISOString());
  const first = Math.min(today - FEWEST + 1, ...days.map((one) => numberOf(one.start)));
  const all = Array.from({ length: today - first + 1 }, (_, index) => first + index);
  const step = (width - LEFT - RIGHT) / all.length;
  const thick = Math.min(WIDEST, step * 0.8);
  const middle = (day: number) => LEFT + (day - first + 0.5) * step;
  const bars = days.map((day) => partsOf(day, own, props.shown));
  const legend = (bars[0] ?? [])
    .map((one, place) => ({ ...one, total: bars.reduce((sum, parts) => sum + (parts[place]?.microcredits ?? 0), 0) }))
    .filter((one) => one.total > 0);
  const y = (microcredits: number) => TOP + HEIGHT * (1 - microcredits / most);
  return (
    <figure class="stack">
      <svg
        class="bars-by-day"
        viewBox={`0 0 ${width} ${TOP + HEIGHT + 22}`}
        role="img"
        aria-label={`Credits per day, max ${credits(most)}`}
      >
        {[0, 0.5, 1].map((share) => (
          <g class="axis" key={share}>
            <line class="grid-line" x1={LEFT} x2={width - RIGHT} y1={y(share * most)} y2={y(share * most)} />
            <text x={LEFT - 6} y={y(share * most) + 4} text-anchor="end">
              {share === 0 ? "0" : credits(share * most)}
            </text>
          </g>
        ))}
        {all
          .filter((day) => (today - day) % Math.ceil(LABEL / step) === 0)
          .map((day) => (
            <text key={day} x={middle(day)} y={TOP + HEIGHT + 16} text-anchor="middle">
              {date((day * DAY_MS) / 1000)?.toLocaleDateString("en-GB", {
                day: "numeric",
                month: "short",
                timeZone: "UTC",
              })}
            </text>
          ))}
        {days.map((day, index) => {
          const x = middle(numberOf(day.start));
          const parts = bars[index] ?? [];
          let top = TOP + HEIGHT;
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
                    x={x - thick / 2}
                    width={thick}
                    y={top}
                    height={height}
                  />
                ) : null;
              })}
              {step >= NUMBERED && day.microcredits > 0 && (
                <text x={x} y={top - 4} text-anchor="middle">
                  {credits(day.microcredits)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
      <figcaption class="legend">
        <strong>Credits</strong>
        {legend.map((one) => (
          <span key={one.shade}>
            <span class={`swatch shade-${one.shade}`} aria-hidden="true" /> <bdi>{one.name}</bdi> {credits(one.total)}
          </span>
        ))}
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
