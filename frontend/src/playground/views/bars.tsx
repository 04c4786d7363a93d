/** Labels with scores, highest first. */

import { plain, score } from "../../lib/format";
import { Share } from "../../ui/parts";

const MOST = 100;

/** [label, score, note] */
export type BarOf = [string, number, string?];

export function Bars({ bars }: { bars: BarOf[] }) {
  const most = Math.max(1, ...bars.map(([, value]) => Math.abs(value)));
  return (
    <ol class="bars">
      {bars.slice(0, MOST).map(([label, value, below], index) => (
        <li key={index} data-label={label}>
          <span class="bar-label">
            <bdi>{plain(label) || "(empty)"}</bdi>
            {below !== undefined && (
              <span class="note block">
                <bdi>{plain(below, 400)}</bdi>
              </span>
            )}
          </span>
          <span class="number">{score(value)}</span>
          <Share value={Math.abs(value) / most} kind="tall" />
        </li>
      ))}
      {bars.length > MOST && <li class="note">and {bars.length - MOST} more</li>}
    </ol>
  );
}
