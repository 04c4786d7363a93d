/** Form that deploys an artifact. */

import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Artifact, Deployment, DeploymentCreate } from "../api/types";
import { VLLM } from "../lib/engine-options";
import { store } from "../state/store";
import { Devices } from "../ui/devices";
import { Find } from "../ui/find";
import { useActing } from "../ui/hooks";
import { Button, Card, ErrorNote, Field } from "../ui/parts";

/** Derives a valid model ID from any name. */
export function modelId(name: string): string {
  const found = name
    .normalize("NFKD")
    .replace(/[^A-Za-z0-9._:/-]+/g, "-")
    .replace(/^[^A-Za-z0-9]+|[^A-Za-z0-9._:-]+$/g, "")
    .replace(/\/[^A-Za-z0-9]+/g, "/")
    .toLowerCase();
  return found.slice(0, 128) || "model";
}

export function Deploy({ artifact }: { artifact: Artifact }) {
  const { route } = useLocation();
  const mine = store.listed.value.filter((one) => one.artifact_id === artifact.id);
  return (
    <Card title="Deploy">
      {mine.length > 0 && (
        <p>
          Deployed as{" "}
          {mine.map((one, index) => (
            <span key={one.id}>
              {index > 0 && ", "}
              <a href={page(`deployments/${one.id}`)}>{one.model}</a>
            </span>
          ))}
          .
        </p>
      )}
      <DeployForm artifact={artifact} onDone={(made) => route(page(`deployments/${made.id}/try`))} />
    </Card>
  );
}

export function DeployForm(props: { artifact: Artifact; onDone: (made: Deployment) => void }) {
  const { artifact, onDone } = props;
  const [model, setModel] = useState(() => modelId(artifact.display_name));
  const [readiness, setReadiness] = useState("cold");
  const [base, setBase] = useState("");
  const [engine, setEngine] = useState("auto");
  const [devices, setDevices] = useState(1);
  const acting = useActing();
  const isAdapter = artifact.pipeline === "adapter";
  const isWriter = artifact.pipeline === "text-generation";
  const engines = [...new Set(["auto", ...(artifact.inspection?.engines ?? []), VLLM])];
  const bases = store.listed.value.filter((one) => one.adapter_of === null);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await acting.run(async () => {
      const body: DeploymentCreate = { model: model.trim(), artifact_id: artifact.id };
      if (isAdapter) body.adapter_of = base;
      else body.readiness = readiness as NonNullable<DeploymentCreate["readiness"]>;
      if (isWriter) body.engine = engine as NonNullable<DeploymentCreate["engine"]>;
      if (engine === VLLM && devices > 1) body.config = { devices };
      onDone(await store.answered(must(api.POST("/v1/deployments", { body }))));
    });
  }

  return (
    <form class="stack" onSubmit={(event) => void submit(event)}>
      <div class="fields">
        <Field label="Model id" hint="The name that callers use. Allowed: letters, digits and . _ : - /">
          {(id, hint) => (
            <input
              id={id}
              type="text"
              required
              maxLength={128}
              spellcheck={false}
              aria-describedby={hint}
              value={model}
              onInput={(event) => setModel(event.currentTarget.value)}
            />
          )}
        </Field>
        {isAdapter ? (
          <Field label="Base deployment" hint="The adapter shares this deployment's replicas.">
            {(id, hint) => (
              <>
                <Find />
                <select
                  id={id}
                  required
                  aria-describedby={hint}
                  value={base}
                  onChange={(event) => setBase(event.currentTarget.value)}
                >
                  <option value="">Select a deployment</option>
                  {bases.map((one) => (
                    <option key={one.id}>{one.model}</option>
                  ))}
                </select>
              </>
            )}
          </Field>
        ) : (
          <Field
            label="Readiness"
            hint="cold: loads on request. warm: stays loaded while memory allows. hot: always loaded."
          >
            {(id, hint) => (
              <select
                id={id}
                aria-describedby={hint}
                value={readiness}
                onChange={(event) => setReadiness(event.currentTarget.value)}
              >
                <option>cold</option>
                <option>warm</option>
                <option>hot</option>
              </select>
            )}
          </Field>
        )}
        {isWriter && (
          <Field label="Engine" hint="auto: vLLM on a GPU if it is installed, otherwise torch.">
            {(id, hint) => (
              <select
                id={id}
                aria-describedby={hint}
                value={engine}
                onChange={(event) => setEngine(event.currentTarget.value)}
              >
                {engines.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            )}
          </Field>
        )}
        {isWriter && engine === VLLM && <Devices count={devices} onChange={setDevices} />}
      </div>
      <ErrorNote error={acting.error} />
      <div class="actions">
        <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!model.trim()}>
          Deploy
        </Button>
      </div>
    </form>
  );
}
