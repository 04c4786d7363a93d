import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import type { Agent } from "../api/types";
import { ago, plain } from "../lib/format";
import { usePaged } from "../ui/paged";
import { Button, Card, Empty, Name, PageHead } from "../ui/parts";
import { Table } from "../ui/table";
import { AgentForm } from "./agent-form";

export default function Agents() {
  const { route } = useLocation();
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
      {isMaking && <AgentForm onClose={() => setMaking(false)} onDone={(made) => route(page(`agents/${made.id}`))} />}
    </>
  );
}
