/** A call as it is made elsewhere: curl, Python, the openai SDK, the command line. */

import { ROOT } from "../api/base";

export interface Call {
  model: string;
  /** Such as `/v1/classifications/token`. */
  path: string;
  /** Fields beside `model`. */
  body: Record<string, unknown>;
  /** Fields that are files → the file's name. */
  files: Record<string, string>;
}

const BASE = location.origin + ROOT.slice(0, -1);

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function flat(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function hasFiles(call: Call): boolean {
  return Object.keys(call.files).length > 0;
}

export function curl(call: Call): string {
  const lines = [`curl ${BASE}${call.path}`, '-H "Authorization: Bearer $STOKER_API_KEY"'];
  const body = { model: call.model, ...call.body };
  if (hasFiles(call)) {
    for (const [name, file] of Object.entries(call.files)) lines.push(`-F ${quoted(`${name}=@${file}`)}`);
    for (const [name, value] of Object.entries(body)) lines.push(`-F ${quoted(`${name}=${flat(value)}`)}`);
  } else {
    lines.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  }
  return lines.join(" \\\n  ");
}

/** A value as Python writes it. */
function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value);
}

export function python(call: Call): string {
  const body = { model: call.model, ...call.body };
  const what = hasFiles(call)
    ? `    data=${literal(Object.fromEntries(Object.entries(body).map(([name, value]) => [name, flat(value)])))},
    files={${Object.entries(call.files)
      .map(([name, file]) => `${JSON.stringify(name)}: open(${JSON.stringify(file)}, "rb")`)
      .join(", ")}},`
    : `    json=${literal(body)},`;
  return `import os

import httpx

answer = httpx.post(
    "${BASE}${call.path}",
    headers={"Authorization": f"Bearer {os.environ['STOKER_API_KEY']}"},
${what}
    timeout=120,
)
print(answer.raise_for_status().json())`;
}

/** How OpenAI's SDK names an endpoint; none: it has no such. */
const SDK: Record<string, string> = {
  "/v1/chat/completions": "chat.completions.create",
  "/v1/completions": "completions.create",
  "/v1/responses": "responses.create",
  "/v1/embeddings": "embeddings.create",
  "/v1/images/generations": "images.generate",
  "/v1/images/edits": "images.edit",
  "/v1/audio/speech": "audio.speech.create",
  "/v1/audio/transcriptions": "audio.transcriptions.create",
  "/v1/audio/translations": "audio.translations.create",
  "/v1/videos": "videos.create",
};

export function sdk(call: Call): string | null {
  const method = SDK[call.path];
  if (!method) return null;
  const fields = [
    `    model=${literal(call.model)},`,
    ...Object.entries(call.body).map(([name, value]) => `    ${name}=${literal(value)},`),
    ...Object.entries(call.files).map(([name, file]) => `    ${name}=open(${literal(file)}, "rb"),`),
  ];
  return `import os

import openai

client = openai.OpenAI(base_url="${BASE}/v1", api_key=os.environ["STOKER_API_KEY"])
answer = client.${method}(
${fields.join("\n")}
)
print(answer)`;
}

const CHATS = "/v1/chat/completions";

export function cli(call: Call): string {
  const head = `export STOKER_BASE_URL=${BASE}\n`;
  if (call.path === CHATS) {
    const messages = call.body.messages as { content?: unknown }[] | undefined;
    const last = messages?.at(-1)?.content;
    return `${head}stoker chat ${quoted(call.model)} ${quoted(typeof last === "string" ? last : "Hello")}`;
  }
  const inputs = [
    ...Object.values(call.files).map(quoted),
    ...(typeof call.body.inputs === "string" ? [quoted(call.body.inputs)] : []),
  ];
  const options = Object.entries(call.body)
    .filter(([name]) => name !== "inputs" || typeof call.body.inputs !== "string")
    .map(([name, value]) => `-p ${quoted(`${name}=${flat(value)}`)}`);
  return `${head}stoker call ${[quoted(call.model), ...inputs, ...options].join(" ")}`;
}

export function allOf(call: Call): [string, string][] {
  const found: [string, string][] = [
    ["curl", curl(call)],
    ["Python", python(call)],
  ];
  const openai = sdk(call);
  if (openai) found.push(["openai SDK", openai]);
  found.push(["Command line", cli(call)]);
  return found;
}
