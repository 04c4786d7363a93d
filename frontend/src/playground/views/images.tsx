/** Generated images with download links. */

import { useEffect, useState } from "preact/hooks";

interface Props {
  images?: { b64_json?: string; url?: string }[];
  blobs?: Blob[];
}

/** Accepts only images of this server or inline data. Other URLs are not loaded. */
function source(image: { b64_json?: string; url?: string }): string {
  if (image.b64_json) return `data:image/${kind(image.b64_json)};base64,${image.b64_json}`;
  try {
    const url = new URL(image.url ?? "", location.href);
    return url.protocol === "http:" || url.protocol === "https:" ? location.origin + url.pathname + url.search : "";
  } catch {
    return "";
  }
}

function kind(base64: string): string {
  if (base64.startsWith("/9j/")) return "jpeg";
  return base64.startsWith("UklGR") ? "webp" : "png";
}

const NO_BLOBS: Blob[] = [];

export default function Images({ images = [], blobs = NO_BLOBS }: Props) {
  const [made, setMade] = useState<string[]>([]);
  useEffect(() => {
    const urls = blobs.map((blob) => URL.createObjectURL(blob));
    setMade(urls);
    return () => {
      for (const url of urls) URL.revokeObjectURL(url);
    };
  }, [blobs]);
  const sources = [...images.map(source), ...made].filter(Boolean);
  return (
    <div class="gallery">
      {sources.map((address, index) => (
        <figure key={index}>
          <img src={address} alt={`Generated image ${index + 1} of ${sources.length}`} />
          <figcaption>
            <a href={address} download={`stoker-${index + 1}`}>
              Download
            </a>
          </figcaption>
        </figure>
      ))}
    </div>
  );
}
