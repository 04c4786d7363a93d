/** Search for deployments in long lists that are only partly loaded. */

import { useEffect, useState } from "preact/hooks";
import { count } from "../lib/format";
import { store } from "../state/store";

const TYPING_MS = 200;

/** Loads deployments whose model or pipeline name contains the text. */
export function useSeek(text: string): void {
  const isPartial = store.reached.value !== null;
  const search = text.trim();
  useEffect(() => {
    if (!isPartial || !search) return undefined;
    const timer = window.setTimeout(() => void store.seek({ search }).catch(() => undefined), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [search, isPartial]);
}

/** Search field next to a deployment select that is only partly loaded. */
export function Find() {
  const [text, setText] = useState("");
  useSeek(text);
  if (store.reached.value === null) return null;
  return (
    <input
      type="search"
      class="small"
      maxLength={128}
      placeholder={`${count(store.deployments.value.size)} listed. Find others`}
      aria-label="Find other deployments by model or pipeline"
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
    />
  );
}
