import { describe, expect, it } from "vitest";
import { type Field, fieldsOf, type Schema, tableOf, textOf } from "../../src/lib/schema";

const TEXT: Schema = { type: "string" };

function fields(
  properties: Record<string, Schema>,
  {
    required = [],
    media = {},
    definitions = {},
  }: { required?: string[]; media?: Record<string, string>; definitions?: Record<string, Schema> } = {},
): Field[] {
  return fieldsOf({ type: "object", properties, required }, definitions, media);
}

function kind(name: string, schema: Schema, definitions: Record<string, Schema> = {}): string | undefined {
  return fields({ [name]: schema }, { required: [name], definitions })[0]?.kind;
}

describe("kinds of fields", () => {
  const optional = (schema: Schema): Schema => ({ anyOf: [schema, { type: "null" }] });

  it.each<[string, Schema, string]>([
    ["inputs", TEXT, "text"],
    ["inputs", optional(TEXT), "text"],
    ["hypothesis_template", { type: "string", maxLength: 256 }, "line"],
    ["prompt", { type: "string", maxLength: 257 }, "text"],
    ["question", TEXT, "line"],
    ["top_k", optional({ type: "integer" }), "integer"],
    ["threshold", { type: "number" }, "number"],
    ["normalize", { type: "boolean" }, "boolean"],
    ["size", { anyOf: [{ type: "string", enum: ["a", "b"] }, TEXT] }, "choice"],
    ["sentences", { type: "array", items: TEXT }, "lines"],
    ["candidate_labels", { anyOf: [TEXT, { type: "array", items: TEXT }] }, "lines"],
    ["stop", { anyOf: [TEXT, { type: "array", items: TEXT }] }, "text"],
    [
      "input",
      { anyOf: [TEXT, { type: "array", items: TEXT }, { type: "array", items: { type: "integer" } }] },
      "lines",
    ],
    ["documents", { type: "array", items: { anyOf: [TEXT, { type: "object" }] } }, "lines"],
    ["word_boxes", { type: "array", items: { type: "array", items: {} } }, "json"],
    ["table", { anyOf: [{ type: "object" }, { type: "array", items: { type: "object" } }] }, "table"],
    ["messages", { type: "array", items: { type: "object" } }, "json"],
    ["anything", {}, "json"],
  ])("shows %s of %j as %s", (name, schema, expected) => {
    expect(kind(name, schema)).toBe(expected);
  });

  it("follows references", () => {
    const definitions: Record<string, Schema> = {
      Size: { type: "string", enum: ["s", "m"], description: "How large." },
      Alias: { $ref: "#/components/schemas/Size" },
    };
    const [field] = fields({ size: { $ref: "#/components/schemas/Alias" } }, { definitions });
    expect(field).toMatchObject({ kind: "choice", options: ["s", "m"], description: "How large." });
  });

  it("ends at references to themselves", () => {
    expect(kind("a", { $ref: "#/x/Loop" }, { Loop: { $ref: "#/x/Loop" } })).toBe("json");
  });

  it("shows long options as a line", () => {
    expect(fields({ note: TEXT })[0]).toMatchObject({ kind: "line", isInput: false });
  });

  it("shows media by the kind of file", () => {
    expect(fields({ image: TEXT }, { media: { image: "image" } })[0]).toMatchObject({ kind: "media", media: "image" });
  });
});

describe("fieldsOf", () => {
  it("describes limits, default and choices", () => {
    const top: Schema = {
      anyOf: [{ type: "integer", minimum: 1, exclusiveMaximum: 100 }, { type: "null" }],
      default: 5,
    };
    expect(fields({ top_k: { ...top, description: "How many." } })).toEqual([
      {
        name: "top_k",
        kind: "integer",
        isRequired: false,
        isInput: false,
        description: "How many.",
        default: 5,
        options: [],
        minimum: 1,
        maximum: 100,
        media: undefined,
      },
    ]);
  });

  it("leaves out fields that the playground sets", () => {
    expect(fields({ model: TEXT, stream: { type: "boolean" }, inputs: TEXT }).map((field) => field.name)).toEqual([
      "inputs",
    ]);
  });

  it("shows inputs before options: media, tables, texts, lines, lists, others", () => {
    const properties: Record<string, Schema> = {
      top_k: { type: "integer" },
      note: TEXT,
      seconds: { type: "number" },
      labels: { type: "array", items: TEXT },
      question: TEXT,
      context: TEXT,
      table: { type: "object" },
      image: TEXT,
    };
    const required = ["seconds", "labels", "question", "context", "table", "image"];
    expect(fields(properties, { required, media: { image: "image" } }).map((field) => field.name)).toEqual([
      "image",
      "table",
      "context",
      "question",
      "labels",
      "seconds",
      "note",
      "top_k",
    ]);
  });
});

describe("tables", () => {
  it("reads CSV by columns", () => {
    expect(tableOf("name, age\nAda,36\r\n\nAlan , 41\n")).toEqual({ name: ["Ada", "Alan"], age: ["36", "41"] });
  });

  it("reads quoted cells", () => {
    expect(tableOf('a,b\n"1,5", "say ""hi"""\n')).toEqual({ a: ["1,5"], b: ['say "hi"'] });
  });

  it("reads empty cells, also the first of a row", () => {
    expect(tableOf("a,b,c\n,1,2\n1,,2\n1,2,\n,,3")).toEqual({
      a: ["", "1", "1", ""],
      b: ["1", "", "2", ""],
      c: ["2", "2", "", "3"],
    });
  });

  it("fills short rows", () => {
    expect(tableOf("a,b\n1")).toEqual({ a: ["1"], b: [""] });
    expect(tableOf("")).toEqual({});
  });

  it("writes what it reads", () => {
    const table = { "a,b": ["1", 'x "y"', ""], c: ["", ",", "z"] };
    expect(textOf(table)).toBe('"a,b",c\n1,\n"x ""y""",","\n,z');
    expect(tableOf(textOf(table))).toEqual(table);
  });

  it("fills short columns", () => {
    expect(textOf({ a: ["1", "2"], b: ["3"] })).toBe("a,b\n1,3\n2,");
    expect(textOf({})).toBe("");
  });
});
