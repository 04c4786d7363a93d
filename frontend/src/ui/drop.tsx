/** Area that takes a model folder or a GGUF file and begins its upload. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Artifact } from "../api/types";
import { below, dropped, type Picked, useful } from "../lib/upload";
import { begin } from "../state/uploads";
import { useActing } from "./hooks";
import { ErrorNote } from "./parts";

const MOST_NAME = 128;
const ENDING = /\.(gguf|safetensors)$/;

/** `onBegun` receives the new artifact when its upload begins. */
export function Drop({ onBegun }: { onBegun: (artifact: Artifact) => void }) {
  const [isOver, setOver] = useState(false);
  const folder = useRef<HTMLInputElement>(null);
  const acting = useActing();
  const [note, setNote] = useState("");
  useEffect(() => folder.current?.setAttribute("webkitdirectory", ""), []);

  async function take(name: string, all: Picked[]): Promise<void> {
    const files = useful(all);
    if (files.length === 0) {
      setNote("No model files found. Choose a folder with config.json and safetensors weights, or one GGUF file.");
      return;
    }
    setNote("");
    await acting.run(async () => onBegun(await begin(name.slice(0, MOST_NAME) || "model", files)));
  }

  function chosen(files: FileList | null): void {
    const all = [...(files ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
    const name = all[0]?.path.split("/")[0]?.replace(ENDING, "") ?? "";
    if (all.length > 0) void take(name, below(all));
  }

  async function onDrop(event: DragEvent): Promise<void> {
    event.preventDefault();
    setOver(false);
    const items = event.dataTransfer?.items;
    const name = items?.[0]?.webkitGetAsEntry()?.name.replace(ENDING, "") ?? "model";
    if (items) await acting.run(async () => take(name, await dropped(items)));
  }

  return (
    <>
      <div
        class={isOver ? "drop over" : "drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => void onDrop(event)}
      >
        <div class="stack center">
          <p>
            <strong>Drop a model folder here</strong>, or one GGUF file
          </p>
          <div class="row center">
            <label class="button">
              Choose folder
              <input
                ref={folder}
                type="file"
                multiple
                class="visually-hidden"
                onChange={(event) => chosen(event.currentTarget.files)}
              />
            </label>
            <label class="button">
              Choose file
              <input
                type="file"
                accept=".gguf"
                class="visually-hidden"
                onChange={(event) => chosen(event.currentTarget.files)}
              />
            </label>
          </div>
          <p class="note">Files are sent in parallel parts. An interrupted upload resumes where it stopped.</p>
        </div>
      </div>
      {note && (
        <p class="warn-note" role="alert">
          {note}
        </p>
      )}
      <ErrorNote error={acting.error} />
    </>
  );
}
