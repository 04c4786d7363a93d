/** Makes a check from a model's own answer to its endpoint's example. */

import { call } from "../../api/client";
import type { Checks, Deployment } from "../../api/types";
import { exampleOf, operationsOf } from "../../playground/operations";
import { isZeroShot } from "../../playground/shapes";

type Check = Checks["checks"][number];
type Expect = Record<string, unknown>;

const DIGITS = 4;
const MOST_CHARS = 40;
const LEAST_COSINE = 0.99;
/** Length of each side of the generated picture. */
const SIDE = 64;
/** Fields of an answer that are not its content. */
const BESIDE = new Set([
  ...["id", "object", "model", "role", "type", "finish_reason"],
  ...["entity", "entity_group", "sequence", "mask", "depth"],
]);
/** Shortest list of numbers that is a vector, and not a list of scores. */
const SHORTEST = 8;
/** Pipelines whose requests need a recording, a video or a mask, or whose answers are jobs. */
const WITHOUT = /audio|video|speech-recognition|image-to-image/;

export function hasExample(pipeline: string): boolean {
  return !WITHOUT.test(pipeline);
}

/** Calls the model once. */
export async function exampleCheck(deployment: Deployment, names: readonly string[]): Promise<Check> {
  const { model, pipeline } = deployment;
  const operation = (await operationsOf(pipeline))[0];
  if (!operation) throw new Error("This task has no example.");
  const { body, files } = exampleOf({ ...operation, takesForms: false }, { model, pipeline, architecture: "" });
  const request: Record<string, unknown> = { ...body, ...files };
  for (const [name, kind] of Object.entries(operation.media)) {
    if (kind === "image" && name in request) request[name] = picture();
  }
  // Sampled text would differ each time.
  if ("messages" in request) Object.assign(request, { temperature: 0, max_completion_tokens: 16 });
  const response = await call(operation.path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, ...request }),
  });
  const isJson = response.headers.get("content-type")?.includes("json");
  const expect = isJson ? expectationOf(await response.json()) : {};
  let number = 1;
  while (names.includes(`example ${number}`)) number += 1;
  return { name: `example ${number}`, request, expect: { status: 200, ...expect } } as Check;
}

/** Returns a condition that this answer meets, and that answers with other content do not meet. */
export function expectationOf(answer: unknown): Expect {
  const label = topLabel(answer);
  if (label !== undefined) return { top_label: label };
  const vector = vectorOf(answer);
  if (vector) {
    const rounded = vector.map((one) => Number(one.toPrecision(DIGITS)));
    return { cosine_min: { vector: rounded, min: LEAST_COSINE } };
  }
  if (isZeroShot(answer)) {
    return { json_schema: { properties: { labels: { prefixItems: [{ const: answer.labels[0] }] } } } };
  }
  // The URL of a generated file differs each time.
  const isFile = typeof answer === "object" && answer !== null && "data" in answer;
  const text = isFile ? undefined : textOf(answer)?.slice(0, MOST_CHARS).trim();
  if (text) return { contains: text };
  return { json_schema: { type: Array.isArray(answer) ? "array" : "object" } };
}

function topLabel(answer: unknown): string | undefined {
  if (!Array.isArray(answer)) return undefined;
  if (Array.isArray(answer[0])) return topLabel(answer[0]);
  const labels = answer as { label?: unknown; score?: unknown }[];
  if (labels.length === 0 || !labels.every((one) => typeof one?.label === "string" && typeof one.score === "number")) {
    return undefined;
  }
  return labels.reduce((a, b) => (Number(b.score) > Number(a.score) ? b : a)).label as string;
}

function vectorOf(answer: unknown): number[] | undefined {
  if (typeof answer !== "object" || answer === null) return undefined;
  if (Array.isArray(answer) && answer.length >= SHORTEST && answer.every((one) => typeof one === "number"))
    return answer;
  for (const one of Object.values(answer)) {
    const found = vectorOf(one);
    if (found) return found;
  }
  return undefined;
}

function textOf(answer: unknown): string | undefined {
  if (typeof answer === "string") return answer;
  if (typeof answer !== "object" || answer === null) return undefined;
  for (const [name, one] of Object.entries(answer)) {
    const found = BESIDE.has(name) ? undefined : textOf(one);
    if (found) return found;
  }
  return undefined;
}

function picture(): string {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  const context = canvas.getContext("2d");
  if (context) {
    context.fillStyle = "#c33";
    context.fillRect(0, 0, SIDE, SIDE);
  }
  return canvas.toDataURL("image/png");
}

/** Formats checks as JSON with each vector on one line. */
export function written(checks: readonly unknown[]): string {
  return JSON.stringify(checks, null, 2).replace(/\[[\d\s.,e+-]+\]/g, (vector) => vector.replace(/\s+/g, " "));
}
