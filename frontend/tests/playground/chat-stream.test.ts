import { describe, expect, it, vi } from "vitest";
import { type Message, speed, stream, type Written, wire } from "../../src/playground/chat-stream";

const ASKED = { model: "m", messages: [{ role: "user", content: "Hi", reasoning: "private" } as Message] };

async function answer(...chunks: unknown[]): Promise<Written[]> {
  const events = chunks.map((chunk) => `data: ${typeof chunk === "string" ? chunk : JSON.stringify(chunk)}\n\n`);
  vi.mocked(fetch).mockResolvedValue(new Response(events.join("")));
  const written: Written[] = [];
  for await (const now of stream(ASKED, new AbortController().signal)) written.push(now);
  return written;
}

function delta(fields: object, finish: string | null = null): object {
  return { choices: [{ delta: fields, finish_reason: finish }] };
}

describe("stream", () => {
  it("yields the answer so far", async () => {
    const written = await answer(
      delta({ reasoning_content: "Hm" }),
      delta({ reasoning_content: "m." }),
      delta({ content: "Hel" }),
      delta({ content: "lo" }, "stop"),
      { choices: [], usage: { prompt_tokens: 3, completion_tokens: 2 } },
      "[DONE]",
      delta({ content: "ignored" }),
    );
    expect(written.map((now) => now.message.content)).toEqual(["", "", "Hel", "Hello", "Hello"]);
    expect(written.at(-1)).toEqual({
      message: { role: "assistant", content: "Hello", reasoning: "Hmm." },
      finish: "stop",
      tokens: 2,
    });
  });

  it("joins the pieces of tool calls", async () => {
    const call = (index: number, fields: object) => delta({ tool_calls: [{ index, ...fields }] });
    const written = await answer(
      call(0, { id: "call_1", function: { name: "add", arguments: '{"a":' } }),
      call(1, { id: "call_2", function: { name: "now" } }),
      call(0, { function: { arguments: "1}" } }),
    );
    expect(written.at(-1)?.message.tool_calls).toEqual([
      { id: "call_1", type: "function", function: { name: "add", arguments: '{"a":1}' } },
      { id: "call_2", type: "function", function: { name: "now", arguments: "" } },
    ]);
    expect(written[0]?.message.tool_calls).toHaveLength(1);
  });

  it("throws errors that arrive in the stream", async () => {
    const error = { error: { code: "model_failed", message: "Out of memory." } };
    await expect(answer(delta({ content: "a" }), error)).rejects.toMatchObject({
      code: "model_failed",
      message: "Out of memory.",
    });
  });

  it("sends messages without what only the page shows", async () => {
    await answer("[DONE]");
    const body = vi.mocked(fetch).mock.lastCall?.[1]?.body as string;
    expect(JSON.parse(body)).toEqual({
      model: "m",
      messages: [{ role: "user", content: "Hi" }],
      stream: true,
      stream_options: { include_usage: true },
    });
    expect(wire(ASKED.messages)).toEqual([{ role: "user", content: "Hi" }]);
  });
});

describe("speed", () => {
  it.each<[number, number, number, string]>([
    [21, 0.5, 2.5, "21 tokens, 10.0 tokens/s, first after 0.5 s"],
    [1, 2, 2, "1 token, first after 2.0 s"],
    // Tokens that arrive together say nothing about the rate.
    [10, 0.1, 0.105, "10 tokens, first after 0.1 s"],
  ])("describes %d tokens", (tokens, first, last, text) => {
    expect(speed(tokens, first, last)).toBe(text);
  });
});
