/** Machine page: memory, engines and replicas. */

import { page } from "../api/base";
import { json } from "../api/client";
import { session } from "../api/session";
import type { Machine as Found } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { useEvery, useLoaded } from "../ui/hooks";
import { deviceWords, MemoryWords, Waiting } from "../ui/memory";
import { Card, Empty, ErrorNote, PageHead, Share, Skeleton } from "../ui/parts";
import { Status } from "../ui/status";

const MOST = 500;

export default function Machine() {
  const loaded = useLoaded(() => json<Found>("/v1/machine"), []);
  useEvery(3_000, loaded.reload);
  const found = loaded.value;
  return (
    <>
      <PageHead title="Machine" note={found && `${plain(found.processor, 80)}, ${found.cores} cores`} />
      <ErrorNote error={loaded.error} />
      {!found && !loaded.error && <Skeleton rows={6} />}
      {found && (
        <>
          <Card title="Memory">
            <Share value={found.memory.used_bytes / Math.max(1, found.memory.budget_bytes)} kind="tall" />
            <p>
              <MemoryWords memory={found.memory} />
            </p>
            {found.waiting.length > 0 && <Waiting waiting={found.waiting} />}
          </Card>
          {(found.devices.length > 0 || found.device_problem) && (
            <Card title="GPUs">
              <ul class="events">
                {found.devices.map((one) => (
                  <li key={one.index}>
                    <strong>cuda:{one.index}</strong>
                    <span class="grow note">{plain(deviceWords(one), 300)}</span>
                  </li>
                ))}
                {found.device_problem && <li class="bad-text">{plain(found.device_problem, 300)}</li>}
              </ul>
            </Card>
          )}
          <Card title="Engines">
            <ul class="events">
              {found.engines.map((one) => (
                <li key={one.engine}>
                  <strong>{plain(one.engine, 40)}</strong>
                  <span class={one.available ? "good-text" : "note"}>
                    {one.available ? "available" : "not available"}
                  </span>
                  <span class="grow note">{plain(one.detail ?? "", 300)}</span>
                </li>
              ))}
            </ul>
          </Card>
          <Card title="Replicas">
            {found.replicas.length === 0 ? (
              <Empty title="No models are loaded." />
            ) : (
              <div class="table-wrap" tabIndex={0} role="region" aria-label="Replicas">
                <table>
                  <thead>
                    <tr>
                      <th scope="col">Model</th>
                      {session.value?.scope === "operator" && <th scope="col">Account</th>}
                      <th scope="col">Status</th>
                      <th scope="col">Engine</th>
                      <th scope="col">Device</th>
                      <th scope="col" class="number">
                        Memory
                      </th>
                      <th scope="col" class="number">
                        GPU memory
                      </th>
                      <th scope="col">Started</th>
                    </tr>
                  </thead>
                  <tbody>
                    {found.replicas.slice(0, MOST).map((one, index) => (
                      <tr key={`${one.deployment_id}${index}`}>
                        <td>
                          <a href={page(`deployments/${one.deployment_id}`)}>
                            <bdi>{plain(one.model, 80)}</bdi>
                          </a>
                        </td>
                        {session.value?.scope === "operator" && <td>{one.account_id}</td>}
                        <td>
                          <Status value={one.status} />
                        </td>
                        <td>{plain(one.engine || "–", 40)}</td>
                        <td>{plain(one.device || "–", 40)}</td>
                        <td class="number">{bytes(one.memory_bytes)}</td>
                        <td class="number">{bytes(one.device_bytes)}</td>
                        <td>{ago(one.started_at)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
          </Card>
        </>
      )}
    </>
  );
}
