/** Bounding boxes over an image. */

import { plain, score } from "../../lib/format";
import type { Detection } from "../shapes";
import { Picture } from "./picture";

const SHADES = 7;
const MOST = 300;
/** Maximum labels in the picture. The list below has all. */
const MOST_LABELS = 30;

export default function Boxes({ found, file }: { found: Detection[]; file: File | undefined }) {
  const labels = [...new Set(found.map((one) => one.label))];
  const shade = (label: string) => labels.indexOf(label) % SHADES;
  const shown = found.slice(0, MOST);
  return (
    <>
      <Picture file={file}>
        {({ width, height }) => (
          <>
            <svg class="over" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`${found.length} boxes`}>
              {shown.map((one, index) => (
                <rect
                  key={index}
                  class={`box shade-${shade(one.label)}`}
                  data-label={one.label}
                  x={one.box.xmin}
                  y={one.box.ymin}
                  width={Math.max(0, one.box.xmax - one.box.xmin)}
                  height={Math.max(0, one.box.ymax - one.box.ymin)}
                />
              ))}
            </svg>
            {shown.slice(0, MOST_LABELS).map((one, index) => (
              <span
                key={index}
                aria-hidden="true"
                class={`box-label shade-${shade(one.label)}`}
                style={{
                  left: `${(100 * Math.max(0, one.box.xmin)) / width}%`,
                  top: `${(100 * Math.max(0, one.box.ymin)) / height}%`,
                }}
              >
                {plain(one.label, 40)}
              </span>
            ))}
          </>
        )}
      </Picture>
      {found.length === 0 && <p>No objects found. Lower the threshold to see more.</p>}
      <ul class="found">
        {shown.map((one, index) => (
          <li key={index}>
            <span class={`swatch shade-${shade(one.label)}`} aria-hidden="true" /> <bdi>{plain(one.label, 80)}</bdi>{" "}
            <span class="number">{score(one.score)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
