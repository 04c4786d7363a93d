/** Scatter plot: x is speed, y is difference. Lower right is better. */

import type { TrialRow } from "../../api/types";
import { rate } from "../../lib/format";
import { usePhone } from "../../ui/hooks";

const WIDE = 640;
/** The plot is as wide as a phone, so that its text is not scaled down. */
const NARROW = 340;
const HEIGHT = 250;
const LEFT = 44;
const BOTTOM = 42;
const TOP = 34;
const RIGHT = 20;
/** Differences below this count as zero: float32 rounding. */
const LEAST = 1e-7;
const SHADES = 8;

interface Props {
  rows: TrialRow[];
  nameOf: (row: TrialRow) => string;
  /** Marked as the fastest configuration. */
  winner: TrialRow | undefined;
}

export function Scatter({ rows, nameOf, winner }: Props) {
  const width = usePhone() ? NARROW : WIDE;
  const most = Math.max(...rows.map((row) => row.items_per_s ?? 0), 1) * 1.08;
  const largest = Math.max(...rows.map((row) => row.difference ?? 0), 1e-3);
  const decades = Math.log10(largest / LEAST);
  const x = (row: TrialRow) => LEFT + ((width - LEFT - RIGHT) * (row.items_per_s ?? 0)) / most;
  const y = (difference: number) =>
    HEIGHT -
    BOTTOM -
    ((HEIGHT - BOTTOM - TOP) * Math.max(0, Math.log10(Math.max(difference, LEAST) / LEAST))) / decades;
  const marks = [LEAST, 1e-5, 1e-3, 1e-1].filter((one) => one <= largest * 1.01);
  return (
    <figure class="stack">
      <svg
        class="scatter"
        viewBox={`0 0 ${width} ${HEIGHT}`}
        role="img"
        aria-label={`Speed and difference from the reference: ${rows
          .map(
            (row) =>
              `${nameOf(row)} ${rate(row.items_per_s)}, difference ${row.difference?.toPrecision(2) ?? "unknown"}`,
          )
          .join("; ")}`}
      >
        <text x={0} y={14}>
          ↑ largest difference from {rows[0] && nameOf(rows[0])}
        </text>
        {marks.map((mark) => (
          <g key={mark}>
            <line class="grid-line" x1={LEFT} x2={width - RIGHT} y1={y(mark)} y2={y(mark)} />
            <text x={LEFT - 8} y={y(mark) + 4} text-anchor="end">
              {mark === LEAST ? "0" : mark.toExponential(0)}
            </text>
          </g>
        ))}
        {[0, 0.5, 1].map((share) => (
          <text key={share} x={LEFT + (width - LEFT - RIGHT) * share} y={HEIGHT - BOTTOM + 18} text-anchor="middle">
            {rate(most * share)}
          </text>
        ))}
        <text x={(width + LEFT) / 2} y={HEIGHT - 6} text-anchor="middle">
          inputs per second →
        </text>
        {winner && <circle class="winner" cx={x(winner)} cy={y(winner.difference ?? largest)} r={12} />}
        {rows.map((row, index) => (
          <circle
            key={nameOf(row)}
            class={`dot shade-${index % SHADES}`}
            cx={x(row)}
            cy={y(row.difference ?? largest)}
            r={7}
          />
        ))}
      </svg>
      <figcaption class="legend">
        {rows.map((row, index) => (
          <span key={nameOf(row)}>
            <span class={`swatch shade-${index % SHADES}`} aria-hidden="true" /> {nameOf(row)}
            {row === winner && " (fastest)"}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
