/** Progress of a video job, then the video. */

import { useEffect, useState } from "preact/hooks";
import { call, json } from "../../api/client";
import { type ApiError, shown } from "../../api/errors";
import type { Video } from "../../api/types";
import { plain } from "../../lib/format";
import { onChange } from "../../state/events";
import { useEvery, useObjectUrl } from "../../ui/hooks";
import { Bar, ErrorNote } from "../../ui/parts";
import { Status } from "../../ui/status";

const OVER = new Set(["completed", "failed", "cancelled"]);
const LOOK_MS = 2_000;

export default function VideoJob({ video }: { video: Video }) {
  const [now, setNow] = useState(video);
  useEffect(() => setNow(video), [video]);
  useEffect(
    () =>
      onChange((changed) => {
        if (changed.type === "video" && changed.object.id === video.id) setNow(changed.object);
      }),
    [video.id],
  );
  useEvery(
    LOOK_MS,
    () => void json<Video>(`/v1/videos/${video.id}`).then(setNow, () => undefined),
    !OVER.has(now.status),
  );
  return (
    <div class="stack">
      <p>
        <Status value={now.status} /> {now.seconds !== null && `${now.seconds} s`} {now.size}
      </p>
      {!OVER.has(now.status) && <Bar value={now.progress / 100} label="Video" />}
      {now.error && <p class="bad-text">{plain(now.error.message, 1000)}</p>}
      {now.status === "completed" && <VideoPlayer id={now.id} />}
    </div>
  );
}

export function VideoPlayer({ id }: { id: string }) {
  const [blob, setBlob] = useState<Blob | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const url = useObjectUrl(blob);
  useEffect(() => {
    let isOver = false;
    call(`/v1/videos/${id}/content`)
      .then((response) => response.blob())
      .then(
        (found) => !isOver && setBlob(found),
        (thrown: unknown) => !isOver && setError(shown(thrown)),
      );
    return () => {
      isOver = true;
    };
  }, [id]);
  return (
    <>
      <ErrorNote error={error} />
      {url && (
        <>
          <video class="preview" src={url} controls loop muted playsInline />
          <p>
            <a href={url} download={`${id}.mp4`}>
              Download
            </a>
          </p>
        </>
      )}
    </>
  );
}
