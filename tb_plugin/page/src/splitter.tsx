// A divider between two parts of the page, moved with the pointer or the arrow keys; the browser remembers where it is.

import { useCallback, useState } from "preact/hooks";

/** A share of the whole (0..1) that is remembered under a name. */
export function useRememberedShare(
  name: string,
  initial: number,
  min: number,
  max: number,
): [number, (share: number) => void] {
  const key = `trendprobe.${name}`;
  const [share, setShare] = useState(() => {
    const stored = Number(readStorage(key));
    return stored >= min && stored <= max ? stored : initial;
  });
  const set = useCallback(
    (next: number) => {
      const clamped = Math.min(max, Math.max(min, next));
      setShare(clamped);
      writeStorage(key, String(clamped));
    },
    [key, min, max],
  );
  return [share, set];
}

function readStorage(key: string): string | null {
  try {
    return window.localStorage.getItem(key);
  } catch {
    return null;
  }
}

function writeStorage(key: string, value: string): void {
  try {
    window.localStorage.setItem(key, value);
  } catch {
    // Storage may be switched off; then the divider is where it was at the next visit.
  }
}

interface Props {
  orientation: "vertical" | "horizontal";
  label: string;
  share: number;
  setShare: (share: number) => void;
}

/** The divider lies at `share` of its parent's width (vertical) or height (horizontal). */
export function Splitter({ orientation, label, share, setShare }: Props) {
  const vertical = orientation === "vertical";
  return (
    <div
      class={`splitter ${orientation}`}
      role="separator"
      tabIndex={0}
      aria-label={label}
      aria-orientation={orientation}
      aria-valuenow={Math.round(share * 100)}
      aria-valuemin={0}
      aria-valuemax={100}
      onPointerDown={(event) => {
        event.preventDefault();
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        const parent = event.currentTarget.parentElement;
        if (!parent || !event.currentTarget.hasPointerCapture(event.pointerId)) return;
        const box = parent.getBoundingClientRect();
        setShare(vertical ? (event.clientX - box.left) / box.width : (event.clientY - box.top) / box.height);
      }}
      onKeyDown={(event) => {
        const [less, more] = vertical ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
        if (event.key === less) setShare(share - 0.02);
        else if (event.key === more) setShare(share + 0.02);
        else return;
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}
