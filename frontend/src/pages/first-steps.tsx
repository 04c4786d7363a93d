/** Card that leads from an account without deployments to a call. The server's state marks each step as done. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { page } from "../api/base";
import { api, list, must } from "../api/client";
import type { Artifact, Deployment, Key, UsageReport } from "../api/types";
import { bytes, count, plain } from "../lib/format";
import { exampleOf, operationsOf } from "../playground/operations";
import { onChange } from "../state/events";
import { hideSteps } from "../state/hidden-steps";
import { store } from "../state/store";
import { uploads } from "../state/uploads";
import { CallTabs } from "../ui/calls";
import { Drop } from "../ui/drop";
import { useActing, useEvery, useLoaded } from "../ui/hooks";
import { Bar, Button, Card, ErrorNote, Name } from "../ui/parts";
import { DeployForm } from "./deploy";

/** Interval at which the card checks for uploads, calls and keys. */
const CHECK_MS = 2_000;
const MOVING = new Set(["uploading", "ingesting"]);

export default function FirstSteps() {
  const deployment = store.listed.value[0];
  const id = deployment?.id;
  const wasShown = useRef(false);
  const [key, setKey] = useState("");
  const calls = useCalls(id);
  const keys = useLoaded(async () => (id ? (await list<Key>("/v1/api-keys", { limit: 100 })).data : []), [id, key]);
  const hasKey = keys.value?.some((one) => one.deployment_ids.includes(id ?? "")) ?? false;
  const isCalled = calls !== undefined && calls > 0;
  const isKnown = !deployment || (calls !== undefined && keys.value !== undefined);
  const isDone = deployment !== undefined && isCalled && hasKey;
  // The last step stays visible when it ends.
  if (isKnown && !isDone) wasShown.current = true;
  useEffect(() => {
    if (id && isDone && !wasShown.current) hideSteps(id);
  }, [id, isDone]);
  if (!wasShown.current) return null;

  return (
    <Card
      title="Deploy your first model"
      actions={
        id && (
          <Button kind="quiet" class="small" onClick={() => hideSteps(id)}>
            Hide
          </Button>
        )
      }
    >
      <ol class="steps">
        <Model deployment={deployment} />
        <Step title="Try it" isDone={isCalled} isOpen={deployment !== undefined}>
          {isCalled ? (
            <p class="note">The model has answered {count(calls)} calls.</p>
          ) : (
            <p>
              <a class="button primary" href={page(`deployments/${id}/try`)}>
                Open playground
              </a>
            </p>
          )}
        </Step>
        <Step title="Call it from your code" isDone={hasKey} isOpen={deployment !== undefined}>
          {deployment && <Calling deployment={deployment} hasKey={hasKey} secret={key} onMade={setKey} />}
        </Step>
      </ol>
    </Card>
  );
}

function Step(props: { title: string; isDone: boolean; isOpen: boolean; children: ComponentChildren }) {
  const { title, isDone, isOpen, children } = props;
  return (
    <li class={isDone ? "step done" : "step"} aria-current={isOpen && !isDone ? "step" : undefined}>
      <h3>
        {title}
        {isDone && <span class="visually-hidden"> (done)</span>}
      </h3>
      {isOpen && children}
    </li>
  );
}

/** Steps that choose and deploy a model. */
function Model({ deployment }: { deployment: Deployment | undefined }) {
  const artifacts = useArtifacts();
  const artifact = artifacts.newest;
  const isReady = artifact?.status === "ready" && artifact.inspection !== null;
  return (
    <>
      <Step title="Choose a model folder" isDone={isReady || deployment !== undefined} isOpen={!deployment}>
        {isReady ? (
          <p class="note">
            <a href={page(`artifacts/${artifact.id}`)}>
              <Name text={artifact.display_name} />
            </a>
            : {plain(artifact.pipeline ?? "")}, {bytes(artifact.size_bytes)}
          </p>
        ) : (
          <Choice artifact={artifact} onBegun={artifacts.reload} />
        )}
      </Step>
      <Step title="Deploy" isDone={deployment !== undefined} isOpen={isReady || deployment !== undefined}>
        {deployment ? (
          <p class="note">
            <a href={page(`deployments/${deployment.id}`)}>
              <Name text={deployment.model} />
            </a>
            : {plain(deployment.pipeline)}
          </p>
        ) : (
          artifact && <DeployForm key={artifact.id} artifact={artifact} onDone={() => undefined} />
        )}
      </Step>
    </>
  );
}

function Choice({ artifact, onBegun }: { artifact: Artifact | undefined; onBegun: () => void }) {
  const going = artifact && uploads.value.get(artifact.id);
  const progress = going?.progress;
  if (artifact && (artifact.status === "ingesting" || (going && !going.isOver && !going.error))) {
    return (
      <>
        <Bar value={progress?.total ? progress.bytes / progress.total : 0} label="Upload" kind="tall" />
        <p class="note">
          <Name text={artifact.display_name} />
          {progress && progress.bytes < progress.total
            ? `: ${bytes(progress.bytes)} of ${bytes(progress.total)}`
            : ": the files are being inspected"}
        </p>
      </>
    );
  }
  return (
    <>
      {artifact?.status === "uploading" && (
        <p class="note">
          An upload is not complete: <a href={page(`artifacts/${artifact.id}`)}>{plain(artifact.display_name)}</a>
        </p>
      )}
      <ErrorNote error={going?.error ?? null} />
      {artifact?.failure && (
        <p class="error-note" role="alert">
          {plain(artifact.display_name, 64)}: {plain(artifact.failure.message, 1000)}
        </p>
      )}
      <Drop onBegun={onBegun} />
      <p class="note">
        Or <a href={page("artifacts")}>import a model from a hub</a>.
      </p>
    </>
  );
}

function Calling(props: { deployment: Deployment; hasKey: boolean; secret: string; onMade: (secret: string) => void }) {
  const { deployment, hasKey, secret, onMade } = props;
  const { id, model, pipeline, artifact_id: artifactId } = deployment;
  const acting = useActing();
  const loaded = useLoaded(async () => {
    const [operation] = await operationsOf(pipeline);
    const path = { artifact_id: artifactId ?? "" };
    const artifact = artifactId
      ? await must(api.GET("/v1/model-artifacts/{artifact_id}", { params: { path } }))
      : undefined;
    const architecture = artifact?.inspection?.architecture ?? "";
    return operation && exampleOf(operation, { model, pipeline, architecture });
  }, [id]);
  const create = () =>
    acting.run(async () => {
      const body = { scope: "deployment" as const, deployment_ids: [id], name: model };
      onMade((await must(api.POST("/v1/api-keys", { body }))).key);
    });

  return (
    <>
      {!hasKey && !secret && (
        <p class="actions">
          <Button isBusy={acting.isBusy} onClick={() => void create()}>
            Create a key
          </Button>
          <span class="note">The key calls this deployment only.</span>
        </p>
      )}
      {secret && <p class="note">The key is part of the call, and is not shown again.</p>}
      <ErrorNote error={acting.error ?? loaded.error} />
      {(hasKey || secret) && loaded.value && (
        <CallTabs call={secret ? { ...loaded.value, key: secret } : loaded.value} />
      )}
    </>
  );
}

/** The account's newest artifact that is a whole model. */
function useArtifacts(): { newest: Artifact | undefined; reload: () => void } {
  const loaded = useLoaded(() => list<Artifact>("/v1/model-artifacts", { limit: 20 }), []);
  const newest = loaded.value?.data.find((one) => one.pipeline !== "adapter");
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `reload` does the same.
  useEffect(() => onChange((changed) => changed.type.startsWith("artifact") && loaded.reload()), []);
  useEvery(CHECK_MS, loaded.reload, MOVING.has(newest?.status ?? ""));
  return { newest, reload: loaded.reload };
}

/** Number of a deployment's calls. Undefined: not known yet. */
function useCalls(id: string | undefined): number | undefined {
  const loaded = useLoaded(async () => {
    const query = { group_by: "deployment", deployment_id: [id ?? ""] };
    if (!id) return 0;
    const report = (await must(api.GET("/v1/usage", { params: { query } }))) as UsageReport;
    return report.total.requests;
  }, [id]);
  useEvery(CHECK_MS, loaded.reload, id !== undefined && !loaded.value);
  return loaded.value;
}
