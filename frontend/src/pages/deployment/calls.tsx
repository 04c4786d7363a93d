/** Calls to copy, for each endpoint that serves the model. */

import { page } from "../../api/base";
import type { Deployment } from "../../api/types";
import { exampleOf, operationsOf } from "../../playground/operations";
import { CallTabs } from "../../ui/calls";
import { useLoaded } from "../../ui/hooks";
import { Card, ErrorNote, Skeleton } from "../../ui/parts";

export default function Calls({ deployment }: { deployment: Deployment }) {
  const loaded = useLoaded(() => operationsOf(deployment.pipeline), [deployment.pipeline]);
  if (!loaded.value) return loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={6} />;
  return (
    <>
      <p class="note">
        Give whoever calls a key of its own, for this deployment alone: <a href={page("keys")}>make one</a>, and put it
        into <code>STOKER_API_KEY</code>.
      </p>
      {loaded.value.map((operation) => (
        <Card key={operation.path} title={`${operation.summary}: POST ${operation.path}`}>
          <CallTabs call={exampleOf(operation, deployment.model)} />
        </Card>
      ))}
    </>
  );
}
