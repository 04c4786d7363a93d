/** Server list with pages of 50 rows. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { list } from "../api/client";
import { useLoaded } from "./hooks";
import { ErrorNote, Skeleton } from "./parts";

const PAGE = 50;

export interface Paged<T> {
  rows: T[] | undefined;
  reload: () => void;
  /** Rows, loading state, errors and page buttons. */
  frame: (table: ComponentChildren, empty: ComponentChildren) => ComponentChildren;
  change: (edit: (rows: T[]) => T[]) => void;
}

export function usePaged<T extends { id: string }>(
  path: string,
  by: readonly unknown[] = [],
  query: Record<string, string> = {},
): Paged<T> {
  // Cursor before each page.
  const [begins, setBegins] = useState<string[]>([""]);
  const [rows, setRows] = useState<T[]>();
  const after = begins.at(-1) ?? "";
  const loaded = useLoaded(
    () => list<T>(path, { limit: PAGE, ...(after ? { after } : {}), ...query }),
    [path, after, JSON.stringify(query), ...by],
  );
  useEffect(() => setBegins([""]), [path, JSON.stringify(query)]);
  useEffect(() => setRows(loaded.value?.data), [loaded.value]);

  function frame(table: ComponentChildren, empty: ComponentChildren): ComponentChildren {
    if (loaded.error) return <ErrorNote error={loaded.error} />;
    if (!rows) return <Skeleton rows={5} />;
    const last = loaded.value?.last_id;
    return (
      <>
        {rows.length === 0 && begins.length === 1 ? empty : table}
        {(begins.length > 1 || loaded.value?.has_more) && (
          <nav class="pager" aria-label="Pages">
            <button
              type="button"
              class="button small"
              disabled={begins.length === 1}
              onClick={() => setBegins(begins.slice(0, -1))}
            >
              Newer
            </button>
            <span>Page {begins.length}</span>
            <button
              type="button"
              class="button small"
              disabled={!loaded.value?.has_more || !last}
              onClick={() => last && setBegins([...begins, last])}
            >
              Older
            </button>
          </nav>
        )}
      </>
    );
  }

  return { rows, reload: loaded.reload, frame, change: (edit) => setRows((now) => now && edit(now)) };
}

/** Updates changed rows. New rows come first. */
export function merged<T extends { id: string }>(rows: T[], found: T): T[] {
  return rows.some((one) => one.id === found.id)
    ? rows.map((one) => (one.id === found.id ? found : one))
    : [found, ...rows];
}
