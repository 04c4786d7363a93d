import { describe, expect, it } from "vitest";
import { allOf, type Call, cli, curl, python, sdk } from "../../src/lib/calls";

/** tests/demo/console/test_snippets.py runs the examples of all endpoints. */
function callOf(path: string, body: Record<string, unknown>, rest: Partial<Call> = {}): Call {
  return { model: "team/model", path, body, files: {}, isMain: true, ...rest };
}

const FILL = callOf("/v1/fill-mask", { inputs: "It's a [MASK].", top_k: 2 });

describe("curl", () => {
  it("sends JSON, quoted for the shell", () => {
    expect(curl(FILL)).toBe(
      [
        "curl https://stoker.test/v1/fill-mask",
        '-H "Authorization: Bearer $STOKER_API_KEY"',
        "-H 'Content-Type: application/json'",
        `-d '{"model":"team/model","inputs":"It'\\''s a [MASK].","top_k":2}'`,
      ].join(" \\\n  "),
    );
  });

  it("sends texts of forms as they are, and files by name", () => {
    const call = callOf("/v1/images/edits", { prompt: "@home; type=x", n: 1 }, { files: { image: "a.png" } });
    expect(curl(call).split(" \\\n  ").slice(2)).toEqual([
      "-F 'image=@a.png'",
      "--form-string 'model=team/model'",
      "--form-string 'prompt=@home; type=x'",
      "--form-string 'n=1'",
    ]);
  });

  it("quotes names of files that curl would split", () => {
    const call = callOf("/v1/images/edits", {}, { files: { image: 'a, "b";c.png' } });
    expect(curl(call)).toContain(String.raw`-F 'image=@"a, \"b\";c.png"'`);
  });

  it("writes speech to a file", () => {
    expect(curl(callOf("/v1/audio/speech", { input: "Hello" }))).toMatch(/ \\\n {2}-o speech\.mp3$/);
  });
});

describe("a call with a key", () => {
  const call: Call = { ...FILL, key: "sk-1-2" };

  it("contains the key in place of the variable", () => {
    expect(curl(call)).toContain('-H "Authorization: Bearer sk-1-2"');
    expect(python(call)).toContain('    headers={"Authorization": "Bearer sk-1-2"},');
    expect(cli(call)).toContain("\nexport STOKER_API_KEY=sk-1-2\nstoker call ");
    expect(sdk(callOf("/v1/embeddings", { input: "a" }, { key: "sk-1-2" }))).toContain('api_key="sk-1-2")');
    for (const [, text] of allOf(call)) expect(text).not.toMatch(/import os|\|environ/);
  });
});

describe("python", () => {
  it("sends JSON as a Python literal", () => {
    const body = { inputs: 'a "b"\n', on: true, off: false, none: null, list: [1, { x: 0.5 }] };
    expect(python(callOf("/v1/fill-mask", body))).toContain(
      String.raw`    json={"model": "team/model", "inputs": "a \"b\"\n", "on": True, "off": False, "none": None, ` +
        `"list": [1, {"x": 0.5}]},\n`,
    );
  });

  it("sends forms as texts, with opened files", () => {
    const call = callOf("/v1/x", { top_k: 2, labels: ["a"] }, { files: { image: "a.png" } });
    expect(python(call)).toContain(
      String.raw`    data={"model": "team/model", "top_k": "2", "labels": "[\"a\"]"},
    files={"image": open("a.png", "rb")},
`,
    );
  });
});

describe("sdk", () => {
  it("passes fields that the SDK does not support as the extra body", () => {
    expect(sdk(callOf("/v1/images/generations", { prompt: "a cat", seed: 1, n: 2 }))).toContain(`images.generate(
    model="team/model",
    prompt="a cat",
    n=2,
    extra_body={"seed": 1},
)
print(answer.data[0].url)`);
  });

  it("passes an empty prompt to models without one", () => {
    expect(sdk(callOf("/v1/images/generations", { seed: 1 }))).toContain('    prompt="",\n');
  });

  it("opens files", () => {
    const call = callOf("/v1/audio/transcriptions", {}, { files: { file: "a.wav" } });
    expect(sdk(call)).toContain('    file=open("a.wav", "rb"),\n');
  });

  it("does not exist for endpoints that OpenAI does not have", () => {
    expect(sdk(FILL)).toBeNull();
    expect(allOf(FILL).map(([name]) => name)).toEqual(["curl", "Python", "Command line"]);
    expect(allOf(callOf("/v1/embeddings", { input: "a" })).map(([name]) => name)).toEqual([
      "curl",
      "Python",
      "openai SDK",
      "Command line",
    ]);
  });
});

describe("cli", () => {
  function commandOf(call: Call): string {
    const [head, command] = cli(call).split("\n");
    expect(head).toBe("export STOKER_BASE_URL=https://stoker.test");
    return command ?? "";
  }

  it("passes inputs as the argument and other fields as parameters", () => {
    expect(commandOf(FILL)).toBe(`stoker call 'team/model' 'It'\\''s a [MASK].' -p 'top_k=2'`);
  });

  it("passes inputs that are no text as a parameter", () => {
    expect(commandOf(callOf("/v1/x", { inputs: ["a", "b"] }))).toBe(`stoker call 'team/model' -p 'inputs=["a","b"]'`);
  });

  it("quotes texts that the command would read as JSON", () => {
    const call = callOf("/v1/x", { question: "2024", answer: "true", context: "plain", label: '"a"' });
    expect(commandOf(call)).toBe(
      String.raw`stoker call 'team/model' -p 'question="2024"' -p 'answer="true"' -p 'context=plain' -p 'label="\"a\""'`,
    );
  });

  it("names the endpoint unless it is the default", () => {
    expect(commandOf(callOf("/v1/rerank", { query: "a" }, { isMain: false }))).toBe(
      "stoker call 'team/model' -p 'query=a' --endpoint /v1/rerank",
    );
  });

  it("sends the last message of a chat", () => {
    const messages = [{ content: "first" }, { content: "last" }];
    expect(commandOf(callOf("/v1/chat/completions", { messages }))).toBe("stoker chat 'team/model' 'last'");
    expect(commandOf(callOf("/v1/chat/completions", { messages: [{ content: [] }] }))).toBe(
      "stoker chat 'team/model' 'Hello'",
    );
  });

  it("passes files by the options of the command", () => {
    const call = callOf("/v1/images/edits", { prompt: "a cat", n: 2 }, { files: { image: "a.png", mask: "m.png" } });
    expect(commandOf(call)).toBe("stoker image 'team/model' 'a cat' --edit 'a.png' --mask 'm.png' -p 'n=2'");
    expect(commandOf(callOf("/v1/x", {}, { files: { image: "a.png" } }))).toBe("stoker call 'team/model' 'a.png'");
  });
});
