/** Builds form fields from a request's JSON schema. */

export interface Schema {
  $ref?: string;
  type?: string | string[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  description?: string;
  title?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  maxLength?: number;
  additionalProperties?: unknown;
}

export type Kind = "text" | "line" | "lines" | "number" | "integer" | "boolean" | "choice" | "media" | "table" | "json";

export interface Field {
  name: string;
  kind: Kind;
  isRequired: boolean;
  /** Inputs are shown before options. */
  isInput: boolean;
  description: string;
  default: unknown;
  options: string[];
  minimum: number | undefined;
  maximum: number | undefined;
  /** Media kind of the field. */
  media: string | undefined;
}

type Definitions = Record<string, Schema>;

/** Text fields treated as inputs, even if the schema does not require them. */
const INPUTS = new Set([
  "inputs",
  "input",
  "context",
  "question",
  "query",
  "source_sentence",
  "sentences",
  "documents",
  "prompt",
  "candidate_labels",
  "table",
  "word_boxes",
  "image",
  "audio",
  "video",
  "file",
  "input_reference",
  "negative_prompt",
  "voice",
]);
const SHORT = new Set(["question", "query", "source_sentence", "voice"]);
/** Fields that the playground sets itself or that do not affect the output. */
const LEFT_OUT = new Set([
  "model",
  "stream",
  "user",
  "safety_identifier",
  "moderation",
  "partial_images",
  "stream_format",
  "timeout",
  "generate_kwargs",
  "padding",
  "encoding_format",
  "include",
  "chunking_strategy",
]);

function resolved(schema: Schema, definitions: Definitions): Schema {
  let found = schema;
  for (let depth = 0; found.$ref && depth < 8; depth += 1) {
    const { $ref, ...beside } = found;
    found = { ...definitions[$ref.slice($ref.lastIndexOf("/") + 1)], ...beside };
  }
  return found;
}

/** Value types of a schema, without null. */
function choices(schema: Schema, definitions: Definitions): Schema[] {
  const found = resolved(schema, definitions);
  const several = found.anyOf ?? found.oneOf;
  const all = several ? several.flatMap((one) => choices(one, definitions)) : [found];
  return all.filter((one) => one.type !== "null");
}

function kindOf(name: string, schema: Schema, definitions: Definitions): [Kind, Schema] {
  const all = choices(schema, definitions);
  const typed = (type: string) => all.find((one) => one.type === type);
  const listed = all.find((one) => one.enum);
  const text = typed("string");
  const array = typed("array");
  if (listed) return ["choice", listed];
  if (name === "table") return ["table", typed("object") ?? {}];
  if (array && resolved(array.items ?? {}, definitions).type === "string" && (!text || name === "candidate_labels")) {
    return ["lines", array];
  }
  // Embedding inputs are lists, so that several texts can be compared.
  const texts = all.find(
    (one) => one.type === "array" && choices(one.items ?? {}, definitions).some((item) => item.type === "string"),
  );
  if (name === "input" && texts) return ["lines", texts];
  if (text) return [SHORT.has(name) || (text.maxLength ?? 1e9) <= 256 ? "line" : "text", text];
  if (
    array &&
    name !== "word_boxes" &&
    all.some((one) => choices(one.items ?? {}, definitions).some((item) => item.type === "string"))
  ) {
    return ["lines", array];
  }
  for (const type of ["integer", "number", "boolean"] as const) {
    const found = typed(type);
    if (found) return [type, found];
  }
  return ["json", all[0] ?? {}];
}

export function fieldsOf(schema: Schema, definitions: Definitions, media: Record<string, string>): Field[] {
  const request = resolved(schema, definitions);
  const required = new Set(request.required ?? []);
  const found: Field[] = [];
  for (const [name, property] of Object.entries(request.properties ?? {})) {
    if (LEFT_OUT.has(name)) continue;
    const [kind, narrow] = name in media ? (["media", {}] as [Kind, Schema]) : kindOf(name, property, definitions);
    const isRequired = required.has(name);
    const isInput = isRequired || INPUTS.has(name);
    found.push({
      name,
      kind: kind === "text" && !isInput ? "line" : kind,
      isRequired,
      isInput,
      description: resolved(property, definitions).description ?? narrow.description ?? "",
      default: property.default,
      options: (narrow.enum ?? []).map(String),
      minimum: narrow.minimum ?? narrow.exclusiveMinimum,
      maximum: narrow.maximum ?? narrow.exclusiveMaximum,
      media: media[name],
    });
  }
  const order = ["media", "table", "text", "line", "lines"];
  const rank = (field: Field) => (field.isInput ? 0 : 100) + ((order.indexOf(field.kind) + 6) % 6);
  return found.sort((a, b) => rank(a) - rank(b));
}

/** Parses CSV with a header line. Returns column name → cells. */
export function tableOf(text: string): Record<string, string[]> {
  const rows = text
    .split("\n")
    .filter((line) => line.trim())
    .map(cells);
  const [head = [], ...rest] = rows;
  return Object.fromEntries(head.map((name, column) => [name, rest.map((row) => row[column] ?? "")]));
}

/** Splits one line of CSV (RFC 4180, without line breaks in cells). */
function cells(line: string): string[] {
  const found: string[] = [];
  const pattern = /(?<=^|,)\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))/g;
  for (const [, quoted, bare] of line.matchAll(pattern)) {
    found.push(quoted !== undefined ? quoted.replaceAll('""', '"') : (bare ?? "").trim());
  }
  return found;
}

export function textOf(table: Record<string, string[]>): string {
  const names = Object.keys(table);
  const length = Math.max(0, ...names.map((name) => table[name]?.length ?? 0));
  const escaped = (text: string) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = Array.from({ length }, (_, row) => names.map((name) => escaped(table[name]?.[row] ?? "")).join(","));
  return [names.map(escaped).join(","), ...rows].join("\n");
}
