/** Page frame: navigation, account selector and connection status. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { page, route } from "./api/base";
import { json, list } from "./api/client";
import { accountsChanged, choose, chosenAccount, hasAccount, isOperator, signOut } from "./api/session";
import type { Account } from "./api/types";
import { plain } from "./lib/format";
import { isOpen as isPaletteOpen, Palette } from "./palette";
import { type Place, places } from "./places";
import { connection } from "./state/events";
import { next, theme } from "./state/theme";
import { useActing, useLoaded } from "./ui/hooks";
import { Logo } from "./ui/logo";
import { Button } from "./ui/parts";

function isAt(path: string, place: Place): boolean {
  const address = page(place.path).replace(/\/$/, "");
  if (place.path === "") return path === address || path.startsWith(page("deployments"));
  return path === address || path.startsWith(`${address}/`);
}

const THEMES = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const LIVE = {
  live: "Live",
  connecting: "Connecting…",
  polling: "Polling every few seconds",
  lost: "No connection",
};

function Version() {
  const [version, setVersion] = useState("");
  useEffect(
    () =>
      void json<{ version: string }>("/health").then(
        (found) => setVersion(found.version),
        () => undefined,
      ),
    [],
  );
  return <span class="note version">Stoker {version}</span>;
}

function AccountChoice() {
  const accounts = useLoaded(() => list<Account>("/v1/accounts", { limit: 100 }), [accountsChanged.value]);
  const chosen = chosenAccount.value;
  const known = accounts.value?.data ?? [];
  const isListed = !chosen || known.some((one) => one.id === chosen);
  return (
    <label class="account-choice">
      <span class="visually-hidden">Account</span>
      <select value={chosen ?? ""} onChange={(event) => choose(event.currentTarget.value || null)}>
        <option value="">No account</option>
        {!isListed && <option value={chosen}>{accounts.value ? chosen : "…"}</option>}
        {known.map((one) => (
          <option key={one.id} value={one.id}>
            {plain(one.name, 40)}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const { path } = useLocation();
  const [isMenuOpen, setMenuOpen] = useState(false);
  const leaving = useActing();
  useEffect(() => {
    setMenuOpen(false);
    window.scrollTo(0, 0);
  }, [path]);
  const now = hasAccount.value ? connection.value : "live";

  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="top">
        <button
          type="button"
          class="button quiet menu-button"
          aria-expanded={isMenuOpen}
          aria-controls="places"
          onClick={() => setMenuOpen(!isMenuOpen)}
        >
          <span aria-hidden="true">☰</span>
          <span class="visually-hidden">Menu</span>
        </button>
        <a class="brand" href={page()}>
          <Logo /> <span>Stoker</span>
        </a>
        <button type="button" class="search" onClick={() => (isPaletteOpen.value = true)}>
          <span>Go to…</span> <kbd>Ctrl K</kbd>
        </button>
        <span class="grow" />
        {isOperator.value && <AccountChoice />}
        <span class={`live ${now}`} role="status">
          <span class="dot" aria-hidden="true" /> <span class="live-word">{LIVE[now]}</span>
        </span>
      </header>
      <nav id="places" class={isMenuOpen ? "places open" : "places"} aria-label="Pages">
        {places().map((place) => (
          <a key={place.path} href={page(place.path)} aria-current={isAt(path, place) ? "page" : undefined}>
            {place.name}
          </a>
        ))}
        <span class="grow" />
        <a href={route("/docs")} target="_blank" rel="noopener">
          API reference
        </a>
        <Button kind="quiet" onClick={next}>
          {THEMES[theme.value]}
        </Button>
        <Button kind="quiet" isBusy={leaving.isBusy} onClick={() => void leaving.run(signOut)}>
          Sign out
        </Button>
        <Version />
      </nav>
      <main id="main" tabIndex={-1}>
        {now === "lost" && (
          <p class="banner" role="alert">
            The server is not responding. This page reconnects automatically.
          </p>
        )}
        {children}
      </main>
      <Palette />
    </div>
  );
}
