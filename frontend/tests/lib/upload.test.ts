import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Artifact } from "../../src/api/types";
import { below, dropped, type Picked, type Progress, send, useful } from "../../src/lib/upload";

const PART_SIZE = 4;
const UPLOADS = "/v1/model-artifacts/art_1/uploads";

function picked(path: string, content = ""): Picked {
  return { path, file: new File([content], path.split("/").at(-1) ?? path) };
}

function pathsOf(files: Picked[]): string[] {
  return files.map((file) => file.path);
}

/** Server with at most one upload of the artifact `art_1`. */
class Server {
  readonly requests: string[] = [];
  /** Address of each received part below the upload → content. */
  readonly parts = new Map<string, string>();
  readonly digests = new Map<string, string | null>();
  /** Parts that the upload contains when it is opened: path → numbers. */
  stored: Record<string, number[]> = {};
  /** Answers a PUT instead of the server, if it returns a response or throws. */
  interrupt: (address: string) => Response | Promise<Response> | undefined = () => undefined;
  openUpload: string | null = null;

  async fetch(input: string | URL | Request, options: RequestInit = {}): Promise<Response> {
    const url = new URL(input instanceof Request ? input.url : input, "https://stoker.test");
    const method = input instanceof Request ? input.method : (options.method ?? "GET");
    const address = url.pathname;
    if (method === "PUT") return this.#put(address, options);
    this.requests.push(`${method} ${address}`);
    const body = input instanceof Request ? await input.text() : "";
    if (method === "POST" && address === UPLOADS) {
      this.openUpload = "up_new";
      return Response.json({ upload_id: this.openUpload, asked: body });
    }
    if (this.openUpload === null || !address.startsWith(`${UPLOADS}/${this.openUpload}`)) {
      return Response.json({ error: { code: "not_found", message: "No such upload." } }, { status: 404 });
    }
    if (address.endsWith("/complete")) return Response.json({ artifact: { id: "art_1", status: "inspecting" } });
    const files = Object.entries(this.stored).map(([path, numbers]) => ({
      path,
      parts: numbers.map((number) => ({ number })),
    }));
    return Response.json({ upload_id: this.openUpload, part_size: PART_SIZE, files });
  }

  #put(address: string, options: RequestInit): Response | Promise<Response> {
    const interrupted = this.interrupt(address);
    if (interrupted !== undefined) return interrupted;
    const part = address.replace(`${UPLOADS}/${this.openUpload}/files/`, "");
    this.parts.set(part, new TextDecoder().decode(options.body as ArrayBuffer));
    this.digests.set(part, new Headers(options.headers).get("content-digest"));
    return new Response(null, { status: 204 });
  }
}

let server: Server;

beforeEach(() => {
  server = new Server();
  vi.mocked(fetch).mockImplementation((input, options) => server.fetch(input, options));
});

afterEach(() => {
  vi.restoreAllMocks();
});

/** Ends each wait at once. Returns the milliseconds that were waited for. */
function skipWaits(): (number | undefined)[] {
  const waits: (number | undefined)[] = [];
  vi.spyOn(window, "setTimeout").mockImplementation((act, milliseconds) => {
    waits.push(milliseconds);
    if (typeof act === "function") queueMicrotask(() => act());
    return 0;
  });
  return waits;
}

function upload(files: Picked[], uploadId: string | null = null, signal = new AbortController().signal) {
  const progress: Progress[] = [];
  const artifact = { id: "art_1", upload_id: uploadId } as Artifact;
  return { progress, result: send(artifact, files, signal, (now) => progress.push(now)) };
}

describe("choosing files", () => {
  it("keeps the files of the model", () => {
    const files = ["config.json", "model.safetensors", "pytorch_model.bin", ".git/config.json"].map((path) =>
      picked(path),
    );
    expect(useful(files)).toEqual(files.slice(0, 2));
  });

  it("removes the folder that all files share", () => {
    expect(pathsOf(below([picked("m/config.json"), picked("m/unet/config.json")]))).toEqual([
      "config.json",
      "unet/config.json",
    ]);
  });

  it("keeps folders that some files do not share", () => {
    for (const paths of [["m/a.json", "n/b.json"], ["m/a.json", "b.json"], ["a.json"], []]) {
      expect(pathsOf(below(paths.map((path) => picked(path))))).toEqual(paths);
    }
  });
});

describe("dropped", () => {
  function fileEntry(name: string, isGone = false): FileSystemEntry {
    const file = (resolve: (file: File) => void, reject: (error: Error) => void) =>
      isGone ? reject(new Error("gone")) : resolve(new File([name], name));
    return { name, isFile: true, file } as unknown as FileSystemEntry;
  }

  /** Returns a folder that lists its entries in batches of two. */
  function folderEntry(name: string, entries: FileSystemEntry[]): FileSystemEntry {
    const left = [...entries];
    const createReader = () => ({
      readEntries: (resolve: (some: FileSystemEntry[]) => void) => resolve(left.splice(0, 2)),
    });
    return { name, isFile: false, createReader } as unknown as FileSystemEntry;
  }

  function listOf(...entries: (FileSystemEntry | null)[]): DataTransferItemList {
    return entries.map((entry) => ({ webkitGetAsEntry: () => entry })) as unknown as DataTransferItemList;
  }

  it("reads folders to the end", async () => {
    const inner = folderEntry("unet", [fileEntry("config.json")]);
    const folder = folderEntry("m", [fileEntry("a.json"), fileEntry("b.json"), inner, fileEntry("c.json")]);
    const files = await dropped(listOf(folder));
    expect(pathsOf(files)).toEqual(["a.json", "b.json", "unet/config.json", "c.json"]);
    expect(await files[0]?.file.text()).toBe("a.json");
  });

  it("reads single files and skips what is no file", async () => {
    expect(pathsOf(await dropped(listOf(fileEntry("a.gguf"), null)))).toEqual(["a.gguf"]);
  });

  it("names what can no longer be read", async () => {
    await expect(dropped(listOf(folderEntry("m", [fileEntry("a.json", true)])))).rejects.toMatchObject({
      code: "file_gone",
      message: expect.stringContaining("'m' can no longer be read") as string,
    });
  });
});

describe("send", () => {
  it("opens an upload, sends all parts and completes it", async () => {
    const { result, progress } = upload([picked("config.json", "0123456789"), picked("a b/ü#.json", "xyz")]);
    expect(await result).toEqual({ id: "art_1", status: "inspecting" });
    expect(Object.fromEntries(server.parts)).toEqual({
      "config.json/parts/1": "0123",
      "config.json/parts/2": "4567",
      "config.json/parts/3": "89",
      "a%20b/%C3%BC%23.json/parts/1": "xyz",
    });
    expect(server.requests).toEqual([`POST ${UPLOADS}`, `GET ${UPLOADS}/up_new`, `POST ${UPLOADS}/up_new/complete`]);
    expect(progress[0]).toEqual({ bytes: 0, total: 13, bytesPerS: 0, file: "" });
    expect(progress).toHaveLength(5);
    expect(progress.at(-1)).toMatchObject({ bytes: 13, total: 13 });
  });

  it("sends the digest of each part", async () => {
    await upload([picked("a.json", "abc")]).result;
    // SHA-256 of "abc", from FIPS 180-2.
    expect(server.digests.get("a.json/parts/1")).toBe("sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:");
  });

  it("sends an empty file as one part", async () => {
    await upload([picked("a.json")]).result;
    expect(Object.fromEntries(server.parts)).toEqual({ "a.json/parts/1": "" });
  });

  it("splits a file at the part size", async () => {
    await upload([picked("a.json", "01234567")]).result;
    expect([...server.parts.values()].sort()).toEqual(["0123", "4567"]);
  });

  it("resumes an upload with the missing parts", async () => {
    server.openUpload = "up_1";
    server.stored = { "a.json": [1, 3] };
    const { result, progress } = upload([picked("a.json", "0123456789"), picked("b.json", "xy")], "up_1");
    await result;
    expect(Object.fromEntries(server.parts)).toEqual({ "a.json/parts/2": "4567", "b.json/parts/1": "xy" });
    // The two parts are sent at once, so either may be first.
    const [resumed, , done] = progress.map((now) => now.bytes);
    expect([resumed, done, progress.length]).toEqual([6, 12, 3]);
    expect([8, 10]).toContain(progress[1]?.bytes);
    expect(server.requests[0]).toBe(`GET ${UPLOADS}/up_1`);
  });

  it("opens a new upload if the old one has expired", async () => {
    await upload([picked("a.json", "a")], "up_expired").result;
    expect(server.requests.slice(0, 2)).toEqual([`GET ${UPLOADS}/up_expired`, `POST ${UPLOADS}`]);
    expect(server.parts.size).toBe(1);
  });

  it("sends at most four parts at a time", async () => {
    let pending = 0;
    let most = 0;
    vi.mocked(fetch).mockImplementation(async (input, options) => {
      pending += 1;
      most = Math.max(most, pending);
      await new Promise((resolve) => setTimeout(resolve));
      pending -= 1;
      return server.fetch(input, options);
    });
    await upload([picked("a.json", "x".repeat(10 * PART_SIZE))]).result;
    expect(server.parts.size).toBe(10);
    expect(most).toBe(4);
  });

  it.each([
    ["a lost connection", () => Promise.reject(new TypeError("Failed to fetch"))],
    ["a failed server", () => new Response(null, { status: 502 })],
    ["a limit on requests", () => new Response(null, { status: 429 })],
  ])("repeats a part after %s", async (_name, failure) => {
    const waits = skipWaits();
    let left = 2;
    server.interrupt = () => (left-- > 0 ? failure() : undefined);
    await upload([picked("a.json", "abc")]).result;
    expect(waits).toEqual([1000, 2000]);
    expect(server.parts.get("a.json/parts/1")).toBe("abc");
  });

  it("gives up a part after eight tries", async () => {
    const waits = skipWaits();
    let tries = 0;
    server.interrupt = () => {
      tries += 1;
      return new Response(null, { status: 503 });
    };
    await expect(upload([picked("a.json", "abc")]).result).rejects.toMatchObject({ status: 503 });
    expect(tries).toBe(8);
    expect(waits).toEqual([1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
    expect(server.requests).not.toContain(`POST ${UPLOADS}/up_new/complete`);
  });

  it("does not repeat a part that the server rejects, and sends the others", async () => {
    let tries = 0;
    server.interrupt = (address) => {
      if (!address.includes("bad.json")) return undefined;
      tries += 1;
      return Response.json({ error: { code: "invalid_request", message: "No." } }, { status: 400 });
    };
    const { result } = upload([picked("bad.json", "x"), picked("a.json", "abc"), picked("b.json", "0123456")]);
    await expect(result).rejects.toMatchObject({ status: 400, message: "No." });
    expect(tries).toBe(1);
    expect([...server.parts.keys()].sort()).toEqual(["a.json/parts/1", "b.json/parts/1", "b.json/parts/2"]);
    expect(server.requests).not.toContain(`POST ${UPLOADS}/up_new/complete`);
  });

  it("names a file that can no longer be read", async () => {
    const gone = picked("a.json", "abc");
    vi.spyOn(gone.file, "slice").mockReturnValue({
      arrayBuffer: () => Promise.reject(new DOMException("gone", "NotReadableError")),
    } as unknown as Blob);
    await expect(upload([gone]).result).rejects.toMatchObject({ code: "file_gone" });
  });

  it("stops if it is aborted", async () => {
    const abort = new AbortController();
    let tries = 0;
    server.interrupt = () => {
      tries += 1;
      abort.abort();
      throw new DOMException("aborted", "AbortError");
    };
    const { result } = upload([picked("a.json", "x".repeat(10 * PART_SIZE))], null, abort.signal);
    await expect(result).rejects.toMatchObject({ name: "AbortError" });
    expect(tries).toBeLessThanOrEqual(4);
    expect(server.parts.size).toBe(0);
  });
});
