/** Chat messages and streamed answers. */

import { call } from "../api/client";
import { ApiError } from "../api/errors";
import { eventsOf } from "../lib/sse";

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export type Part = { type: "text"; text: string } | { type: "image_url"; image_url: { url: string } };

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string | Part[] | null;
  reasoning?: string;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
}

export interface Asked {
  model: string;
  messages: Message[];
  tools?: unknown[];
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  seed?: number;
  stop?: string[];
  response_format?: unknown;
}

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

interface Chunk {
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
  error?: { message?: string; code?: string };
}

export interface Written {
  message: Message;
  finish: string | null;
  tokens: number | null;
}

/** Returns the messages to send, without fields that only the page uses. */
export function wire(messages: Message[]): Omit<Message, "reasoning">[] {
  return messages.map(({ reasoning: _, ...message }) => message);
}

function added(message: Message, delta: Delta): Message {
  const next = { ...message };
  if (delta.content) next.content = `${(next.content as string | null) ?? ""}${delta.content}`;
  if (delta.reasoning_content) next.reasoning = `${next.reasoning ?? ""}${delta.reasoning_content}`;
  for (const one of delta.tool_calls ?? []) {
    const calls = [...(next.tool_calls ?? [])];
    const known = calls[one.index] ?? { id: "", type: "function" as const, function: { name: "", arguments: "" } };
    calls[one.index] = {
      ...known,
      id: known.id || (one.id ?? ""),
      function: {
        name: known.function.name || (one.function?.name ?? ""),
        arguments: known.function.arguments + (one.function?.arguments ?? ""),
      },
    };
    next.tool_calls = calls;
  }
  return next;
}

/** Yields the answer so far after each chunk. Throws `ApiError`. */
export async function* stream(asked: Asked, signal: AbortSignal): AsyncGenerator<Written> {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", prefer: "wait=60" },
    body: JSON.stringify({
      ...asked,
      messages: wire(asked.messages),
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.body) throw new ApiError("The response is empty.", -1, "page");
  let found: Written = { message: { role: "assistant", content: "" }, finish: null, tokens: null };
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) {
      throw new ApiError(chunk.error.message ?? "The model failed.", 500, chunk.error.code ?? "unknown");
    }
    const choice = chunk.choices?.[0];
    if (choice?.delta) found = { ...found, message: added(found.message, choice.delta) };
    if (choice?.finish_reason) found = { ...found, finish: choice.finish_reason };
    if (chunk.usage) found = { ...found, tokens: chunk.usage.completion_tokens };
    yield found;
  }
}

/** Time from the first to the last token below which a rate means nothing. */
const LEAST_S = 0.01;

/** Number of tokens, rate and time to the first token. Times are in seconds since the request. */
export function speed(tokens: number, first: number, last: number): string {
  const rate = tokens > 1 && last - first >= LEAST_S ? `, ${((tokens - 1) / (last - first)).toFixed(1)} tokens/s` : "";
  return `${tokens} ${tokens === 1 ? "token" : "tokens"}${rate}, first after ${first.toFixed(1)} s`;
}
