/** Filtered deployments. Long lists are searched on the server, page by page. */

import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, shown } from "../api/errors";
import type { Deployment } from "../api/types";
import { type Filter, store } from "./store";

const TYPING_MS = 200;

export interface Found {
  rows: Deployment[];
  /** Whether the list is complete. */
  isWhole: boolean;
  error: ApiError | null;
  /** Loads more matches, if any. */
  more: () => void;
}

/** Matches a deployment as the server does. */
export function matches(one: Deployment, { search, status }: Filter): boolean {
  const text = search?.toLowerCase();
  if (status && one.status !== status) return false;
  return !text || one.model.toLowerCase().includes(text) || one.pipeline.toLowerCase().includes(text);
}

export function useSought(search: string, status: string): Found {
  const isAll = store.reached.value === null;
  const isFree = !search && !status;
  // With a filter: all matches down to this ID are loaded. Null: all are loaded.
  const [filtered, setFiltered] = useState<string | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const asked = useRef({ turn: 0, isBusy: false });
  const sought = { search, status };
  const cursor = isAll || isFree ? store.reached.value : filtered;

  /** Loads the page after an ID, and further pages down to `until`. */
  async function ask(after: string | null, until: string | null = null): Promise<void> {
    const now = asked.current;
    now.turn += 1;
    const mine = now.turn;
    now.isBusy = true;
    try {
      let next = await store.seek(sought, after);
      while (mine === now.turn && next && until && next > until) next = await store.seek(sought, next);
      if (mine !== now.turn || next === undefined) return;
      // Set first: a list whose end is visible requests more when it is drawn.
      now.isBusy = false;
      if (isFree) store.reach(next);
      else setFiltered(next);
      setError(null);
    } catch (thrown) {
      if (mine !== now.turn) return;
      now.isBusy = false;
      setError(shown(thrown));
    }
  }

  const missed = store.epoch.value;
  const before = useRef("");
  // biome-ignore lint/correctness/useExhaustiveDependencies: Loading more matches must not restart the search.
  useEffect(() => {
    asked.current.turn += 1;
    asked.current.isBusy = false;
    setError(null);
    const filter = JSON.stringify([search, status]);
    // Same filter after missed events: the list keeps its length.
    const until = before.current === filter && filtered !== NOT_YET ? filtered : null;
    before.current = filter;
    if (isAll || isFree) return undefined;
    // Shows loaded matches immediately. More may follow.
    if (!until) setFiltered(NOT_YET);
    const timer = window.setTimeout(() => void ask(null, until), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [search, status, isAll, missed, store.areLoaded.value]);

  const rows = store.listed.value.filter(
    (one) => (cursor === null || cursor === NOT_YET || one.id >= cursor) && matches(one, sought),
  );
  return {
    rows,
    isWhole: cursor === null,
    error,
    more: () => {
      if (cursor && cursor !== NOT_YET && !asked.current.isBusy) void ask(cursor);
    },
  };
}

const NOT_YET = "-";
