import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Agent } from "../api/types";
import { ago, plain } from "../lib/format";
import { store } from "../state/store";
import { Find } from "../ui/find";
import { useActing } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Dialog, Empty, ErrorNote, Field, Name, PageHead } from "../ui/parts";
import { Table } from "../ui/table";

const SPEAKING = new Set(["text-generation", "image-text-to-text"]);

export default function Agents() {
  const agents = usePaged<Agent>("/v1/agent");
  const [isMaking, setMaking] = useState(false);
  return (
    <>
      <PageHead title="Agents" note="Language models that work in steps and use tools.">
        <Button kind="primary" onClick={() => setMaking(true)}>
          New agent
        </Button>
      </PageHead>
      <Card>
        {agents.frame(
          <Table
            label="Agents"
            rows={agents.rows}
            keyOf={(one) => one.id}
            columns={[
              {
                name: "Name",
                cell: (one) => (
                  <a href={page(`agents/${one.id}`)}>
                    <Name text={one.name} />
                  </a>
                ),
              },
              { name: "Model", cell: (one) => plain(one.model, 80) },
              { name: "Tools", isNumber: true, cell: (one) => one.tools.length },
              { name: "Updated", cell: (one) => ago(one.updated_at) },
            ]}
          />,
          <Empty title="No agents yet.">
            <p>An agent is a deployed language model with instructions and tools.</p>
            <Button kind="primary" onClick={() => setMaking(true)}>
              New agent
            </Button>
          </Empty>,
        )}
      </Card>
      {isMaking && <NewAgent onClose={() => setMaking(false)} />}
    </>
  );
}

function NewAgent({ onClose }: { onClose: () => void }) {
  const { route } = useLocation();
  const models = store.listed.value.filter((one) => SPEAKING.has(one.pipeline));
  const [name, setName] = useState("");
  const [model, setModel] = useState(models[0]?.model ?? "");
  const [instructions, setInstructions] = useState("");
  const acting = useActing();
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await acting.run(async () => {
      const body = { name: name.trim(), model, ...(instructions ? { instructions } : {}) };
      const made = await must(api.POST("/v1/agent", { body }));
      route(page(`agents/${made.id}`));
    });
  }
  return (
    <Dialog title="New agent" onClose={onClose}>
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
                  <option key={one.id}>{one.model}</option>
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
        <p class="note">Add tools with the API or the command line.</p>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button kind="primary" type="submit" isBusy={acting.isBusy} disabled={!name.trim() || !model}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
