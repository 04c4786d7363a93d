/** Playground page for any model that the key can call. */

import { useLocation } from "preact-iso";
import { page } from "../api/base";
import { json } from "../api/client";
import { hasAccount } from "../api/session";
import type { Model } from "../api/types";
import { plain } from "../lib/format";
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

export default function Try() {
  const { query, route } = useLocation();
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
          <Field label="Model">
            {(id) => (
              <select
                id={id}
                value={chosen.id}
                onChange={(event) => route(page("try", { model: event.currentTarget.value }), true)}
              >
                {models.map((one) => (
                  <option key={one.id} value={one.id}>
                    {plain(one.id, 80)} ({one.pipeline})
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Playground key={chosen.id} model={chosen.id} pipeline={chosen.pipeline} />
        </>
      )}
    </>
  );
}
