/** Chat with streaming, stop, retry, tools, images and collapsible reasoning. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, shown } from "../api/errors";
import { CallTabs } from "../ui/calls";
import { Button, Card, ErrorNote, Field } from "../ui/parts";
import { ChatOptions, fieldsOf, NO_OPTIONS, optionOf } from "./chat-options";
import { type Asked, type Message, type Part, speed, stream, wire } from "./chat-stream";
import { Loading } from "./loading";
import { MediaInput } from "./media-input";
import { Said } from "./said";

const PAUSE_S = 1;

const EXAMPLES = ["What is the capital of France?", "What is 7 plus 5?", "Count from 1 to 10."];

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
  const [options, setOptions] = useState(NO_OPTIONS);
  const [sent, setSent] = useState<Asked | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [note, setNote] = useState("");
  const [isAsking, setAsking] = useState(false);
  const [isWaiting, setWaiting] = useState(false);
  const going = useRef<AbortController | null>(null);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => () => going.current?.abort(), []);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [messages]);

  function asked(said: Message[]): Asked {
    return {
      model,
      messages: options.system ? [{ role: "system", content: options.system }, ...said] : said,
      ...fieldsOf(options),
    };
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
    try {
      const request = asked(said);
      for (;;) {
        try {
          const begun = performance.now();
          let first: number | undefined;
          for await (const written of stream(request, mine.signal)) {
            setWaiting(false);
            setMessages([...said, written.message]);
            setSent(request);
            const seconds = (performance.now() - begun) / 1000;
            if (isBegun(written.message)) first ??= seconds;
            if (written.tokens !== null) setNote(speed(written.tokens, first ?? seconds, seconds));
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

  return (
    <div class="halves">
      <Card title="Chat" actions={<span class="note">{note}</span>}>
        <div class="chat" role="log" aria-label="Conversation" aria-live="polite">
          {messages.length === 0 && (
            <div class="actions">
              {(seesImages ? [] : EXAMPLES).map((one) => (
                <Button key={one} class="small" onClick={() => void answer([{ role: "user", content: one }])}>
                  {one}
                </Button>
              ))}
              {seesImages && <p class="note">Choose an image and ask about it.</p>}
            </div>
          )}
          {messages.map((message, index) => (
            <Said key={index} message={message} />
          ))}
          {isWaiting && <Loading model={model} onStop={() => going.current?.abort()} />}
          {!optionOf(error) && <ErrorNote error={error} />}
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
      <ChatOptions options={options} error={error} onChange={setOptions} />
      {sent && messages.length > 0 && (
        <Card title="API call" class="whole">
          <CallTabs call={{ path: "/v1/chat/completions", model, isMain: true, files: {}, body: bodyOf(sent) }} />
        </Card>
      )}
    </div>
  );
}

/** Whether the model has written something. */
function isBegun({ content, reasoning, tool_calls: calls }: Message): boolean {
  return Boolean(content || reasoning || calls);
}

/** Body of a request without its model and the bytes of its images. */
function bodyOf({ model: _, messages, ...rest }: Asked): Record<string, unknown> {
  return { messages: cut(wire(messages)), ...rest };
}

/** Replaces the bytes of images. */
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
