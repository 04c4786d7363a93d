/** Deployment page with its tabs. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Deployment } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { store } from "../state/store";
import { deferred } from "../ui/deferred";
import { useActing, useLoaded } from "../ui/hooks";
import { Bar, Button, Card, Confirm, ErrorNote, PageHead, Skeleton } from "../ui/parts";
import { Status } from "../ui/status";

const Charts = deferred(() => import("./deployment/charts"));
const Playground = deferred(() => import("../playground/playground"));
const Activity = deferred(() => import("./deployment/activity"));
const Settings = deferred(() => import("./deployment/settings"));
const Versions = deferred(() => import("./deployment/versions"));
const Checks = deferred(() => import("./deployment/checks"));
const Trials = deferred(() => import("./deployment/trials"));
const Calls = deferred(() => import("./deployment/calls"));

const TABS: [string, string][] = [
  ["charts", "Metrics"],
  ["try", "Playground"],
  ["calls", "API"],
  ["events", "Events and logs"],
  ["settings", "Settings"],
  ["versions", "Versions"],
  ["checks", "Checks"],
  ["trials", "Trials"],
];

export default function DeploymentPage() {
  const { params } = useRoute();
  const id = params.id ?? "";
  const tab = TABS.some(([one]) => one === params.tab) ? (params.tab as string) : "charts";
  const live = store.deployments.value.get(id);
  const loaded = useLoaded(
    () => store.answered(must(api.GET("/v1/deployments/{deployment_id}", { params: { path: { deployment_id: id } } }))),
    [id],
  );
  const deployment = live ?? loaded.value;
  if (!deployment) {
    return (
      <>
        <PageHead title="Deployment" />
        {loaded.error ? <ErrorNote error={loaded.error} /> : <Skeleton rows={6} />}
      </>
    );
  }
  return (
    <>
      <Head deployment={deployment} />
      <Tabs id={id} tab={tab} />
      <Tab tab={tab} deployment={deployment} />
    </>
  );
}

function Tabs({ id, tab }: { id: string; tab: string }) {
  const strip = useRef<HTMLElement>(null);
  useEffect(() => {
    const chosen = strip.current?.querySelector<HTMLElement>("[aria-current]");
    // Centres the tab, so that the tabs next to it show that the strip scrolls.
    if (strip.current && chosen) {
      strip.current.scrollLeft = chosen.offsetLeft - (strip.current.clientWidth - chosen.offsetWidth) / 2;
    }
  }, [tab]);
  return (
    <nav ref={strip} class="tabs" aria-label="Deployment sections">
      {TABS.map(([name, title]) => (
        <a key={name} href={page(`deployments/${id}/${name}`)} aria-current={tab === name ? "page" : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}

function Tab({ tab, deployment }: { tab: string; deployment: Deployment }) {
  const id = deployment.id;
  switch (tab) {
    case "try":
      return <Playground key={id} model={deployment.model} pipeline={deployment.pipeline} />;
    case "calls":
      return <Calls deployment={deployment} />;
    case "events":
      return <Activity deployment={deployment} />;
    case "settings":
      return <Settings key={id} deployment={deployment} />;
    case "versions":
      return <Versions deployment={deployment} />;
    case "checks":
      return <Checks key={id} deployment={deployment} />;
    case "trials":
      return <Trials deployment={deployment} />;
    default:
      return <Charts deployment={deployment} />;
  }
}

function Head({ deployment }: { deployment: Deployment }) {
  const { route } = useLocation();
  const [isDeleting, setDeleting] = useState(false);
  const acting = useActing();
  const path = { path: { deployment_id: deployment.id } };
  const isStopped = deployment.desired === "stopped";
  const loading = deployment.workers.filter((one) => one.status === "starting");

  const start = () =>
    acting.run(() => store.answered(must(api.POST("/v1/deployments/{deployment_id}/start", { params: path }))));
  const stop = () =>
    acting.run(() => store.answered(must(api.POST("/v1/deployments/{deployment_id}/stop", { params: path }))));
  const erase = () =>
    acting.run(async () => {
      await must(api.DELETE("/v1/deployments/{deployment_id}", { params: path }));
      route(page());
    });

  return (
    <>
      <PageHead
        title={deployment.model}
        note={
          <>
            {deployment.pipeline} · created {ago(deployment.created_at)}
          </>
        }
      >
        <Button isBusy={acting.isBusy} onClick={() => void (isStopped ? start() : stop())}>
          {isStopped ? "Start" : "Stop"}
        </Button>
        <Button kind="quiet" onClick={() => setDeleting(true)}>
          Delete
        </Button>
      </PageHead>
      <Card>
        <div class="row">
          <Status value={deployment.status} />
          <span class={deployment.status === "failed" ? "bad-text grow" : "grow"}>
            {plain(deployment.message, 1000)}
          </span>
        </div>
        {loading.map((one) => (
          <Bar key={one.id} value={one.progress} label="Loading" />
        ))}
        <Facts deployment={deployment} />
        {deployment.notices.map((one) => (
          <p key={one.message} class="note">
            {plain(one.message, 1000)}
          </p>
        ))}
        {!isDeleting && <ErrorNote error={acting.error} />}
      </Card>
      {isDeleting && (
        <Confirm
          title={`Delete ${plain(deployment.model, 64)}?`}
          action="Delete deployment"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase()}
          onClose={() => setDeleting(false)}
        >
          <p>
            Calls to this model will fail. This erases its versions, checks, trials and events. Its artifact and usage
            records are kept.
          </p>
        </Confirm>
      )}
    </>
  );
}

function Facts({ deployment }: { deployment: Deployment }) {
  const engines = [...new Set(deployment.workers.map((one) => one.engine).filter(Boolean))];
  const held = deployment.workers.reduce((sum, one) => sum + (one.memory_bytes ?? 0), 0);
  const devices = [...new Set(deployment.workers.map((one) => one.device).filter(Boolean))];
  const onDevice = deployment.workers.reduce((sum, one) => sum + one.device_held_bytes, 0);
  const facts: [string, string][] = [
    ["Readiness", deployment.readiness],
    ["Engine", engines.join(", ") || `${deployment.engine} (when loaded)`],
    ["Precision", deployment.dtype],
    ["Replicas", `${deployment.workers.length} (${deployment.replicas.min} to ${deployment.replicas.max})`],
    ["Device", devices.join(", ") || `${deployment.device} (when loaded)`],
    ...(onDevice ? [["GPU memory claimed", bytes(onDevice)] as [string, string]] : []),
    ...(deployment.device_problem ? [["No GPU", deployment.device_problem] as [string, string]] : []),
    ["Memory in use", bytes(held)],
    ["Memory per replica", `${bytes(deployment.memory.bytes)}${deployment.memory.is_measured ? "" : " (estimated)"}`],
  ];
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>
            <Term name={name}>{TERMS[name]}</Term>
          </dt>
          <dd>{plain(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

const TERMS: Record<string, string> = {
  Readiness:
    "When the model is loaded. cold: on request. warm: always, while memory allows. hot: always, with reserved memory.",
  Engine: "Program that runs the model. auto: torch first, then a faster engine that passes verification.",
  Precision: "Number format of the weights and calculations. auto: the format of the stored weights.",
  Replicas: "Loaded copies of the model, and their minimum and maximum. Calls are distributed among them.",
  Device: "Processor or GPU that runs the model.",
  "Memory in use": "Memory of all replicas now, with the libraries that they share.",
  "Memory per replica": "Memory that one replica claims, without shared libraries. Estimated until the first load.",
};

/** A term with a tooltip for mouse, keyboard and touch. */
function Term({ name, children }: { name: string; children: ComponentChildren }) {
  const id = useId();
  if (!children) return <>{name}</>;
  return (
    <>
      <button type="button" class="term" aria-describedby={id}>
        {name}
      </button>
      <span id={id} role="tooltip" class="tip">
        {children}
      </span>
    </>
  );
}
