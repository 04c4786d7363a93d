/** Ranked texts, animated from input order to rank order. */

import { useEffect, useState } from "preact/hooks";
import { plain, score } from "../../lib/format";

interface Props {
  texts: string[];
  /** [text index, score] */
  scores: [number, number][];
}

const ROW_PX = 62;

export default function Ranked({ texts, scores }: Props) {
  const [isSorted, setSorted] = useState(false);
  useEffect(() => {
    setSorted(false);
    // Shows the input order first.
    const timer = window.setTimeout(() => setSorted(true), 60);
    return () => window.clearTimeout(timer);
  }, [scores]);
  const ranks = new Map([...scores].sort((a, b) => b[1] - a[1]).map(([index], rank) => [index, rank]));
  const byIndex = [...scores].sort((a, b) => (ranks.get(a[0]) ?? 0) - (ranks.get(b[0]) ?? 0));
  return (
    <ol class="ranked" style={{ height: `${scores.length * ROW_PX}px` }}>
      {byIndex.map(([index, value]) => {
        const rank = ranks.get(index) ?? 0;
        const moved = index - rank;
        return (
          <li key={index} style={{ transform: `translateY(${(isSorted ? rank : index) * ROW_PX}px)` }}>
            <span class="rank">{rank + 1}</span>
            <span class="grow ranked-text" title={plain(texts[index] ?? "", 1000)}>
              <bdi>{plain(texts[index] ?? `text ${index}`, 400)}</bdi>
            </span>
            <span class="note">{moved > 0 ? `↑ ${moved}` : moved < 0 ? `↓ ${-moved}` : ""}</span>
            <span class="number">{score(value)}</span>
          </li>
        );
      })}
    </ol>
  );
}
