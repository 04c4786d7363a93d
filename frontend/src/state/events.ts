/** One stream of events for the whole page; polling where there can be none. */

import { signal } from "@preact/signals";
import { route } from "../api/base";
import { chosenAccount, isOperator, look, session } from "../api/session";
import type { Artifact, Deployment, Notice, Stats, Video } from "../api/types";
import * as store from "./store";

const FIRST_WAIT_MS = 500;
/** How long lists wait for the stream. */
const ALONE_MS = 300;
const MOST_WAIT_MS = 8_000;
const POLL_MS = 5_000;
/** How often a page asks whether its session still is one, were its stream to miss it. */
const LOOK_MS = 15_000;

export type Connection = "connecting" | "live" | "polling" | "lost";
export const connection = signal<Connection>("connecting");

type Changed =
  | { type: "artifact"; object: Artifact }
  | { type: "video"; object: Video }
  | { type: "run"; object: { id: string; agent_id: string; status: string } }
  | { type: "artifact.deleted" | "video.deleted" | "run.deleted"; object: { id: string } };

const listeners = new Set<(changed: Changed) => void>();

/** Be told of what changes beside deployments; the answer ends it. */
export function onChange(listener: (changed: Changed) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function heard(type: Changed["type"], data: string): void {
  const changed = { type, object: JSON.parse(data) } as Changed;
  for (const listener of listeners) listener(changed);
}

/** Ask for everything again. */
export async function refetch(): Promise<void> {
  await store.load();
  store.epoch.value += 1;
}

/** Follow until the answer is called. */
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
      refetch().catch(() => undefined);
    });
    on("reset", () => void refetch().catch(() => undefined));
    on("deployment", (data) => store.changed(JSON.parse(data) as Deployment));
    on("deployment.deleted", (data) => store.changed((JSON.parse(data) as { id: string }).id));
    on("notice", (data) => store.note(JSON.parse(data) as Notice));
    on("stats", (data) => store.tell(JSON.parse(data) as Stats));
    const others: Changed["type"][] = [
      "artifact", "artifact.deleted", "video", "video.deleted", "run", "run.deleted",
    ];
    for (const type of others) on(type, (data) => heard(type, data));
    source.onerror = () => {
      source?.close();
      if (!isOver) void failed();
    };
  }

  /** Tell a server that is away from one that gives no events, and from a session that is over. */
  async function failed(): Promise<void> {
    try {
      await look();
      if (!session.value || isOver) return;
      // Twice in a row without a word: this way is closed, by a proxy perhaps.
      const isClosed = wait > FIRST_WAIT_MS;
      connection.value = isClosed ? "polling" : "connecting";
      if (isClosed) await refetch();
    } catch {
      connection.value = "lost";
    }
    if (isOver) return;
    retry = window.setTimeout(open, connection.value === "polling" ? POLL_MS : wait);
    wait = Math.min(wait * 2, MOST_WAIT_MS);
  }

  connection.value = "connecting";
  open();
  // Once the stream is there lists are read, and without it, too.
  const alone = window.setTimeout(() => {
    if (connection.value !== "live") refetch().catch(() => undefined);
  }, ALONE_MS);
  const looking = window.setInterval(() => {
    if (document.visibilityState !== "visible" || connection.value === "lost") return;
    // A stream may hang without a word where the way to the server is gone.
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
