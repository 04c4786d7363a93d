/** Checks the first lines of a batch's input file before it is sent. The server checks all lines. */

/** Bytes that are read. Reading a long file would block the page. */
const MOST_BYTES = 32 * 1024 * 1024;
const MOST_FAULTS = 5;

export interface Fault {
  line: number;
  message: string;
}

export interface Checked {
  faults: Fault[];
  /** Lines that were read. */
  lines: number;
  isWhole: boolean;
  /** Model and endpoint of the first valid line. */
  model: string;
  endpoint: string;
}

interface Request {
  custom_id?: unknown;
  method?: unknown;
  url?: unknown;
  body?: { model?: unknown; stream?: unknown } | null;
}

const textOf = (value: unknown): string => (typeof value === "string" ? value : "");

/** Returns what is wrong with a request, or an empty text. */
function faultOf(request: Request, found: Checked, ids: Map<string, number>): string {
  const { custom_id: id, method, url, body } = request;
  if (typeof id !== "string" || !id) return "'custom_id' must be a text.";
  const first = ids.get(id);
  if (first) return `Line ${first} has the same 'custom_id'.`;
  if (method !== "POST") return "'method' must be \"POST\".";
  if (typeof url !== "string") return "'url' must be the path of an endpoint.";
  if (found.endpoint && url !== found.endpoint) return `'url' must be '${found.endpoint}', as in the lines before.`;
  if (typeof body !== "object" || body === null || Array.isArray(body)) return "'body' must be an object.";
  if (body.stream) return "Answers of a batch are not streamed: leave 'stream' out.";
  if (found.endpoint && textOf(body.model) !== found.model) return "All lines must name the same model.";
  return "";
}

/** Checks lines, up to five errors. */
export function check(text: string, isWhole: boolean): Checked {
  const found: Checked = { faults: [], lines: 0, isWhole, model: "", endpoint: "" };
  const ids = new Map<string, number>();
  const lines = text.split("\n");
  // The end of the text may be in the middle of a line.
  if (!isWhole) lines.pop();
  for (const [index, line] of lines.entries()) {
    if (!line.trim()) continue;
    found.lines += 1;
    let message: string;
    try {
      const parsed: unknown = JSON.parse(line);
      const request = (parsed ?? {}) as Request;
      message = faultOf(request, found, ids);
      if (!message) {
        ids.set(request.custom_id as string, index + 1);
        found.endpoint = request.url as string;
        found.model = textOf(request.body?.model);
      }
    } catch {
      message = "The line is not valid JSON.";
    }
    if (message && found.faults.push({ line: index + 1, message }) >= MOST_FAULTS) return { ...found, isWhole: false };
  }
  if (!found.lines && isWhole) found.faults.push({ line: 1, message: "The file has no request." });
  return found;
}

export async function checkFile(file: Blob): Promise<Checked> {
  return check(await file.slice(0, MOST_BYTES).text(), file.size <= MOST_BYTES);
}
