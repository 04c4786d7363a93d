/** Transcript, synchronized with the player. */

import { useState } from "preact/hooks";
import { plain } from "../../lib/format";
import { CopyButton } from "../../ui/parts";
import type { Transcription } from "../shapes";
import { Wave } from "./wave";

function time(seconds: number): string {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
}

export default function Captions({ answer, file }: { answer: Transcription; file: File | undefined }) {
  const [now, setNow] = useState(0);
  const [seek, setSeek] = useState<number | null>(null);
  const captions =
    answer.segments ?? answer.words?.map((one) => ({ start: one.start, end: one.end, text: one.word })) ?? [];
  return (
    <>
      {file && <Wave blob={file} onTime={setNow} seek={seek} />}
      <blockquote class="written">
        <p dir="auto">{plain(answer.text, 100_000) || "(no speech)"}</p>
        <CopyButton text={answer.text} />
      </blockquote>
      {captions.length > 0 && (
        <ol class="captions">
          {captions.slice(0, 2000).map((one, index) => (
            <li
              key={index}
              class={now >= one.start && now < one.end ? "now" : ""}
              aria-current={now >= one.start && now < one.end ? "true" : undefined}
            >
              <button type="button" class="button quiet small" onClick={() => setSeek(one.start)}>
                {time(one.start)}
              </button>
              <span dir="auto">{plain(one.text.trim(), 2000)}</span>
            </li>
          ))}
        </ol>
      )}
    </>
  );
}
