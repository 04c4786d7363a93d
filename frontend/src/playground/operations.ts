/** Endpoints of a pipeline, read from the OpenAPI document. */

import { json } from "../api/client";
import type { Call } from "../lib/calls";
import { type Field, fieldsOf, type Schema } from "../lib/schema";

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
  /** Whether this is the pipeline's default endpoint, which the command line calls. */
  isMain: boolean;
}

let reading: Promise<Document> | undefined;

function document(): Promise<Document> {
  reading ??= json<Document>("/openapi.json").catch((thrown: unknown) => {
    reading = undefined;
    throw thrown;
  });
  return reading;
}

/** Aliases of endpoints for other API conventions. */
const ALIASES = new Set(["/rerank", "/v2/rerank"]);
/** Endpoints of language models that the chat view covers. */
const BESIDE = new Set([
  "/v1/responses",
  "/v1/responses/input_tokens",
  "/v1/messages",
  "/v1/messages/count_tokens",
]);

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
        isMain: false,
      },
      pipelines[0] === pipeline,
    ]);
  }
  // The default endpoint comes first.
  return all.sort((a, b) => Number(b[1]) - Number(a[1])).map(([one], place) => ({ ...one, isMain: place === 0 }));
}

const FILES: Record<MediaKind, string> = { image: "picture.png", audio: "recording.wav", video: "video.mp4" };

/** Model that an example is for. */
export interface Subject {
  model: string;
  pipeline: string;
  /** Class named in its files, such as `StableDiffusionInpaintPipeline`. Empty: unknown. */
  architecture: string;
}

/** Pipeline → example inputs that its models do not accept. */
const WITHOUT: Record<string, string[]> = { "unconditional-image-generation": ["prompt"] };

/** Media fields that this model needs but the endpoint's example lacks. */
function needed({ pipeline, architecture }: Subject): string[] {
  if (pipeline === "image-to-video") return ["input_reference"];
  return architecture.includes("Inpaint") ? ["mask"] : [];
}

/** Returns the OpenAPI example as a call of this model. */
export function exampleOf(operation: Operation, subject: Subject): Call {
  const body: Record<string, unknown> = {};
  const files: Record<string, string> = {};
  const media = needed(subject).filter((name) => name in operation.media);
  for (const [name, value] of [...Object.entries(operation.example), ...media.map((name) => [name, ""] as const)]) {
    const kind = operation.media[name];
    if (name === "model" || WITHOUT[subject.pipeline]?.includes(name)) continue;
    if (kind && operation.takesForms) files[name] = name === "mask" ? "mask.png" : FILES[kind];
    else body[name] = value;
  }
  return { model: subject.model, path: operation.path, body, files, isMain: operation.isMain };
}
