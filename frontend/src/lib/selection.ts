/** Selects the files that make up a model, by the rules that the command line and the hub import
 * also read. stoker/client/model_files.py describes the rules. */

import { folders, kept, never, spare } from "../../../stoker/client/model_files.json";

interface SpareRule {
  path: string;
  beside?: string[];
  anywhere?: string;
  unless?: string;
}

const SPARE: SpareRule[] = spare;

/** Returns the paths of the files that are part of the model. */
export function selected(paths: string[]): Set<string> {
  const left = new Set(paths.filter(isKept));
  for (const rule of SPARE) for (const path of unused(rule, left)) left.delete(path);
  return left;
}

function isKept(path: string): boolean {
  const isSkipped = path
    .split("/")
    .slice(0, -1)
    .some((name) => folders.some((folder) => match(folder.name, name)));
  return !isSkipped && kept.some((each) => match(each, path)) && !never.some((each) => match(each, path));
}

function unused({ path: pattern, anywhere, beside, unless }: SpareRule, left: Set<string>): string[] {
  if (unless && left.has(unless)) return [];
  if (anywhere && ![...left].some((path) => match(anywhere, path))) return [];
  return [...left].filter((path) => {
    const groups = match(pattern, path);
    if (!groups || !beside) return groups !== null;
    return beside.some((name) => left.has(name.replaceAll("{1}", () => groups[1] ?? "")));
  });
}

function match(pattern: string, whole: string): RegExpExecArray | null {
  return new RegExp(`^(?:${pattern})$`, "is").exec(whole);
}
