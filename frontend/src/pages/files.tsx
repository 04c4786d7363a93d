/** Files page: files of models and of clients. */

import { useEffect, useState } from "preact/hooks";
import { api, call, must } from "../api/client";
import type { File } from "../api/types";
import { ago, bytes, moment, plain, shortId } from "../lib/format";
import { saveAs } from "../lib/save";
import { type FilePurpose, sendFile } from "../lib/send-file";
import "../styles/playground.css";
import { FileDrop } from "../ui/file-drop";
import { useActing, useObjectUrl } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Confirm, Dialog, Empty, ErrorNote, Field, PageHead, Skeleton } from "../ui/parts";
import { Thumbnail } from "../ui/thumbnail";

const PURPOSES: Record<string, string> = {
  image: "Image",
  video: "Video",
  thumbnail: "Video thumbnail",
  reference: "Reference image",
  batch: "Batch input",
  batch_output: "Batch result",
  user_data: "Upload",
};
const OF_CLIENTS = new Set(["batch", "batch_output", "user_data"]);

const contentOf = (file: File) => `/v1/files/${file.id}/content`;
const nameOf = (file: File) =>
  OF_CLIENTS.has(file.purpose) ? plain(file.filename, 60) : `${PURPOSES[file.purpose] ?? "File"} ${shortId(file.id)}`;
const isShown = (file: File) => /^(image|video)\//.test(file.content_type);

export default function Files() {
  const files = usePaged<File>("/v1/files");
  const [purpose, setPurpose] = useState("");
  const [isSending, setSending] = useState(false);
  const [viewed, setViewed] = useState<File | null>(null);
  const [erased, setErased] = useState<File | null>(null);
  const acting = useActing();
  const save = (file: File) =>
    acting.run(async () => saveAs(await (await call(contentOf(file))).blob(), file.filename));
  const erase = (file: File) =>
    acting.run(async () => {
      await must(api.DELETE("/v1/files/{file_id}", { params: { path: { file_id: file.id } } }));
      setErased(null);
      files.reload();
    });
  const shown = files.rows?.filter((one) => !purpose || one.purpose === purpose) ?? [];
  return (
    <>
      <PageHead title="Files" note="Files that models generate and clients upload. A file is deleted when it expires.">
        <select
          class="small"
          aria-label="Filter files of this page"
          value={purpose}
          onChange={(event) => setPurpose(event.currentTarget.value)}
        >
          <option value="">All kinds</option>
          {Object.entries(PURPOSES).map(([value, name]) => (
            <option key={value} value={value}>
              {name}s
            </option>
          ))}
        </select>
        <Button kind="primary" onClick={() => setSending(true)}>
          Upload file
        </Button>
      </PageHead>
      {!erased && <ErrorNote error={acting.error} />}
      <Card>
        {files.frame(
          shown.length === 0 ? (
            <Empty title="No files of this kind on this page." />
          ) : (
            <ul class="tiles">
              {shown.map((one) => (
                <li key={one.id} class="tile">
                  <button type="button" disabled={!isShown(one)} onClick={() => setViewed(one)}>
                    {!isShown(one) ? (
                      <span class="thumbnail">{PURPOSES[one.purpose] ?? "File"}</span>
                    ) : one.content_type.startsWith("image/") ? (
                      <Thumbnail path={contentOf(one)} label={`View ${nameOf(one)}`} />
                    ) : (
                      <span class="thumbnail">▶ View {nameOf(one)}</span>
                    )}
                  </button>
                  <strong>{nameOf(one)}</strong>
                  <span class="note">
                    {plain(one.content_type, 60)} · {bytes(one.bytes)} ·{" "}
                    <span title={moment(one.created_at)}>{ago(one.created_at)}</span> ·{" "}
                    {one.expires_at ? `expires ${ago(one.expires_at)}` : "never expires"}
                  </span>
                  <span class="actions">
                    <Button class="small" onClick={() => void save(one)} aria-label={`Download ${nameOf(one)}`}>
                      Download
                    </Button>
                    <Button
                      kind="quiet"
                      class="small"
                      onClick={() => setErased(one)}
                      aria-label={`Delete ${nameOf(one)}`}
                    >
                      Delete
                    </Button>
                  </span>
                </li>
              ))}
            </ul>
          ),
          <Empty title="No files yet. Videos, and images that models return by URL, appear here." />,
        )}
      </Card>
      {isSending && (
        <Uploading
          onClose={() => setSending(false)}
          onDone={() => {
            setSending(false);
            files.reload();
          }}
        />
      )}
      {viewed && (
        <Dialog title={nameOf(viewed)} onClose={() => setViewed(null)}>
          <Preview file={viewed} />
        </Dialog>
      )}
      {erased && (
        <Confirm
          title={`Delete ${nameOf(erased)}?`}
          action="Delete file"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase(erased)}
          onClose={() => setErased(null)}
        >
          <p>This erases the file. Links to it stop working.</p>
        </Confirm>
      )}
    </>
  );
}

function Uploading({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [file, setFile] = useState<globalThis.File | null>(null);
  const [purpose, setPurpose] = useState<FilePurpose>("user_data");
  const [sent, setSent] = useState<number | null>(null);
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (!file) return;
    setSent(0);
    if (await acting.run(() => sendFile(file, purpose, setSent))) onDone();
    else setSent(null);
  }
  return (
    <Dialog title="Upload file" onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="File">{(id) => <FileDrop id={id} file={file} sent={sent} onFile={setFile} />}</Field>
        <Field label="Purpose">
          {(id) => (
            <select id={id} value={purpose} onChange={(event) => setPurpose(event.currentTarget.value as FilePurpose)}>
              <option value="user_data">Any use, kept until deleted</option>
              <option value="batch">Input of a batch, kept for 30 days</option>
            </select>
          )}
        </Field>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!file}>
            Upload
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Preview({ file }: { file: File }) {
  const [blob, setBlob] = useState<Blob | null>(null);
  const acting = useActing();
  const url = useObjectUrl(blob);
  // biome-ignore lint/correctness/useExhaustiveDependencies: The dialog shows one file.
  useEffect(() => void acting.run(async () => setBlob(await (await call(contentOf(file))).blob())), []);
  const isVideo = file.content_type.startsWith("video/");
  return (
    <>
      <ErrorNote error={acting.error} />
      {!url && !acting.error && <Skeleton rows={3} />}
      {url && isVideo && <video class="preview" src={url} controls loop muted playsInline />}
      {url && !isVideo && <img class="preview" src={url} alt={nameOf(file)} />}
      <p class="note">
        <code>{plain(file.filename)}</code>
      </p>
    </>
  );
}
