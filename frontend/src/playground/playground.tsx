/** Playground of a model, with each of its endpoints. */

import { useState } from "preact/hooks";
import { deferred } from "../ui/deferred";
import { useLoaded } from "../ui/hooks";
import { Button, Card, Empty, ErrorNote, Skeleton } from "../ui/parts";
import "../styles/playground.css";
import { operationsOf, titleOf } from "./operations";
import { TaskPlayground } from "./task";

const Chat = deferred(() => import("./chat"));
const CHATS = "/v1/chat/completions";

export default function Playground({ model, pipeline }: { model: string; pipeline: string }) {
  const loaded = useLoaded(() => operationsOf(pipeline), [pipeline]);
  const [chosen, setChosen] = useState("");
  const operations = loaded.value;
  if (!operations) return loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={6} />;
  const operation = operations.find((one) => one.path === chosen) ?? operations[0];
  if (!operation) {
    return (
      <Card>
        <Empty title={`This server has no endpoint for ${pipeline}.`} />
      </Card>
    );
  }
  return (
    <>
      {operations.length > 1 && (
        <div class="segmented" role="group" aria-label="Endpoint">
          {operations.map((one) => (
            <Button key={one.path} class="small" aria-pressed={one === operation} onClick={() => setChosen(one.path)}>
              {titleOf(one)}
            </Button>
          ))}
        </div>
      )}
      {operation.path === CHATS ? (
        <Chat model={model} seesImages={pipeline === "image-text-to-text"} />
      ) : (
        <TaskPlayground key={operation.path} model={model} operation={operation} />
      )}
    </>
  );
}
