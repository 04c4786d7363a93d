/** An image with an overlay in image pixels. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useObjectUrl } from "../../ui/hooks";

interface Size {
  width: number;
  height: number;
}

export function Picture({ file, children }: { file: File | undefined; children: (size: Size) => ComponentChildren }) {
  const url = useObjectUrl(file);
  const [size, setSize] = useState<Size | null>(null);
  if (!file) return null;
  return (
    <div class="picture">
      {url && (
        <img
          src={url}
          alt="Input image"
          onLoad={(event) =>
            setSize({ width: event.currentTarget.naturalWidth, height: event.currentTarget.naturalHeight })
          }
        />
      )}
      {size && children(size)}
    </div>
  );
}
