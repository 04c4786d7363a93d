/** Checks of a deployment: requests with expected answers. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { ChecksUpdate, Deployment, Checks as Kept } from "../../api/types";
import { moment, ms, plain } from "../../lib/format";
import { useActing, useLoaded } from "../../ui/hooks";
import { Button, Card, Empty, ErrorNote, Field, Skeleton } from "../../ui/parts";

type Check = Kept["checks"][number];

const EXAMPLE = `[
  {
    "name": "finds the city",
    "request": {"inputs": "Siemens is in Berlin."},
    "expect": {"contains": "Berlin"}
  }
]`;

function parsed(text: string): Check[] {
  try {
    const found: unknown = JSON.parse(text || "[]");
    if (Array.isArray(found)) return found as Check[];
  } catch {
    // Reported below.
  }
  throw new ApiError("Checks must be a JSON list.", -1, "page");
}

export default function Checks({ deployment }: { deployment: Deployment }) {
  const params = { path: { deployment_id: deployment.id } };
  const loaded = useLoaded(() => must(api.GET("/v1/deployments/{deployment_id}/checks", { params })), [deployment.id]);
  const [text, setText] = useState<string>();
  const keeping = useActing();
  const running = useActing();
  const kept = loaded.value;
  if (!kept) return loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={4} />;
  const edited = text ?? (kept.checks.length ? JSON.stringify(kept.checks, null, 2) : "");

  const keep = () =>
    keeping.run(async () => {
      const body = { checks: parsed(edited) } as unknown as ChecksUpdate;
      await must(api.PUT("/v1/deployments/{deployment_id}/checks", { params, body }));
      setText(undefined);
      loaded.reload();
    });
  const ask = () =>
    running.run(async () => {
      await must(api.POST("/v1/deployments/{deployment_id}/checks/run", { params }));
      loaded.reload();
    });

  return (
    <>
      <Card
        title="Last report"
        actions={
          <Button kind="primary" isBusy={running.isBusy} disabled={kept.checks.length === 0} onClick={() => void ask()}>
            Run checks
          </Button>
        }
      >
        <ErrorNote error={running.error} />
        {kept.report ? (
          <>
            <p>
              <strong class={kept.report.is_passed ? "" : "bad-text"}>
                {kept.report.is_passed
                  ? `${kept.report.results.length} of ${kept.report.results.length} checks passed`
                  : `${kept.report.results.filter((one) => !one.is_passed).length} of ${kept.report.results.length} checks failed`}
              </strong>{" "}
              <span class="note">{moment(kept.report.created_at)}</span>
            </p>
            <div class="table-wrap" tabIndex={0} role="region" aria-label="Results">
              <table>
                <thead>
                  <tr>
                    <th scope="col">Check</th>
                    <th scope="col">Result</th>
                    <th scope="col" class="number">
                      Duration
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {kept.report.results.map((one) => (
                    <tr key={one.name}>
                      <td>{plain(one.name)}</td>
                      <td class={one.is_passed ? "" : "bad-text"}>
                        {one.is_passed ? "passed" : plain(one.message, 1000)}
                      </td>
                      <td class="number">{ms(one.ms)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </>
        ) : (
          <Empty title={kept.checks.length ? "Checks have not run yet." : "No checks yet."}>
            <p>Each new version must pass these checks before it goes live.</p>
          </Empty>
        )}
      </Card>
      <Card title="Checks">
        <Field
          label="Checks (JSON)"
          hint="request: a body for the deployment's first endpoint, without model. expect: equal, top_label, contains, cosine_min, json_schema or status."
        >
          {(id, hint) => (
            <textarea
              id={id}
              class="code"
              rows={14}
              spellcheck={false}
              placeholder={EXAMPLE}
              aria-describedby={hint}
              value={edited}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          )}
        </Field>
        <ErrorNote error={keeping.error} />
        <div class="actions">
          <Button kind="primary" isBusy={keeping.isBusy} disabled={text === undefined} onClick={() => void keep()}>
            Save
          </Button>
          {!edited && <Button onClick={() => setText(EXAMPLE)}>Insert example</Button>}
        </div>
      </Card>
    </>
  );
}
