/** Virtual list: only visible rows are in the page. */

import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

const BEYOND = 8;
/** Row height before measurement. */
const GUESS = 56;
const FEW = 60;

interface Props<T> {
  items: readonly T[];
  keyOf: (item: T) => string;
  render: (item: T, index: number) => ComponentChildren;
  /** Called when the last row is visible or nearly visible. */
  onEnd?: () => void;
}

/** All rows have the same height and the window scrolls. Short lists are rendered in full. A row depends only on its item. */
export function Virtual<T>({ items, keyOf, render, onEnd }: Props<T>) {
  const drawn = useRef(new Map<T, JSX.Element>());
  const ended = useRef(onEnd);
  ended.current = onEnd;
  const box = useRef<HTMLDivElement>(null);
  const [height, setHeight] = useState(GUESS);
  const [range, setRange] = useState<[number, number]>([0, FEW]);
  const isAll = items.length <= FEW;

  useLayoutEffect(() => {
    if (isAll) return undefined;
    const look = () => {
      const element = box.current;
      if (!element) return;
      const row = element.querySelector<HTMLElement>("[data-row]");
      const size = row?.offsetHeight || height;
      if (size !== height) setHeight(size);
      const top = -element.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(top / size) - BEYOND);
      const last = Math.min(items.length, Math.ceil((top + window.innerHeight) / size) + BEYOND);
      if (last >= items.length) ended.current?.();
      setRange((now) => (now[0] === first && now[1] === last ? now : [first, Math.max(first, last)]));
    };
    look();
    window.addEventListener("scroll", look, { passive: true });
    window.addEventListener("resize", look);
    return () => {
      window.removeEventListener("scroll", look);
      window.removeEventListener("resize", look);
    };
  }, [items.length, height, isAll]);

  const [first, last] = isAll ? [0, items.length] : range;
  const seen = items.slice(first, last);
  // Reuses the rendered node, so that Preact skips it.
  const before = drawn.current;
  drawn.current = new Map();
  const rows = seen.map((item, index) => {
    const place = first + index;
    const known = before.get(item);
    const row =
      known?.props["aria-rowindex"] === place + 2 ? (
        known
      ) : (
        <div key={keyOf(item)} data-row role="row" aria-rowindex={place + 2} class="grid-row">
          {render(item, place)}
        </div>
      );
    drawn.current.set(item, row);
    return row;
  });
  return (
    <div ref={box} role="rowgroup">
      {!isAll && <div role="presentation" style={{ height: `${first * height}px` }} />}
      {rows}
      {!isAll && <div role="presentation" style={{ height: `${Math.max(0, items.length - last) * height}px` }} />}
    </div>
  );
}
