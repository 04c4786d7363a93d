/** Past, current and planned versions of a deployment. */

import { useState } from "preact/hooks";
import { page } from "../../api/base";
import { api, must } from "../../api/client";
import type { Deployment, Version } from "../../api/types";
import { ago, bytes, moment, plain } from "../../lib/format";
import { useActing, useEvery } from "../../ui/hooks";
import { usePaged } from "../../ui/paged";
import { Bar, Button, Card, Confirm, Empty, ErrorNote } from "../../ui/parts";
import { Status } from "../../ui/status";
import { AddVersion } from "./add-version";
import { Traffic } from "./traffic";

const UNDER_WAY = new Set(["preparing", "checking"]);

export default function Versions({ deployment }: { deployment: Deployment }) {
  const [isAdding, setAdding] = useState(false);
  const [erased, setErased] = useState<Version | null>(null);
  const versions = usePaged<Version>(`/v1/deployments/${deployment.id}/versions`, [
    deployment.version_id,
    deployment.updated_at,
  ]);
  const acting = useActing();
  const rows = versions.rows ?? [];
  useEvery(
    1_500,
    versions.reload,
    rows.some((one) => UNDER_WAY.has(one.status)),
  );

  const path = (version: Version) => ({
    params: { path: { deployment_id: deployment.id, version_id: version.id } },
  });
  const promote = (version: Version) =>
    acting.run(async () => {
      await must(api.POST("/v1/deployments/{deployment_id}/versions/{version_id}/promote", path(version)));
      versions.reload();
    });
  const rollBack = () =>
    acting.run(async () => {
      const params = { path: { deployment_id: deployment.id } };
      await must(api.POST("/v1/deployments/{deployment_id}/rollback", { params, body: {} }));
      versions.reload();
    });
  const erase = (version: Version) =>
    acting.run(async () => {
      await must(api.DELETE("/v1/deployments/{deployment_id}/versions/{version_id}", path(version)));
      setErased(null);
      versions.reload();
    });
  const mayRollBack = rows.some((one) => one.status === "retired");

  return (
    <>
      <Card
        title="Versions"
        actions={
          <>
            <Button disabled={!mayRollBack} isBusy={acting.isBusy} onClick={() => void rollBack()}>
              Roll back
            </Button>
            <Button kind="primary" onClick={() => setAdding(true)}>
              New version
            </Button>
          </>
        }
      >
        {!erased && <ErrorNote error={acting.error} />}
        {versions.frame(
          <ol class="version-list">
            {rows.map((one) => (
              <Row
                key={one.id}
                version={one}
                isLive={one.id === deployment.version_id}
                onPromote={() => void promote(one)}
                onErase={() => setErased(one)}
              />
            ))}
          </ol>,
          <Empty title="No versions yet." />,
        )}
      </Card>
      {rows.length > 1 && <Traffic deployment={deployment} versions={rows} />}
      {isAdding && <AddVersion deployment={deployment} onClose={() => setAdding(false)} onDone={versions.reload} />}
      {erased && (
        <Confirm
          title={`Delete version ${erased.number}?`}
          action="Delete version"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase(erased)}
          onClose={() => setErased(null)}
        >
          <p>This cannot be undone. The version's artifact is kept.</p>
        </Confirm>
      )}
    </>
  );
}

function Row(props: { version: Version; isLive: boolean; onPromote: () => void; onErase: () => void }) {
  const { version, isLive } = props;
  const runs = [version.engine, version.dtype, version.device].filter((one) => one !== "auto").join(" · ");
  return (
    <li>
      <div class="row">
        <strong>Version {version.number}</strong>
        <Status value={version.status} />
        <span class="note">{version.is_loaded ? "loaded" : "not loaded"}</span>
        <span class="grow" />
        {!isLive && version.status !== "failed" && !UNDER_WAY.has(version.status) && (
          <Button class="small" onClick={props.onPromote}>
            Promote
          </Button>
        )}
        {!isLive && !UNDER_WAY.has(version.status) && (
          <Button kind="quiet" class="small" onClick={props.onErase}>
            Delete
          </Button>
        )}
      </div>
      {UNDER_WAY.has(version.status) && <Bar value={version.progress} label={`Version ${version.number}`} />}
      {version.message && (
        <p class={version.status === "failed" ? "bad-text" : "note"}>{plain(version.message, 2000)}</p>
      )}
      <p class="note">
        {runs || "default settings"} ·{" "}
        {version.artifact_id ? (
          <a href={page(`artifacts/${version.artifact_id}`)}>{version.artifact_id}</a>
        ) : (
          plain(version.source ?? "")
        )}{" "}
        · needs {bytes(version.memory.bytes)} ·{" "}
        <span title={moment(version.created_at)}>{ago(version.created_at)}</span>
      </p>
      {version.note && <p>{plain(version.note, 1024)}</p>}
    </li>
  );
}
