/** Checks of a deployment: requests with expected answers. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import type { ChecksUpdate, Deployment, Checks as Kept } from "../../api/types";
import { moment, ms, plain } from "../../lib/format";
import { listOf } from "../../lib/json-list";
import { useActing, useLoaded } from "../../ui/hooks";
import { Button, Card, Empty, ErrorNote, Field, Skeleton } from "../../ui/parts";
import { Table } from "../../ui/table";
import { exampleCheck, hasExample, written } from "./example-check";

type Check = Kept["checks"][number];

export default function Checks({ deployment }: { deployment: Deployment }) {
  const params = { path: { deployment_id: deployment.id } };
  const loaded = useLoaded(() => must(api.GET("/v1/deployments/{deployment_id}/checks", { params })), [deployment.id]);
  const [text, setText] = useState<string>();
  const keeping = useActing();
  const running = useActing();
  const adding = useActing();
  const kept = loaded.value;
  if (!kept) return loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={4} />;
  const edited = text ?? (kept.checks.length ? written(kept.checks) : "");

  const keep = () =>
    keeping.run(async () => {
      const body = { checks: listOf(edited, "The checks") } as unknown as ChecksUpdate;
      await must(api.PUT("/v1/deployments/{deployment_id}/checks", { params, body }));
      setText(undefined);
      loaded.reload();
    });
  const add = () =>
    adding.run(async () => {
      const checks = listOf(edited, "The checks");
      const names = checks.map((one) => String((one as Partial<Check> | null)?.name));
      setText(written([...checks, await exampleCheck(deployment, names)]));
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
            <Table
              label="Results"
              rows={kept.report.results}
              keyOf={(one) => one.name}
              columns={[
                { name: "Check", cell: (one) => plain(one.name) },
                {
                  name: "Result",
                  cell: (one) => (
                    <span class={one.is_passed ? "" : "bad-text"}>
                      {one.is_passed ? "passed" : plain(one.message, 1000)}
                    </span>
                  ),
                },
                { name: "Duration", isNumber: true, cell: (one) => ms(one.ms) },
              ]}
            />
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
              aria-describedby={hint}
              value={edited}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          )}
        </Field>
        <ErrorNote error={keeping.error ?? adding.error} />
        <div class="actions">
          <Button kind="primary" isBusy={keeping.isBusy} disabled={text === undefined} onClick={() => void keep()}>
            Save
          </Button>
          {hasExample(deployment.pipeline) && (
            <>
              <Button isBusy={adding.isBusy} onClick={() => void add()}>
                Add example
              </Button>
              <span class="note">This calls the model once and expects the same answer.</span>
            </>
          )}
        </div>
      </Card>
    </>
  );
}
