/** Root component: shows the pages, or the sign-in page. */

import type { ComponentType } from "preact";
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { LocationProvider, Route, Router } from "preact-iso";
import { CONSOLE } from "./api/base";
import { list } from "./api/client";
import { shown } from "./api/errors";
import {
  choose,
  chosenAccount,
  endedBecause,
  hasAccount,
  hasChosen,
  isOperator,
  look,
  session,
  signIn,
} from "./api/session";
import type { Account } from "./api/types";
import { Overview } from "./pages/overview";
import { SignIn } from "./pages/sign-in";
import { Shell } from "./shell";
import { connection, follow } from "./state/events";
import { lookForNodes, nodes } from "./state/nodes";
import { store } from "./state/store";
import { deferred } from "./ui/deferred";
import { useEvery } from "./ui/hooks";
import { Button, Empty, PageHead, Skeleton } from "./ui/parts";

const DeploymentPage = deferred(() => import("./pages/deployment"));
const Try = deferred(() => import("./pages/try"));
const Artifacts = deferred(() => import("./pages/artifacts"));
const ArtifactPage = deferred(() => import("./pages/artifact"));
const Keys = deferred(() => import("./pages/keys"));
const Usage = deferred(() => import("./pages/usage"));
const Videos = deferred(() => import("./pages/videos"));
const Batches = deferred(() => import("./pages/batches"));
const BatchPage = deferred(async () => ({ default: (await import("./pages/batches")).BatchPage }));
const Files = deferred(() => import("./pages/files"));
const Agents = deferred(() => import("./pages/agents"));
const AgentPage = deferred(() => import("./pages/agent"));
const RunPage = deferred(() => import("./pages/run"));
const Machine = deferred(() => import("./pages/machine"));
const Nodes = deferred(() => import("./pages/nodes"));
const Accounts = deferred(() => import("./pages/accounts"));

/** Interval at which operators check for nodes. */
const NODES_MS = 30_000;
const LINK = /^#link=([A-Za-z0-9._~-]{1,512})$/;

/** One-time sign-in link. It is removed from the address bar. */
async function begin(): Promise<void> {
  const link = LINK.exec(location.hash)?.[1];
  if (link) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await signIn({ link });
      return;
    } catch (thrown) {
      await look().catch(() => undefined);
      if (!session.value) {
        endedBecause.value = `This sign-in link does not work: ${shown(thrown).message} Request a new link, or sign in with an API key.`;
        session.value = null;
      }
      return;
    }
  }
  try {
    await look();
  } catch {
    connection.value = "lost";
    window.setTimeout(() => void begin(), 2000);
  }
}

function Missing() {
  return (
    <>
      <PageHead title="Page not found" />
      <Empty title="No page exists at this address.">
        <a class="button" href={`${CONSOLE}/`}>
          Go to overview
        </a>
      </Empty>
    </>
  );
}

function NoAccount() {
  return (
    <>
      <PageHead title="Choose an account" />
      <Empty title={isOperator.value ? "Choose an account above to see this page." : "This key can only call models."}>
        <a class="button" href={isOperator.value ? `${CONSOLE}/accounts` : `${CONSOLE}/try`}>
          {isOperator.value ? "View accounts" : "Open playground"}
        </a>
      </Empty>
    </>
  );
}

/** A page that needs an account. Other keys see a hint. */
function owned<P extends object>(Page: ComponentType<P>): ComponentType<P> {
  return function Owned(props: P) {
    return hasAccount.value ? <Page {...props} /> : <NoAccount />;
  };
}

const OwnedDeployment = owned(DeploymentPage);
const OwnedArtifacts = owned(Artifacts);
const OwnedArtifact = owned(ArtifactPage);
const OwnedUsage = owned(Usage);
const OwnedVideos = owned(Videos);
const OwnedBatches = owned(Batches);
const OwnedBatch = owned(BatchPage);
const OwnedFiles = owned(Files);
const OwnedAgents = owned(Agents);
const OwnedAgent = owned(AgentPage);
const OwnedRun = owned(RunPage);

function Home() {
  if (session.value?.scope === "deployment") return <Try />;
  return hasAccount.value ? <Overview /> : <Machine />;
}

function Pages() {
  const [error] = useErrorBoundary();
  if (error) {
    return (
      <>
        <PageHead title="Page failed to load" />
        <Empty title="Part of this page failed to load. The server may have been updated.">
          <p class="note">{String(error)}</p>
          <Button kind="primary" onClick={() => location.reload()}>
            Reload console
          </Button>
        </Empty>
      </>
    );
  }
  return (
    <Router>
      <Route path={CONSOLE} component={Home} />
      <Route path={`${CONSOLE}/deployments/:id/:tab?`} component={OwnedDeployment} />
      <Route path={`${CONSOLE}/try`} component={Try} />
      <Route path={`${CONSOLE}/artifacts`} component={OwnedArtifacts} />
      <Route path={`${CONSOLE}/artifacts/:id`} component={OwnedArtifact} />
      <Route path={`${CONSOLE}/keys`} component={Keys} />
      <Route path={`${CONSOLE}/usage`} component={OwnedUsage} />
      <Route path={`${CONSOLE}/videos`} component={OwnedVideos} />
      <Route path={`${CONSOLE}/batches`} component={OwnedBatches} />
      <Route path={`${CONSOLE}/batches/:id`} component={OwnedBatch} />
      <Route path={`${CONSOLE}/files`} component={OwnedFiles} />
      <Route path={`${CONSOLE}/agents`} component={OwnedAgents} />
      <Route path={`${CONSOLE}/agents/:id`} component={OwnedAgent} />
      <Route path={`${CONSOLE}/agents/:id/runs/:run`} component={OwnedRun} />
      <Route path={`${CONSOLE}/machine`} component={Machine} />
      <Route path={`${CONSOLE}/nodes`} component={Nodes} />
      <Route path={`${CONSOLE}/accounts`} component={Accounts} />
      <Route default component={Missing} />
    </Router>
  );
}

function refreshNodes(): void {
  lookForNodes().catch(() => undefined);
}

/** Name of the account that a server's first start creates. */
const FIRST_ACCOUNT = "default";

/** Selects the first account for an operator who has just signed in. */
async function chooseFirst(): Promise<void> {
  const oldest = await list<Account>("/v1/accounts", { limit: 100, order: "asc" });
  const found = oldest.data.find((one) => one.name === FIRST_ACCOUNT);
  if (found && !hasChosen()) choose(found.id);
}

/** Waits for the selection of an operator's account. */
function SignedIn() {
  const [isSettled, setSettled] = useState(!isOperator.value || hasChosen());
  useEffect(() => {
    if (isSettled) return;
    chooseFirst()
      .catch(() => undefined)
      .finally(() => setSettled(true));
  }, [isSettled]);
  return isSettled ? <Console /> : <Waiting />;
}

function Console() {
  const account = chosenAccount.value;
  const isOwned = hasAccount.value;
  const isOverAll = isOperator.value;
  useEffect(() => {
    nodes.value = undefined;
    if (isOverAll) refreshNodes();
  }, [isOverAll]);
  useEvery(NODES_MS, refreshNodes, isOverAll);
  useEffect(() => {
    store.clear();
    return isOwned ? follow() : undefined;
  }, [account, isOwned]);
  return (
    <LocationProvider scope={CONSOLE}>
      <Shell>
        <Pages key={account ?? ""} />
      </Shell>
    </LocationProvider>
  );
}

function Waiting() {
  return (
    <main class="sign-in">
      {connection.value === "lost" ? (
        <p class="note" role="status">
          The server is not responding. Retrying…
        </p>
      ) : (
        <Skeleton rows={2} />
      )}
    </main>
  );
}

export function App() {
  useEffect(() => void begin(), []);
  const now = session.value;
  if (now === undefined) return <Waiting />;
  return now === null ? <SignIn /> : <SignedIn />;
}
