/** Chat with streaming, stop, retry, tools, images and collapsible reasoning. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, shown } from "../api/errors";
import { CallTabs } from "../ui/calls";
import { Button, Card, ErrorNote, Field } from "../ui/parts";
import { type Asked, type Message, type Part, stream, wire } from "./chat-stream";
import { Loading } from "./loading";
import { MediaInput } from "./media-input";
import { Said } from "./said";

const PAUSE_S = 1;

interface Options {
  system: string;
  temperature: string;
  most: string;
  tools: string;
}

function toolsOf(text: string): unknown[] | undefined {
  if (!text.trim()) return undefined;
  try {
    const found: unknown = JSON.parse(text);
    if (Array.isArray(found)) return found;
  } catch {
    // Reported below.
  }
  throw new ApiError("Tools must be a JSON list.", -1, "page");
}

function addressOf(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new ApiError(`${file.name} can no longer be read.`, -1, "page"));
    reader.readAsDataURL(file);
  });
}

export default function Chat({ model, seesImages }: { model: string; seesImages: boolean }) {
  const [messages, setMessages] = useState<Message[]>([]);
  const [text, setText] = useState("");
  const [file, setFile] = useState<File | null>(null);
  const [options, setOptions] = useState<Options>({ system: "", temperature: "", most: "", tools: "" });
  const [error, setError] = useState<ApiError | null>(null);
  const [note, setNote] = useState("");
  const [isAsking, setAsking] = useState(false);
  const [isWaiting, setWaiting] = useState(false);
  const going = useRef<AbortController | null>(null);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => () => going.current?.abort(), []);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [messages]);

  function asked(said: Message[]): Asked {
    const found: Asked = {
      model,
      messages: options.system ? [{ role: "system", content: options.system }, ...said] : said,
    };
    if (options.temperature) found.temperature = Number(options.temperature);
    if (options.most) found.max_tokens = Number(options.most);
    const tools = toolsOf(options.tools);
    if (tools) found.tools = tools;
    return found;
  }

  async function answer(said: Message[]): Promise<void> {
    going.current?.abort();
    const mine = new AbortController();
    going.current = mine;
    setMessages(said);
    setError(null);
    setNote("");
    setAsking(true);
    setWaiting(true);
    const begun = performance.now();
    try {
      for (;;) {
        try {
          for await (const written of stream(asked(said), mine.signal)) {
            setWaiting(false);
            setMessages([...said, written.message]);
            const seconds = (performance.now() - begun) / 1000;
            if (written.tokens !== null) setNote(`${written.tokens} tokens in ${seconds.toFixed(1)} s`);
            if (written.finish === "length") setNote("Cut off: the token limit was reached.");
          }
          return;
        } catch (thrown) {
          if (!(thrown instanceof ApiError) || thrown.code !== "model_loading") throw thrown;
          await new Promise((resolve) => window.setTimeout(resolve, PAUSE_S * 1000));
          if (mine.signal.aborted) return;
        }
      }
    } catch (thrown) {
      if (mine.signal.aborted) setNote("Stopped.");
      else setError(shown(thrown));
    } finally {
      if (going.current === mine) {
        setAsking(false);
        setWaiting(false);
      }
    }
  }

  async function say(): Promise<void> {
    if (isAsking || !text.trim()) return;
    try {
      const content: string | Part[] = file
        ? [
            { type: "image_url", image_url: { url: await addressOf(file) } },
            { type: "text", text },
          ]
        : text;
      setText("");
      setFile(null);
      await answer([...messages, { role: "user", content }]);
    } catch (thrown) {
      setError(shown(thrown));
    }
  }

  /** Discards the last answer and requests a new one. */
  function retry(): void {
    const last = messages.findLastIndex((one) => one.role === "user" || one.role === "tool");
    if (last >= 0) void answer(messages.slice(0, last + 1));
  }

  const lastMessage = messages.at(-1);
  const open = (lastMessage?.tool_calls ?? []).filter((one) => one?.id);
  const last = messages.findLastIndex((one) => one.role === "user");
  const set = (name: keyof Options) => (event: { currentTarget: { value: string } }) =>
    setOptions({ ...options, [name]: event.currentTarget.value });

  return (
    <div class="halves">
      <Card title="Chat" actions={<span class="note">{note}</span>}>
        <div class="chat" role="log" aria-label="Conversation" aria-live="polite">
          {messages.length === 0 && <p class="note">Send a message to start. The answer streams as it is generated.</p>}
          {messages.map((message, index) => (
            <Said key={index} message={message} />
          ))}
          {isWaiting && <Loading model={model} onStop={() => going.current?.abort()} />}
          <ErrorNote error={error} />
          <div ref={end} />
        </div>
        {!isAsking && open.length > 0 && (
          <ToolOutputs
            names={open.map((one) => one.function.name)}
            onSend={(outputs) =>
              void answer([
                ...messages,
                ...open.map(
                  (one, index): Message => ({ role: "tool", tool_call_id: one.id, content: outputs[index] ?? "" }),
                ),
              ])
            }
          />
        )}
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void say();
          }}
        >
          <Field label="Message" hint="Enter sends. Shift+Enter starts a new line.">
            {(id, hint) => (
              <textarea
                id={id}
                rows={3}
                aria-describedby={hint}
                value={text}
                onInput={(event) => setText(event.currentTarget.value)}
                onKeyDown={(event) => {
                  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
                  event.preventDefault();
                  void say();
                }}
              />
            )}
          </Field>
          {seesImages && (
            <Field label="Image (optional)">
              {(id, hint) => <MediaInput id={id} kind="image" file={file} onFile={setFile} describedBy={hint} />}
            </Field>
          )}
          <div class="actions">
            {isAsking ? (
              <Button kind="danger" onClick={() => going.current?.abort()}>
                Stop
              </Button>
            ) : (
              <Button kind="primary" type="submit" disabled={!text.trim()}>
                Send
              </Button>
            )}
            <Button disabled={isAsking || last < 0} onClick={retry}>
              Try again
            </Button>
            <Button kind="quiet" disabled={isAsking || messages.length === 0} onClick={() => setMessages([])}>
              New chat
            </Button>
          </div>
        </form>
      </Card>
      <Card title="Options">
        <Field label="System message">
          {(id) => <textarea id={id} rows={3} value={options.system} onInput={set("system")} />}
        </Field>
        <div class="fields">
          <Field label="Temperature" hint="Leave empty for the model's default.">
            {(id, hint) => (
              <input
                id={id}
                type="number"
                min={0}
                max={2}
                step="any"
                aria-describedby={hint}
                value={options.temperature}
                onInput={set("temperature")}
              />
            )}
          </Field>
          <Field label="Max tokens">
            {(id) => (
              <input
                id={id}
                type="number"
                min={1}
                max={1_000_000}
                step={1}
                value={options.most}
                onInput={set("most")}
              />
            )}
          </Field>
        </div>
        <Field label="Tools" hint="A JSON list in OpenAI's format. You provide the output of each tool call.">
          {(id, hint) => (
            <textarea
              id={id}
              class="code"
              rows={5}
              spellcheck={false}
              aria-describedby={hint}
              value={options.tools}
              onInput={set("tools")}
            />
          )}
        </Field>
      </Card>
      {last >= 0 && (
        <Card title="API call">
          <CallTabs
            call={{
              path: "/v1/chat/completions",
              model,
              isMain: true,
              files: {},
              body: { messages: cut(wire(messages.slice(0, last + 1))) },
            }}
          />
        </Card>
      )}
    </div>
  );
}

/** Replaces images by their names. */
function cut(messages: Omit<Message, "reasoning">[]): unknown[] {
  return messages.map((message) => ({
    ...message,
    content: Array.isArray(message.content)
      ? message.content.map((part) =>
          part.type === "image_url" ? { type: "image_url", image_url: { url: "data:image/png;base64,…" } } : part,
        )
      : message.content,
  }));
}

function ToolOutputs({ names, onSend }: { names: string[]; onSend: (outputs: string[]) => void }) {
  const [outputs, setOutputs] = useState<string[]>(names.map(() => ""));
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        onSend(outputs);
      }}
    >
      {names.map((name, index) => (
        <Field key={index} label={`Output of ${name}`}>
          {(id) => (
            <textarea
              id={id}
              class="code"
              rows={2}
              value={outputs[index] ?? ""}
              onInput={(event) =>
                setOutputs(outputs.map((one, at) => (at === index ? event.currentTarget.value : one)))
              }
            />
          )}
        </Field>
      ))}
      <div class="actions">
        <Button kind="primary" type="submit">
          Send tool output
        </Button>
      </div>
    </form>
  );
}
