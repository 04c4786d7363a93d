/** Status as text and colour. */

const KINDS: Record<string, string> = {
  ready: "good",
  live: "good",
  completed: "good",
  measured: "good",
  starting: "busy",
  loading: "busy",
  preparing: "busy",
  checking: "busy",
  uploading: "busy",
  ingesting: "busy",
  queued: "busy",
  validating: "busy",
  finalizing: "busy",
  paused: "warn",
  expired: "bad",
  in_progress: "busy",
  requires_action: "warn",
  stopping: "busy",
  cancelling: "busy",
  draining: "busy",
  differs: "warn",
  failed: "bad",
  unreachable: "bad",
  idle: "calm",
  asleep: "calm",
  stopped: "calm",
  retired: "calm",
  created: "calm",
  cancelled: "calm",
  unavailable: "calm",
};

const WORDS: Record<string, string> = {
  created: "no files yet",
  ingesting: "inspecting",
  differs: "answers differ",
  in_progress: "in progress",
  requires_action: "needs tool output",
};

export function Status({ value }: { value: string }) {
  return <span class={`status ${KINDS[value] ?? "calm"}`}>{WORDS[value] ?? value}</span>;
}
