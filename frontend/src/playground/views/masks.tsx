/** Coloured segmentation masks over the image. */

import { useEffect, useRef, useState } from "preact/hooks";
import { plain, score } from "../../lib/format";
import type { MasksAnswer } from "../shapes";
import { Picture } from "./picture";
import { colour, drawn, picture } from "./pixels";

const SHADES = 7;
const MOST = 64;
const ALPHA = 130;

export default function Masks({ answer, file }: { answer: MasksAnswer; file: File | undefined }) {
  const [hidden, setHidden] = useState<ReadonlySet<number>>(new Set());
  const shown = answer.masks.slice(0, MOST);
  function toggle(index: number): void {
    const next = new Set(hidden);
    if (!next.delete(index)) next.add(index);
    setHidden(next);
  }
  return (
    <>
      <Picture file={file}>
        {() =>
          shown.map((mask, index) => !hidden.has(index) && <Mask key={index} mask={mask} shade={index % SHADES} />)
        }
      </Picture>
      {shown.length === 0 && <p>No areas found.</p>}
      <ul class="found">
        {shown.map((_, index) => (
          <li key={index}>
            <label class="check">
              <input type="checkbox" checked={!hidden.has(index)} onChange={() => toggle(index)} />
              <span class={`swatch shade-${index % SHADES}`} aria-hidden="true" />
              <bdi>{plain(answer.labels?.[index] ?? `area ${index + 1}`, 80)}</bdi>
              <span class="number">{score(answer.scores[index] ?? 1)}</span>
            </label>
          </li>
        ))}
      </ul>
    </>
  );
}

function Mask({ mask, shade }: { mask: string; shade: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    let isOver = false;
    picture(mask).then(
      (image) => {
        const target = canvas.current;
        if (isOver || !target) return;
        const [, , pixels] = drawn(image);
        const [red, green, blue] = colour(shade);
        for (let at = 0; at < pixels.data.length; at += 4) {
          const isIn = (pixels.data[at] ?? 0) > 127;
          pixels.data.set([red, green, blue, isIn ? ALPHA : 0], at);
        }
        target.width = pixels.width;
        target.height = pixels.height;
        target.getContext("2d")?.putImageData(pixels, 0, 0);
      },
      () => undefined,
    );
    return () => {
      isOver = true;
    };
  }, [mask, shade]);
  return <canvas ref={canvas} class="over" aria-hidden="true" data-shade={shade} />;
}
