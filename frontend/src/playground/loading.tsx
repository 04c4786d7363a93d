/** Progress of a call: model loading or waiting for the answer. */

import { useEffect, useState } from "preact/hooks";
import { plain } from "../lib/format";
import { store } from "../state/store";
import { Bar } from "../ui/parts";

export function Loading({ model, onStop }: { model: string; onStop: () => void }) {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const timer = window.setInterval(() => setSeconds((now) => now + 1), 1000);
    return () => window.clearInterval(timer);
  }, []);
  const deployment = store.byModel.value.get(model);
  const starting = deployment?.workers.filter((one) => one.status === "starting") ?? [];
  const isReady = deployment?.status === "ready" || starting.length < (deployment?.workers.length ?? 0);
  const progress = Math.max(0, ...starting.map((one) => one.progress));
  return (
    <div class="stack" role="status">
      <p>
        <span class="spinner" aria-hidden="true" />{" "}
        {isReady || !deployment ? "Waiting for the answer" : `Loading the model: ${plain(deployment.message, 200)}`}
        {seconds > 1 && ` (${seconds} s)`}
      </p>
      {!isReady && deployment && <Bar value={progress} label="Loading" />}
      <p>
        <button type="button" class="button small" onClick={onStop}>
          Stop
        </button>
      </p>
    </div>
  );
}
