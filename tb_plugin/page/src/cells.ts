// From values to pixels. Values become 16-bit codes once a scale is chosen; what is drawn at every pan and zoom is a table
// look-up a cell. Where several cells share a pixel the worst one wins, so that one NaN among millions stays visible.

import type { ColorScale } from "./scale";
import { colorAt, type PaletteKind, paletteStops, type Rgb, type StateColors } from "./palette";
import { type FloatArray, missingTest } from "./values";

export const CODE_MISSING = 0;
export const CODE_NAN = 1;
export const CODE_PLUS_INFINITY = 2;
export const CODE_MINUS_INFINITY = 3;
const FIRST_BIN = 4;
const BINS = 1024;
export const CODE_COUNT = FIRST_BIN + BINS;

/** Cells smaller than this many pixels are padded to it when they hold a NaN or an infinity. */
const VISIBLE_PIXELS = 3;

/** One code a value, in the order of the values. */
export function encodeCells(values: FloatArray, scale: ColorScale): Uint16Array<ArrayBuffer> {
  const isMissing = missingTest(values);
  const codes = new Uint16Array(values.length);
  const { toUnit } = scale;
  for (let i = 0; i < values.length; ++i) {
    const value = values[i];
    if (value - value === 0) codes[i] = codeOfNumber(toUnit(value));
    else if (value === Infinity) codes[i] = CODE_PLUS_INFINITY;
    else if (value === -Infinity) codes[i] = CODE_MINUS_INFINITY;
    else codes[i] = isMissing(i) ? CODE_MISSING : CODE_NAN;
  }
  return codes;
}

function codeOfNumber(unit: number): number {
  // Not a number and -infinity: what a logarithmic scale makes of zero and negative values.
  const bin = unit >= 1 ? BINS - 1 : unit > 0 ? Math.floor(unit * BINS) : 0;
  return FIRST_BIN + bin;
}

/**
 * How bad each code is: NaN, then the infinities, then numbers by their distance from the median, then missing.
 * @param medianUnit the median on the scale
 */
export function codePriorities(medianUnit: number): Uint16Array<ArrayBuffer> {
  const priorities = new Uint16Array(CODE_COUNT);
  const center = codeOfNumber(medianUnit);
  for (let code = FIRST_BIN; code < CODE_COUNT; ++code) priorities[code] = 1 + Math.abs(code - center);
  priorities[CODE_MINUS_INFINITY] = BINS + 2;
  priorities[CODE_PLUS_INFINITY] = BINS + 3;
  priorities[CODE_NAN] = BINS + 4;
  return priorities;
}

/** The color of every code as the bytes R, G, B, A of ImageData, read as a little-endian number. */
export function codeColors(
  scale: ColorScale,
  palette: PaletteKind,
  states: StateColors,
): Uint32Array<ArrayBuffer> {
  const colors = new Uint32Array(CODE_COUNT);
  const stops = paletteStops(palette, scale.diverging);
  for (let bin = 0; bin < BINS; ++bin) colors[FIRST_BIN + bin] = packed(colorAt(stops, bin / (BINS - 1)));
  colors[CODE_MISSING] = packed(states.missing);
  colors[CODE_NAN] = packed(states.notANumber);
  colors[CODE_PLUS_INFINITY] = packed(states.plusInfinity);
  colors[CODE_MINUS_INFINITY] = packed(states.minusInfinity);
  return colors;
}

function packed([r, g, b]: Rgb): number {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

export function unpacked(color: number): Rgb {
  return [color & 255, (color >> 8) & 255, (color >> 16) & 255];
}

/** The part of a matrix in view, in cells; fractions allowed. */
export interface Viewport {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** First and last cell (exclusive) under every pixel of an axis. */
function cellRanges(from: number, to: number, pixels: number, cells: number): Int32Array {
  const ranges = new Int32Array(2 * pixels);
  const scale = (to - from) / pixels;
  for (let pixel = 0; pixel < pixels; ++pixel) {
    const first = Math.min(cells - 1, Math.max(0, Math.floor(from + pixel * scale + 1e-9)));
    const last = Math.ceil(from + (pixel + 1) * scale - 1e-9);
    // Where a cell covers whole pixels, the pixel that two cells share belongs to the first.
    ranges[2 * pixel] = first;
    ranges[2 * pixel + 1] = scale <= 1 ? first + 1 : Math.min(cells, Math.max(first + 1, last));
  }
  return ranges;
}

/**
 * Draws cells into pixels (one number a pixel, row by row).
 * @param codes rows × columns, row after row
 */
export function drawCells(
  codes: Uint16Array,
  rows: number,
  columns: number,
  view: Viewport,
  width: number,
  height: number,
  priorities: Uint16Array,
  colors: Uint32Array,
  pixels: Uint32Array,
): void {
  const acrossRanges = cellRanges(view.left, view.right, width, columns);
  const downRanges = cellRanges(view.top, view.bottom, height, rows);
  const worst = new Uint16Array(width);
  const padded =
    width / (view.right - view.left) < VISIBLE_PIXELS || height / (view.bottom - view.top) < VISIBLE_PIXELS;
  const bad: number[] = [];
  let previousFirst = -1;
  let previousLast = -1;
  for (let y = 0; y < height; ++y) {
    const first = downRanges[2 * y];
    const last = downRanges[2 * y + 1];
    const start = y * width;
    if (first === previousFirst && last === previousLast) {
      pixels.copyWithin(start, start - width, start);
      if (padded) for (let x = 0; x < width; ++x) if (isBad(worst[x])) bad.push(start + x);
      continue;
    }
    previousFirst = first;
    previousLast = last;
    poolRow(codes, columns, first, last, acrossRanges, priorities, worst);
    for (let x = 0; x < width; ++x) {
      pixels[start + x] = colors[worst[x]];
      if (padded && isBad(worst[x])) bad.push(start + x);
    }
  }
  if (padded) padBad(bad, width, height, pixels);
}

function isBad(code: number): boolean {
  return code === CODE_NAN || code === CODE_PLUS_INFINITY || code === CODE_MINUS_INFINITY;
}

function poolRow(
  codes: Uint16Array,
  columns: number,
  firstRow: number,
  lastRow: number,
  acrossRanges: Int32Array,
  priorities: Uint16Array,
  worst: Uint16Array,
): void {
  for (let x = 0; x < worst.length; ++x) {
    const first = acrossRanges[2 * x];
    const last = acrossRanges[2 * x + 1];
    let best = codes[firstRow * columns + first];
    let bestPriority = priorities[best];
    for (let row = firstRow; row < lastRow; ++row) {
      const end = row * columns + last;
      for (let i = row * columns + first; i < end; ++i) {
        const priority = priorities[codes[i]];
        if (priority > bestPriority) {
          bestPriority = priority;
          best = codes[i];
        }
      }
    }
    worst[x] = best;
  }
}

/** Widens bad pixels to VISIBLE_PIXELS, over good ones only: a bad neighbor keeps its own color. */
function padBad(bad: number[], width: number, height: number, pixels: Uint32Array): void {
  const isBadPixel = new Uint8Array(width * height);
  for (const place of bad) isBadPixel[place] = 1;
  const reach = (VISIBLE_PIXELS - 1) / 2;
  for (const place of bad) {
    const color = pixels[place];
    const x0 = place % width;
    const y0 = (place - x0) / width;
    for (let y = Math.max(0, y0 - reach); y <= Math.min(height - 1, y0 + reach); ++y) {
      for (let x = Math.max(0, x0 - reach); x <= Math.min(width - 1, x0 + reach); ++x) {
        const neighbor = y * width + x;
        if (isBadPixel[neighbor] === 0) pixels[neighbor] = color;
      }
    }
  }
}
