// Colors of cells. Both default palettes run from dark to light (or dark – light – dark) and between blue and yellow or
// blue and orange, so they can be told apart without seeing red and green apart.

export type PaletteKind = "safe" | "rainbow";

export type Rgb = readonly [number, number, number];

const SEQUENTIAL: readonly Rgb[] = [
  [12, 26, 75],
  [28, 74, 138],
  [38, 122, 158],
  [78, 170, 152],
  [163, 211, 124],
  [253, 243, 160],
];
const DIVERGING: readonly Rgb[] = [
  [10, 62, 130],
  [63, 132, 196],
  [158, 200, 226],
  [240, 240, 236],
  [247, 190, 124],
  [214, 116, 30],
  [127, 59, 8],
];
// The blue to red of msProbe's gradient mode.
const RAINBOW: readonly Rgb[] = [
  [49, 54, 149],
  [69, 117, 180],
  [116, 173, 209],
  [224, 243, 248],
  [254, 224, 144],
  [253, 174, 97],
  [215, 48, 39],
  [165, 0, 38],
];

export function paletteStops(kind: PaletteKind, diverging: boolean): readonly Rgb[] {
  if (kind === "rainbow") return RAINBOW;
  return diverging ? DIVERGING : SEQUENTIAL;
}

/** The color at 0..1, between the two nearest stops. */
export function colorAt(stops: readonly Rgb[], unit: number): Rgb {
  const position = Math.min(1, Math.max(0, unit)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(position));
  const rest = position - index;
  const [from, to] = [stops[index], stops[index + 1]];
  return [
    Math.round(from[0] + (to[0] - from[0]) * rest),
    Math.round(from[1] + (to[1] - from[1]) * rest),
    Math.round(from[2] + (to[2] - from[2]) * rest),
  ];
}

export interface StateColors {
  missing: Rgb;
  notANumber: Rgb;
  plusInfinity: Rgb;
  minusInfinity: Rgb;
}

/** Outside the palette. */
export function stateColors(dark: boolean, palette: PaletteKind): StateColors {
  const extreme: Rgb = dark ? [255, 255, 255] : [16, 16, 16];
  return {
    missing: dark ? [58, 58, 60] : [222, 222, 224],
    notANumber: [224, 0, 122],
    // Red is a number of the rainbow.
    plusInfinity: palette === "rainbow" ? extreme : [255, 74, 28],
    minusInfinity: [126, 46, 214],
  };
}

export function css([r, g, b]: Rgb): string {
  return `rgb(${r} ${g} ${b})`;
}

/** Black or white, whichever is easier to read on the color. */
export function textColorOn([r, g, b]: Rgb): string {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";
}

/** Lines of the chart: distinct for color-blind eyes, readable on white and on black. */
export const LINE_COLORS: readonly string[] = [
  "#0078c8",
  "#e07b00",
  "#00966b",
  "#c65b9b",
  "#8a6d00",
  "#4ab0e6",
  "#d1495b",
  "#7a5fc0",
];
