/** Time chart drawn by uPlot. Dragging selects a time range. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";

export interface Line {
  name: string;
  /** Index of the colour `--c0` … `--c7`. */
  shade: number;
  values: (number | null)[];
  isFilled?: boolean;
  isStepped?: boolean;
}

export type Range = [number, number] | null;

/** An event, drawn as a vertical line. */
export interface Mark {
  /** Seconds since 1970. */
  at: number;
  name: string;
}

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  marks: Mark[];
  unit: (value: number | null) => string;
  range: Range;
  onRange: (range: Range) => void;
}

const HEIGHT = 190;
const LEAST_DRAG = 6;

/** Resolves a theme colour, because canvases do not support CSS variables. */
function resolved(variable: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function faint(colour: string): string {
  return colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.16)");
}

export function Chart({ title, times, lines, marks, unit, range, onRange }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef({ onRange, unit, marks });
  latest.current = { onRange, unit, marks };
  const shape = lines.map((line) => line.name).join();
  const isEmpty = lines.every((line) => line.values.every((value) => value === null));

  // biome-ignore lint/correctness/useExhaustiveDependencies: The next effect draws new data.
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const draw = () => {
      plot.current?.destroy();
      plot.current = made(element, lines, times, latest);
      if (range) plot.current.setScale("x", { min: range[0], max: range[1] });
    };
    draw();
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    window.addEventListener("stoker:theme", draw);
    return () => {
      sizes.disconnect();
      dark.removeEventListener("change", draw);
      window.removeEventListener("stoker:theme", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, isEmpty]);

  useEffect(() => {
    const now = plot.current;
    if (!now) return;
    now.setData(dataOf(times, lines), false);
    const first = times[0] ?? 0;
    now.setScale("x", { min: range?.[0] ?? first, max: range?.[1] ?? times.at(-1) ?? first + 1 });
  }, [times, lines, marks, range]);

  const last = lines.map((line) => `${line.name} ${unit(line.values.findLast((one) => one !== null) ?? null)}`);
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      {isEmpty && <p class="note chart-empty">No data in this period.</p>}
      {!isEmpty && <div ref={box} class="chart-box" role="img" aria-label={`${title}, last: ${last.join(", ")}`} />}
    </figure>
  );
}

/** Returns indexes of values without a neighbour to draw a line to. */
function isolated(plot: uPlot, series: number): number[] {
  const values: (number | null | undefined)[] = Array.from(plot.data[series] ?? []);
  return values.flatMap((value, at) => (value != null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
}

function lastOf(plot: uPlot, series: number): number | null {
  const values: (number | null | undefined)[] = Array.from(plot.data[series] ?? []);
  return values.findLast((one) => one != null) ?? null;
}

function drawMarks(plot: uPlot, marks: Mark[], colour: string): void {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  plot.ctx.strokeStyle = colour;
  plot.ctx.lineWidth = devicePixelRatio;
  plot.ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { at } of marks) {
    const x = plot.valToPos(at, "x", true);
    if (x < left || x > left + width) continue;
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
  }
  plot.ctx.restore();
}

function dataOf(times: number[], lines: Line[]): uPlot.AlignedData {
  return [times, ...lines.map((line) => line.values)];
}

function made(
  element: HTMLElement,
  lines: Line[],
  times: number[],
  latest: { current: Pick<Props, "onRange" | "unit" | "marks"> },
): uPlot {
  const text = resolved("--muted");
  const grid = { stroke: resolved("--line"), width: 1 };
  const font = "12px system-ui, sans-serif";
  return new uPlot(
    {
      width: element.clientWidth || 300,
      height: HEIGHT,
      cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "stoker" }, points: { size: 6 } },
      legend: { live: true },
      scales: { x: { time: true }, y: { range: (_plot, _least, most) => [0, (most || 1) * 1.1] } },
      axes: [
        { stroke: text, grid, ticks: grid, font, space: 70, values: (_plot, at) => at.map(hour) },
        {
          stroke: text,
          grid,
          ticks: grid,
          font,
          size: 62,
          values: (_plot, at) => at.map((one) => latest.current.unit(one)),
        },
      ],
      series: [
        // Without a cursor, the legend shows the last values.
        {
          label: "Time",
          value: (_plot, at) => (at == null ? "last" : new Date(at * 1000).toLocaleTimeString("en-GB")),
        },
        ...lines.map((line): uPlot.Series => {
          const colour = resolved(`--c${line.shade}`);
          return {
            label: line.name,
            stroke: colour,
            width: 1.6,
            // A value between two gaps is drawn as a point.
            points: { show: false, size: 6, fill: colour, filter: isolated },
            ...(line.isFilled ? { fill: faint(colour) } : {}),
            ...(line.isStepped && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
            value: (plot, value, series, at) => latest.current.unit(at == null ? lastOf(plot, series) : value),
          };
        }),
      ],
      hooks: {
        drawAxes: [(plot) => drawMarks(plot, latest.current.marks, text)],
        setSelect: [
          (plot) => {
            if (plot.select.width < LEAST_DRAG) return;
            const from = plot.posToVal(plot.select.left, "x");
            const to = plot.posToVal(plot.select.left + plot.select.width, "x");
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            latest.current.onRange([from, to]);
          },
        ],
      },
    },
    dataOf(times, lines),
    element,
  );
}

function hour(at: number): string {
  return new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}
