/** Traffic split and mirrors of a deployment's versions. */

import { useState } from "preact/hooks";
import { api, must } from "../../api/client";
import type { Comparison, Deployment, Version } from "../../api/types";
import { count, ms, percent } from "../../lib/format";
import { store } from "../../state/store";
import { useActing, useEvery, useLoaded } from "../../ui/hooks";
import { Button, Card, ErrorNote, Field } from "../../ui/parts";

const STICKY: [string, string][] = [
  ["none", "None: random for each call"],
  ["key", "By API key"],
  ["user", "By the request's user field"],
];

export function Traffic({ deployment, versions }: { deployment: Deployment; versions: Version[] }) {
  const others = versions.filter((one) => one.id !== deployment.version_id && one.status !== "failed");
  const sharing = deployment.traffic?.weights ?? {};
  const mirrors = deployment.traffic?.mirror ?? {};
  const first = others.find((one) => sharing[one.id] || mirrors[one.id]) ?? others[0];
  const [other, setOther] = useState(first?.id ?? "");
  const chosen = others.find((one) => one.id === other) ?? first;
  const [weight, setWeight] = useState<number>();
  const [mirror, setMirror] = useState<number>();
  const [sticky, setSticky] = useState(deployment.traffic?.sticky ?? "none");
  const acting = useActing();
  if (!chosen) return null;
  const live = versions.find((one) => one.id === deployment.version_id);
  const share = weight ?? sharing[chosen.id] ?? 0;
  const copies = mirror ?? mirrors[chosen.id] ?? 0;
  // Versions that are neither live nor chosen keep their shares.
  const kept = others.filter((one) => one.id !== chosen.id && (sharing[one.id] ?? 0) > 0);
  const free = kept.reduce((rest, one) => rest - (sharing[one.id] ?? 0), 100);
  const liveShare = free - share;

  function choose(id: string): void {
    setOther(id);
    setWeight(undefined);
    setMirror(undefined);
  }

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (!chosen) return;
    await acting.run(async () => {
      const weights: Record<string, number> = { [deployment.version_id]: liveShare };
      for (const one of kept) weights[one.id] = sharing[one.id] ?? 0;
      if (share > 0) weights[chosen.id] = share;
      const body = { weights, sticky, mirror: { ...mirrors, [chosen.id]: copies } };
      if (copies === 0) delete body.mirror[chosen.id];
      const params = { path: { deployment_id: deployment.id } };
      await store.answered(must(api.PUT("/v1/deployments/{deployment_id}/traffic", { params, body })));
      setWeight(undefined);
      setMirror(undefined);
    });
  }

  return (
    <Card title="Traffic">
      <form class="stack" onSubmit={(event) => void submit(event)}>
        {others.length > 1 && (
          <Field label="Candidate version">
            {(id) => (
              <select id={id} value={chosen.id} onChange={(event) => choose(event.currentTarget.value)}>
                {others.map((one) => (
                  <option key={one.id} value={one.id}>
                    Version {one.number} ({one.status})
                  </option>
                ))}
              </select>
            )}
          </Field>
        )}
        <Split
          label={`Traffic: version ${live?.number ?? ""} ${liveShare} %, version ${chosen.number} ${share} %`}
          parts={[
            { name: `Version ${live?.number ?? ""} (live)`, value: liveShare, shade: "shade-0" },
            { name: `Version ${chosen.number}`, value: share, shade: "shade-1" },
            ...kept.map((one, at) => ({
              name: `Version ${one.number}`,
              value: sharing[one.id] ?? 0,
              shade: `shade-${(at % 3) + 2}`,
            })),
          ]}
        />
        <Share
          label={`Version ${live?.number ?? ""}: ${liveShare} %, version ${chosen.number}: ${share} %`}
          hint="Share of calls for each version."
          most={free}
          value={share}
          onValue={setWeight}
        />
        <Share
          label={`Mirror to version ${chosen.number}: ${copies} % of calls`}
          hint="Mirrored answers are compared with live answers, never returned. Mirrored calls are billed."
          most={100}
          value={copies}
          onValue={setMirror}
        />
        <Field label="Sticky routing">
          {(id) => (
            <select id={id} value={sticky} onChange={(event) => setSticky(event.currentTarget.value)}>
              {STICKY.map(([value, name]) => (
                <option key={value} value={value}>
                  {name}
                </option>
              ))}
              {sticky.startsWith("header:") && <option value={sticky}>By {sticky}</option>}
            </select>
          )}
        </Field>
        <ErrorNote error={acting.error} />
        <div class="actions">
          <Button kind="primary" type="submit" isBusy={acting.isBusy}>
            Save
          </Button>
        </div>
      </form>
      {(mirrors[chosen.id] ?? 0) > 0 && <Compared deployment={deployment} version={chosen} />}
    </Card>
  );
}

/** Slider for a share of calls in whole percent. */
function Share(props: { label: string; hint: string; most: number; value: number; onValue: (value: number) => void }) {
  return (
    <Field label={props.label} hint={props.hint}>
      {(id, hint) => (
        <input
          id={id}
          type="range"
          min={0}
          max={props.most}
          aria-describedby={hint}
          value={props.value}
          onInput={(event) => props.onValue(Number(event.currentTarget.value))}
        />
      )}
    </Field>
  );
}

function latency({ calls, mean_ms: mean, longest_ms: longest }: Comparison["live"]): string {
  return calls > 0 ? `${ms(mean)} / ${ms(longest)}` : "–";
}

interface Part {
  name: string;
  value: number;
  shade: string;
}

/** Stacked bar of parts of a whole, with a legend. */
function Split({ label, parts }: { label: string; parts: Part[] }) {
  const total = Math.max(
    1,
    parts.reduce((sum, one) => sum + one.value, 0),
  );
  const share = (one: Part) => (100 * one.value) / total;
  return (
    <div>
      <div class="memory-bar" role="img" aria-label={label}>
        {parts.map(
          (one) =>
            one.value > 0 && <span key={one.name} class={`segment ${one.shade}`} style={{ width: `${share(one)}%` }} />,
        )}
      </div>
      <p class="legend">
        {parts.map((one) => (
          <span key={one.name}>
            <span class={`swatch ${one.shade}`} aria-hidden="true" /> {one.name}: {percent(one.value / total)}
          </span>
        ))}
      </p>
    </div>
  );
}

function Compared({ deployment, version }: { deployment: Deployment; version: Version }) {
  const loaded = useLoaded((): Promise<Comparison> => {
    const params = { path: { deployment_id: deployment.id, version_id: version.id } };
    return must(api.GET("/v1/deployments/{deployment_id}/versions/{version_id}/comparison", { params }));
  }, [version.id]);
  useEvery(3_000, loaded.reload);
  const found = loaded.value;
  if (!found) return <ErrorNote error={loaded.error} />;
  const equal = found.compared - found.differing;
  const facts: [string, string][] = [
    ["Compared", count(found.compared)],
    ["Different", count(found.differing)],
    ["Failed", count(found.failed)],
    ["Dropped", count(found.dropped)],
    ["Equal top labels", percent(found.equal_top_labels, 1)],
    ["Equal texts", percent(found.equal_texts, 1)],
    [
      "Cosine similarity, mean / min",
      `${found.mean_cosine?.toFixed(4) ?? "–"} / ${found.least_cosine?.toFixed(4) ?? "–"}`,
    ],
    ["Largest difference", found.difference?.toPrecision(3) ?? "–"],
    ["Live latency, mean / max", latency(found.live)],
    ["Mirror latency, mean / max", latency(found.mirror)],
  ];
  return (
    <section class="stack" aria-label={`Comparison of version ${version.number}`}>
      <h3>Version {version.number} compared with the live version</h3>
      {found.compared + found.failed > 0 && (
        <Split
          label={`Answers: ${equal} agree, ${found.differing} differ, ${found.failed} failed`}
          parts={[
            { name: "Agree", value: equal, shade: "good-shade" },
            { name: "Differ", value: found.differing, shade: "warn-shade" },
            { name: "Failed", value: found.failed, shade: "bad-shade" },
          ]}
        />
      )}
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
