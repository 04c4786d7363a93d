/** Detects the type of a response by its fields. Model output is not trusted otherwise. */

import type { Video } from "../api/types";

type Fields = Record<string, unknown>;

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function all<T>(test: (fields: Fields) => boolean) {
  return (value: unknown[]): value is T[] => value.length > 0 && value.every((one) => isObject(one) && test(one));
}

const isNumber = (value: unknown) => typeof value === "number";
const isText = (value: unknown) => typeof value === "string";

export interface Token {
  word: string;
  score: number;
  start: number | null;
  end: number | null;
  entity?: string;
  entity_group?: string;
}
export interface Box {
  xmin: number;
  ymin: number;
  xmax: number;
  ymax: number;
}
export interface Detection {
  label: string;
  score: number;
  box: Box;
}
export interface MasksAnswer {
  masks: string[];
  scores: number[];
  labels?: string[];
}
export interface Span {
  score: number;
  start: number | null;
  end: number | null;
  answer: string;
}
export interface Transcription {
  text: string;
  duration?: number;
  segments?: { start: number; end: number; text: string }[];
  words?: { start: number; end: number; word: string }[];
}

export const areTokens = all<Token>((one) => isText(one.word) && ("entity" in one || "entity_group" in one));
export const areDetections = all<Detection>((one) => isText(one.label) && isObject(one.box));
export const areLabels = all<{ label: string; score: number }>((one) => isText(one.label) && isNumber(one.score));
export const areFills = all<{ token_str: string; score: number; sequence: string }>((one) => isText(one.token_str));
export const areAnswers = all<Span>((one) => isText(one.answer) && isNumber(one.score));
export const areTexts = all<Fields>((one) => textOf(one) !== undefined);

export function textOf(one: Fields): string | undefined {
  const found = Object.entries(one).find(([name, value]) => name.endsWith("_text") && isText(value));
  return found?.[1] as string | undefined;
}

export function isVector(value: unknown): value is number[] {
  return Array.isArray(value) && value.length > 0 && value.every(isNumber);
}

export function isMasks(value: unknown): value is MasksAnswer {
  return isObject(value) && Array.isArray(value.masks) && value.masks.every(isText);
}

export function isDepth(value: unknown): value is { depth: string } {
  return isObject(value) && isText(value.depth);
}

export function isCells(value: unknown): value is { answer: string; coordinates: [number, number][]; cells: string[] } {
  return isObject(value) && isText(value.answer) && Array.isArray(value.cells);
}

export function isZeroShot(value: unknown): value is { labels: string[]; scores: number[] } {
  return isObject(value) && Array.isArray(value.labels) && Array.isArray(value.scores) && "sequence" in value;
}

export function isSpan(value: unknown): value is Span {
  return isObject(value) && isText(value.answer) && isNumber(value.score) && "start" in value;
}

export function isRanking(value: unknown): value is { results: { index: number; relevance_score: number }[] } {
  return (
    isObject(value) &&
    Array.isArray(value.results) &&
    value.results.every((one) => isObject(one) && isNumber(one.index))
  );
}

export function isEmbeddings(value: unknown): value is { data: { embedding: number[] }[] } {
  return (
    isObject(value) && Array.isArray(value.data) && value.data.every((one) => isObject(one) && isVector(one.embedding))
  );
}

export function isImages(value: unknown): value is { data: { b64_json?: string; url?: string }[] } {
  return (
    isObject(value) &&
    Array.isArray(value.data) &&
    value.data.every((one) => isObject(one) && ("b64_json" in one || "url" in one))
  );
}

export function isTranscription(value: unknown): value is Transcription {
  return isObject(value) && isText(value.text) && !("object" in value);
}

export function isVideo(value: unknown): value is Video {
  return isObject(value) && value.object === "video";
}
