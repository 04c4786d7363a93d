import { useObjectUrl } from "../../ui/hooks";
import { Wave } from "./wave";

const SUFFIXES: Record<string, string> = {
  "audio/mpeg": "mp3",
  "audio/wav": "wav",
  "audio/flac": "flac",
  "audio/aac": "aac",
};

export default function Sound({ blob }: { blob: Blob }) {
  const type = blob.type.split(";")[0] ?? "";
  const url = useObjectUrl(blob);
  if (!type.startsWith("audio/"))
    return (
      <p>
        The response is {blob.size} bytes of type {type || "unknown"}.
      </p>
    );
  return (
    <>
      <Wave blob={blob} />
      <p>
        <a href={url} download={`speech.${SUFFIXES[type] ?? "bin"}`}>
          Download
        </a>
      </p>
    </>
  );
}
