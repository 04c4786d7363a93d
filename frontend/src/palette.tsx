/** Command palette (Ctrl-K) for pages, deployments and actions. */

import { computed, signal } from "@preact/signals";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page, route } from "./api/base";
import { list } from "./api/client";
import { hasAccount, session, signOut } from "./api/session";
import type { Artifact, Key } from "./api/types";
import { plain } from "./lib/format";
import { type Findable, found } from "./lib/matching";
import { places } from "./places";
import { store } from "./state/store";
import { next } from "./state/theme";
import { useSeek } from "./ui/find";
import { useLoaded } from "./ui/hooks";

export const isOpen = signal(false);

interface Entry extends Findable {
  act: (go: (address: string) => void) => void;
}

const entries = computed<Entry[]>(() => [
  ...places().map((place) => ({
    name: place.name,
    note: "Page",
    act: (go: (address: string) => void) => go(page(place.path)),
  })),
  {
    name: "API reference",
    note: "Documentation",
    words: "docs openapi swagger help",
    act: () => void window.open(route("/docs"), "_blank", "noopener"),
  },
  { name: "Switch theme", note: "Action", words: "dark light", act: next },
  { name: "Sign out", note: "Action", act: () => void signOut().catch(() => undefined) },
  ...store.listed.value.flatMap((one) => [
    {
      name: one.model,
      note: `Deployment · ${one.pipeline}`,
      act: (go: (address: string) => void) => go(page(`deployments/${one.id}`)),
    },
    {
      name: `Try ${one.model}`,
      note: `Playground · ${one.pipeline}`,
      act: (go: (address: string) => void) => go(page(`deployments/${one.id}/try`)),
    },
  ]),
]);

/** Keys and artifacts, loaded when the palette opens. */
async function loadMore(): Promise<Entry[]> {
  const query = { limit: 100 };
  const [keys, artifacts] = await Promise.all([
    session.value?.scope === "deployment" ? null : list<Key>("/v1/api-keys", query),
    hasAccount.value ? list<Artifact>("/v1/model-artifacts", query) : null,
  ]);
  return [
    ...(artifacts?.data ?? []).map((one) => ({
      name: one.display_name,
      note: `Artifact · ${one.pipeline ?? one.status}`,
      act: (go: (address: string) => void) => go(page(`artifacts/${one.id}`)),
    })),
    ...(keys?.data ?? []).map((one) => ({
      name: one.name || one.id,
      note: "Key",
      act: (go: (address: string) => void) => go(page("keys")),
    })),
  ];
}

export function Palette() {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
        event.preventDefault();
        isOpen.value = !isOpen.value;
      }
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  return isOpen.value ? <Opened /> : null;
}

function Opened() {
  const { route } = useLocation();
  const dialog = useRef<HTMLDialogElement>(null);
  const list = useRef<HTMLUListElement>(null);
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const id = useId();
  const more = useLoaded(loadMore, []);
  const shown = found([...entries.value, ...(more.value ?? [])], wanted);
  useSeek(wanted);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  useEffect(() => list.current?.children[at]?.scrollIntoView({ block: "nearest" }), [at]);

  function choose(entry: Entry | undefined): void {
    if (!entry) return;
    dialog.current?.close();
    entry.act(route);
  }

  function onKey(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((now) => Math.max(0, Math.min(shown.length - 1, now + step)));
    } else if (event.key === "Enter") {
      event.preventDefault();
      choose(shown[at]);
    }
  }

  return (
    <dialog
      ref={dialog}
      class="dialog palette"
      aria-label="Go to"
      onClose={() => (isOpen.value = false)}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}
    >
      <div class="dialog-inner">
        <input
          type="text"
          role="combobox"
          aria-expanded="true"
          aria-controls={`${id}-list`}
          aria-activedescendant={shown.length ? `${id}-${at}` : undefined}
          aria-label="Page, model, key or action"
          placeholder="Page, model, key or action"
          value={wanted}
          onInput={(event) => {
            setWanted(event.currentTarget.value);
            setAt(0);
          }}
          onKeyDown={onKey}
        />
        <ul id={`${id}-list`} role="listbox" aria-label="Results" ref={list}>
          {shown.map((entry, index) => (
            <li
              key={index}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === at}
              onMouseMove={() => setAt(index)}
              onClick={() => choose(entry)}
            >
              <bdi>{plain(entry.name, 80)}</bdi> <span class="note">{entry.note}</span>
            </li>
          ))}
        </ul>
        {shown.length === 0 && <p class="note">No matches.</p>}
      </div>
    </dialog>
  );
}
