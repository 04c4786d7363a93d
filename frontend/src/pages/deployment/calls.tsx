/** Code examples for each endpoint of the model. */

import { page } from "../../api/base";
import { json } from "../../api/client";
import type { Artifact, Deployment } from "../../api/types";
import { exampleOf, operationsOf } from "../../playground/operations";
import { CallTabs } from "../../ui/calls";
import { useLoaded } from "../../ui/hooks";
import { Card, ErrorNote, Skeleton } from "../../ui/parts";

export default function Calls({ deployment }: { deployment: Deployment }) {
  const loaded = useLoaded(() => operationsOf(deployment.pipeline), [deployment.pipeline]);
  const { artifact_id: id, model, pipeline } = deployment;
  const artifact = useLoaded(() => (id ? json<Artifact>(`/v1/model-artifacts/${id}`) : Promise.resolve(null)), [id]);
  const architecture = artifact.value?.inspection?.architecture ?? "";
  if (!loaded.value || artifact.isLoading)
    return loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={6} />;
  return (
    <>
      <p class="note">
        Each caller needs a key. <a href={page("keys")}>Create a key</a> for this deployment, and set{" "}
        <code>STOKER_API_KEY</code> to it.
      </p>
      {loaded.value.map((operation) => (
        <Card key={operation.path} title={`${operation.summary}: POST ${operation.path}`}>
          <CallTabs call={exampleOf(operation, { model, pipeline, architecture })} />
        </Card>
      ))}
    </>
  );
}
