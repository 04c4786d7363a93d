/** Converts form texts to a request, and examples to form texts. */

import { ApiError } from "../api/errors";
import { type Field, tableOf, textOf } from "../lib/schema";
import type { Files, Values } from "./fields";
import { MEDIA_NAMES, type MediaKind, type Operation } from "./operations";

function read(field: Field, text: string): unknown {
  switch (field.kind) {
    case "number":
    case "integer":
      return Number(text);
    case "boolean":
      return text === "true";
    case "lines":
      return text
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
    case "table":
      return /^\s*[{[]/.test(text) ? parsed(field, text) : tableOf(text);
    case "json":
      return parsed(field, text);
    default:
      return text;
  }
}

function parsed(field: Field, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(`'${field.name}' must be valid JSON.`, -1, "page", field.name);
  }
}

/** Builds a request. Empty fields are not sent, so server defaults apply. Throws `ApiError`. */
export function requestOf(
  operation: Operation,
  values: Values,
  files: Files,
): { body: Record<string, unknown>; files: Record<string, File> } {
  const body: Record<string, unknown> = {};
  const sent: Record<string, File> = {};
  for (const field of operation.fields) {
    const file = files[field.name];
    const text = values[field.name] ?? "";
    if (field.kind === "media") {
      if (file) sent[field.name] = file;
      else if (field.isRequired) {
        throw new ApiError(`Choose ${MEDIA_NAMES[field.media as MediaKind] ?? "a file"}.`, -1, "page", field.name);
      }
    } else if (text.trim()) {
      body[field.name] = read(field, text);
    }
  }
  return { body, files: sent };
}

function shown(field: Field, value: unknown): string {
  if (field.kind === "lines")
    return Array.isArray(value)
      ? value.join("\n")
      : String(value)
          .split(/\s*,\s*/)
          .join("\n");
  if (field.kind === "table")
    return Array.isArray(value) ? JSON.stringify(value) : textOf(value as Record<string, string[]>);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Playground defaults that differ from the server's defaults. */
const BETTER: Record<string, Values> = {
  "/v1/classifications/token": { aggregation_strategy: "simple" },
  "/v1/audio/transcriptions": { response_format: "verbose_json" },
  "/v1/audio/translations": { response_format: "verbose_json" },
  "/v1/images/generations": { response_format: "b64_json" },
  "/v1/images/edits": { response_format: "b64_json" },
  "/v1/rerank": { return_documents: "true" },
};

/** Converts the inputs of an endpoint's example to form texts. */
export function exampleInputs(operation: Operation): Values {
  const inputs: Values = {};
  for (const field of operation.fields) {
    const value = operation.example[field.name];
    if (value !== undefined && value !== null && field.kind !== "media" && field.isInput)
      inputs[field.name] = shown(field, value);
  }
  return inputs;
}

/**
 * Initial values of a form. Labels and questions of an example describe the example's own image, so a form that takes
 * a file starts without them.
 */
export function beginning(operation: Operation): Values {
  const needsFile = operation.fields.some((field) => field.kind === "media" && field.isRequired);
  return { ...(needsFile ? {} : exampleInputs(operation)), ...BETTER[operation.path] };
}
