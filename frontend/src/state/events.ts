/** One event stream for the whole page, with polling as fallback. */

import { signal } from "@preact/signals";
import { route } from "../api/base";
import { chosenAccount, isOperator, look, session } from "../api/session";
import type { Artifact, Batch, Deployment, Notice, Stats, Video } from "../api/types";
import { store } from "./store";

const FIRST_WAIT_MS = 500;
/** Time that lists wait for the stream. */
const ALONE_MS = 1_000;
const MOST_WAIT_MS = 8_000;
const POLL_MS = 5_000;
/** Interval of session checks, in case the stream misses the end of a session. */
const LOOK_MS = 15_000;

export type Connection = "connecting" | "live" | "polling" | "lost";
export const connection = signal<Connection>("connecting");

type Changed =
  | { type: "artifact"; object: Artifact }
  | { type: "batch"; object: Batch }
  | { type: "video"; object: Video }
  | { type: "run"; object: { id: string; agent_id: string; status: string } }
  | { type: "artifact.deleted" | "video.deleted" | "run.deleted"; object: { id: string } };

const listeners = new Set<(changed: Changed) => void>();

/** Subscribes to changes other than deployments. Returns the unsubscribe function. */
export function onChange(listener: (changed: Changed) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function heard(type: Changed["type"], data: string): void {
  const changed = { type, object: JSON.parse(data) } as Changed;
  for (const listener of listeners) listener(changed);
}

/** Follows the stream until the returned function is called. */
export function follow(): () => void {
  let source: EventSource | null = null;
  let wait = FIRST_WAIT_MS;
  let retry = 0;
  let isOver = false;

  const query = isOperator.value && chosenAccount.value ? `?accounts=${chosenAccount.value}` : "";

  function open(): void {
    source = new EventSource(route("/v1/events") + query);
    const on = (type: string, act: (data: string) => void) =>
      source?.addEventListener(type, (event) => act((event as MessageEvent<string>).data));
    on("hello", () => {
      wait = FIRST_WAIT_MS;
      connection.value = "live";
      store.reload().catch(() => undefined);
    });
    on("reset", () => void store.reload().catch(() => undefined));
    on("deployment", (data) => {
      const deployment = JSON.parse(data) as Deployment;
      store.change(deployment.id, deployment);
    });
    on("deployment.deleted", (data) => store.change((JSON.parse(data) as { id: string }).id, null));
    on("notice", (data) => store.addNotice(JSON.parse(data) as Notice));
    on("stats", (data) => store.addStats(JSON.parse(data) as Stats));
    const others: Changed["type"][] = [
      "artifact",
      "artifact.deleted",
      "batch",
      "video",
      "video.deleted",
      "run",
      "run.deleted",
    ];
    for (const type of others) on(type, (data) => heard(type, data));
    source.onerror = () => {
      source?.close();
      if (!isOver) void failed();
    };
  }

  /** Distinguishes an unreachable server, a blocked stream and an ended session. */
  async function failed(): Promise<void> {
    try {
      await look();
      if (!session.value || isOver) return;
      // Two streams without data: a proxy probably blocks streaming.
      const isClosed = wait > FIRST_WAIT_MS;
      connection.value = isClosed ? "polling" : "connecting";
      if (isClosed) await store.reload();
    } catch {
      connection.value = "lost";
    }
    if (isOver) return;
    retry = window.setTimeout(open, connection.value === "polling" ? POLL_MS : wait);
    wait = Math.min(wait * 2, MOST_WAIT_MS);
  }

  connection.value = "connecting";
  open();
  // Lists load once the stream is open, or without it after the timeout.
  const alone = window.setTimeout(() => {
    if (connection.value !== "live") store.reload().catch(() => undefined);
  }, ALONE_MS);
  const looking = window.setInterval(() => {
    if (document.visibilityState !== "visible" || connection.value === "lost") return;
    // A stream can hang silently if the network path is lost.
    look().catch(() => {
      source?.close();
      window.clearTimeout(retry);
      void failed();
    });
  }, LOOK_MS);

  return () => {
    isOver = true;
    source?.close();
    window.clearTimeout(alone);
    window.clearTimeout(retry);
    window.clearInterval(looking);
  };
}
