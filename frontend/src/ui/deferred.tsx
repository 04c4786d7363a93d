/** Component that loads its code when first shown, to keep the first page small. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Skeleton } from "./parts";

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
        (thrown: unknown) => {
          loading = undefined;
          if (!isOver) setWrong(thrown);
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
