import { describe, expect, it } from "vitest";
import type { Field, Kind } from "../../src/lib/schema";
import type { Operation } from "../../src/playground/operations";
import { beginning, exampleInputs, requestOf } from "../../src/playground/request";

function field(name: string, kind: Kind, rest: Partial<Field> = {}): Field {
  return {
    name,
    kind,
    isRequired: false,
    isInput: true,
    description: "",
    default: undefined,
    options: [],
    minimum: undefined,
    maximum: undefined,
    media: undefined,
    ...rest,
  };
}

function operation(fields: Field[], rest: Partial<Operation> = {}): Operation {
  return { path: "/v1/x", summary: "", fields, media: {}, example: {}, takesForms: false, isMain: true, ...rest };
}

describe("requestOf", () => {
  it("converts texts by the kind of field", () => {
    const fields = [
      field("inputs", "text"),
      field("top_k", "integer"),
      field("threshold", "number"),
      field("normalize", "boolean"),
      field("off", "boolean"),
      field("labels", "lines"),
      field("table", "table"),
      field("columns", "table"),
      field("rows", "table"),
      field("options", "json"),
    ];
    const values = {
      inputs: " a\n",
      top_k: "3",
      threshold: "0.5",
      normalize: "true",
      off: "false",
      labels: " a \n\nb, c\n",
      table: "x,y\n1,2",
      columns: ' {"x": ["1"]}',
      rows: '[{"x": "1"}]',
      options: '{"a": [1]}',
    };
    expect(requestOf(operation(fields), values, {}).body).toEqual({
      inputs: " a\n",
      top_k: 3,
      threshold: 0.5,
      normalize: true,
      off: false,
      labels: ["a", "b, c"],
      table: { x: ["1"], y: ["2"] },
      columns: { x: ["1"] },
      rows: [{ x: "1" }],
      options: { a: [1] },
    });
  });

  it("leaves out empty fields", () => {
    expect(requestOf(operation([field("a", "text"), field("b", "number")]), { a: " \n" }, {}).body).toEqual({});
  });

  it("names a field that is not valid JSON", () => {
    const broken = () => requestOf(operation([field("options", "json")]), { options: "{" }, {});
    expect(broken).toThrow(expect.objectContaining({ param: "options", message: "'options' must be valid JSON." }));
  });

  it("sends files, and names missing files", () => {
    const image = field("image", "media", { isRequired: true });
    const file = new File(["x"], "a.png");
    const fields = operation([image, field("mask", "media")]);
    expect(requestOf(fields, {}, { image: file }).files).toEqual({ image: file });
    expect(() => requestOf(fields, {}, {})).toThrow(expect.objectContaining({ param: "image" }));
  });
});

describe("examples", () => {
  const example = {
    inputs: "text",
    labels: ["a", "b"],
    choices: "a, b,c",
    table: { x: ["1"], y: ["2"] },
    rows: [{ x: 1 }],
    options: { a: 1 },
    top_k: 3,
    missing: null,
  };
  const fields = [
    field("inputs", "text"),
    field("labels", "lines"),
    field("choices", "lines"),
    field("table", "table"),
    field("rows", "table"),
    field("options", "json"),
    field("top_k", "integer", { isInput: false }),
    field("missing", "text"),
  ];

  it("are shown as texts of the form", () => {
    expect(exampleInputs(operation(fields, { example }))).toEqual({
      inputs: "text",
      labels: "a\nb",
      choices: "a\nb\nc",
      table: "x,y\n1,2",
      rows: '[{"x":1}]',
      options: '{"a":1}',
    });
  });

  it("fill a form, unless it takes a file", () => {
    const text = field("inputs", "text");
    expect(beginning(operation([text], { example }))).toEqual({ inputs: "text" });
    const image = field("image", "media", { isRequired: true });
    expect(beginning(operation([text, image], { example }))).toEqual({});
  });

  it("are completed by the playground's own defaults", () => {
    expect(beginning(operation([], { path: "/v1/images/generations" }))).toEqual({ response_format: "b64_json" });
  });
});
