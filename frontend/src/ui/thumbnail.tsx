/** Picture behind the session, loaded once it is in view. */

import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import { useObjectUrl } from "./hooks";

export function Thumbnail({ path, label }: { path: string; label: string }) {
  const box = useRef<HTMLSpanElement>(null);
  const [blob, setBlob] = useState<Blob | null>(null);
  const url = useObjectUrl(blob);
  useEffect(() => {
    const watching = new IntersectionObserver((seen) => {
      if (!seen.some((one) => one.isIntersecting)) return;
      watching.disconnect();
      call(path)
        .then((response) => response.blob())
        .then(setBlob, () => undefined);
    });
    if (box.current) watching.observe(box.current);
    return () => watching.disconnect();
  }, [path]);
  return (
    <span class="thumbnail" ref={box}>
      {url && <img src={url} alt={label} />}
    </span>
  );
}
