import { useState } from "preact/hooks";
import { api, list, must } from "../../api/client";
import type { Artifact, Deployment, VersionCreate } from "../../api/types";
import { day, plain, shortId } from "../../lib/format";
import { useActing, useLoaded } from "../../ui/hooks";
import { Button, Dialog, ErrorNote, Field } from "../../ui/parts";

const SAME = "";

export function AddVersion(props: { deployment: Deployment; onClose: () => void; onDone: () => void }) {
  const { deployment } = props;
  const [artifact, setArtifact] = useState(SAME);
  const [engine, setEngine] = useState(SAME);
  const [dtype, setDtype] = useState(SAME);
  const [note, setNote] = useState("");
  const [isManual, setManual] = useState(false);
  const [isInPlace, setInPlace] = useState(false);
  const acting = useActing();
  const artifacts = useLoaded(() => list<Artifact>("/v1/model-artifacts", { limit: 100 }), []);
  const fitting = (artifacts.value?.data ?? []).filter(
    (one) => one.status === "ready" && one.pipeline === deployment.pipeline,
  );
  const chosen = fitting.find((one) => one.id === (artifact || deployment.artifact_id));
  const engines = [...new Set(["auto", ...(chosen?.inspection?.engines ?? ["torch", "openvino"])])];

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const body: VersionCreate = {
      note,
      promote: isManual ? "manual" : "when_ready",
      strategy: isInPlace ? "in_place" : "beside",
    };
    if (artifact) body.artifact_id = artifact;
    if (engine) body.engine = engine as NonNullable<VersionCreate["engine"]>;
    if (dtype) body.dtype = dtype as NonNullable<VersionCreate["dtype"]>;
    const isDone = await acting.run(async () => {
      const params = { path: { deployment_id: deployment.id } };
      await must(api.POST("/v1/deployments/{deployment_id}/versions", { params, body }));
      props.onDone();
    });
    if (isDone) props.onClose();
  }

  return (
    <Dialog title="New version" onClose={props.onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="Artifact">
          {(id) => (
            <select id={id} value={artifact} onChange={(event) => setArtifact(event.currentTarget.value)}>
              <option value={SAME}>Unchanged</option>
              {fitting.map((one) => (
                <option key={one.id} value={one.id}>
                  {plain(one.display_name, 60)} · {day(one.created_at)} · {shortId(one.id)}
                  {one.id === deployment.artifact_id && " (live)"}
                </option>
              ))}
            </select>
          )}
        </Field>
        <div class="fields">
          <Field label="Engine">
            {(id) => (
              <select id={id} value={engine} onChange={(event) => setEngine(event.currentTarget.value)}>
                <option value={SAME}>Unchanged</option>
                {engines.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Precision">
            {(id) => (
              <select id={id} value={dtype} onChange={(event) => setDtype(event.currentTarget.value)}>
                <option value={SAME}>Unchanged</option>
                {["auto", "float32", "tf32", "bfloat16", "float16", "int8"].map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            )}
          </Field>
        </div>
        <Field label="Note" hint="Describes what is new.">
          {(id, hint) => (
            <input
              id={id}
              type="text"
              maxLength={1024}
              aria-describedby={hint}
              value={note}
              onInput={(event) => setNote(event.currentTarget.value)}
            />
          )}
        </Field>
        <label class="check">
          <input type="checkbox" checked={isManual} onChange={(event) => setManual(event.currentTarget.checked)} />
          Promote manually
        </label>
        <label class="check">
          <input type="checkbox" checked={isInPlace} onChange={(event) => setInPlace(event.currentTarget.checked)} />
          Unload the live version first. This saves memory, but calls wait during the switch.
        </label>
        <p class="note">
          The new version is loaded, then tested with generated inputs and the deployment's checks. It goes live only if
          all of them pass.
        </p>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!artifact && !engine && !dtype}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
