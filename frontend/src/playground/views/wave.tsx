/** Waveform with a player. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useObjectUrl } from "../../ui/hooks";
import { colour } from "./pixels";

const WIDTH = 800;
const HEIGHT = 90;

interface Props {
  blob: Blob;
  onTime?: (seconds: number) => void;
  seek?: number | null;
}

export function Wave({ blob, onTime, seek }: Props) {
  const url = useObjectUrl(blob);
  const canvas = useRef<HTMLCanvasElement>(null);
  const player = useRef<HTMLAudioElement>(null);
  const [seconds, setSeconds] = useState<number | null>(null);

  useEffect(() => {
    let isOver = false;
    void decoded(blob).then((sound) => {
      const context = canvas.current?.getContext("2d");
      if (isOver || !sound || !context) return;
      setSeconds(sound.duration);
      draw(context, sound.getChannelData(0));
    });
    return () => {
      isOver = true;
    };
  }, [blob]);
  useEffect(() => {
    if (player.current && seek != null) {
      player.current.currentTime = seek;
      player.current.play().catch(() => undefined);
    }
  }, [seek]);

  return (
    <div class="stack">
      <canvas
        ref={canvas}
        class="wave"
        width={WIDTH}
        height={HEIGHT}
        role="img"
        aria-label={seconds === null ? "Recording" : `Recording of ${seconds.toFixed(1)} seconds`}
      />
      {url && (
        <audio ref={player} controls src={url} onTimeUpdate={(event) => onTime?.(event.currentTarget.currentTime)} />
      )}
    </div>
  );
}

async function decoded(blob: Blob): Promise<AudioBuffer | null> {
  const context = new AudioContext();
  try {
    return await context.decodeAudioData(await blob.arrayBuffer());
  } catch {
    // The player may support formats that this decoder does not.
    return null;
  } finally {
    void context.close();
  }
}

function draw(context: CanvasRenderingContext2D, samples: Float32Array): void {
  const step = Math.max(1, Math.floor(samples.length / WIDTH));
  const [red, green, blue] = colour(0);
  context.clearRect(0, 0, WIDTH, HEIGHT);
  context.fillStyle = `rgb(${red}, ${green}, ${blue})`;
  for (let x = 0; x < WIDTH; x += 1) {
    let most = 0;
    for (let at = x * step; at < (x + 1) * step; at += 1) most = Math.max(most, Math.abs(samples[at] ?? 0));
    const height = Math.max(1, most * HEIGHT);
    context.fillRect(x, (HEIGHT - height) / 2, 1, height);
  }
}
