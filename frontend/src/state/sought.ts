/** Deployments by a filter: of many, the server looks for them, a page at a time. */

import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, shown } from "../api/errors";
import type { Deployment } from "../api/types";
import { areLoaded, epoch, listed, reached, seek, type Sought } from "./store";

const TYPING_MS = 200;

export interface Found {
  rows: Deployment[];
  /** Whether there are none but these. */
  isWhole: boolean;
  error: ApiError | null;
  /** Have some more of them, where there are. */
  more: () => void;
}

/** As the server finds them. */
export function matches(one: Deployment, { search, status }: Sought): boolean {
  const text = search?.toLowerCase();
  if (status && one.status !== status) return false;
  return !text || one.model.toLowerCase().includes(text) || one.pipeline.toLowerCase().includes(text);
}

export function useSought(search: string, status: string): Found {
  const isAll = reached.value === null;
  const isFree = !search && !status;
  // Down to this id all are known that match; null: to the last.
  const [cursor, setCursor] = useState<string | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const asked = useRef({ turn: 0, isBusy: false });
  const sought = { search, status };

  function ask(after: string | null): void {
    const now = asked.current;
    const mine = (now.turn += 1);
    now.isBusy = true;
    seek(sought, after)
      .then(
        (next) => {
          if (mine !== now.turn) return;
          setCursor(next);
          setError(null);
        },
        (thrown: unknown) => mine === now.turn && setError(shown(thrown)),
      )
      .finally(() => {
        if (mine === now.turn) now.isBusy = false;
      });
  }

  const missed = epoch.value;
  useEffect(() => {
    asked.current.turn += 1;
    asked.current.isBusy = false;
    setError(null);
    if (isAll || isFree) {
      setCursor(reached.value);
      return undefined;
    }
    // What is known that matches shows at once; that there is no more of it is not known yet.
    setCursor(NOT_YET);
    const timer = window.setTimeout(() => ask(null), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [search, status, isAll, missed, areLoaded.value]);

  const rows = listed.value.filter((one) => (cursor === null || cursor === NOT_YET || one.id >= cursor) && matches(one, sought));
  return {
    rows,
    isWhole: cursor === null,
    error,
    more: () => {
      if (cursor && cursor !== NOT_YET && !asked.current.isBusy) ask(cursor);
    },
  };
}

const NOT_YET = "-";
