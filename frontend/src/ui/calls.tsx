import { useState } from "preact/hooks";
import { allOf, type Call } from "../lib/calls";
import { Button, CopyButton } from "./parts";

export function CallTabs({ call }: { call: Call }) {
  const [shown, setShown] = useState("curl");
  const all = allOf(call);
  const text = all.find(([name]) => name === shown)?.[1] ?? all[0]?.[1] ?? "";
  return (
    <div class="stack">
      <div class="row">
        <div class="segmented grow" role="group" aria-label="Language">
          {all.map(([name]) => (
            <Button key={name} class="small" aria-pressed={name === shown} onClick={() => setShown(name)}>
              {name}
            </Button>
          ))}
        </div>
        <CopyButton text={text} />
      </div>
      <pre class="code-block" tabIndex={0} aria-label={`API call with ${shown}`}>
        {text}
      </pre>
    </div>
  );
}
