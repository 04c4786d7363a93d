import { useState } from "preact/hooks";
import { api, must } from "../api/client";
import { chosenAccount, isOperator } from "../api/session";
import type { KeyCreate, KeyWithSecret } from "../api/types";
import { count, plain } from "../lib/format";
import { store } from "../state/store";
import { useSeek } from "../ui/find";
import { useActing } from "../ui/hooks";
import { Button, Dialog, ErrorNote, Field } from "../ui/parts";

const DAYS: [string, string][] = [
  ["", "never"],
  ["1", "in 1 day"],
  ["30", "in 30 days"],
  ["90", "in 90 days"],
  ["365", "in 1 year"],
];
const DAY_MS = 86_400_000;
const MOST_LISTED = 100;

interface Props {
  scopes: string[];
  onClose: () => void;
  onMade: (key: KeyWithSecret) => void;
}

export function NewKey({ scopes, onClose, onMade }: Props) {
  const [scope, setScope] = useState(scopes[0] ?? "account");
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);
  const [days, setDays] = useState("");
  const [requests, setRequests] = useState("");
  const [tokens, setTokens] = useState("");
  const [priority, setPriority] = useState("");
  const acting = useActing();

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await acting.run(async () => {
      const body: KeyCreate = { scope: scope as NonNullable<KeyCreate["scope"]> };
      if (name.trim()) body.name = name.trim();
      if (scope === "deployment") body.deployment_ids = chosen;
      if (isOperator.value && scope !== "operator" && chosenAccount.value) body.account_id = chosenAccount.value;
      if (days) body.expires_at = new Date(Date.now() + Number(days) * DAY_MS).toISOString();
      if (requests) body.requests_per_minute = Number(requests);
      if (tokens) body.tokens_per_minute = Number(tokens);
      if (priority) body.may_prioritize = true;
      onMade(await must(api.POST("/v1/api-keys", { body })));
    });
  }

  return (
    <Dialog title="New key" onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <Field label="Name" hint="Who or what uses the key.">
          {(id, hint) => (
            <input
              id={id}
              type="text"
              maxLength={128}
              aria-describedby={hint}
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Access">
          {(id) => (
            <select id={id} value={scope} onChange={(event) => setScope(event.currentTarget.value)}>
              {scopes.map((one) => (
                <option key={one} value={one}>
                  {{ deployment: "Selected deployments", account: "Full account", operator: "All accounts" }[one]}
                </option>
              ))}
            </select>
          )}
        </Field>
        {scope === "deployment" && <Deployments chosen={chosen} onChange={setChosen} />}
        <div class="fields">
          <Field label="Expires">
            {(id) => (
              <select id={id} value={days} onChange={(event) => setDays(event.currentTarget.value)}>
                {DAYS.map(([value, words]) => (
                  <option key={value} value={value}>
                    {words}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Requests per minute">
            {(id) => (
              <input
                id={id}
                type="number"
                min={1}
                max={10_000_000}
                placeholder="no limit"
                value={requests}
                onInput={(event) => setRequests(event.currentTarget.value)}
              />
            )}
          </Field>
          <Field label="Tokens per minute">
            {(id) => (
              <input
                id={id}
                type="number"
                min={1}
                max={1_000_000_000}
                placeholder="no limit"
                value={tokens}
                onInput={(event) => setTokens(event.currentTarget.value)}
              />
            )}
          </Field>
          <Field label="Priority calls">
            {(id) => (
              <select id={id} value={priority} onChange={(event) => setPriority(event.currentTarget.value)}>
                <option value="">Not allowed</option>
                <option value="allowed">Allowed</option>
              </select>
            )}
          </Field>
        </div>
        <ErrorNote error={acting.error} />
        <div class="actions end">
          <Button
            kind="primary"
            type="submit"
            isBusy={acting.isBusy}
            disabled={scope === "deployment" && chosen.length === 0}
          >
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** Searchable list of deployments. Selected ones stay in it. */
function Deployments({ chosen, onChange }: { chosen: string[]; onChange: (chosen: string[]) => void }) {
  const [text, setText] = useState("");
  useSeek(text);
  const search = text.trim().toLowerCase();
  const found = store.listed.value.filter(
    (one) => chosen.includes(one.id) || `${one.model} ${one.pipeline}`.toLowerCase().includes(search),
  );
  return (
    <fieldset class="stack">
      <legend>Deployments</legend>
      <input
        type="search"
        maxLength={128}
        placeholder="Search"
        aria-label="Search deployments by model or task"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <div class="choices">
        {found.slice(0, MOST_LISTED).map((one) => (
          <label key={one.id} class="check">
            <input
              type="checkbox"
              checked={chosen.includes(one.id)}
              onChange={(event) =>
                onChange(event.currentTarget.checked ? [...chosen, one.id] : chosen.filter((id) => id !== one.id))
              }
            />
            <bdi>{plain(one.model, 80)}</bdi>
          </label>
        ))}
        {found.length === 0 && <p class="note">No matches.</p>}
      </div>
      <p class="hint">
        {count(chosen.length)} selected.
        {found.length > MOST_LISTED && ` Showing ${MOST_LISTED} of ${count(found.length)}. Search to see others.`}
      </p>
    </fieldset>
  );
}
