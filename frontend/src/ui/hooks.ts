import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, shown } from "../api/errors";
import { store } from "../state/store";

export interface Loaded<T> {
  value: T | undefined;
  error: ApiError | null;
  isLoading: boolean;
  reload: () => void;
}

/**
 * Loads data with `read`. Reads again if `by` changes or events were missed. A reload during a read waits for its end,
 * so that responses slower than the reload interval are shown as well.
 */
export function useLoaded<T>(read: () => Promise<T>, by: readonly unknown[]): Loaded<T> {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState<ApiError | null>(null);
  const [isLoading, setLoading] = useState(true);
  const [turn, setTurn] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  const state = useRef({ isReading: false, isAgain: false });
  const again = () => setTurn((now) => now + 1);
  const missed = store.epoch.value;
  // biome-ignore lint/correctness/useExhaustiveDependencies: `by` contains the dependencies of `read`.
  useEffect(() => {
    const now = state.current;
    let isOver = false;
    now.isReading = true;
    now.isAgain = false;
    setLoading(true);
    latest
      .current()
      .then(
        (found) => {
          if (isOver) return;
          setValue(found);
          setError(null);
        },
        (thrown: unknown) => isOver || setError(shown(thrown)),
      )
      .finally(() => {
        if (isOver) return;
        now.isReading = false;
        setLoading(false);
        if (now.isAgain) again();
      });
    return () => {
      isOver = true;
    };
  }, [...by, turn, missed]);
  const reload = () => {
    if (state.current.isReading) state.current.isAgain = true;
    else again();
  };
  return { value, error, isLoading, reload };
}

export interface Acting {
  isBusy: boolean;
  error: ApiError | null;
  clear: () => void;
  run: (act: () => Promise<unknown>) => Promise<boolean>;
}

/** State of an action: whether it is running, and its last error. */
export function useActing(): Acting {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  async function run(act: () => Promise<unknown>): Promise<boolean> {
    setBusy(true);
    setError(null);
    try {
      await act();
      return true;
    } catch (thrown) {
      setError(shown(thrown));
      return false;
    } finally {
      setBusy(false);
    }
  }
  return { isBusy, error, run, clear: () => setError(null) };
}

/** Calls `act` at an interval while the page is visible. */
export function useEvery(milliseconds: number, act: () => void, isOn = true): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (!isOn) return undefined;
    const timer = window.setInterval(() => {
      if (document.visibilityState === "visible") latest.current();
    }, milliseconds);
    return () => window.clearInterval(timer);
  }, [milliseconds, isOn]);
}

/** Object URL for bytes, revoked when the component unmounts. */
export function useObjectUrl(blob: Blob | null | undefined): string | undefined {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    if (!blob) {
      setUrl(undefined);
      return undefined;
    }
    const made = URL.createObjectURL(blob);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return url;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title ? `${title} · Stoker` : "Stoker";
  }, [title]);
}

/** Width below which pages have one column. */
const PHONE = "(max-width: 760px)";

/** Whether the window is as narrow as a phone. */
export function usePhone(): boolean {
  const [isPhone, setPhone] = useState(() => matchMedia(PHONE).matches);
  useEffect(() => {
    const query = matchMedia(PHONE);
    const changed = () => setPhone(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return isPhone;
}
