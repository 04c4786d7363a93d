/** Heat maps of vectors, with the nearest vectors computed on this page. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { plain } from "../../lib/format";
import { Bars } from "./bars";
import { colour } from "./pixels";

type Named = [string, number[]];

const MOST_KEPT = 200;
const NEAREST = 5;
const CELL = 10;
const MOST_COLUMNS = 64;

/** Vectors computed on this page, by model. */
const kept = signal<ReadonlyMap<string, Named[]>>(new Map());

function cosine(one: number[], other: number[]): number {
  let dot = 0;
  let a = 0;
  let b = 0;
  for (let at = 0; at < one.length; at += 1) {
    const x = one[at] ?? 0;
    const y = other[at] ?? 0;
    dot += x * y;
    a += x * x;
    b += y * y;
  }
  return a && b ? dot / Math.sqrt(a * b) : 0;
}

export default function Vectors({ named, model }: { named: Named[]; model: string }) {
  // biome-ignore lint/correctness/useExhaustiveDependencies: The vectors belong to the model that computed them.
  useEffect(() => {
    const known = kept.value.get(model) ?? [];
    const fresh = new Set(named.map(([name]) => name));
    const next = [...named, ...known.filter(([name]) => !fresh.has(name))].slice(0, MOST_KEPT);
    kept.value = new Map(kept.value).set(model, next);
  }, [named]);
  const all = kept.value.get(model) ?? [];
  return (
    <>
      {named.slice(0, 32).map(([name, vector]) => {
        const near = all
          .filter(([other, found]) => other !== name && found.length === vector.length)
          .map(([other, found]): [string, number] => [other, cosine(vector, found)])
          .sort((a, b) => b[1] - a[1])
          .slice(0, NEAREST);
        return (
          <section key={name} class="stack" aria-label={plain(name, 80)}>
            <h3>
              <bdi>{plain(name, 120)}</bdi> <span class="note">{vector.length} numbers</span>
            </h3>
            <Heat vector={vector} />
            {near.length > 0 ? (
              <>
                <p class="note">Nearest inputs so far, by cosine similarity:</p>
                <Bars bars={near} />
              </>
            ) : (
              <p class="note">Run another input to compare it with this one.</p>
            )}
          </section>
        );
      })}
    </>
  );
}

function Heat({ vector }: { vector: number[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const columns = Math.min(MOST_COLUMNS, vector.length);
  const rows = Math.ceil(vector.length / columns);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const most = Math.max(...vector.map(Math.abs)) || 1;
    const [low, high] = [colour(0), colour(1)];
    context.clearRect(0, 0, columns * CELL, rows * CELL);
    vector.forEach((value, at) => {
      const [red, green, blue] = value < 0 ? low : high;
      context.fillStyle = `rgba(${red}, ${green}, ${blue}, ${Math.abs(value) / most})`;
      context.fillRect((at % columns) * CELL, Math.floor(at / columns) * CELL, CELL - 1, CELL - 1);
    });
  }, [vector, columns, rows]);
  const [least, most] = [Math.min(...vector), Math.max(...vector)];
  return (
    <canvas
      ref={canvas}
      class="heat"
      width={columns * CELL}
      height={rows * CELL}
      role="img"
      aria-label={`${vector.length} numbers from ${least.toFixed(3)} to ${most.toFixed(3)}`}
    />
  );
}
