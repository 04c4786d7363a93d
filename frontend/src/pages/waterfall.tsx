/** Durations of a run's steps and tool calls, as bars on one time axis. */

import type { RunEvent } from "../api/types";
import { count, date, ms, plain } from "../lib/format";

interface Span {
  key: string;
  name: string;
  shade: string;
  /** Milliseconds since the epoch. */
  start: number;
  /** Undefined: not over. */
  end?: number;
  tokens?: [input: number, output: number];
}

const LAST = new Set(["run.completed", "run.failed", "run.cancelled"]);

/** Returns the spans in the order of their start. */
export function spansOf(events: readonly RunEvent[]): Span[] {
  const spans: Span[] = [];
  const end = (key: string, at: number) => {
    const open = spans.findLast((one) => one.key === key && one.end === undefined);
    if (open) open.end = at;
    return open;
  };
  for (const event of events) {
    const at = date(event.created_at)?.getTime() ?? 0;
    const data = event.data as Record<string, unknown>;
    const step = `step ${data.step}`;
    const called = `call ${data.tool_call_id}`;
    if (event.type === "run.created") spans.push({ key: "queue", name: "Queued", shade: "shade-7", start: at });
    if (event.type === "step.started") {
      end("queue", at);
      spans.push({ key: step, name: `Step ${data.step}`, shade: "shade-0", start: at });
    }
    if (event.type === "message.completed") {
      const open = end(step, at);
      const usage = data.usage as Record<string, number> | undefined;
      if (open && usage) open.tokens = [usage.prompt_tokens ?? 0, usage.completion_tokens ?? 0];
    }
    if (event.type === "tool_call.started") {
      spans.push({ key: called, name: plain(String(data.name), 64), shade: "shade-1", start: at });
    }
    if (event.type === "tool_call.completed") end(called, at);
    // A resumed step starts from its beginning.
    if (LAST.has(event.type) || event.type === "run.resumed") {
      for (const one of spans) one.end ??= at;
    }
  }
  return spans;
}

function took(milliseconds: number): string {
  return milliseconds < 1000 ? ms(milliseconds) : `${(milliseconds / 1000).toFixed(1)} s`;
}

export function Waterfall({ events }: { events: readonly RunEvent[] }) {
  const spans = spansOf(events);
  const first = spans[0]?.start;
  if (first === undefined) return null;
  const last = date(events.at(-1)?.created_at)?.getTime() ?? first;
  const whole = Math.max(1, last - first);
  return (
    <ol class="waterfall" aria-label="Durations">
      {spans.map((one, index) => {
        const end = one.end ?? last;
        return (
          <li key={index}>
            <span class="name">{one.name}</span>
            <span class="track" aria-hidden="true">
              <span
                class={`segment ${one.shade}`}
                style={{
                  marginLeft: `${(100 * (one.start - first)) / whole}%`,
                  width: `${(100 * (end - one.start)) / whole}%`,
                }}
              />
            </span>
            <span class="number">
              {one.end === undefined ? "active" : took(end - one.start)}
              {one.tokens && (
                <span class="note block">
                  {count(one.tokens[0])} in, {count(one.tokens[1])} out
                </span>
              )}
            </span>
          </li>
        );
      })}
    </ol>
  );
}
