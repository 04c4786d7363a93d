/** One endpoint: input form, output and API call. */

import { useRef, useState } from "preact/hooks";
import { type ApiError, shown } from "../api/errors";
import { ms } from "../lib/format";
import { CallTabs } from "../ui/calls";
import { Button, Card, ErrorNote } from "../ui/parts";
import { type Answer, ask, type Sent } from "./ask";
import { Fields, type Files, type Values } from "./fields";
import { Loading } from "./loading";
import type { Operation } from "./operations";
import { beginning, exampleInputs, requestOf } from "./request";
import { Result } from "./result";

export function TaskPlayground({ model, operation }: { model: string; operation: Operation }) {
  const [values, setValues] = useState<Values>(() => beginning(operation));
  const [files, setFiles] = useState<Files>({});
  const [done, setDone] = useState<{ sent: Sent; answer: Answer } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isAsking, setAsking] = useState(false);
  const going = useRef<AbortController | null>(null);

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
  const form = {
    examples: exampleInputs(operation),
    values,
    files,
    onValue: (name: string, value: string) => setValues((now) => ({ ...now, [name]: value })),
    onFile: (name: string, file: File | null) => setFiles((now) => ({ ...now, [name]: file })),
  };

  return (
    <div class="halves">
      <Card title="Input">
        <form class="stack" noValidate onSubmit={(event) => void submit(event)}>
          <Fields fields={inputs} {...form} />
          {options.length > 0 && (
            <details>
              <summary>Options</summary>
              <div class="fields">
                <Fields fields={options} {...form} />
              </div>
            </details>
          )}
          <div class="actions">
            <Button kind="primary" type="submit" isBusy={isAsking}>
              Run
            </Button>
          </div>
        </form>
      </Card>
      <Card title="Output" actions={done && !isAsking && <span class="note">{ms(done.answer.ms)}</span>}>
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
          <ErrorNote error={error} />
          {!isAsking && !error && done && <Result sent={done.sent} answer={done.answer} />}
          {!isAsking && !error && !done && <p class="note">The output appears here.</p>}
        </div>
      </Card>
      {done && (
        <Card title="API call">
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
