/** Deployment settings, with a preview of the effects of changes. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { Artifact, Deployment, DeploymentUpdate } from "../../api/types";
import { devicesOf, optionsOf, VLLM, withDevices } from "../../lib/engine-options";
import { bytes } from "../../lib/format";
import { store } from "../../state/store";
import { Devices } from "../../ui/devices";
import { useActing, useLoaded } from "../../ui/hooks";
import { Button, Card, ErrorNote, Field } from "../../ui/parts";

const READINESS: Record<string, string> = {
  cold: "The model loads on request and is unloaded after the idle timeout.",
  warm: "The model loads immediately and stays loaded while memory allows.",
  hot: "The model is always loaded, and its memory is reserved. The server refuses this if the model does not fit.",
};
const TEXT_GENERATION = "text-generation";
const DTYPES = ["auto", "float32", "tf32", "bfloat16", "float16", "int8"];

interface Form {
  readiness: string;
  min: string;
  max: string;
  idle: string;
  queue: string;
  keep: string;
  engine: string;
  device: string;
  dtype: string;
  config: string;
}

function formOf(deployment: Deployment): Form {
  return {
    readiness: deployment.readiness,
    min: String(deployment.replicas.min),
    max: String(deployment.replicas.max),
    idle: String(deployment.idle_timeout_s),
    queue: String(deployment.max_queue),
    keep: String(deployment.keep_s),
    engine: deployment.engine,
    device: deployment.device,
    dtype: deployment.dtype,
    config: JSON.stringify(deployment.config, null, 2),
  };
}

function parsed(text: string): Record<string, unknown> {
  const options = optionsOf(text);
  if (options) return options;
  throw new ApiError('Engine options must be a JSON object, such as {"weight_format": "int8"}.', -1, "page");
}

function changes(before: Form, now: Form): DeploymentUpdate {
  const differs = (name: keyof Form) => before[name] !== now[name];
  const found: Record<string, unknown> = {};
  if (differs("readiness")) found.readiness = now.readiness;
  if (differs("min") || differs("max")) found.replicas = { min: Number(now.min), max: Number(now.max) };
  if (differs("idle")) found.idle_timeout_s = Number(now.idle);
  if (differs("queue")) found.max_queue = Number(now.queue);
  if (differs("keep")) found.keep_s = Number(now.keep);
  for (const name of ["engine", "device", "dtype"] as const) if (differs(name)) found[name] = now[name];
  if (differs("config")) found.config = parsed(now.config);
  return found as DeploymentUpdate;
}

/** Returns one sentence on the effect of each change. */
function told(deployment: Deployment, before: Form, now: Form): string[] {
  const found: string[] = [];
  if (before.readiness !== now.readiness) found.push(READINESS[now.readiness] ?? "");
  if (before.min !== now.min && Number(now.min) > 0) {
    found.push(`${now.min} replicas stay loaded, using ${bytes(Number(now.min) * deployment.memory.bytes)} in total.`);
  }
  if (before.max !== now.max) found.push(`Up to ${now.max} replicas run under load.`);
  if (before.idle !== now.idle)
    found.push(`Cold models and replicas above the minimum are unloaded after ${now.idle} s without a call.`);
  if (before.queue !== now.queue)
    found.push(`When ${now.queue} requests are queued or running, further requests get a 429.`);
  if (before.keep !== now.keep)
    found.push(`A replaced version stays loaded for ${now.keep} s, so that you can roll back immediately.`);
  if ((["engine", "device", "dtype", "config"] as const).some((name) => before[name] !== now[name])) {
    found.push(
      deployment.workers.length > 0
        ? "This creates a new version. It goes live after it is loaded and passes its checks, and calls continue meanwhile. The server refuses the change if memory for both versions is not available."
        : "This creates a new version, which is live immediately because nothing is loaded. Its memory is estimated until the next load.",
    );
  }
  if (before.dtype !== now.dtype && now.dtype === "int8") {
    found.push("int8 changes answers. Compare your own inputs in a trial first.");
  }
  return found;
}

export default function Settings({ deployment }: { deployment: Deployment }) {
  const before = formOf(deployment);
  const [edited, setEdited] = useState<Partial<Form>>({});
  const [isDone, setDone] = useState(false);
  const acting = useActing();
  const now = { ...before, ...edited };
  const sentences = told(deployment, before, now);
  const isChanged = (Object.keys(before) as (keyof Form)[]).some((name) => before[name] !== now[name]);
  const artifact = useLoaded(async (): Promise<Artifact | null> => {
    if (!deployment.artifact_id) return null;
    const params = { path: { artifact_id: deployment.artifact_id } };
    return must(api.GET("/v1/model-artifacts/{artifact_id}", { params }));
  }, [deployment.artifact_id]);
  const apart = deployment.pipeline === TEXT_GENERATION ? [VLLM] : [];
  const engines = [...new Set(["auto", ...(artifact.value?.inspection?.engines ?? []), ...apart, deployment.engine])];
  const isAdapter = deployment.adapter_of !== null;

  function set(name: keyof Form, value: string): void {
    setDone(false);
    setEdited({ ...edited, [name]: value });
  }

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const isGood = await acting.run(async () => {
      const params = { path: { deployment_id: deployment.id } };
      const body = changes(before, now);
      await store.answered(must(api.PATCH("/v1/deployments/{deployment_id}", { params, body })));
    });
    if (isGood) {
      setEdited({});
      setDone(true);
    }
  }

  const number = (label: string, name: keyof Form, least: number, most: number, hint: string) => (
    <Field label={label} hint={hint}>
      {(id, hinted) => (
        <input
          id={id}
          type="number"
          min={least}
          max={most}
          required
          aria-describedby={hinted}
          value={now[name]}
          onInput={(event) => set(name, event.currentTarget.value)}
        />
      )}
    </Field>
  );
  const choice = (label: string, name: keyof Form, options: string[], hint: string) => (
    <Field label={label} hint={hint}>
      {(id, hinted) => (
        <select
          id={id}
          aria-describedby={hinted}
          value={now[name]}
          onChange={(event) => set(name, event.currentTarget.value)}
        >
          {options.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      )}
    </Field>
  );

  if (isAdapter) {
    return (
      <Card title="Settings">
        <p>
          This is an adapter. It uses the readiness, engine, replicas and limits of its base, {deployment.adapter_of}.
        </p>
      </Card>
    );
  }
  return (
    <form class="stack" onSubmit={(event) => void submit(event)}>
      <Card title="Readiness and replicas">
        <div class="fields">
          {choice("Readiness", "readiness", ["cold", "warm", "hot"], READINESS[now.readiness] ?? "")}
          {number("Min replicas", "min", 0, 64, "Replicas that stay loaded.")}
          {number("Max replicas", "max", 1, 64, "Replicas that run under load.")}
          {number("Idle timeout (seconds)", "idle", 1, 604_800, "Time without calls before a model is unloaded.")}
          {number("Max queue", "queue", 1, 100_000, "Requests queued or running.")}
          {number(
            "Keep previous version (seconds)",
            "keep",
            0,
            86_400,
            "A previous version that is still loaded can be rolled back to immediately.",
          )}
        </div>
      </Card>
      <Card title="Engine and device">
        <div class="fields">
          {choice(
            "Engine",
            "engine",
            engines,
            "auto: starts with torch, then switches to a faster engine that passes verification.",
          )}
          {choice("Precision", "dtype", DTYPES, "auto: the precision of the stored weights.")}
          <Field label="Device" hint="auto, cpu, cuda or cuda:N.">
            {(id, hinted) => (
              <input
                id={id}
                type="text"
                pattern="auto|cpu|cuda(:[0-9]{1,2})?"
                aria-describedby={hinted}
                value={now.device}
                onInput={(event) => set("device", event.currentTarget.value)}
              />
            )}
          </Field>
          {now.engine === VLLM && (
            <Devices
              count={devicesOf(now.config)}
              onChange={(count) => set("config", withDevices(now.config, count))}
            />
          )}
        </div>
        <Field label="Engine options" hint="JSON. Set an option to null to reset it.">
          {(id, hinted) => (
            <textarea
              id={id}
              class="code"
              rows={4}
              spellcheck={false}
              aria-describedby={hinted}
              value={now.config}
              onInput={(event) => set("config", event.currentTarget.value)}
            />
          )}
        </Field>
      </Card>
      {sentences.length > 0 && (
        <div class="warn-note" role="status">
          <p>
            <strong>Effect of these changes</strong>
          </p>
          {sentences.map((one) => (
            <p key={one}>{one}</p>
          ))}
        </div>
      )}
      <ErrorNote error={acting.error} />
      {isDone && (
        <p class="good-note" role="status">
          Saved.
        </p>
      )}
      <div class="actions">
        <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!isChanged}>
          Save
        </Button>
        <Button disabled={!isChanged} onClick={() => setEdited({})}>
          Discard changes
        </Button>
      </div>
    </form>
  );
}
