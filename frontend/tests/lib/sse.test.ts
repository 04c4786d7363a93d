import { describe, expect, it } from "vitest";
import { eventsOf } from "../../src/lib/sse";

/** Returns a stream of the chunks, and whether the reader cancelled it. */
function streamOf(...chunks: (string | Uint8Array<ArrayBuffer>)[]): {
  body: ReadableStream<Uint8Array<ArrayBuffer>>;
  isCancelled: () => boolean;
} {
  let isCancelled = false;
  const queue = chunks.map((chunk) => (typeof chunk === "string" ? new TextEncoder().encode(chunk) : chunk));
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    pull(controller) {
      const chunk = queue.shift();
      if (chunk) controller.enqueue(chunk);
      else controller.close();
    },
    cancel() {
      isCancelled = true;
    },
  });
  return { body, isCancelled: () => isCancelled };
}

async function read(...chunks: (string | Uint8Array<ArrayBuffer>)[]): Promise<string[]> {
  const events: string[] = [];
  for await (const data of eventsOf(streamOf(...chunks).body)) events.push(data);
  return events;
}

describe("eventsOf", () => {
  it("yields the data of each event", async () => {
    expect(await read("data: a\n\ndata: b\n\n")).toEqual(["a", "b"]);
  });

  it("joins events that arrive in pieces", async () => {
    expect(await read("da", "ta: {", '"x": 1}', "\n", "\ndata: b\r\n\r", "\n")).toEqual(['{"x": 1}', "b"]);
  });

  it("joins characters that arrive in pieces", async () => {
    const bytes = new TextEncoder().encode("data: ü🙂\n\n");
    expect(await read(...Array.from(bytes, (byte) => Uint8Array.of(byte)))).toEqual(["ü🙂"]);
  });

  it("joins the lines of an event", async () => {
    expect(await read("event: x\ndata: a\nid: 1\ndata: b\n\n")).toEqual(["a\nb"]);
  });

  it("removes one space after the colon", async () => {
    expect(await read("data:a\n\ndata:  b\n\n")).toEqual(["a", " b"]);
  });

  it("skips comments, events without data and an incomplete last event", async () => {
    expect(await read(": ping\n\nevent: x\n\ndata: a\n\ndata: cut off")).toEqual(["a"]);
  });

  it("cancels the stream if the reader stops", async () => {
    const { body, isCancelled } = streamOf("data: a\n\n", "data: b\n\n");
    for await (const data of eventsOf(body)) {
      expect(data).toBe("a");
      break;
    }
    expect(isCancelled()).toBe(true);
  });
});
