/** Text with highlighted spans. */

import type { ComponentChildren } from "preact";
import { plain, score } from "../../lib/format";

interface Span {
  start: number | null;
  end: number | null;
  score: number;
  label: string;
  word?: string;
  answer?: string;
}

const SHADES = 7;
const MOST = 200_000;

/** Removes `B-` and `I-`, so that parts of an entity share a colour. */
function kind(label: string): string {
  return label.replace(/^[BIES]-/, "");
}

export function Entities({ text, spans }: { text: string; spans: Span[] }) {
  const kinds = [...new Set(spans.map((one) => kind(one.label)))];
  // Positions count Unicode code points, as in Python.
  const letters = [...text];
  const placed = spans
    .filter((one): one is Span & { start: number; end: number } => one.start !== null && one.end !== null)
    .sort((a, b) => a.start - b.start || b.end - a.end);
  const parts: ComponentChildren[] = [];
  let at = 0;
  for (const one of placed) {
    // Nested spans appear only in the list.
    if (one.start < at || one.end > letters.length) continue;
    parts.push(plain(letters.slice(at, one.start).join(""), MOST));
    parts.push(
      <mark
        class={`entity shade-${kinds.indexOf(kind(one.label)) % SHADES}`}
        title={`${plain(one.label)} ${score(one.score)}`}
      >
        {plain(letters.slice(one.start, one.end).join(""), MOST)}
        <span class="entity-label">{plain(one.label, 40)}</span>
      </mark>,
    );
    at = one.end;
  }
  parts.push(plain(letters.slice(at).join(""), MOST));

  return (
    <>
      {text && (
        <p class="marked" dir="auto">
          {parts}
        </p>
      )}
      {spans.length === 0 && <p>Nothing found.</p>}
      <ul class="found">
        {spans.slice(0, 200).map((one, index) => (
          <li key={index}>
            <span class={`swatch shade-${kinds.indexOf(kind(one.label)) % SHADES}`} aria-hidden="true" />{" "}
            <bdi>{plain(one.word ?? one.answer ?? "")}</bdi> <span class="note">{plain(one.label, 60)}</span>{" "}
            <span class="number">{score(one.score)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
