// How numbers become colors: a monotone map onto 0..1, its range, and ticks for the color bar.

import type { Summary } from "./values";

export type ScaleKind = "auto" | "linear" | "log" | "symlog";
export type RangeKind = "robust" | "full";

export interface ColorScale {
  kind: "linear" | "log" | "symlog";
  low: number;
  high: number;
  /** True when zero lies inside the range and has its own place in the middle of the palette. */
  diverging: boolean;
  /** 0 at `low`, 1 at `high`; beyond them outside 0..1. Not a number for what a logarithm has no place for. */
  toUnit: (value: number) => number;
  fromUnit: (unit: number) => number;
}

/** Ratio of the 99th to the 1st percentile from which an automatic scale is logarithmic. */
const WIDE_RATIO = 30;
/** Decades that a symmetric logarithmic scale resolves on each side of zero. */
const SYMLOG_DECADES = 4;

export function makeScale(summary: Summary, kind: ScaleKind, range: RangeKind): ColorScale {
  let low = range === "robust" ? summary.low : summary.min;
  let high = range === "robust" ? summary.high : summary.max;
  if (!Number.isFinite(low) || !Number.isFinite(high)) return linear(0, 1, false);
  const signed = low < 0 && high > 0;
  const chosen = kind === "auto" ? automaticKind(low, high, summary) : kind;
  if (chosen === "log") {
    if (high <= 0) return linear(...widened(low, high), false);
    if (low <= 0) low = Math.min(high, Math.max(summary.smallest, high * 1e-12));
    if (low === high) [low, high] = [low / 2, high * 2];
    return logarithmic(low, high);
  }
  if (signed) {
    // Equal distances from zero get equally strong colors.
    high = Math.max(high, -low);
    low = -high;
  }
  if (low === high) [low, high] = widened(low, high);
  return chosen === "symlog" ? symmetricLog(low, high, signed) : linear(low, high, signed);
}

function automaticKind(low: number, high: number, summary: Summary): "linear" | "log" | "symlog" {
  if (low > 0 && high / low >= WIDE_RATIO) return "log";
  if (low === 0 && summary.smallest > 0 && high / summary.smallest >= WIDE_RATIO ** 2 && summary.median > 0) {
    return "log";
  }
  if (low < 0 && Math.max(high, -low) / Math.max(Math.abs(summary.median), 1e-300) >= WIDE_RATIO ** 2) {
    return "symlog";
  }
  return "linear";
}

function widened(low: number, high: number): [number, number] {
  if (low !== high) return [low, high];
  const margin = Math.abs(low) > 0 ? Math.abs(low) / 2 : 1;
  return [low - margin, high + margin];
}

function linear(low: number, high: number, diverging: boolean): ColorScale {
  // Halves first: the difference of two values near the largest number overflows.
  const half = high / 2 - low / 2;
  return {
    kind: "linear",
    low,
    high,
    diverging,
    toUnit: (value) => (value / 2 - low / 2) / half,
    fromUnit: (unit) => low * (1 - unit) + high * unit,
  };
}

function logarithmic(low: number, high: number): ColorScale {
  const start = Math.log(low);
  const length = Math.log(high) - start;
  return {
    kind: "log",
    low,
    high,
    diverging: false,
    toUnit: (value) => (Math.log(value) - start) / length,
    fromUnit: (unit) => Math.exp(start + unit * length),
  };
}

function symmetricLog(low: number, high: number, diverging: boolean): ColorScale {
  const unit = Math.max(Math.abs(low), Math.abs(high)) / 10 ** SYMLOG_DECADES;
  const forward = (value: number) => Math.sign(value) * Math.log1p(Math.abs(value) / unit);
  const backward = (value: number) => Math.sign(value) * Math.expm1(Math.abs(value)) * unit;
  const start = forward(low);
  const length = forward(high) - start;
  return {
    kind: "symlog",
    low,
    high,
    diverging,
    toUnit: (value) => (forward(value) - start) / length,
    fromUnit: (position) => backward(start + position * length),
  };
}

/** Values for the ticks of a color bar, ascending, inside the range. */
export function scaleTicks(scale: ColorScale, wanted: number): number[] {
  if (scale.kind === "log") {
    const first = Math.ceil(Math.log10(scale.low) - 1e-9);
    const last = Math.floor(Math.log10(scale.high) + 1e-9);
    if (last - first >= 1) {
      const step = Math.max(1, Math.ceil((last - first + 1) / wanted));
      const ticks = [];
      for (let exponent = first; exponent <= last; exponent += step) ticks.push(10 ** exponent);
      return ticks;
    }
  }
  if (scale.kind === "symlog") {
    const top = Math.floor(Math.log10(Math.max(Math.abs(scale.low), Math.abs(scale.high))));
    const ticks = [0];
    for (let exponent = top; exponent > top - SYMLOG_DECADES; exponent -= 2) {
      ticks.push(10 ** exponent, -(10 ** exponent));
    }
    return ticks.filter((tick) => tick >= scale.low && tick <= scale.high).sort((a, b) => a - b);
  }
  return niceTicks(scale.low, scale.high, wanted);
}

/** Round numbers between two values. */
export function niceTicks(low: number, high: number, wanted: number): number[] {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step =
    [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) ?? power * 10;
  const ticks = [];
  // Adding 0 makes 0 of -0.
  for (let index = Math.ceil(low / step - 1e-9) + 0; index * step <= high + step * 1e-9; ++index)
    ticks.push(index * step);
  return ticks;
}
