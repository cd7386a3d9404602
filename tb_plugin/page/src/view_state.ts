// What the user chose, as it stands in the page's address. A choice is kept even while it has no meaning (a module that
// the chosen metric lacks), so that it is back when it has one again; what is shown is resolved from it in app.tsx.

import { type Dimension, DIMENSIONS } from "./api";
import type { PaletteKind } from "./palette";
import type { RangeKind, ScaleKind } from "./scale";
import type { Viewport } from "./cells";

/** A line of the chart: it runs along one dimension; the other two say where. A target is given by its label. */
export interface LinePlace {
  along: Dimension;
  step?: number;
  rank?: number;
  target?: string;
}

export interface ViewState {
  db?: string;
  metric?: string;
  statistic?: string;
  dimension: Dimension;
  step?: number;
  rank?: number;
  target?: string;
  lines: LinePlace[];
  scale: ScaleKind;
  range: RangeKind;
  palette: PaletteKind;
  logLines: boolean;
  /** Part of the map in view as fractions of its width and height; undefined is the whole. */
  zoom?: Viewport;
}

export const INITIAL_STATE: ViewState = {
  dimension: "step",
  lines: [],
  scale: "auto",
  range: "robust",
  palette: "safe",
  logLines: false,
};

export const lineKey = (line: LinePlace) =>
  `${line.along[0]}~${line.step ?? ""}~${line.rank ?? ""}~${line.target ?? ""}`;

export const sameLine = (a: LinePlace, b: LinePlace) => lineKey(a) === lineKey(b);

// TensorBoard keeps keys of the form p.<plugin>.<key> in the address and leaves them alone.
const PREFIX = "p.trendprobe.";

/** The state as parameters, short because people paste them into messages: only what differs from the default. */
export function stateToParameters(state: ViewState): [string, string][] {
  const parameters: [string, string][] = [];
  const add = (name: string, value: string | number | undefined, initial?: string) => {
    if (value !== undefined && value !== initial) parameters.push([PREFIX + name, String(value)]);
  };
  add("db", state.db);
  add("metric", state.metric);
  add("stat", state.statistic);
  add("dim", state.dimension, INITIAL_STATE.dimension);
  add("step", state.step);
  add("rank", state.rank);
  add("module", state.target);
  add("scale", state.scale, INITIAL_STATE.scale);
  add("range", state.range, INITIAL_STATE.range);
  add("palette", state.palette, INITIAL_STATE.palette);
  add("logy", state.logLines ? 1 : undefined);
  if (state.zoom) {
    const { left, right, top, bottom } = state.zoom;
    add("zoom", [left, right, top, bottom].map((edge) => edge.toFixed(5)).join(","));
  }
  for (const line of state.lines) add("line", lineKey(line));
  return parameters;
}

export function stateFromParameters(parameters: URLSearchParams): ViewState {
  const text = (name: string) => parameters.get(PREFIX + name) ?? undefined;
  const integer = (name: string) => parseInteger(text(name));
  const oneOf = <T extends string>(name: string, allowed: readonly T[], initial: T): T =>
    allowed.find((candidate) => candidate === text(name)) ?? initial;
  const lines: LinePlace[] = [];
  for (const encoded of parameters.getAll(`${PREFIX}line`)) {
    const line = parseLine(encoded);
    if (line && !lines.some((other) => sameLine(other, line))) lines.push(line);
  }
  return {
    db: text("db"),
    metric: text("metric"),
    statistic: text("stat"),
    dimension: oneOf("dim", DIMENSIONS, INITIAL_STATE.dimension),
    step: integer("step"),
    rank: integer("rank"),
    target: text("module"),
    lines,
    scale: oneOf<ScaleKind>("scale", ["auto", "linear", "log", "symlog"], INITIAL_STATE.scale),
    range: oneOf<RangeKind>("range", ["robust", "full"], INITIAL_STATE.range),
    palette: oneOf<PaletteKind>("palette", ["safe", "rainbow"], INITIAL_STATE.palette),
    logLines: text("logy") === "1",
    zoom: parseZoom(text("zoom")),
  };
}

function parseInteger(text: string | undefined): number | undefined {
  return text !== undefined && /^-?\d{1,15}$/.test(text) ? Number(text) : undefined;
}

function parseLine(encoded: string): LinePlace | undefined {
  const [first, step, rank, ...rest] = encoded.split("~");
  const along = DIMENSIONS.find((dimension) => dimension.startsWith(first) && first.length === 1);
  if (!along || rest.length === 0) return undefined;
  const target = rest.join("~");
  const line: LinePlace = { along };
  if (along !== "step") line.step = parseInteger(step);
  if (along !== "rank") line.rank = parseInteger(rank);
  if (along !== "target" && target) line.target = target;
  const complete = DIMENSIONS.every((dimension) => dimension === along || line[dimension] !== undefined);
  return complete ? line : undefined;
}

function parseZoom(text: string | undefined): Viewport | undefined {
  const edges = (text ?? "").split(",").map(Number);
  if (edges.length !== 4 || !edges.every((edge) => edge >= 0 && edge <= 1)) return undefined;
  const [left, right, top, bottom] = edges;
  return left < right && top < bottom ? { left, right, top, bottom } : undefined;
}
