/** Field for the number of GPUs that a replica on vLLM is spread over. */

import { MAX_DEVICES } from "../lib/engine-options";
import { Field } from "./parts";

export function Devices({ count, onChange }: { count: number; onChange: (count: number) => void }) {
  return (
    <Field label="GPUs per replica" hint="GPUs of one machine that share the model (tensor parallelism).">
      {(id, hinted) => (
        <input
          id={id}
          type="number"
          min={1}
          max={MAX_DEVICES}
          required
          aria-describedby={hinted}
          value={count}
          onInput={(event) => onChange(Number(event.currentTarget.value))}
        />
      )}
    </Field>
  );
}
