/** Form for an endpoint's inputs and options. */

import type { ApiError } from "../api/errors";
import type { Field as Described } from "../lib/schema";
import { ErrorNote, Field } from "../ui/parts";
import { hintOf, labelOf } from "./labels";
import { MediaInput } from "./media-input";
import type { MediaKind } from "./operations";

export type Values = Record<string, string>;
export type Files = Record<string, File | null>;

interface Props {
  fields: Described[];
  values: Values;
  /** Placeholder texts. */
  examples: Values;
  files: Files;
  /** Error of the last call. It is shown at the field that it names. */
  error: ApiError | null;
  onValue: (name: string, value: string) => void;
  onFile: (name: string, file: File | null) => void;
}

export function Fields(props: Props) {
  return (
    <>
      {props.fields.map((field) => (
        <One key={field.name} field={field} {...props} />
      ))}
    </>
  );
}

/** Whether an error is about a field, such as `inputs` or `inputs.0.text`. */
export function isAbout(error: ApiError | null, field: Described): boolean {
  return error?.param?.split(/[.[]/)[0] === field.name;
}

/** Text with code between backticks. */
function marked(text: string) {
  return text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part));
}

function shown(value: unknown): string {
  return value === undefined || value === null ? "" : String(value);
}

function One({ field, values, examples, files, error, onValue, onFile }: Props & { field: Described }) {
  const value = values[field.name] ?? "";
  const label = labelOf(field) + (field.isInput && !field.isRequired ? " (optional)" : "");
  const isWrong = isAbout(error, field);
  const text = hintOf(field);
  const hint = (isWrong || text) && (
    <>
      {isWrong && <ErrorNote error={error} isAtField />}
      {marked(text)}
    </>
  );
  const set = (event: { currentTarget: { value: string } }) => onValue(field.name, event.currentTarget.value);
  return (
    <Field label={label} hint={hint}>
      {(id, hinted) => {
        const common = { id, "aria-describedby": hinted, "aria-invalid": isWrong, name: field.name };
        switch (field.kind) {
          case "media":
            return (
              <MediaInput
                id={id}
                kind={(field.media ?? "image") as MediaKind}
                file={files[field.name] ?? null}
                onFile={(file) => onFile(field.name, file)}
                describedBy={hinted}
                isWrong={isWrong}
              />
            );
          case "boolean":
            return (
              <select {...common} value={value} onChange={set}>
                <option value="">
                  {field.default === undefined ? "not set" : `${shown(field.default)} (default)`}
                </option>
                <option value="true">true</option>
                <option value="false">false</option>
              </select>
            );
          case "choice":
            return (
              <select {...common} value={value} onChange={set}>
                <option value="">
                  {field.default === undefined ? "not set" : `${shown(field.default)} (default)`}
                </option>
                {field.options.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            );
          case "integer":
          case "number":
            return (
              <input
                {...common}
                type="number"
                step={field.kind === "integer" ? 1 : "any"}
                {...(field.minimum !== undefined ? { min: field.minimum } : {})}
                {...(field.maximum !== undefined ? { max: field.maximum } : {})}
                placeholder={shown(field.default)}
                value={value}
                onInput={set}
              />
            );
          case "line":
            return (
              <input
                {...common}
                type="text"
                required={field.isRequired}
                placeholder={examples[field.name] ?? shown(field.default)}
                value={value}
                onInput={set}
              />
            );
          default:
            return (
              <textarea
                {...common}
                class={field.kind === "text" || field.kind === "lines" ? "" : "code"}
                rows={field.kind === "text" ? 4 : 5}
                required={field.isRequired}
                placeholder={examples[field.name] ?? ""}
                value={value}
                onInput={set}
              />
            );
        }
      }}
    </Field>
  );
}
