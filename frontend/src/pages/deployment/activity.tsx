/** Events and replica logs of a deployment. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, must } from "../../api/client";
import type { Deployment, DeploymentEvent } from "../../api/types";
import { ago, moment, plain } from "../../lib/format";
import { store } from "../../state/store";
import { useEvery, useLoaded } from "../../ui/hooks";
import { usePaged } from "../../ui/paged";
import { Button, Card, CopyButton, Empty, ErrorNote } from "../../ui/parts";
import { Status } from "../../ui/status";

const TAIL = 500;
const FOLLOW_MS = 1_500;
/** Maximum characters shown of a log line. */
const MOST_OF_A_LINE = 4_000;

export default function Activity({ deployment }: { deployment: Deployment }) {
  return (
    <>
      <Logs deployment={deployment} />
      <Events deployment={deployment} />
    </>
  );
}

function Events({ deployment }: { deployment: Deployment }) {
  const heard = store.notices.value.find((one) => one.deployment_id === deployment.id)?.created_at;
  const events = usePaged<DeploymentEvent>(`/v1/deployments/${deployment.id}/events`, [heard]);
  return (
    <Card title="Events">
      {events.frame(
        <ol class="events">
          {events.rows?.map((one) => (
            <li key={one.id}>
              <time dateTime={one.created_at} title={ago(one.created_at)}>
                {moment(one.created_at)}
              </time>
              <Status value={one.status} />
              <span class="grow">{plain(one.message, 1000)}</span>
              <span class="note">{one.reason}</span>
            </li>
          ))}
        </ol>,
        <Empty title="No events yet." />,
      )}
    </Card>
  );
}

function Logs({ deployment }: { deployment: Deployment }) {
  const [isFollowed, setFollowed] = useState(true);
  const [wanted, setWanted] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const loaded = useLoaded(async () => {
    const params = { path: { deployment_id: deployment.id }, query: { tail: TAIL } };
    return (await must(api.GET("/v1/deployments/{deployment_id}/logs", { params }))).data;
  }, [deployment.id]);
  useEvery(FOLLOW_MS, loaded.reload, isFollowed);

  const sought = wanted.trim().toLowerCase();
  const lines = useMemo(
    () => (loaded.value ?? []).filter((line) => !sought || line.toLowerCase().includes(sought)),
    [loaded.value, sought],
  );
  useEffect(() => {
    if (isFollowed && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines.length, lines.at(-1), isFollowed]);

  return (
    <Card
      title="Logs"
      actions={
        <>
          <input
            type="search"
            class="small"
            aria-label="Filter logs"
            placeholder="Filter"
            value={wanted}
            onInput={(event) => setWanted(event.currentTarget.value)}
          />
          <Button class="small" aria-pressed={!isFollowed} onClick={() => setFollowed(!isFollowed)}>
            {isFollowed ? "Pause" : "Follow"}
          </Button>
          <CopyButton text={lines.join("\n")} />
        </>
      }
    >
      <ErrorNote error={loaded.error} />
      <pre ref={box} class="code-block logs" tabIndex={0} aria-label="Replica logs">
        {lines.map((line) => plain(line, MOST_OF_A_LINE)).join("\n") ||
          (sought ? "No matching lines." : "No logs yet.")}
      </pre>
    </Card>
  );
}
