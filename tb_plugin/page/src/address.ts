// The page's state in the address bar. The page lives in a frame of TensorBoard's own origin, so it can read and replace
// the fragment of the outer address; where it may not (TensorBoard embedded elsewhere), it uses its own.

import { stateFromParameters, stateToParameters, type ViewState } from "./view_state";

const PREFIX = "p.trendprobe.";

function outerWindow(): Window {
  try {
    // Throws where the outer page is of another origin.
    window.parent.location.hash.at(0);
    return window.parent;
  } catch {
    return window;
  }
}

export function readAddress(): ViewState {
  return stateFromParameters(new URLSearchParams(outerWindow().location.hash.slice(1)));
}

/** Replaces our part of the fragment and leaves TensorBoard's own parts as they are. */
export function writeAddress(state: ViewState): void {
  const outer = outerWindow();
  const others = outer.location.hash
    .slice(1)
    .split("&")
    .filter((part) => part !== "" && !decodeURIComponentSafely(part).startsWith(PREFIX));
  const own = stateToParameters(state).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  const hash = `#${[...others, ...own].join("&")}`;
  if (hash === outer.location.hash) return;
  try {
    outer.history.replaceState(outer.history.state, "", hash);
  } catch {
    // Browsers refuse too many changes in a short time; the next change writes again.
  }
}

/** Calls back when the user edits the address or follows a link to another view. */
export function watchAddress(changed: () => void): () => void {
  const outer = outerWindow();
  outer.addEventListener("hashchange", changed);
  return () => outer.removeEventListener("hashchange", changed);
}

function decodeURIComponentSafely(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
