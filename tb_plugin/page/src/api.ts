// Client of the HTTP API: ../../http_api.md.

import type { FloatArray } from "./values";

/** What a view holds fixed. A target is a module's tensor; the user reads "Module Name". */
export type Dimension = "step" | "rank" | "target";
export const DIMENSIONS: readonly Dimension[] = ["step", "rank", "target"];

export interface DatabaseEntry {
  id: string;
  size: number;
  /** Seconds since 1970. */
  modified: number;
  version: string;
}

export interface DatabaseList {
  complete: boolean;
  notes: string[];
  databases: DatabaseEntry[];
}

export interface MetricInfo {
  name: string;
  targets: number;
  statistics: string[];
}

export interface Dataset {
  db: string;
  version: string;
  source: "trendprobe" | "msprobe";
  kind: string | null;
  /** Values of this magnitude were cut to it when the file was made; null when none was. */
  cut_at: number | null;
  metrics: MetricInfo[];
  steps: { step: number[]; training_step?: number[]; micro_step?: number[] };
  ranks: { rank: number[]; host?: (string | null)[] };
}

/** The targets of a metric in network order: rows of its slices. */
export interface Targets {
  target: number[];
  name: string[];
  vpp_stage: number[];
  call: number[];
}

/** Values in rows, row after row. */
export interface Matrix {
  rows: number;
  columns: number;
  values: FloatArray;
}

/** All statistics of one cell: a number, or `NaN`, `+inf`, `-inf`, `missing`. */
export interface CellDetail {
  statistics: Record<string, number | string>;
}

export interface NonFinite {
  step: number;
  rank: number;
  target: number;
  metric: string;
  statistic: string;
  value: string;
}

export interface NonFiniteList {
  known: boolean;
  total: number | null;
  first: NonFinite[];
}

/** Which values: a metric's statistic in one version of a database. */
export interface Source {
  db: string;
  version: string;
  metric: string;
  statistic: string;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

type Parameters = Record<string, string | number>;

async function get(route: string, parameters: Parameters, signal: AbortSignal): Promise<Response> {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) query.set(name, String(value));
  let response: Response;
  try {
    response = await fetch(`api/v1/${route}?${query.toString()}`, { signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError(0, "unreachable", "TensorBoard does not answer. Is it still running?");
  }
  if (response.ok) return response;
  let code = "unexpected";
  let message = `TensorBoard answered ${response.status} ${response.statusText}`;
  try {
    const body = (await response.json()) as { error: { code: string; message: string } };
    ({ code, message } = body.error);
  } catch (error) {
    if (signal.aborted) throw error;
    // Not one of our own answers (a proxy's, say): the status says all there is.
  }
  throw new ApiError(response.status, code, message);
}

async function getJson<T>(route: string, parameters: Parameters, signal: AbortSignal): Promise<T> {
  return (await (await get(route, parameters, signal)).json()) as T;
}

async function getValues(
  route: string,
  parameters: Parameters,
  signal: AbortSignal,
): Promise<{ shape: number[]; values: FloatArray }> {
  const response = await get(route, parameters, signal);
  const shape = (response.headers.get("X-TrendProbe-Shape") ?? "").split(",").map(Number);
  const buffer = await response.arrayBuffer();
  const wide = response.headers.get("X-TrendProbe-Type") === "float64";
  const length = shape.reduce((product, extent) => product * extent, 1);
  if (buffer.byteLength !== length * (wide ? 8 : 4)) {
    throw new ApiError(0, "cut", "The answer was cut short on its way. Try again.");
  }
  return { shape, values: wide ? new Float64Array(buffer) : new Float32Array(buffer) };
}

export const fetchDatabases = (signal: AbortSignal) => getJson<DatabaseList>("databases", {}, signal);

export const fetchDataset = (db: string, version: string, signal: AbortSignal) =>
  getJson<Dataset>("dataset", { db, version }, signal);

export const fetchTargets = (db: string, version: string, metric: string, signal: AbortSignal) =>
  getJson<Targets>("targets", { db, version, metric }, signal);

export const fetchNonFinite = (db: string, version: string, signal: AbortSignal) =>
  getJson<NonFiniteList>("nonfinite", { db, version }, signal);

export async function fetchSlice(
  source: Source,
  dimension: Dimension,
  value: number,
  signal: AbortSignal,
): Promise<Matrix> {
  const { shape, values } = await getValues("slice", { ...source, dimension, value }, signal);
  return { rows: shape[0], columns: shape[1], values };
}

/** `fixed` gives the two dimensions that the line does not run along. */
export async function fetchLine(
  source: Source,
  along: Dimension,
  fixed: Partial<Record<Dimension, number>>,
  signal: AbortSignal,
): Promise<FloatArray> {
  return (await getValues("line", { ...source, along, ...fixed }, signal)).values;
}

export const fetchCell = (
  source: Source,
  place: { step: number; rank: number; target: number },
  signal: AbortSignal,
) =>
  getJson<CellDetail>(
    "cell",
    { db: source.db, version: source.version, metric: source.metric, ...place },
    signal,
  );
