/** Videos page: completed and active video jobs. */

import { useEffect, useState } from "preact/hooks";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Video } from "../api/types";
import { ago, plain } from "../lib/format";
import { VideoPlayer } from "../playground/views/video-job";
import "../styles/playground.css";
import { onChange } from "../state/events";
import { useActing, useEvery } from "../ui/hooks";
import { merged, usePaged } from "../ui/paged";
import { Bar, Button, Card, Confirm, Dialog, Empty, PageHead } from "../ui/parts";
import { Status } from "../ui/status";
import { Thumbnail } from "../ui/thumbnail";

const OVER = new Set(["completed", "failed", "cancelled"]);

/** Models without text input have no prompt. */
function titleOf(video: Video, most = 120): string {
  return plain(video.prompt || "video without a prompt", most);
}

export default function Videos() {
  const videos = usePaged<Video>("/v1/videos");
  const [erased, setErased] = useState<Video | null>(null);
  const [played, setPlayed] = useState<Video | null>(null);
  const acting = useActing();
  // biome-ignore lint/correctness/useExhaustiveDependencies: Each `change` does the same.
  useEffect(
    () =>
      onChange((changed) => {
        if (changed.type === "video") videos.change((rows) => merged(rows, changed.object));
        if (changed.type === "video.deleted") {
          videos.change((rows) => rows.filter((one) => one.id !== changed.object.id));
        }
      }),
    [],
  );
  useEvery(5_000, videos.reload, videos.rows?.some((one) => !OVER.has(one.status)) ?? false);
  const erase = (video: Video) =>
    acting.run(async () => {
      await must(api.DELETE("/v1/videos/{video_id}", { params: { path: { video_id: video.id } } }));
      setErased(null);
      videos.reload();
    });
  return (
    <>
      <PageHead title="Videos" />
      <Card>
        {videos.frame(
          <ul class="tiles">
            {videos.rows?.map((one) => (
              <li key={one.id} class="tile">
                <button type="button" disabled={one.status !== "completed"} onClick={() => setPlayed(one)}>
                  {one.status === "completed" ? (
                    <Thumbnail path={`/v1/videos/${one.id}/content?variant=thumbnail`} label={`Play ${titleOf(one)}`} />
                  ) : (
                    <span class="thumbnail">
                      <Status value={one.status} />
                    </span>
                  )}
                </button>
                {!OVER.has(one.status) && <Bar value={one.progress / 100} label="Video" />}
                <bdi>{titleOf(one)}</bdi>
                {one.error && <span class="bad-text">{plain(one.error.message, 1000)}</span>}
                <span class="note">
                  {plain(one.model, 80)} · {one.seconds !== null && `${one.seconds} s · ${one.size} · `}
                  {ago(one.created_at)}
                  {one.expires_at && ` · expires ${ago(one.expires_at)}`}
                </span>
                <span class="actions">
                  <Button kind="quiet" class="small" onClick={() => setErased(one)} aria-label={`Delete ${one.id}`}>
                    Delete
                  </Button>
                </span>
              </li>
            ))}
          </ul>,
          <Empty title="No videos yet.">
            <a class="button" href={page("try")}>
              Open playground
            </a>
          </Empty>,
        )}
      </Card>
      {played && (
        <Dialog title={titleOf(played, 80)} onClose={() => setPlayed(null)}>
          <VideoPlayer id={played.id} />
        </Dialog>
      )}
      {erased && (
        <Confirm
          title={`Delete ${titleOf(erased, 64)}?`}
          action="Delete video"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase(erased)}
          onClose={() => setErased(null)}
        >
          <p>
            {OVER.has(erased.status)
              ? "This erases the video's prompt and files."
              : "This stops the job and erases its output."}
          </p>
        </Confirm>
      )}
    </>
  );
}
