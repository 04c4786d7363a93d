/** Dialog that uploads a file of requests and creates a batch. */

import { useState } from "preact/hooks";
import { api, json, must } from "../api/client";
import type { Batch } from "../api/types";
import { type Checked, checkFile } from "../lib/batch-lines";
import { many } from "../lib/format";
import { sendFile } from "../lib/send-file";
import { store } from "../state/store";
import { FileDrop } from "../ui/file-drop";
import { Find } from "../ui/find";
import { useActing, useLoaded } from "../ui/hooks";
import { Button, Dialog, ErrorNote, Field } from "../ui/parts";

/** Endpoints that answer with files. */
const FILES = new Set(["/v1/audio/speech", "/v1/videos"]);

async function endpointsOf(model: string): Promise<string[]> {
  if (!model) return [];
  const path = `/v1/models/${model.split("/").map(encodeURIComponent).join("/")}`;
  return (await json<{ endpoints: string[] }>(path)).endpoints.filter((one) => !FILES.has(one));
}

export function BatchForm({ onClose, onDone }: { onClose: () => void; onDone: (batch: Batch) => void }) {
  const [file, setFile] = useState<File | null>(null);
  const [checked, setChecked] = useState<Checked | null>(null);
  const [chosen, setModel] = useState("");
  const [path, setPath] = useState("");
  const [sent, setSent] = useState<number | null>(null);
  const acting = useActing();
  const models = store.listed.value.map((one) => one.model);
  const model = chosen || models[0] || "";
  if (model && !models.includes(model)) models.unshift(model);
  const endpoints = useLoaded(() => endpointsOf(model), [model]);
  const known = endpoints.isLoading ? [] : (endpoints.value ?? []);
  const endpoint = known.includes(path) ? path : (known[0] ?? "");

  const take = (found: File) =>
    acting.run(async () => {
      setFile(found);
      setChecked(null);
      const now = await checkFile(found);
      setChecked(now);
      if (now.model) setModel(now.model);
      if (now.endpoint) setPath(now.endpoint);
    });
  const faults = [...(checked?.faults ?? [])];
  if (checked && faults.length === 0) {
    if (checked.model && checked.model !== model) {
      faults.push({ line: 1, message: `The lines name the model '${checked.model}'.` });
    } else if (endpoint && checked.endpoint !== endpoint) {
      faults.push({ line: 1, message: `The lines call '${checked.endpoint}'.` });
    }
  }

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (!file) return;
    await acting.run(async () => {
      setSent(0);
      try {
        const input = await sendFile(file, "batch", setSent);
        onDone(
          await must(
            api.POST("/v1/batches", { body: { input_file_id: input.id, endpoint, completion_window: "24h" } }),
          ),
        );
      } finally {
        setSent(null);
      }
    });
  }
  return (
    <Dialog title="New batch" onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="File of requests" hint="JSONL, one request a line: custom_id, method, url and body.">
          {(id, hint) => (
            <FileDrop
              id={id}
              file={file}
              sent={sent}
              accept=".jsonl,.ndjson,.json"
              describedBy={hint}
              onFile={(found) => void take(found)}
            />
          )}
        </Field>
        {faults.length > 0 ? (
          <div class="error-note" role="alert">
            {faults.map((one) => (
              <p key={one.line}>
                Line {one.line}: {one.message}
              </p>
            ))}
          </div>
        ) : (
          checked && (
            <p class="note" role="status">
              {checked.isWhole
                ? many(checked.lines, "request")
                : `The first ${many(checked.lines, "request")} are valid`}
              .
            </p>
          )
        )}
        <Field label="Model">
          {(id) => (
            <>
              <Find />
              <select id={id} required value={model} onChange={(event) => setModel(event.currentTarget.value)}>
                {models.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            </>
          )}
        </Field>
        <Field label="Endpoint">
          {(id) => (
            <select id={id} required value={endpoint} onChange={(event) => setPath(event.currentTarget.value)}>
              {known.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          )}
        </Field>
        <ErrorNote error={acting.error ?? endpoints.error} />
        <div class="actions end">
          <Button
            kind="primary"
            type="submit"
            isBusy={acting.isBusy}
            disabled={!checked || faults.length > 0 || !endpoint}
          >
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
