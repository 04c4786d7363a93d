/** The endpoints that serve a pipeline, read from the server's own document. */

import { json } from "../api/client";
import type { Call } from "../lib/calls";
import { type Field, type Schema, fieldsOf } from "../lib/schema";

interface Documented {
  summary?: string;
  operationId?: string;
  requestBody?: { content?: Record<string, { schema?: Schema; example?: Record<string, unknown> }> };
  "x-pipelines"?: string[];
  "x-media"?: Record<string, MediaKind>;
}

interface Document {
  paths: Record<string, Record<string, Documented>>;
  components: { schemas: Record<string, Schema> };
}

export type MediaKind = "image" | "audio" | "video";

export interface Operation {
  path: string;
  summary: string;
  fields: Field[];
  media: Record<string, MediaKind>;
  example: Record<string, unknown>;
  takesForms: boolean;
}

let reading: Promise<Document> | undefined;

function document(): Promise<Document> {
  reading ??= json<Document>("/openapi.json").catch((thrown: unknown) => {
    reading = undefined;
    throw thrown;
  });
  return reading;
}

/** Names of an endpoint under which other conventions look for it. */
const ALIASES = new Set(["/rerank", "/v2/rerank"]);
/** Of language models: what the chat does by itself. */
const BESIDE = new Set(["/v1/responses", "/v1/responses/input_tokens"]);

export async function operationsOf(pipeline: string): Promise<Operation[]> {
  const found = await document();
  const all: [Operation, boolean][] = [];
  for (const [path, methods] of Object.entries(found.paths)) {
    const documented = methods.post;
    const pipelines = documented?.["x-pipelines"];
    if (!documented || !pipelines?.includes(pipeline) || ALIASES.has(path) || BESIDE.has(path)) continue;
    const content = documented.requestBody?.content ?? {};
    const described = content["application/json"];
    const media = documented["x-media"] ?? {};
    all.push([
      {
        path,
        summary: documented.summary ?? path,
        media,
        fields: fieldsOf(described?.schema ?? {}, found.components.schemas, media),
        example: described?.example ?? {},
        takesForms: "multipart/form-data" in content,
      },
      pipelines[0] === pipeline,
    ]);
  }
  // Its own endpoint before those that it serves as well.
  return all.sort((a, b) => Number(b[1]) - Number(a[1])).map(([one]) => one);
}

const FILES: Record<MediaKind, string> = { image: "image.png", audio: "recording.wav", video: "video.mp4" };

/** The document's own example, as a call of this model. */
export function exampleOf(operation: Operation, model: string): Call {
  const body: Record<string, unknown> = {};
  const files: Record<string, string> = {};
  for (const [name, value] of Object.entries(operation.example)) {
    const kind = operation.media[name];
    if (name === "model") continue;
    if (kind && operation.takesForms) files[name] = FILES[kind];
    else body[name] = value;
  }
  return { model, path: operation.path, body, files };
}
