/** Dialog that creates or changes an agent. */

import { useState } from "preact/hooks";
import { api, must } from "../api/client";
import type { Agent, AgentTools } from "../api/types";
import { listOf } from "../lib/json-list";
import { store } from "../state/store";
import { Find } from "../ui/find";
import { useActing } from "../ui/hooks";
import { Button, Dialog, ErrorNote, Field } from "../ui/parts";

const SPEAKING = new Set(["text-generation", "image-text-to-text"]);
const MAX_STEPS = 1000;
const DEFAULT_STEPS = 16;
const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Returns the weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

interface Props {
  /** Absent: a new agent. */
  agent?: Agent;
  onClose: () => void;
  onDone: (agent: Agent) => void;
}

export function AgentForm({ agent, onClose, onDone }: Props) {
  const models = store.listed.value.filter((one) => SPEAKING.has(one.pipeline)).map((one) => one.model);
  if (agent && !models.includes(agent.model)) models.unshift(agent.model);
  const known = agent?.tools.length ? JSON.stringify(agent.tools, null, 2) : "";
  const [name, setName] = useState(agent?.name ?? "");
  const [model, setModel] = useState(agent?.model ?? models[0] ?? "");
  const [instructions, setInstructions] = useState(agent?.instructions ?? "");
  const [steps, setSteps] = useState(agent?.max_steps ?? DEFAULT_STEPS);
  const [tools, setTools] = useState(known);
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await acting.run(async () => {
      const body = {
        name: name.trim(),
        model,
        instructions: instructions || null,
        max_steps: steps,
        // Secret headers of tool servers are masked: only a changed list is sent.
        ...(tools === known ? {} : { tools: listOf(tools, "The tools") as AgentTools }),
      };
      const params = { path: { agent_id: agent?.id ?? "" } };
      onDone(await must(agent ? api.PATCH("/v1/agent/{agent_id}", { params, body }) : api.POST("/v1/agent", { body })));
    });
  }
  return (
    <Dialog title={agent ? "Edit agent" : "New agent"} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="Name">
          {(id) => (
            <input
              id={id}
              type="text"
              required
              maxLength={128}
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Model">
          {(id) => (
            <>
              <Find />
              <select id={id} required value={model} onChange={(event) => setModel(event.currentTarget.value)}>
                {models.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            </>
          )}
        </Field>
        <Field label="Instructions">
          {(id) => (
            <textarea
              id={id}
              rows={4}
              value={instructions}
              onInput={(event) => setInstructions(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Max steps">
          {(id) => (
            <input
              id={id}
              type="number"
              min={1}
              max={MAX_STEPS}
              required
              value={steps}
              onInput={(event) => setSteps(Number(event.currentTarget.value))}
            />
          )}
        </Field>
        <Field
          label="Tools (JSON)"
          hint="function: the run waits for an output that you send. mcp: a tool server with server_label and server_url."
        >
          {(id, hint) => (
            <textarea
              id={id}
              class="code"
              rows={tools ? 10 : 3}
              spellcheck={false}
              aria-describedby={hint}
              value={tools}
              onInput={(event) => setTools(event.currentTarget.value)}
            />
          )}
        </Field>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          {!tools && (
            <Button kind="quiet" onClick={() => setTools(JSON.stringify(EXAMPLE, null, 2))}>
              Insert example tool
            </Button>
          )}
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!name.trim() || !model}>
            {agent ? "Save" : "Create"}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
