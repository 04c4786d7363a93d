/** Overview page: deployments, memory, credits and recent events. */

import { useState } from "preact/hooks";
import { page } from "../api/base";
import { api, must } from "../api/client";
import type { Deployment, Notice } from "../api/types";
import { ago, bytes, clock, count, ms, plain, rate } from "../lib/format";
import { hiddenSteps } from "../state/hidden-steps";
import { ORDERS, type Order, ordered, usual } from "../state/order";
import { useSought } from "../state/sought";
import { store } from "../state/store";
import { deferred } from "../ui/deferred";
import { useLoaded } from "../ui/hooks";
import { MemoryBar, Waiting } from "../ui/memory";
import { Card, ErrorNote, Name, PageHead, Skeleton } from "../ui/parts";
import { Spark } from "../ui/spark";
import { Status } from "../ui/status";
import { Virtual } from "../ui/virtual";

const STATES = ["ready", "starting", "idle", "stopped", "failed"];

const FirstSteps = deferred(() => import("./first-steps"));

export function Overview() {
  const [newest, second] = store.listed.value;
  const isEmpty = store.areLoaded.value && !newest;
  const isNew = isEmpty || (store.areLoaded.value && !second && newest?.id !== hiddenSteps.value);
  return (
    <>
      <PageHead title="Overview">
        <a class="button primary" href={page("artifacts")}>
          Add a model
        </a>
      </PageHead>
      <div class="columns">
        <Memory />
        <Money />
      </div>
      {isNew && <FirstSteps />}
      {!isEmpty && <Deployments />}
      {/* Shown once the list length is known, to avoid layout shifts. */}
      {store.areLoaded.value && !isEmpty && <Recent />}
    </>
  );
}

function Memory() {
  const memory = store.stats.value?.memory;
  return (
    <Card title="Memory" class="wide">
      <MemoryBar />
      {memory && memory.waiting.length > 0 && <Waiting waiting={memory.waiting} />}
    </Card>
  );
}

function Money() {
  const credits = store.stats.value?.credits;
  return (
    <Card title="Credits">
      {credits ? (
        <p>
          <a class="figure" href={page("usage")}>
            {count(Number(credits.balance))}
          </a>
          <span class="note block">
            {credits.days_left === null
              ? "No credits are being spent."
              : `Enough for ${credits.days_left >= 3650 ? "years" : `${Math.floor(credits.days_left)} days`} at the current rate.`}
          </span>
        </p>
      ) : (
        <p class="note figure-height">
          <a href={page("usage")}>Usage and credits</a>
        </p>
      )}
    </Card>
  );
}

function Deployments() {
  const [wanted, setWanted] = useState("");
  const [state, setState] = useState("");
  const [order, setOrder] = useState<Order | null>(null);
  const all = store.listed.value;
  const found = useSought(wanted.trim(), state);
  const failed = all.filter((one) => one.status === "failed").length;
  const isMany = store.reached.value !== null;
  // A list that is partly loaded stays in the server's order, so that further pages follow its end.
  const shown = found.isWhole ? (order ?? usual(all.length)) : "newest";
  const rows = ordered(found.rows, shown, store.stats.value);
  return (
    <Card
      title="Deployments"
      actions={
        <>
          <span class="note tally">
            {isMany ? <Many /> : store.areLoaded.value && `${all.length} total`}
            {failed > 0 && `, ${failed} failed`}
          </span>
          <input
            type="search"
            class="small"
            placeholder="Filter"
            aria-label="Filter by model or pipeline"
            maxLength={128}
            value={wanted}
            onInput={(event) => setWanted(event.currentTarget.value)}
          />
          <select
            class="small"
            aria-label="Status"
            value={state}
            onChange={(event) => setState(event.currentTarget.value)}
          >
            <option value="">All statuses</option>
            {STATES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
          <select
            class="small"
            aria-label="Sort by"
            disabled={!found.isWhole}
            value={shown}
            onChange={(event) => setOrder(event.currentTarget.value as Order)}
          >
            {Object.entries(ORDERS).map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </>
      }
    >
      {all.length === 0 ? (
        <Skeleton rows={8} />
      ) : (
        <div
          class="grid deployments"
          role="table"
          aria-label="Deployments"
          aria-rowcount={found.isWhole ? rows.length + 1 : -1}
        >
          <div role="rowgroup">
            <div role="row" class="grid-row grid-head" aria-rowindex={1}>
              {["Model", "Status", "Readiness", "Engine", "Requests", "p50 / p99, 1 min", "Memory"].map((name) => (
                <span key={name} role="columnheader">
                  {name}
                </span>
              ))}
            </div>
          </div>
          <Virtual items={rows} keyOf={(one) => one.id} render={(one) => <Row deployment={one} />} onEnd={found.more} />
        </div>
      )}
      <ErrorNote error={found.error} />
      {all.length > 0 && found.rows.length === 0 && (
        <p class="note" role="status">
          {found.isWhole ? "No matches." : "Searching…"}
        </p>
      )}
    </Card>
  );
}

/** Total of a partially loaded list. Loads all failed deployments. */
function Many() {
  const quotas = useLoaded(() => must(api.GET("/v1/quotas", {})), []);
  useLoaded(() => store.seek({ status: "failed" }), []);
  return <>{count(quotas.value?.quotas.deployments?.used)} total</>;
}

/** Engine that runs the model, or the configured one. */
export function runsOn(deployment: Deployment): string {
  const now = deployment.workers.find((one) => one.engine)?.engine ?? deployment.engine;
  return deployment.dtype === "auto" ? now : `${now} · ${deployment.dtype}`;
}

function Row({ deployment }: { deployment: Deployment }) {
  const now = store.stats.value?.deployments[deployment.id];
  const line = store.samples.value.get(deployment.id) ?? [];
  const budget = store.stats.value?.memory.budget_bytes;
  const held = now?.memory_bytes ?? 0;
  const loading = deployment.workers.find((one) => one.status === "starting")?.progress;
  return (
    <>
      <span role="cell" class="cell-model">
        <a href={page(`deployments/${deployment.id}`)} title={plain(deployment.model)}>
          <Name text={deployment.model} />
        </a>
        <span class="note">{deployment.pipeline}</span>
      </span>
      <span role="cell" title={plain(deployment.message)}>
        <Status value={deployment.status} />
        {loading !== undefined && <span class="note"> {Math.round(100 * loading)} %</span>}
      </span>
      <span role="cell">{deployment.readiness}</span>
      <span role="cell">{plain(runsOn(deployment), 40)}</span>
      <span role="cell" class="cell-rate">
        <Spark values={line} label={`Requests per second of ${deployment.model}: ${rate(now?.requests_per_s)}`} />
        <span>{rate(now?.requests_per_s)}</span>
        {now !== undefined && now.errors_per_s > 0 && <span class="bad-text">{rate(now.errors_per_s)} errors</span>}
      </span>
      <span role="cell" class="cell-latency">
        {now?.p50_ms == null ? "–" : `${ms(now.p50_ms)} / ${ms(now.p99_ms)}`}
      </span>
      <span role="cell" class="cell-memory">
        <span class="bar" aria-hidden="true">
          <span class="bar-fill" style={{ width: `${budget ? Math.min(100, (100 * held) / budget) : 0}%` }} />
        </span>
        {held > 0 ? (
          bytes(held)
        ) : (
          <span
            class="note"
            title={
              deployment.memory.is_measured ? "Measured at its last load" : "Estimated. The first load measures it."
            }
          >
            needs {deployment.memory.is_measured ? "" : "≈ "}
            {bytes(deployment.memory.bytes)}
          </span>
        )}
      </span>
    </>
  );
}

function Recent() {
  const known = store.byModel.value;
  const recent = store.notices.value.slice(0, 12);
  return (
    <Card title="Recent events">
      {recent.length === 0 ? (
        <p class="note">New events appear here. Each deployment's page shows its history.</p>
      ) : (
        <ol class="events">
          {recent.map((notice) => (
            <Told
              key={`${notice.created_at}${notice.deployment_id}${notice.type}`}
              notice={notice}
              isKnown={known.has(notice.model)}
            />
          ))}
        </ol>
      )}
    </Card>
  );
}

function Told({ notice, isKnown }: { notice: Notice; isKnown: boolean }) {
  return (
    <li>
      <time dateTime={notice.created_at} title={ago(notice.created_at)}>
        {clock(notice.created_at)}
      </time>
      {isKnown ? (
        <a href={page(`deployments/${notice.deployment_id}/events`)}>
          <Name text={notice.model} />
        </a>
      ) : (
        <Name text={notice.model} />
      )}
      <span class="grow">{plain(notice.message, 400)}</span>
      <span class="note">{plain(notice.type, 40)}</span>
    </li>
  );
}
