/** Command palette (Ctrl-K) for pages, deployments and actions. */

import { computed, signal } from "@preact/signals";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page } from "./api/base";
import { signOut } from "./api/session";
import { plain } from "./lib/format";
import { places } from "./places";
import { store } from "./state/store";
import { next } from "./state/theme";
import { useSeek } from "./ui/find";

export const isOpen = signal(false);
const MOST = 50;

interface Entry {
  name: string;
  note: string;
  act: (go: (address: string) => void) => void;
}

const entries = computed<Entry[]>(() => [
  ...places().map((place) => ({
    name: place.name,
    note: "Page",
    act: (go: (address: string) => void) => go(page(place.path)),
  })),
  { name: "Switch theme", note: "Action", act: next },
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

/** Ranks a fuzzy match: all letters in order, earlier end is better. Infinity: no match. */
function rank(text: string, wanted: string): number {
  const direct = text.indexOf(wanted);
  if (direct >= 0) return direct;
  let at = -1;
  for (const letter of wanted) {
    at = text.indexOf(letter, at + 1);
    if (at < 0) return Infinity;
  }
  return 1000 + at;
}

function found(wanted: string): Entry[] {
  const sought = wanted.trim().toLowerCase();
  if (!sought) return entries.value.slice(0, MOST);
  return entries.value
    .map((entry) => ({ entry, rank: rank(`${entry.name} ${entry.note}`.toLowerCase(), sought) }))
    .filter((one) => one.rank < Infinity)
    .sort((a, b) => a.rank - b.rank)
    .slice(0, MOST)
    .map((one) => one.entry);
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
  const shown = found(wanted);
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
          aria-label="Page, deployment or action"
          placeholder="Page, deployment or action"
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
              key={`${entry.note}${entry.name}`}
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
