/** Run page with a live timeline. */

import { useEffect, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { route as address, page } from "../api/base";
import { api, list, must } from "../api/client";
import { chosenAccount, isOperator } from "../api/session";
import type { RunEvent } from "../api/types";
import { credits, many, plain, shortId } from "../lib/format";
import "../styles/playground.css";
import { useActing, useLoaded } from "../ui/hooks";
import { Button, Card, Confirm, ErrorNote, Field, PageHead } from "../ui/parts";
import { Status } from "../ui/status";
import { inputOf } from "./agent";
import { Timeline } from "./timeline";
import { Waterfall } from "./waterfall";

const OVER = new Set(["completed", "failed", "cancelled"]);
const PAGE = 100;

export default function RunPage() {
  const { params } = useRoute();
  const { route } = useLocation();
  const agent = params.id ?? "";
  const id = params.run ?? "";
  const path = { path: { agent_id: agent, run_id: id } };
  const run = useLoaded(() => must(api.GET("/v1/agent/{agent_id}/runs/{run_id}", { params: path })), [agent, id]);
  const [isDeleting, setDeleting] = useState(false);
  const acting = useActing();
  const events = useEvents(agent, id, run.reload);

  const cancel = () =>
    acting.run(async () => {
      await must(api.POST("/v1/agent/{agent_id}/runs/{run_id}/cancel", { params: path }));
      run.reload();
    });
  const erase = () =>
    acting.run(async () => {
      await must(api.DELETE("/v1/agent/{agent_id}/runs/{run_id}", { params: path }));
      route(page(`agents/${agent}`));
    });
  const found = run.value;
  return (
    <>
      <PageHead title="Run" note={id}>
        {found && !OVER.has(found.status) && (
          <Button isBusy={acting.isBusy} onClick={() => void cancel()}>
            Cancel
          </Button>
        )}
        <Button kind="quiet" onClick={() => setDeleting(true)}>
          Delete
        </Button>
      </PageHead>
      <p>
        <a href={page(`agents/${agent}`)}>View agent</a>
      </p>
      <ErrorNote error={run.error ?? (isDeleting ? null : acting.error)} />
      {found && (
        <Card>
          <div class="row">
            <Status value={found.status} />
            <span class="grow">
              <bdi>{plain(inputOf(found), 2000)}</bdi>
            </span>
          </div>
          <p class="note">
            {many(found.usage.steps, "step")}, {many(found.usage.prompt_tokens, "input token")},{" "}
            {many(found.usage.completion_tokens, "output token")}, active for {found.usage.seconds.toFixed(1)} s
            {found.usage.microcredits > 0 && `, ${credits(found.usage.microcredits)} credits`}
          </p>
          {found.error && <p class="bad-text">{plain(found.error.message, 2000)}</p>}
          {found.required_action && (
            <Waiting
              calls={found.required_action.tool_calls.map((one) => [
                one.id,
                `${one.function.name} ${one.function.arguments}`,
              ])}
              onSend={(outputs) =>
                acting.run(async () => {
                  const body = { tool_outputs: outputs };
                  await must(api.POST("/v1/agent/{agent_id}/runs/{run_id}/tool-outputs", { params: path, body }));
                  run.reload();
                })
              }
            />
          )}
        </Card>
      )}
      <Card title="Steps">
        <p class="note">Durations of steps, with input and output tokens, and of tool calls.</p>
        <Waterfall events={events} />
      </Card>
      <Card title="Events">
        <Timeline events={events} />
      </Card>
      {isDeleting && (
        <Confirm
          title={`Delete run ${shortId(id)}?`}
          action="Delete run"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase()}
          onClose={() => setDeleting(false)}
        >
          <p>
            A run that is still active is stopped. Its input, {many(events.length, "event")}, output and encryption key
            are permanently erased. Its cost stays on the bill.
          </p>
        </Confirm>
      )}
    </>
  );
}

/** Loads and follows all events. Calls `changed` if the run's state may have changed. */
function useEvents(agent: string, id: string, changed: () => void): RunEvent[] {
  const [events, setEvents] = useState<RunEvent[]>([]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `changed` does the same.
  useEffect(() => {
    let source: EventSource | null = null;
    let isOver = false;
    setEvents([]);
    const path = `/v1/agent/${agent}/runs/${id}/events`;
    const add = (some: RunEvent[]) =>
      setEvents((known) => {
        const last = known.at(-1)?.sequence ?? -1;
        const fresh = some.filter((one) => one.sequence > last);
        return fresh.length > 0 ? [...known, ...fresh] : known;
      });

    async function read(after: string): Promise<string> {
      let last = after;
      for (;;) {
        const found = await list<RunEvent>(path, { limit: PAGE, order: "asc", ...(last ? { after: last } : {}) });
        add(found.data);
        last = found.data.at(-1)?.id ?? last;
        if (!found.has_more || isOver) return last;
      }
    }

    async function follow(): Promise<void> {
      const last = await read("");
      if (isOver) return;
      if (isOperator.value && chosenAccount.value) {
        // EventSource cannot send the account header.
        const timer = window.setInterval(() => void read(last).then(changed, () => undefined), 2000);
        stop = () => window.clearInterval(timer);
        return;
      }
      source = new EventSource(address(`${path}?after=${last || 0}`));
      const types = [
        "run.created",
        "step.started",
        "message.delta",
        "reasoning.delta",
        "message.completed",
        "tools.listed",
        "tool_call.started",
        "tool_call.completed",
        "run.requires_action",
        "run.resumed",
        "run.completed",
        "run.failed",
        "run.cancelled",
        "run.deleted",
      ];
      const heard = (event: Event) => {
        const found = JSON.parse((event as MessageEvent<string>).data) as RunEvent;
        if (typeof found.sequence === "number") add([found]);
        if (event.type.startsWith("run.") || event.type === "message.completed") changed();
        if (OVER.has(event.type.slice(4))) source?.close();
      };
      for (const type of types) source.addEventListener(type, heard);
      source.onmessage = heard;
    }

    let stop: () => void = () => undefined;
    follow().catch(() => undefined);
    return () => {
      isOver = true;
      stop();
      source?.close();
    };
  }, [agent, id]);
  return events;
}

interface WaitingProps {
  calls: [string, string][];
  onSend: (outputs: { tool_call_id: string; output: string }[]) => Promise<boolean>;
}

function Waiting({ calls, onSend }: WaitingProps) {
  const [outputs, setOutputs] = useState<Record<string, string>>({});
  return (
    <form
      class="stack warn-note"
      onSubmit={(event) => {
        event.preventDefault();
        void onSend(calls.map(([id]) => ({ tool_call_id: id, output: outputs[id] ?? "" })));
      }}
    >
      <p>
        <strong>Waiting for tool outputs.</strong>
      </p>
      {calls.map(([id, what]) => (
        <Field key={id} label={plain(what, 400)}>
          {(field) => (
            <textarea
              id={field}
              class="code"
              rows={2}
              value={outputs[id] ?? ""}
              onInput={(event) => setOutputs({ ...outputs, [id]: event.currentTarget.value })}
            />
          )}
        </Field>
      ))}
      <div class="actions">
        <Button kind="primary" type="submit">
          Send tool output
        </Button>
      </div>
    </form>
  );
}
