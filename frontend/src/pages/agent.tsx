/** Agent page: the agent and its runs. */

import { useEffect, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Run } from "../api/types";
import { ago, many, plain } from "../lib/format";
import { onChange } from "../state/events";
import { useActing, useLoaded } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Confirm, Empty, ErrorNote, Field, PageHead } from "../ui/parts";
import { Status } from "../ui/status";
import { AgentForm } from "./agent-form";

export function inputOf(run: Run): string {
  if (typeof run.input === "string") return run.input;
  const last = run.input.at(-1)?.content;
  return typeof last === "string" ? last : `${run.input.length} messages`;
}

export default function AgentPage() {
  const { params } = useRoute();
  const { route } = useLocation();
  const id = params.id ?? "";
  const path = { path: { agent_id: id } };
  const agent = useLoaded(() => must(api.GET("/v1/agent/{agent_id}", { params: path })), [id]);
  const runs = usePaged<Run>(`/v1/agent/${id}/runs`);
  const [input, setInput] = useState("");
  const [isDeleting, setDeleting] = useState(false);
  const [isEditing, setEditing] = useState(false);
  const asking = useActing();
  const erasing = useActing();
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `reload` does the same.
  useEffect(
    () =>
      onChange((changed) => {
        if (changed.type === "run.deleted" || (changed.type === "run" && changed.object.agent_id === id)) runs.reload();
      }),
    [id],
  );

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await asking.run(async () => {
      const run = await must(api.POST("/v1/agent/{agent_id}/runs", { params: path, body: { input } }));
      route(page(`agents/${id}/runs/${run.id}`));
    });
  }
  const erase = () =>
    erasing.run(async () => {
      await must(api.DELETE("/v1/agent/{agent_id}", { params: path }));
      route(page("agents"));
    });
  const found = agent.value;
  return (
    <>
      <PageHead title={found?.name ?? "Agent"} note={found && plain(found.model, 80)}>
        <Button disabled={!found} onClick={() => setEditing(true)}>
          Edit
        </Button>
        <Button kind="quiet" onClick={() => setDeleting(true)}>
          Delete
        </Button>
      </PageHead>
      <ErrorNote error={agent.error} />
      {found && (
        <Card title="Instructions">
          <p class="message-text">{plain(found.instructions ?? "No instructions.", 20_000)}</p>
          <p class="note">
            Tools: {found.tools.map((one) => toolName(one)).join(", ") || "none"}. Max steps: {found.max_steps}.
          </p>
        </Card>
      )}
      <Card title="New run">
        <form class="stack" onSubmit={(event) => void submit(event)}>
          <Field label="Input">
            {(id) => (
              <textarea
                id={id}
                rows={3}
                required
                value={input}
                onInput={(event) => setInput(event.currentTarget.value)}
              />
            )}
          </Field>
          <ErrorNote error={asking.error} />
          <div class="actions">
            <Button kind="primary" type="submit" isBusy={asking.isBusy} disabled={!input.trim()}>
              Run
            </Button>
          </div>
        </form>
      </Card>
      <Card title="Runs">
        {runs.frame(
          <ul class="events">
            {runs.rows?.map((one) => (
              <li key={one.id}>
                <Status value={one.status} />
                <a class="grow" href={page(`agents/${id}/runs/${one.id}`)}>
                  <bdi>{plain(inputOf(one), 120)}</bdi>
                </a>
                <span class="note">
                  {many(one.usage.steps, "step")}, {many(one.usage.total_tokens, "token")},{" "}
                  {one.usage.seconds.toFixed(1)} s, {ago(one.created_at)}
                </span>
              </li>
            ))}
          </ul>,
          <Empty title="No runs yet." />,
        )}
      </Card>
      {isEditing && found && (
        <AgentForm
          agent={found}
          onClose={() => setEditing(false)}
          onDone={() => {
            setEditing(false);
            agent.reload();
          }}
        />
      )}
      {isDeleting && (
        <Confirm
          title={`Delete ${plain(found?.name ?? "this agent", 64)}?`}
          action="Delete agent"
          isBusy={erasing.isBusy}
          error={erasing.error}
          onYes={() => void erase()}
          onClose={() => setDeleting(false)}
        >
          <p>
            This stops all runs of the agent and erases their inputs, events and outputs. Their cost stays on the bill.
          </p>
        </Confirm>
      )}
    </>
  );
}

function toolName(tool: Record<string, unknown>): string {
  const name = (tool.function as { name?: string } | undefined)?.name ?? tool.server_label;
  return plain(String(name ?? tool.type), 64);
}
