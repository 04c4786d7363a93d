/** Options of a chat, as texts of a form. */

import { ApiError } from "../api/errors";
import { Card, ErrorNote, Field } from "../ui/parts";
import type { Asked } from "./chat-stream";

export interface Options {
  system: string;
  temperature: string;
  topP: string;
  most: string;
  seed: string;
  stop: string;
  schema: string;
  tools: string;
}

export const NO_OPTIONS: Options = {
  system: "",
  temperature: "",
  topP: "",
  most: "",
  seed: "",
  stop: "",
  schema: "",
  tools: "",
};

function parsed(text: string, name: keyof Options, isGood: (value: unknown) => boolean, message: string): unknown {
  try {
    const found: unknown = JSON.parse(text);
    if (isGood(found)) return found;
  } catch {
    // Reported below.
  }
  throw new ApiError(message, -1, "page", name);
}

const isObject = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Returns the request fields. Empty options are left out. Throws `ApiError` with the option as its `param`. */
export function fieldsOf({ temperature, topP, most, seed, stop, schema, tools }: Options): Partial<Asked> {
  const found: Partial<Asked> = {};
  if (temperature) found.temperature = Number(temperature);
  if (topP) found.top_p = Number(topP);
  if (most) found.max_tokens = Number(most);
  if (seed) found.seed = Number(seed);
  const stops = stop.split("\n").filter(Boolean);
  if (stops.length) found.stop = stops;
  if (schema.trim()) {
    const read = parsed(schema, "schema", isObject, "The JSON schema must be a JSON object.");
    found.response_format = { type: "json_schema", json_schema: { name: "answer", schema: read } };
  }
  if (tools.trim()) found.tools = parsed(tools, "tools", Array.isArray, "Tools must be a JSON list.") as unknown[];
  return found;
}

/** Request field → the option that sets it. */
const OPTIONS: Record<string, keyof Options> = { top_p: "topP", max_tokens: "most", response_format: "schema" };

/** Name of the option that an error is about, or undefined. */
export function optionOf(error: ApiError | null): keyof Options | undefined {
  const name = error?.param?.split(/[.[]/)[0] ?? "";
  return OPTIONS[name] ?? (name in NO_OPTIONS ? (name as keyof Options) : undefined);
}

/** Options that are folded while they are empty. */
const MORE = ["stop", "schema", "tools"] as const;

interface Props {
  options: Options;
  error: ApiError | null;
  onChange: (options: Options) => void;
}

export function ChatOptions({ options, error, onChange }: Props) {
  const wrong = optionOf(error);
  const common = (name: keyof Options, id: string, hint: string | undefined) => ({
    id,
    "aria-describedby": hint,
    "aria-invalid": name === wrong,
    value: options[name],
    onInput: (event: { currentTarget: { value: string } }) =>
      onChange({ ...options, [name]: event.currentTarget.value }),
  });
  const hintOf = (name: keyof Options, text = "") =>
    (name === wrong || text) && (
      <>
        {name === wrong && <ErrorNote error={error} isAtField />}
        {text}
      </>
    );
  const number = (label: string, name: keyof Options, least: number, most: number, step: "any" | 1) => (
    <Field label={label} hint={hintOf(name)}>
      {(id, hint) => <input type="number" min={least} max={most} step={step} {...common(name, id, hint)} />}
    </Field>
  );
  const text = (label: string, name: keyof Options, rows: number, hint: string, isCode = true) => (
    <Field label={label} hint={hintOf(name, hint)}>
      {(id, hinted) => (
        <textarea class={isCode ? "code" : ""} rows={rows} spellcheck={!isCode} {...common(name, id, hinted)} />
      )}
    </Field>
  );
  return (
    <Card title="Options">
      {text("System message", "system", 3, "", false)}
      <div class="fields">
        {number("Temperature", "temperature", 0, 2, "any")}
        {number("Top p", "topP", 0, 1, "any")}
        {number("Max tokens", "most", 1, 1_000_000, 1)}
        {number("Seed", "seed", 0, 2 ** 31, 1)}
      </div>
      <p class="note">Empty fields use the model's defaults.</p>
      <details open={MORE.some((name) => options[name] || name === wrong)}>
        <summary>Stop texts, JSON schema, tools</summary>
        <div class="stack">
          {text("Stop texts", "stop", 2, "One per line. The answer ends before any of them.")}
          {text("JSON schema", "schema", 5, "The answer is JSON that follows this schema.")}
          {text("Tools", "tools", 5, "A JSON list in OpenAI's format. You provide the output of each tool call.")}
        </div>
      </details>
    </Card>
  );
}
