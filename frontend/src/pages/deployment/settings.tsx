/** Changed in place, with what will happen said before. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { Artifact, Deployment, DeploymentUpdate } from "../../api/types";
import { bytes } from "../../lib/format";
import { answered } from "../../state/store";
import { useActing, useLoaded } from "../../ui/hooks";
import { Button, Card, ErrorNote, Field } from "../../ui/parts";

const READINESS: Record<string, string> = {
  cold: "It starts on request, and stops after so long without one.",
  warm: "It is loaded at once and stays, as far as memory allows; it gives way last.",
  hot: "It is loaded at once, its memory is kept for it, and it never gives way. This is refused where it cannot fit.",
};
const DTYPES = ["auto", "float32", "bfloat16", "float16", "int8"];

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
  try {
    const found: unknown = JSON.parse(text || "{}");
    if (typeof found === "object" && found !== null && !Array.isArray(found)) return found as Record<string, unknown>;
  } catch {
    // Told below.
  }
  throw new ApiError('The options are no JSON object, such as {"weight_format": "int8"}.', -1, "page");
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

/** What will happen, a sentence a change. */
function told(deployment: Deployment, before: Form, now: Form): string[] {
  const found: string[] = [];
  if (before.readiness !== now.readiness) found.push(READINESS[now.readiness] ?? "");
  if (before.min !== now.min && Number(now.min) > 0) {
    found.push(`${now.min} replicas are kept loaded: ${bytes(Number(now.min) * deployment.memory.bytes)} together.`);
  }
  if (before.max !== now.max) found.push(`Under load there are up to ${now.max} replicas.`);
  if (before.idle !== now.idle) found.push(`A cold one, or a replica beyond the least, ends after ${now.idle} s without a call.`);
  if (before.queue !== now.queue) found.push(`With ${now.queue} requests waiting or running, further ones get a 429.`);
  if (before.keep !== now.keep) found.push(`A version that is replaced stays loaded for ${now.keep} s, to be brought back at once.`);
  if ((["engine", "device", "dtype", "config"] as const).some((name) => before[name] !== now[name])) {
    found.push(
      deployment.workers.length > 0
        ? "This makes a new version. It is loaded beside the live one, tried and checked, and takes over between two requests; calls go on meanwhile. Memory for both is needed, and the change is refused where there is none."
        : "This makes a new version, which is live at once, as nothing is loaded. What it needs of memory is an estimate again.",
    );
  }
  if (before.dtype !== now.dtype && now.dtype === "int8") {
    found.push("Answers change with eight bits: look at your own, as a trial does.");
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
  const engines = [...new Set(["auto", ...(artifact.value?.inspection?.engines ?? []), deployment.engine])];
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
      await answered(must(api.PATCH("/v1/deployments/{deployment_id}", { params, body })));
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
        <select id={id} aria-describedby={hinted} value={now[name]} onChange={(event) => set(name, event.currentTarget.value)}>
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
          This is an adapter: readiness, engine, replicas and limits are those of its base, {deployment.adapter_of}.
        </p>
      </Card>
    );
  }
  return (
    <form class="stack" onSubmit={(event) => void submit(event)}>
      <Card title="Readiness and replicas">
        <div class="fields">
          {choice("Readiness", "readiness", ["cold", "warm", "hot"], READINESS[now.readiness] ?? "")}
          {number("Least replicas", "min", 0, 64, "Kept loaded.")}
          {number("Most replicas", "max", 1, 64, "Under load.")}
          {number("Idle timeout, seconds", "idle", 1, 604_800, "Without a call.")}
          {number("Longest queue", "queue", 1, 100_000, "Requests that wait or run.")}
          {number("Keep a former version, seconds", "keep", 0, 86_400, "So that rolling back is done at once.")}
        </div>
      </Card>
      <Card title="What it runs on">
        <div class="fields">
          {choice("Engine", "engine", engines, "auto: torch at once, and what is faster once it was found right.")}
          {choice("Computed in", "dtype", DTYPES, "auto keeps to what the weights are stored in.")}
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
        </div>
        <Field label="Options of the engine" hint="JSON; null takes an option back.">
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
            <strong>What will happen</strong>
          </p>
          {sentences.map((one) => (
            <p key={one}>{one}</p>
          ))}
        </div>
      )}
      <ErrorNote error={acting.error} />
      {isDone && (
        <p class="good-note" role="status">
          Changed.
        </p>
      )}
      <div class="actions">
        <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!isChanged}>
          Change
        </Button>
        <Button disabled={!isChanged} onClick={() => setEdited({})}>
          Back to what it is
        </Button>
      </div>
    </form>
  );
}
