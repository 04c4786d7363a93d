import { describe, expect, test } from "vitest";
import { check, checkFile } from "../../src/lib/batch-lines";

const line = (id: string, more: object = {}) =>
  JSON.stringify({ custom_id: id, method: "POST", url: "/v1/embeddings", body: { model: "m", input: "x" }, ...more });

describe("check", () => {
  test("returns the model and the endpoint of valid lines", () => {
    const found = check(`${line("a")}\n\n${line("b")}\n`, true);
    expect(found).toEqual({ faults: [], lines: 2, isWhole: true, model: "m", endpoint: "/v1/embeddings" });
  });

  test.each([
    ["{", "The line is not valid JSON."],
    ["7", "'custom_id' must be a text."],
    ["null", "'custom_id' must be a text."],
    [line("a"), "Line 1 has the same 'custom_id'."],
    [line("b", { method: "GET" }), "'method' must be \"POST\"."],
    [line("b", { url: "/v1/rerank" }), "'url' must be '/v1/embeddings', as in the lines before."],
    [line("b", { body: [] }), "'body' must be an object."],
    [line("b", { body: { model: "m", stream: true } }), "Answers of a batch are not streamed: leave 'stream' out."],
    [line("b", { body: { model: "n" } }), "All lines must name the same model."],
  ])("refuses %s", (wrong, message) => {
    expect(check(`${line("a")}\n${wrong}\n`, true).faults).toEqual([{ line: 2, message }]);
  });

  test("ends at the fifth error", () => {
    expect(check("{\n".repeat(9), true).faults.map((one) => one.line)).toEqual([1, 2, 3, 4, 5]);
  });

  test("ignores a line that is cut", () => {
    expect(check(`${line("a")}\n{"custom`, false)).toMatchObject({ faults: [], lines: 1, isWhole: false });
  });

  test("refuses a file without a request", async () => {
    expect((await checkFile(new Blob(["\n \n"]))).faults).toEqual([{ line: 1, message: "The file has no request." }]);
  });
});
