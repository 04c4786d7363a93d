/** Small components used on every page. */

import type { ComponentChildren, JSX } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../api/errors";
import { plain } from "../lib/format";
import { useTitle } from "./hooks";

type ButtonProps = Omit<JSX.IntrinsicElements["button"], "size"> & {
  kind?: "primary" | "plain" | "danger" | "quiet";
  isBusy?: boolean;
};

export function Button({ kind = "plain", isBusy, children, disabled, class: more, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      class={`button ${kind} ${more ?? ""}`}
      disabled={disabled || isBusy}
      aria-busy={isBusy}
    >
      {children}
    </button>
  );
}

export function PageHead(props: { title: string; note?: ComponentChildren; children?: ComponentChildren }) {
  useTitle(plain(props.title, 64));
  return (
    <header class="page-head">
      <div class="grow">
        <h1>{plain(props.title)}</h1>
        {props.note && <p class="note">{props.note}</p>}
      </div>
      <div class="actions">{props.children}</div>
    </header>
  );
}

export function Card(props: {
  title?: string;
  actions?: ComponentChildren;
  children?: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {props.title && (
        <div class="card-head">
          <h2>{props.title}</h2>
          <div class="actions">{props.actions}</div>
        </div>
      )}
      {props.children}
    </section>
  );
}

/** Empty state with a hint. */
export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{props.title}</p>
      {props.children}
    </div>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // The clipboard API requires TLS.
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "visually-hidden";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    window.setTimeout(() => setDone(false), 1500);
  }
  return (
    <button type="button" class="button quiet small" onClick={() => void copy()}>
      <span aria-live="polite">{isDone ? "Copied" : label}</span>
    </button>
  );
}

export function ErrorNote(props: {
  error: ApiError | null;
  /** Whether it is shown at the field that it is about. */
  isAtField?: boolean;
  children?: ComponentChildren;
}) {
  const { error, isAtField, children } = props;
  if (!error) return null;
  return (
    <div class="error-note" role="alert">
      <p>
        {plain(error.message, 2000)}
        {error.param && !isAtField && (
          <>
            {" "}
            (in <code>{plain(error.param)}</code>)
          </>
        )}
      </p>
      {error.retryAfter !== null && <p>Try again in {error.retryAfter} seconds.</p>}
      {children}
      {error.requestId && (
        <p class="request-id">
          Request <code>{plain(error.requestId)}</code> <CopyButton text={error.requestId} label="Copy id" />
        </p>
      )}
    </div>
  );
}

export function Bar({ value, label, kind = "" }: { value: number; label: string; kind?: string }) {
  const share = Math.max(0, Math.min(1, value));
  return (
    <span
      class={`bar ${kind}`}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(100 * share)}
    >
      <span class="bar-fill" style={{ width: `${100 * share}%` }} />
    </span>
  );
}

/** Bar for a share, not for progress. */
export function Share({ value, kind = "" }: { value: number; kind?: string }) {
  const share = Math.max(0, Math.min(1, value));
  return (
    <span class={`bar ${kind}`} aria-hidden="true">
      <span class="bar-fill" style={{ width: `${100 * share}%` }} />
    </span>
  );
}

export function Skeleton({ rows = 3 }: { rows?: number }) {
  return (
    <div class="skeleton" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <span key={index} />
      ))}
    </div>
  );
}

const CONTROLS = "input, select, textarea, button, a[href]";

/** Returns the first enabled control below a dialog's header. */
function firstControl(dialog: HTMLDialogElement | null): HTMLElement | undefined {
  const controls = dialog?.querySelectorAll<HTMLElement>(CONTROLS) ?? [];
  return [...controls].find((control) => !control.closest(".card-head") && !control.matches(":disabled"));
}

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; class?: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  // Runs before paint: earlier keystrokes would be lost.
  useLayoutEffect(() => {
    dialog.current?.showModal();
    // Browsers focus the first button, which closes the dialog, so a keystroke would lose the form.
    firstControl(dialog.current)?.focus();
  }, []);
  return (
    <dialog
      ref={dialog}
      class={`dialog ${props.class ?? ""}`}
      aria-labelledby={title}
      onClose={props.onClose}
      onClick={(event) => {
        if (event.target === dialog.current) dialog.current?.close();
      }}
    >
      <div class="dialog-inner">
        <div class="card-head">
          <h2 id={title}>{props.title}</h2>
          <button type="button" class="button quiet small" aria-label="Close" onClick={() => dialog.current?.close()}>
            ✕
          </button>
        </div>
        {props.children}
      </div>
    </dialog>
  );
}

/** Confirmation dialog for an irreversible action. */
export function Confirm(props: {
  title: string;
  action: string;
  isBusy: boolean;
  error: ApiError | null;
  onYes: () => void;
  onClose: () => void;
  children: ComponentChildren;
}) {
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      <ErrorNote error={props.error} />
      <div class="actions end">
        <Button onClick={props.onClose}>Cancel</Button>
        <Button kind="danger" isBusy={props.isBusy} onClick={props.onYes}>
          {props.action}
        </Button>
      </div>
    </Dialog>
  );
}

export function Field(props: {
  label: string;
  hint?: ComponentChildren;
  children: (id: string, hint: string | undefined) => ComponentChildren;
}) {
  const id = useId();
  const hint = props.hint ? `${id}-hint` : undefined;
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {props.children(id, hint)}
      {props.hint && (
        <div class="hint" id={hint}>
          {props.hint}
        </div>
      )}
    </div>
  );
}

export function Name({ text }: { text: string }) {
  return <bdi class="name">{plain(text)}</bdi>;
}
