/** Component that loads its code when first shown, to keep the first page small. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { look } from "../api/session";
import { Skeleton } from "./parts";

const RETRY_MS = 2_000;
/** Minimum time between two reloads. */
const APART_MS = 30_000;
const RELOADED = "stoker.reloaded";

/**
 * Waits until the server responds, then reloads the page. Browsers may remember a failed import, and an updated server
 * has other files. Returns false if the last reload did not help.
 */
async function recovered(isOver: () => boolean): Promise<boolean> {
  for (;;) {
    if (isOver()) return true;
    try {
      await look();
      break;
    } catch {
      await new Promise((resolve) => window.setTimeout(resolve, RETRY_MS));
    }
  }
  if (Date.now() - Number(sessionStorage.getItem(RELOADED)) < APART_MS) return false;
  sessionStorage.setItem(RELOADED, String(Date.now()));
  location.reload();
  return true;
}

export function deferred<P extends object>(load: () => Promise<{ default: ComponentType<P> }>): ComponentType<P> {
  let found: ComponentType<P> | undefined;
  let loading: Promise<void> | undefined;

  // biome-ignore lint/correctness/noComponentHookFactories: Called once per component, by modules.
  return function Deferred(props: P) {
    const [, show] = useState(0);
    const [wrong, setWrong] = useState<unknown>();
    useEffect(() => {
      if (found) return undefined;
      let isOver = false;
      loading ??= load().then((module) => {
        found = module.default;
      });
      loading.then(
        () => !isOver && show((now) => now + 1),
        async (thrown: unknown) => {
          loading = undefined;
          if (!(await recovered(() => isOver))) setWrong(thrown);
        },
      );
      return () => {
        isOver = true;
      };
    }, []);
    // The nearest error boundary handles this.
    if (wrong !== undefined) throw wrong;
    const Part = found;
    return Part ? <Part {...props} /> : <Skeleton rows={4} />;
  };
}
