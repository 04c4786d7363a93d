import { describe, expect, it } from "vitest";
import { ApiError } from "../../src/api/errors";
import { fieldsOf, NO_OPTIONS, optionOf } from "../../src/playground/chat-options";

describe("fieldsOf", () => {
  it("leaves out empty options", () => {
    expect(fieldsOf(NO_OPTIONS)).toEqual({});
  });

  it("converts each option to its field", () => {
    const options = {
      system: "Be brief.",
      temperature: "0",
      topP: "0.5",
      most: "16",
      seed: "0",
      stop: "END\n\n. \n",
      schema: '{"type": "object"}',
      tools: '[{"type": "function"}]',
    };
    expect(fieldsOf(options)).toEqual({
      temperature: 0,
      top_p: 0.5,
      max_tokens: 16,
      seed: 0,
      stop: ["END", ". "],
      response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } },
      tools: [{ type: "function" }],
    });
  });

  it.each([
    ["schema", "[]"],
    ["schema", "{"],
    ["tools", "{}"],
  ])("names the option %s of the value %s", (name, text) => {
    expect(() => fieldsOf({ ...NO_OPTIONS, [name]: text })).toThrow(expect.objectContaining({ param: name }));
  });
});

describe("optionOf", () => {
  it.each([
    ["temperature", "temperature"],
    ["top_p", "topP"],
    ["max_tokens", "most"],
    ["response_format.json_schema", "schema"],
    ["stop[0]", "stop"],
    ["messages", undefined],
  ])("finds the option of the field %s", (param, option) => {
    expect(optionOf(new ApiError("", 400, "invalid_request", param))).toBe(option);
  });

  it("finds none without an error", () => {
    expect(optionOf(null)).toBeUndefined();
  });
});
