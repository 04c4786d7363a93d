/** Area that takes one file, with the progress of its upload. */

import { useState } from "preact/hooks";
import { bytes, plain } from "../lib/format";
import { Bar } from "./parts";

interface Props {
  id: string;
  file: File | null;
  /** Sent share of the upload, 0 to 1. Null: no upload. */
  sent: number | null;
  accept?: string;
  describedBy?: string | undefined;
  onFile: (file: File) => void;
}

export function FileDrop({ id, file, sent, accept, describedBy, onFile }: Props) {
  const [isOver, setOver] = useState(false);
  const isSending = sent !== null;
  const take = (files: FileList | null | undefined) => files?.[0] && !isSending && onFile(files[0]);
  return (
    <div
      class={isOver ? "drop over" : "drop"}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        take(event.dataTransfer?.files);
      }}
    >
      <div class="row">
        <span class="grow">
          {file ? (
            <>
              <bdi>{plain(file.name, 80)}</bdi> <span class="note">{bytes(file.size)}</span>
            </>
          ) : (
            "Drop a file here, or choose one."
          )}
        </span>
        <label class="button small">
          Choose file
          <input
            id={id}
            type="file"
            class="visually-hidden"
            accept={accept}
            disabled={isSending}
            aria-describedby={describedBy}
            onChange={(event) => take(event.currentTarget.files)}
          />
        </label>
      </div>
      {isSending && <Bar value={sent} label="Upload" />}
    </div>
  );
}
