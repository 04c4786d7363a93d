/** One chat message. */

import { plain } from "../lib/format";
import { CopyButton } from "../ui/parts";
import type { Message, Part } from "./chat-stream";

const WHO = { system: "System", user: "You", assistant: "Model", tool: "Tool" };
const MOST = 200_000;

function textOf(content: Message["content"]): string {
  if (!Array.isArray(content)) return content ?? "";
  return content
    .filter((part): part is Part & { type: "text" } => part.type === "text")
    .map((part) => part.text)
    .join("\n");
}

/** Reasoning that a model writes inside its text. */
const THOUGHT = /^\s*<think>([\s\S]*?)(?:<\/think>|$)/;

export function Said({ message }: { message: Message }) {
  const whole = textOf(message.content);
  const thought = message.reasoning ?? (message.role === "assistant" ? THOUGHT.exec(whole)?.[1] : undefined);
  const text = message.reasoning === undefined && thought !== undefined ? whole.replace(THOUGHT, "") : whole;
  const pictures = Array.isArray(message.content) ? message.content.filter((part) => part.type === "image_url") : [];
  return (
    <article class={`message ${message.role}`}>
      <p class="who">{WHO[message.role]}</p>
      {thought && (
        <details class="reasoning">
          <summary>Reasoning</summary>
          <p class="message-text">{plain(thought, MOST)}</p>
        </details>
      )}
      {pictures.map((part, index) => (
        <img key={index} src={part.image_url.url} alt="Sent image" />
      ))}
      {text && (
        <p class="message-text" dir="auto">
          {plain(text, MOST)}
        </p>
      )}
      {message.tool_calls?.map((one) => (
        <p key={one.id}>
          Called <strong>{plain(one.function.name, 80)}</strong> with <code>{plain(one.function.arguments, 4000)}</code>
        </p>
      ))}
      {message.role === "assistant" && text && (
        <p>
          <CopyButton text={text} />
        </p>
      )}
    </article>
  );
}
