/** Media input from a file, drop, paste, microphone or camera. */

import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, plain } from "../lib/format";
import { useObjectUrl } from "../ui/hooks";
import { Button } from "../ui/parts";
import { type MediaKind, MEDIA_NAMES as NAMES } from "./operations";

interface Props {
  id: string;
  kind: MediaKind;
  file: File | null;
  onFile: (file: File | null) => void;
  describedBy: string | undefined;
  isWrong?: boolean;
}

export function MediaInput({ id, kind, file, onFile, describedBy, isWrong = false }: Props) {
  const [isOver, setOver] = useState(false);
  const [wrong, setWrong] = useState("");
  const url = useObjectUrl(file);

  function take(files: FileList | null | undefined): boolean {
    const found = files?.[0];
    if (!found) return false;
    if (found.type && !found.type.startsWith(`${kind}/`) && !(kind === "audio" && found.type.startsWith("video/"))) {
      setWrong(`${plain(found.name, 60)} is not ${NAMES[kind]}.`);
      return true;
    }
    setWrong("");
    onFile(found);
    return true;
  }

  useEffect(() => {
    const onPaste = (event: ClipboardEvent) => {
      if (take(event.clipboardData?.files)) event.preventDefault();
    };
    window.addEventListener("paste", onPaste);
    return () => window.removeEventListener("paste", onPaste);
  });

  return (
    <div
      class={isOver ? "drop over" : "drop"}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        take(event.dataTransfer?.files);
      }}
    >
      {file && url ? (
        <div class="stack">
          {kind === "image" && <img class="preview" src={url} alt={`Selected: ${plain(file.name, 80)}`} />}
          {kind === "audio" && <audio controls src={url} />}
          {kind === "video" && <video class="preview" controls muted src={url} />}
          <p class="row">
            <span class="grow">
              {plain(file.name, 80)} <span class="note">{bytes(file.size)}</span>
            </span>
            <Button class="small" onClick={() => onFile(null)}>
              Replace
            </Button>
          </p>
        </div>
      ) : (
        <div class="stack center">
          <p>Drop or paste {NAMES[kind]} here, or</p>
          <div class="row center">
            <label class="button small">
              Choose file
              <input
                id={id}
                type="file"
                class="visually-hidden"
                accept={`${kind}/*`}
                aria-describedby={describedBy}
                aria-invalid={isWrong}
                onChange={(event) => take(event.currentTarget.files)}
              />
            </label>
            {kind === "audio" && <Recorder onFile={onFile} onWrong={setWrong} />}
            {kind === "image" && <Camera onFile={onFile} onWrong={setWrong} />}
          </div>
        </div>
      )}
      {wrong && (
        <p class="bad-text" role="alert">
          {wrong}
        </p>
      )}
    </div>
  );
}

interface Maker {
  onFile: (file: File) => void;
  onWrong: (message: string) => void;
}

/** Browsers allow microphone and camera only over TLS or on localhost. */
const MAY_RECORD = Boolean(navigator.mediaDevices?.getUserMedia);

function end(stream: MediaStream | null | undefined): void {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

function Recorder({ onFile, onWrong }: Maker) {
  const recorder = useRef<MediaRecorder | null>(null);
  const [isOn, setOn] = useState(false);
  useEffect(() => () => end(recorder.current?.stream), []);
  if (!MAY_RECORD || typeof MediaRecorder === "undefined") return null;

  async function begin(): Promise<void> {
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const made = new MediaRecorder(stream);
      const pieces: Blob[] = [];
      made.ondataavailable = (event) => pieces.push(event.data);
      made.onstop = () => {
        end(stream);
        setOn(false);
        const type = made.mimeType.split(";")[0] || "audio/webm";
        onFile(new File(pieces, `recording.${type.split("/")[1] ?? "webm"}`, { type }));
      };
      recorder.current = made;
      made.start();
      setOn(true);
    } catch {
      onWrong("No microphone is available, or access was denied.");
    }
  }

  return (
    <Button class="small" aria-pressed={isOn} onClick={() => (isOn ? recorder.current?.stop() : void begin())}>
      {isOn ? "Stop recording" : "Record"}
    </Button>
  );
}

function Camera({ onFile, onWrong }: Maker) {
  const video = useRef<HTMLVideoElement>(null);
  const [stream, setStream] = useState<MediaStream | null>(null);
  useEffect(() => {
    if (video.current && stream) video.current.srcObject = stream;
    return () => end(stream);
  }, [stream]);
  if (!MAY_RECORD) return null;

  async function begin(): Promise<void> {
    try {
      setStream(await navigator.mediaDevices.getUserMedia({ video: true }));
    } catch {
      onWrong("No camera is available, or access was denied.");
    }
  }

  function shoot(): void {
    const from = video.current;
    if (!from) return;
    const canvas = document.createElement("canvas");
    canvas.width = from.videoWidth;
    canvas.height = from.videoHeight;
    canvas.getContext("2d")?.drawImage(from, 0, 0);
    canvas.toBlob((blob) => blob && onFile(new File([blob], "camera.png", { type: "image/png" })), "image/png");
    setStream(null);
  }

  return stream ? (
    <div class="stack">
      <video ref={video} class="preview" autoplay muted playsInline />
      <Button class="small" onClick={shoot}>
        Take photo
      </Button>
    </div>
  ) : (
    <Button class="small" onClick={() => void begin()}>
      Use camera
    </Button>
  );
}
