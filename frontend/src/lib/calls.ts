/** Code examples for a call: curl, Python, openai SDK, command line. */

import { ROOT } from "../api/base";

export interface Call {
  model: string;
  /** Such as `/v1/classifications/token`. */
  path: string;
  /** Request fields other than `model`. */
  body: Record<string, unknown>;
  /** Fields that are files → the file's name. */
  files: Record<string, string>;
  /** False: the command line must name this endpoint, because another one is the default. */
  isMain: boolean;
  /** API key to show. Without it, the call reads the variable `STOKER_API_KEY`. */
  key?: string;
}

const BASE = location.origin + ROOT.slice(0, -1);

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function flat(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Formats a parameter of a `stoker` command, which decodes values that are valid JSON. */
function parameter(value: unknown): string {
  return typeof value === "string" && !isJson(value) ? value : JSON.stringify(value);
}

/** Formats a file name for curl, which splits names without quotes. */
function attached(file: string): string {
  return /[",;\\]/.test(file) ? JSON.stringify(file) : file;
}

function hasFiles(call: Call): boolean {
  return Object.keys(call.files).length > 0;
}

export function curl(call: Call): string {
  const lines = [`curl ${BASE}${call.path}`, `-H "Authorization: Bearer ${call.key ?? "$STOKER_API_KEY"}"`];
  const body = { model: call.model, ...call.body };
  if (hasFiles(call)) {
    for (const [name, file] of Object.entries(call.files)) lines.push(`-F ${quoted(`${name}=@${attached(file)}`)}`);
    // With -F, values that begin with @ or < name files.
    for (const [name, value] of Object.entries(body)) lines.push(`--form-string ${quoted(`${name}=${flat(value)}`)}`);
  } else {
    lines.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  }
  if (call.path === SPEECH) lines.push(`-o ${SOUND}`);
  return lines.join(" \\\n  ");
}

/** Formats a value as a Python literal. */
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

function importOs(call: Call): string {
  return call.key ? "" : "import os\n\n";
}

export function python(call: Call): string {
  const body = { model: call.model, ...call.body };
  const what = hasFiles(call)
    ? `    data=${literal(Object.fromEntries(Object.entries(body).map(([name, value]) => [name, flat(value)])))},
    files={${Object.entries(call.files)
      .map(([name, file]) => `${JSON.stringify(name)}: open(${JSON.stringify(file)}, "rb")`)
      .join(", ")}},`
    : `    json=${literal(body)},`;
  const shown = call.path === SPEECH ? `open("${SOUND}", "wb").write(answer.content)` : "print(answer.json())";
  const key = call.key ? `"Bearer ${call.key}"` : `f"Bearer {os.environ['STOKER_API_KEY']}"`;
  return `${importOs(call)}import httpx

answer = httpx.post(
    "${BASE}${call.path}",
    headers={"Authorization": ${key}},
${what}
    timeout=120,
)
if answer.is_error:
    raise SystemExit(answer.text)
${shown}`;
}

const CHATS = "/v1/chat/completions";
const DRAWINGS = "/v1/images/generations";
const EDITS = "/v1/images/edits";
const SPEECH = "/v1/audio/speech";
const TRANSCRIPTIONS = "/v1/audio/transcriptions";
const VIDEOS = "/v1/videos";
const SOUND = "speech.mp3";

/** Endpoint path → method of OpenAI's SDK, and the code that prints the result. */
const SDK: Record<string, [method: string, shown: string]> = {
  [CHATS]: ["chat.completions.create", "print(answer.choices[0].message.content)"],
  "/v1/completions": ["completions.create", "print(answer.choices[0].text)"],
  "/v1/responses": ["responses.create", "print(answer.output_text)"],
  "/v1/embeddings": ["embeddings.create", "print([row.embedding for row in answer.data])"],
  [DRAWINGS]: ["images.generate", "print(answer.data[0].url)"],
  [EDITS]: ["images.edit", "print(answer.data[0].url)"],
  [SPEECH]: ["audio.speech.create", `answer.write_to_file("${SOUND}")`],
  [TRANSCRIPTIONS]: ["audio.transcriptions.create", "print(answer.text)"],
  "/v1/audio/translations": ["audio.translations.create", "print(answer.text)"],
  [VIDEOS]: ["videos.create_and_poll", 'client.videos.download_content(answer.id).write_to_file("video.mp4")'],
};
/** Fields of an endpoint that the SDK method does not support. */
const BESIDE_SDK: Record<string, string[]> = {
  [DRAWINGS]: ["seed", "num_inference_steps", "guidance_scale", "negative_prompt"],
  [EDITS]: ["seed", "num_inference_steps", "guidance_scale", "negative_prompt", "strength"],
  [VIDEOS]: ["seed", "num_inference_steps", "guidance_scale", "negative_prompt"],
};
/** Prompt for SDK methods that require one although the model does not. */
const ANY_PROMPT = { prompt: "" };

export function sdk(call: Call): string | null {
  const [method, shown] = SDK[call.path] ?? [];
  if (!method) return null;
  const isUnknown = (name: string) => BESIDE_SDK[call.path]?.includes(name);
  const given = call.path === DRAWINGS ? { ...ANY_PROMPT, ...call.body } : call.body;
  const extra = Object.fromEntries(Object.entries(given).filter(([name]) => isUnknown(name)));
  const fields = [
    `    model=${literal(call.model)},`,
    ...Object.entries(given)
      .filter(([name]) => !isUnknown(name))
      .map(([name, value]) => `    ${name}=${literal(value)},`),
    ...(Object.keys(extra).length ? [`    extra_body=${literal(extra)},`] : []),
    ...Object.entries(call.files).map(([name, file]) => `    ${name}=open(${literal(file)}, "rb"),`),
  ];
  const key = call.key ? literal(call.key) : 'os.environ["STOKER_API_KEY"]';
  return `${importOs(call)}import openai

client = openai.OpenAI(base_url="${BASE}/v1", api_key=${key})
answer = client.${method}(
${fields.join("\n")}
)
${shown}`;
}

/** Maps an endpoint's fields to a `stoker` command. */
interface Command {
  name: string;
  /** Field passed as the argument. */
  argument: string;
  /** Fields that are files → its options. */
  files: Record<string, string>;
}

const COMMANDS: Record<string, Command> = {
  [DRAWINGS]: { name: "image", argument: "prompt", files: {} },
  [EDITS]: { name: "image", argument: "prompt", files: { image: "--edit", mask: "--mask" } },
  [SPEECH]: { name: "speak", argument: "input", files: {} },
  [VIDEOS]: { name: "video", argument: "prompt", files: { input_reference: "--image" } },
};

export function cli(call: Call): string {
  const key = call.key ? `export STOKER_API_KEY=${call.key}\n` : "";
  const head = `export STOKER_BASE_URL=${BASE}\n${key}`;
  const model = quoted(call.model);
  if (call.path === CHATS) {
    const messages = call.body.messages as { content?: unknown }[] | undefined;
    const last = messages?.at(-1)?.content;
    return `${head}stoker chat ${model} ${quoted(typeof last === "string" ? last : "Hello")}`;
  }
  const command = COMMANDS[call.path] ?? { name: "call", argument: "inputs", files: {} };
  const argument = call.body[command.argument];
  const words = [
    model,
    ...(typeof argument === "string" ? [quoted(argument)] : []),
    ...Object.entries(call.files).flatMap(([name, file]) => [command.files[name] ?? "", quoted(file)].filter(Boolean)),
    ...Object.entries(call.body)
      .filter(([name, value]) => name !== command.argument || typeof value !== "string")
      .map(([name, value]) => `-p ${quoted(`${name}=${parameter(value)}`)}`),
    ...(command.name === "call" && !call.isMain ? [`--endpoint ${call.path}`] : []),
  ];
  return `${head}stoker ${command.name} ${words.join(" ")}`;
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
