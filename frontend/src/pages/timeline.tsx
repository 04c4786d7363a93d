/** Groups run events into steps, messages and tool calls. */

import type { RunEvent } from "../api/types";
import { clock, plain } from "../lib/format";

interface Entry {
  key: number;
  at: string;
  title: string;
  text: string;
  isCode: boolean;
}

const MOST = 20_000;
const TITLES: Record<string, string> = {
  "run.created": "Run created",
  "run.completed": "Completed",
  "run.failed": "Failed",
  "run.cancelled": "Cancelled",
  "run.resumed": "Resumed: partial output was discarded",
  "run.requires_action": "Waiting for tool outputs",
  "tools.listed": "Tools",
};

function text(value: unknown): string {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Streamed text grows in one entry, until the complete message replaces it. */
export function folded(events: readonly RunEvent[]): Entry[] {
  const found: Entry[] = [];
  let writing: Entry | null = null;
  for (const event of events) {
    const data = event.data as Record<string, unknown>;
    const entry = (title: string, body = "", isCode = false): Entry => ({
      key: event.sequence,
      at: event.created_at,
      title,
      text: body,
      isCode,
    });
    switch (event.type) {
      case "message.delta":
      case "reasoning.delta": {
        const title = event.type === "message.delta" ? "Writing" : "Reasoning";
        if (writing?.title !== title) {
          writing = entry(title);
          found.push(writing);
        }
        writing.text += text(data.delta ?? data.content ?? data.text);
        break;
      }
      case "message.completed": {
        const message = (data.message ?? data) as Record<string, unknown>;
        const whole = text(message.content);
        if (writing?.title === "Writing") found.splice(found.indexOf(writing), 1);
        writing = null;
        if (whole) found.push(entry("Message", whole));
        break;
      }
      case "step.started":
        writing = null;
        found.push(entry(`Step ${text(data.step)}`));
        break;
      case "tool_call.started":
        found.push(
          entry(
            `Tool call: ${text(data.name ?? (data.function as { name?: string } | undefined)?.name)}`,
            text(data.arguments),
            true,
          ),
        );
        break;
      case "tool_call.completed":
        found.push(entry("Tool output", text(data.output ?? data.error ?? data.content), true));
        break;
      default:
        found.push(entry(TITLES[event.type] ?? event.type, event.type === "run.failed" ? text(data.error) : ""));
    }
  }
  return found;
}

export function Timeline({ events }: { events: readonly RunEvent[] }) {
  return (
    <ol class="timeline" aria-live="polite">
      {folded(events).map((one) => (
        <li key={one.key}>
          <p class="row">
            <strong>{plain(one.title, 120)}</strong>
            <time class="note" dateTime={one.at}>
              {clock(one.at)}
            </time>
          </p>
          {one.text &&
            (one.isCode ? (
              <pre class="code-block" tabIndex={0}>
                {plain(one.text, MOST)}
              </pre>
            ) : (
              <p class="message-text" dir="auto">
                {plain(one.text, MOST)}
              </p>
            ))}
        </li>
      ))}
    </ol>
  );
}
