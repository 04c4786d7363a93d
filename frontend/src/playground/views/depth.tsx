/** Depth map. Near is bright. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Picture } from "./picture";
import { drawn, picture } from "./pixels";

/** Colours of matplotlib's "inferno", far to near. */
const SCALE: [number, number, number][] = [
  [0, 0, 4],
  [87, 16, 110],
  [188, 55, 84],
  [249, 142, 9],
  [252, 255, 164],
];

function shade(value: number): [number, number, number] {
  const at = (value / 255) * (SCALE.length - 1);
  const low = SCALE[Math.floor(at)] ?? [0, 0, 0];
  const high = SCALE[Math.ceil(at)] ?? low;
  const part = at - Math.floor(at);
  return [0, 1, 2].map((one) => (low[one] ?? 0) + part * ((high[one] ?? 0) - (low[one] ?? 0))) as [
    number,
    number,
    number,
  ];
}

export default function Depth({ answer, file }: { answer: { depth: string }; file: File | undefined }) {
  const [strength, setStrength] = useState(100);
  const [isRead, setRead] = useState(true);
  if (!isRead) return <p>The returned image cannot be displayed.</p>;
  const drawing = (
    <Drawing depth={answer.depth} strength={strength} isOver={file !== undefined} onWrong={() => setRead(false)} />
  );
  return (
    <>
      {file ? <Picture file={file}>{() => drawing}</Picture> : drawing}
      <label class="field">
        <span>Overlay opacity: {strength} %</span>
        <input
          type="range"
          min={0}
          max={100}
          value={strength}
          onInput={(event) => setStrength(Number(event.currentTarget.value))}
        />
      </label>
      <p class="legend">
        <span class="depth-scale" aria-hidden="true" /> far to near
      </p>
    </>
  );
}

interface DrawingProps {
  depth: string;
  strength: number;
  isOver: boolean;
  onWrong: () => void;
}

/** The canvas exists when drawing starts, because the image loads first. */
function Drawing({ depth, strength, isOver, onWrong }: DrawingProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `onWrong` does the same.
  useEffect(() => {
    let isGone = false;
    picture(depth).then(
      (image) => {
        const target = canvas.current;
        if (isGone || !target) return;
        const [, , pixels] = drawn(image);
        for (let at = 0; at < pixels.data.length; at += 4) {
          pixels.data.set([...shade(pixels.data[at] ?? 0), 255], at);
        }
        target.width = pixels.width;
        target.height = pixels.height;
        target.getContext("2d")?.putImageData(pixels, 0, 0);
      },
      () => !isGone && onWrong(),
    );
    return () => {
      isGone = true;
    };
  }, [depth]);
  return (
    <canvas
      ref={canvas}
      class={isOver ? "over" : "alone"}
      style={{ opacity: strength / 100 }}
      role="img"
      aria-label="Depth map"
    />
  );
}
