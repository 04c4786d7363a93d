/** Labels and hints of form fields. The descriptions of the API also cover lists and encodings, which a form has not. */

import type { Field } from "../lib/schema";

const MEDIA: Record<string, string> = { image: "Image", audio: "Recording", video: "Video" };
const LABELS: Record<string, string> = {
  candidate_labels: "Labels",
  input: "Text",
  input_reference: "First image",
  inputs: "Text",
  mask: "Mask",
  sentences: "Sentences to compare",
  source_sentence: "Sentence",
};
/** Further ways to pass an input in an API call. */
const OTHER_FORMS = /\b(list|lists|objects)\b/;

export function labelOf({ name, kind, media }: Field): string {
  if (media && (name === "inputs" || !LABELS[name])) return MEDIA[media] ?? "File";
  if (name === "input" && kind === "lines") return "Texts";
  const words = name.replaceAll("_", " ");
  return LABELS[name] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

const SYNTAX: Record<string, string> = { lines: "One per line.", table: "CSV with a header line.", json: "JSON." };

export function hintOf({ kind, isInput, isRequired, description, media }: Field): string {
  const syntax = SYNTAX[kind] ?? "";
  if (media) return isRequired ? "" : description.replace(/:.*/s, ".");
  if (isInput && OTHER_FORMS.test(description)) return syntax;
  return `${description} ${syntax}`.trim();
}
