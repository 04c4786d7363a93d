/** Playground page for any model that the key can call. */

import { useId, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { json } from "../api/client";
import { hasAccount } from "../api/session";
import type { Model } from "../api/types";
import { deferred } from "../ui/deferred";
import { useLoaded } from "../ui/hooks";
import { Card, Empty, ErrorNote, Field, PageHead, Skeleton } from "../ui/parts";

const Playground = deferred(() => import("../playground/playground"));

/** Default model: a chat model, else a loaded model, else the first by name. */
function first(models: readonly Model[]): Model | undefined {
  const chats = models.filter((one) => one.pipeline === "text-generation");
  const loaded = models.filter((one) => one.status === "ready");
  return chats[0] ?? loaded[0] ?? models[0];
}

/** Model field with a list to search. It is empty while it has the focus, so that the list has all models. */
function Choice({ models, chosen }: { models: readonly Model[]; chosen: Model }) {
  const { route } = useLocation();
  const [text, setText] = useState<string | null>(null);
  const list = useId();
  return (
    <Field label="Model" hint={`${chosen.pipeline}. Type to search ${models.length} models.`}>
      {(id, hint) => (
        <>
          <input
            id={id}
            type="text"
            aria-describedby={hint}
            list={list}
            autocomplete="off"
            spellcheck={false}
            placeholder={chosen.id}
            value={text ?? chosen.id}
            onFocus={() => setText("")}
            onBlur={() => setText(null)}
            onInput={(event) => setText(event.currentTarget.value)}
            onChange={(event) => {
              const model = event.currentTarget.value.trim();
              if (!models.some((one) => one.id === model)) return;
              event.currentTarget.blur();
              route(page("try", { model }), true);
            }}
          />
          <datalist id={list}>
            {models.map((one) => (
              <option key={one.id} value={one.id}>
                {one.pipeline}
              </option>
            ))}
          </datalist>
        </>
      )}
    </Field>
  );
}

export default function Try() {
  const { query } = useLocation();
  const loaded = useLoaded(() => json<{ data: Model[] }>("/v1/models"), []);
  const models = [...(loaded.value?.data ?? [])].sort((a, b) => a.id.localeCompare(b.id));
  const chosen = models.find((one) => one.id === query.model) ?? first(models);
  return (
    <>
      <PageHead title="Playground" />
      <ErrorNote error={loaded.error} />
      {!loaded.value && !loaded.error && <Skeleton rows={6} />}
      {loaded.value && !chosen && (
        <Card>
          <Empty title="No models to try yet.">
            {hasAccount.value && (
              <a class="button primary" href={page("artifacts")}>
                Add a model
              </a>
            )}
          </Empty>
        </Card>
      )}
      {chosen && (
        <>
          <Choice models={models} chosen={chosen} />
          <Playground key={chosen.id} model={chosen.id} pipeline={chosen.pipeline} />
        </>
      )}
    </>
  );
}
