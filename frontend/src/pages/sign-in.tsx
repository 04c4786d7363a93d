import { useEffect, useRef, useState } from "preact/hooks";
import { route } from "../api/base";
import { endedBecause, signIn } from "../api/session";
import { useActing, useTitle } from "../ui/hooks";
import { Logo } from "../ui/logo";
import { Button, ErrorNote, Field } from "../ui/parts";

export function SignIn() {
  const [key, setKey] = useState("");
  const [isShown, setShown] = useState(false);
  const { isBusy, error, run } = useActing();
  const field = useRef<HTMLInputElement>(null);
  useTitle("Sign in");
  useEffect(() => field.current?.focus(), []);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    await run(() => signIn({ key: key.trim() }));
    field.current?.focus();
  }

  const attributes = (id: string, hint: string | undefined) => ({
    id,
    ref: field,
    "aria-describedby": hint,
    name: "key",
    value: key,
    onInput: (event: { currentTarget: HTMLInputElement }) => setKey(event.currentTarget.value),
    autocomplete: "off" as const,
    spellcheck: false,
    placeholder: "sk-…",
    required: true,
    maxLength: 512,
  });

  return (
    <main class="sign-in">
      <form class="card sign-in-card" onSubmit={(event) => void submit(event)}>
        <p class="brand">
          <Logo /> Stoker
        </p>
        <h1>Sign in</h1>
        {endedBecause.value && !error && (
          <p class="error-note" role="alert">
            {endedBecause.value}
          </p>
        )}
        <Field label="API key" hint="Your operator gives you a key. The browser does not store it.">
          {(id, hint) => (
            <div class="with-button">
              {isShown ? (
                <input type="text" {...attributes(id, hint)} />
              ) : (
                <input type="password" {...attributes(id, hint)} />
              )}
              <Button kind="quiet" aria-pressed={isShown} onClick={() => setShown(!isShown)}>
                {isShown ? "Hide" : "Show"}
              </Button>
            </div>
          )}
        </Field>
        <ErrorNote error={error} />
        <Button kind="primary" type="submit" isBusy={isBusy}>
          Sign in
        </Button>
        <details>
          <summary>First start of this server</summary>
          <p class="note">
            Run <code>stoker open</code> on the server's machine. Or use the key in the file <code>operator-key</code>{" "}
            of its data folder.
          </p>
        </details>
        <a href={route("/docs")}>API reference</a>
      </form>
    </main>
  );
}
