import { describe, expect, it } from "vitest";
import { fieldsOf, type Schema } from "../../src/lib/schema";
import { hintOf, labelOf } from "../../src/playground/labels";
import { type Operation, titleOf, verbOf } from "../../src/playground/operations";

function described(name: string, schema: Schema, media: Record<string, string> = {}, required = [name]) {
  const [field] = fieldsOf({ type: "object", properties: { [name]: schema }, required }, {}, media);
  if (!field) throw new Error(name);
  return [labelOf(field), hintOf(field)];
}

describe("labels and hints", () => {
  const TEXT = { type: "string", description: "A text, or a list of texts: one result each, in order." };
  const LINES = { type: "array", items: { type: "string" } };

  it.each<[string, Schema, Record<string, string>, string[]]>([
    ["inputs", TEXT, {}, ["Text", ""]],
    ["inputs", TEXT, { inputs: "image" }, ["Image", ""]],
    ["file", { description: "A recording: URL, data URI" }, { file: "audio" }, ["Recording", ""]],
    ["candidate_labels", { ...LINES, description: "Labels, or a list" }, {}, ["Labels", "One per line."]],
    ["input", LINES, {}, ["Texts", "One per line."]],
    ["input", { type: "string", description: "The text to speak." }, {}, ["Text", "The text to speak."]],
    ["top_k", { type: "integer", description: "Number of results." }, {}, ["Top k", "Number of results."]],
  ])("describes %s", (name, schema, media, expected) => {
    expect(described(name, schema, media)).toEqual(expected);
  });

  it("keeps the purpose of a file that may be left out", () => {
    const schema = { description: "Image that the video begins with: a file, a URL" };
    expect(described("input_reference", schema, { input_reference: "image" }, [])).toEqual([
      "First image",
      "Image that the video begins with.",
    ]);
  });
});

describe("names of endpoints", () => {
  it.each([
    ["/v1/classifications/text", "Classify texts", "Classify", "Classify texts"],
    ["/v1/audio/speech", "Create speech", "Generate", "Speech"],
    ["/v1/audio/transcriptions", "Create a transcription", "Transcribe", "Transcription"],
    ["/v1/embeddings", "Create embeddings", "Embed", "Embeddings"],
    ["/v1/images/edits", "Edit an image", "Edit", "Edit an image"],
    ["/v1/fill-mask", "Fill masked tokens", "Fill in", "Fill masked tokens"],
    ["/v1/x/reverse", "Reverse a text", "Run", "Reverse a text"],
  ])("names the button and the endpoint of %s", (path, summary, verb, title) => {
    const operation = { path, summary } as Operation;
    expect([verbOf(operation), titleOf(operation)]).toEqual([verb, title]);
  });
});
