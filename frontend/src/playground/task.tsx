/** One endpoint: input form, output and API call. */

import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, shown } from "../api/errors";
import { ms } from "../lib/format";
import { CallTabs } from "../ui/calls";
import { Button, Card, ErrorNote } from "../ui/parts";
import { type Answer, ask, type Sent } from "./ask";
import { Fields, type Files, isAbout, type Values } from "./fields";
import { Loading } from "./loading";
import { type Operation, verbOf } from "./operations";
import { beginning, exampleInputs, requestOf } from "./request";
import { Result } from "./result";
import { isVideo } from "./shapes";

export function TaskPlayground({ model, operation }: { model: string; operation: Operation }) {
  const [values, setValues] = useState<Values>(() => beginning(operation));
  const [files, setFiles] = useState<Files>({});
  const [done, setDone] = useState<{ sent: Sent; answer: Answer } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isAsking, setAsking] = useState(false);
  const going = useRef<AbortController | null>(null);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    const field = error && form.current?.querySelector<HTMLElement>("[aria-invalid=true]");
    const folded = field?.closest("details");
    if (folded) folded.open = true;
    field?.focus();
  }, [error]);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    going.current?.abort();
    const mine = new AbortController();
    going.current = mine;
    setError(null);
    setAsking(true);
    try {
      const sent: Sent = { path: operation.path, model, ...requestOf(operation, values, files) };
      const answer = await ask(sent, mine.signal, () => undefined);
      setDone({ sent, answer });
    } catch (thrown) {
      if (!mine.signal.aborted) setError(shown(thrown));
    } finally {
      if (going.current === mine) setAsking(false);
    }
  }

  const inputs = operation.fields.filter((field) => field.isInput);
  const options = operation.fields.filter((field) => !field.isInput);
  const isPlaced = operation.fields.some((field) => isAbout(error, field));
  // The duration of a video's call is not that of the video's job.
  const isTimed = done && !isAsking && !(done.answer.kind === "json" && isVideo(done.answer.value));
  const common = {
    error,
    examples: exampleInputs(operation),
    values,
    files,
    onValue: (name: string, value: string) => setValues((now) => ({ ...now, [name]: value })),
    onFile: (name: string, file: File | null) => setFiles((now) => ({ ...now, [name]: file })),
  };

  return (
    <div class="halves">
      <Card title="Input">
        <form ref={form} class="stack" noValidate onSubmit={(event) => void submit(event)}>
          <Fields fields={inputs} {...common} />
          {options.length > 0 && (
            <details>
              <summary>Options</summary>
              <div class="fields">
                <Fields fields={options} {...common} />
              </div>
            </details>
          )}
          <div class="actions">
            <Button kind="primary" type="submit" isBusy={isAsking}>
              {verbOf(operation)}
            </Button>
          </div>
        </form>
      </Card>
      <Card title="Output" actions={isTimed && <span class="note">{ms(done.answer.ms)}</span>}>
        <div aria-live="polite" class="stack">
          {isAsking && (
            <Loading
              model={model}
              onStop={() => {
                going.current?.abort();
                setAsking(false);
              }}
            />
          )}
          {!isPlaced && <ErrorNote error={error} />}
          {!isAsking && !error && done && <Result sent={done.sent} answer={done.answer} />}
          {!isAsking && (isPlaced || !(error || done)) && <p class="note">The output appears here.</p>}
        </div>
      </Card>
      {done && (
        <Card title="API call" class="whole">
          <CallTabs
            call={{
              ...done.sent,
              isMain: operation.isMain,
              files: Object.fromEntries(Object.entries(done.sent.files).map(([name, file]) => [name, file.name])),
            }}
          />
        </Card>
      )}
    </div>
  );
}
