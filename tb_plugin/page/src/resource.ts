// Loading in components: whatever was asked for last counts, what it replaced is aborted and its late answer ignored.

import { useEffect, useState } from "preact/hooks";

export interface Resource<T> {
  /** The latest value that arrived; while another one loads still the former. */
  value?: T;
  /** Why the latest request failed. */
  error?: Error;
  loading: boolean;
}

/**
 * Loads again whenever the key changes; a null key loads nothing and forgets the value.
 * @param load must answer for this key alone
 */
export function useResource<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Resource<T> {
  const [resource, setResource] = useState<Resource<T>>({ loading: key !== null });
  useEffect(() => {
    if (key === null) {
      setResource({ loading: false });
      return undefined;
    }
    const controller = new AbortController();
    setResource((previous) => ({ value: previous.value, loading: true }));
    load(controller.signal).then(
      (value) => {
        if (!controller.signal.aborted) setResource({ value, loading: false });
      },
      (error: unknown) => {
        if (!controller.signal.aborted) setResource({ error: error as Error, loading: false });
      },
    );
    return () => controller.abort();
  }, [key]);
  return resource;
}
