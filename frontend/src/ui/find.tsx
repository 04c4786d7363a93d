/** Of many deployments not all are here: others are found by what they are called. */

import { useEffect, useState } from "preact/hooks";
import { deployments, reached, seek } from "../state/store";
import { count } from "../lib/format";

const TYPING_MS = 200;

/** Have those known whose model or pipeline has this in its name. */
export function useSeek(text: string): void {
  const isPartial = reached.value !== null;
  const search = text.trim();
  useEffect(() => {
    if (!isPartial || !search) return undefined;
    const timer = window.setTimeout(() => void seek({ search }).catch(() => undefined), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [search, isPartial]);
}

/** Beside a choice of deployments, where not all of them are in it. */
export function Find() {
  const [text, setText] = useState("");
  useSeek(text);
  if (reached.value === null) return null;
  return (
    <input
      type="search"
      class="small"
      maxLength={128}
      placeholder={`${count(deployments.value.size)} listed. Find others`}
      aria-label="Find other deployments by model or pipeline"
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
    />
  );
}
