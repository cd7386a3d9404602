// Numbers and names as text.

/** A number in at most `digits` significant digits: plain from 1e-4 to 1e6, otherwise with an exponent. */
export function formatNumber(value: number, digits = 5): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
  if (value === 0) return "0";
  const magnitude = Math.abs(value);
  let text: string;
  if (magnitude >= 1e6 || magnitude < 1e-4) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    text = `${trimZeros(mantissa)}e${exponent.replace("+", "")}`;
  } else {
    text = trimZeros(value.toPrecision(digits));
    // toPrecision switches to an exponent when the integer part has more digits than asked for.
    if (text.includes("e")) text = String(Math.round(value));
  }
  return text.replace("-", "−").replace("e-", "e−");
}

/** The shortest text that reads back as the same float32, or as the same float64 where the value is no float32. */
export function formatExact(value: number): string {
  if (!Number.isFinite(value)) return formatNumber(value);
  if (Math.fround(value) === value) {
    for (let digits = 6; digits <= 9; ++digits) {
      const text = value.toPrecision(digits);
      if (Math.fround(Number(text)) === value) return String(Number(text)).replaceAll("-", "−");
    }
  }
  return String(value).replaceAll("-", "−");
}

export function formatCount(count: number): string {
  return count.toLocaleString("en-US");
}

export function formatBytes(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit++;
  }
  return `${bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toPrecision(2)} ${units[unit]}`;
}

/**
 * Shortens a text in its middle until it fits: both ends of a module's name tell it from its neighbors.
 * @param measure width of a text in the same unit as `width`
 */
export function elideMiddle(text: string, width: number, measure: (text: string) => number): string {
  if (measure(text) <= width) return text;
  let low = 0;
  let high = text.length - 1;
  let best = "…";
  while (low <= high) {
    const kept = (low + high) >> 1;
    // More of the end: it is what differs within a layer.
    const tail = Math.ceil(kept * 0.6);
    const candidate = `${text.slice(0, kept - tail)}…${tail > 0 ? text.slice(-tail) : ""}`;
    if (measure(candidate) <= width) {
      best = candidate;
      low = kept + 1;
    } else {
      high = kept - 1;
    }
  }
  return best;
}

/** Shortens a text at its beginning until it fits: for names that share it. */
export function elideStart(text: string, width: number, measure: (text: string) => number): string {
  let low = 0;
  let high = text.length;
  // The least number of characters to leave out.
  while (low < high) {
    const cut = (low + high) >> 1;
    if (measure(cut === 0 ? text : `…${text.slice(cut)}`) <= width) high = cut;
    else low = cut + 1;
  }
  return low === 0 ? text : `…${text.slice(low)}`;
}

function trimZeros(text: string): string {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}
