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

/** Media kind → the words for one file. */
export const MEDIA_NAMES: Record<MediaKind, string> = { image: "an image", audio: "a recording", video: "a video" };

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
const ALIASES = new Set(["/v2/rerank"]);
/** Endpoints of language models that the chat view covers. */
const BESIDE = new Set(["/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens"]);

/** Fields of a pipeline's form. */
function fieldsFor(pipeline: string, fields: Field[]): Field[] {
  const isNeeded = (name: string) => pipeline === "image-to-video" && name === "input_reference";
  return fields
    .filter((one) => !WITHOUT[pipeline]?.includes(one.name))
    .map((one) => ({ ...one, isRequired: one.isRequired || isNeeded(one.name) }));
}

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
        fields: fieldsFor(pipeline, fieldsOf(described?.schema ?? {}, found.components.schemas, media)),
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

/** Last part of an endpoint's path → the name of its button, if the summary begins with "Create". */
const CREATES: Record<string, string> = {
  completions: "Complete",
  edits: "Edit",
  embeddings: "Embed",
  transcriptions: "Transcribe",
  translations: "Translate",
};
/** First words of summaries that name the button. */
const VERBS = new Set(
  "Classify Compare Describe Detect Edit Estimate Extract Generate Rank Segment Summarize Translate".split(" "),
);
const OTHERS: Record<string, string> = { Answer: "Get answer", Fill: "Fill in" };

/** Name of the button that calls an endpoint. */
export function verbOf({ summary, path }: Operation): string {
  const first = summary.split(" ")[0] ?? "";
  if (first === "Create") return CREATES[path.slice(path.lastIndexOf("/") + 1)] ?? "Generate";
  return VERBS.has(first) ? first : (OTHERS[first] ?? "Run");
}

/** Name of an endpoint: its summary, without "Create". */
export function titleOf({ summary }: Operation): string {
  const name = summary.replace(/^Create (an? )?/, "");
  return name.charAt(0).toUpperCase() + name.slice(1);
}

const FILES: Record<MediaKind, string> = { image: "picture.png", audio: "recording.wav", video: "video.mp4" };

/** Model that an example is for. */
export interface Subject {
  model: string;
  pipeline: string;
  /** Class named in its files, such as `StableDiffusionInpaintPipeline`. Empty: unknown. */
  architecture: string;
}

/** Pipeline → fields that its models do not accept. */
const WITHOUT: Record<string, string[]> = {
  "text-to-video": ["input_reference"],
  "unconditional-image-generation": ["prompt", "negative_prompt", "guidance_scale"],
};

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
