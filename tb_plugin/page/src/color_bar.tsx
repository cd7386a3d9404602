// The color bar beside the heat map: which color is which number.

import { css, colorAt, type PaletteKind, paletteStops } from "./palette";
import { type ColorScale, scaleTicks } from "./scale";
import { formatNumber } from "./format";

interface Props {
  scale: ColorScale;
  palette: PaletteKind;
  min: number;
  max: number;
}

export function ColorBar({ scale, palette, min, max }: Props) {
  const stops = paletteStops(palette, scale.diverging);
  const gradient = stops.map((_, index) => css(colorAt(stops, index / (stops.length - 1)))).join(", ");
  const ticks = scaleTicks(scale, 6)
    .map((value) => ({ value, unit: scale.toUnit(value) }))
    .filter(({ unit }) => unit > 0.04 && unit < 0.96);
  return (
    <div class="color-bar" aria-label="Color bar">
      <div class="color-bar-end" title={`Largest: ${formatNumber(max, 9)}`}>
        {max > scale.high ? "≥ " : ""}
        {formatNumber(scale.high, 4)}
      </div>
      <div class="color-bar-body">
        <div class="color-bar-strip" style={{ background: `linear-gradient(to top, ${gradient})` }} />
        <div class="color-bar-ticks">
          {ticks.map(({ value, unit }) => (
            <div key={value} class="color-bar-tick" style={{ bottom: `${unit * 100}%` }}>
              {formatNumber(value, 4)}
            </div>
          ))}
        </div>
      </div>
      <div class="color-bar-end" title={`Smallest: ${formatNumber(min, 9)}`}>
        {min < scale.low ? "≤ " : ""}
        {formatNumber(scale.low, 4)}
      </div>
    </div>
  );
}
