// The chart of the chosen lines, with its legend. NaN and infinities are gaps in a line, with a mark at the edge.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import UPlot from "uplot";

import type { Dataset, Dimension } from "./api";
import { elideStart, formatExact, formatNumber } from "./format";
import { type LineData, type LineName, lineName } from "./lines";
import { text } from "./messages";
import { LINE_COLORS } from "./palette";
import { placeName, type TargetList } from "./slice";
import { State, stateOf } from "./values";
import { lineKey, type LinePlace } from "./view_state";

interface Props {
  along: Dimension;
  lines: LinePlace[];
  data: ReadonlyMap<string, LineData>;
  dataset: Dataset;
  list: TargetList;
  unit: string;
  logY: boolean;
  dark: boolean;
  onRemove: (line: LinePlace) => void;
}

interface Shown {
  line: LinePlace;
  key: string;
  name: LineName;
  color: string;
  data: LineData;
}

export const lineColor = (position: number) => LINE_COLORS[position % LINE_COLORS.length];

/** Marks of values that are no numbers. They stand above the plot, one row a line, where no number can be. */
const MARKS: Partial<Record<State, string>> = {
  [State.NotANumber]: "✕",
  [State.PlusInfinity]: "▲",
  [State.MinusInfinity]: "▼",
};
const MARK_ROW = 12;
/** Between them and the plot, whose uppermost number stands half above its edge. */
const MARK_GAP = 7;
/** Lines beyond share the rows. */
const MAX_MARK_ROWS = 6;

function hasMarks({ values }: LineData): boolean {
  return values?.some((value, index) => !Number.isFinite(value) && stateOf(values, index) in MARKS) ?? false;
}

export function LineChart({ along, lines, data, dataset, list, unit, logY, dark, onRemove }: Props) {
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [index, setIndex] = useState<number | null>(null);
  const [left, setLeft] = useState(0);
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot>(undefined);

  const shown: Shown[] = lines.map((line, position) => {
    const key = lineKey(line);
    return {
      line,
      key,
      name: lineName(line),
      color: lineColor(position),
      data: data.get(key) ?? {},
    };
  });
  const drawn = shown.filter(({ key, data: { values } }) => values && !hidden.has(key));
  const drawnKey = drawn.map(({ key, color }) => key + color).join("\n");

  const positions = useMemo(
    () =>
      along === "step"
        ? dataset.steps.step
        : along === "rank"
          ? dataset.ranks.rank
          : list.labels.map((_, position) => position),
    [along, dataset, list],
  );

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element || drawn.length === 0) return undefined;
    const chart = new UPlot(
      options(element, drawn, along, list, unit, logY, dark, (position, x) => {
        setIndex(position);
        setLeft(x);
      }),
      [
        positions,
        ...drawn.map(({ data: { values } }) => Array.from(values ?? [], (value) => drawable(value, logY))),
      ],
      element,
    );
    plot.current = chart;
    const observer = new ResizeObserver(() =>
      chart.setSize({ width: element.clientWidth, height: element.clientHeight }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = undefined;
      setIndex(null);
    };
    // The values are part of the key: a line is drawn only once it has them, and a new source gives a new array.
  }, [drawnKey, ...drawn.map(({ data: { values } }) => values), positions, unit, logY, dark]);

  useEffect(() => {
    const keys = new Set(lines.map(lineKey));
    setHidden((known) =>
      [...known].every((key) => keys.has(key)) ? known : new Set([...known].filter((key) => keys.has(key))),
    );
  }, [lines]);

  return (
    <div class="line-chart">
      <div class="line-plot">
        <div class="line-frame" ref={frame} />
        {index !== null && drawn.length > 0 && (
          <ChartTooltip
            title={placeName(dataset, list, along, index)}
            left={left}
            rows={drawn.map(({ name, color, data: { values } }) => ({
              name,
              color,
              value: values ? describe(values, index) : "",
            }))}
          />
        )}
      </div>
      <ul class="line-legend" aria-label={text.lineTitle[along]}>
        {shown.map(({ line, key, name, color, data: { values, error } }) => (
          <li key={key} class={hidden.has(key) ? "off" : ""}>
            <button
              type="button"
              class="legend-toggle"
              aria-pressed={!hidden.has(key)}
              aria-label={text.toggleLine(fullName(name))}
              title={fullName(name)}
              onClick={() => {
                const next = new Set(hidden);
                if (!next.delete(key)) next.add(key);
                setHidden(next);
              }}
            >
              <span class="line-swatch" style={{ background: color }} />
              <Name name={name} />
              {!values && <span class="legend-note">{error ?? text.loading}</span>}
            </button>
            <button
              type="button"
              class="icon"
              aria-label={text.removeLine(fullName(name))}
              title={text.removeLine(fullName(name))}
              onClick={() => onRemove(line)}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

const fullName = ({ place, target }: LineName) => (target === "" ? place : `${place} · ${target}`);

/** A module that is too long loses its beginning: the end tells it from its neighbors. */
function Name({ name: { place, target } }: { name: LineName }) {
  return (
    <span class="line-name">
      <span class="line-place">{place}</span>
      {target !== "" && (
        <span class="line-target">
          <bdi>{target}</bdi>
        </span>
      )}
    </span>
  );
}

function drawable(value: number, logY: boolean): number | null {
  return Number.isFinite(value) && (!logY || value > 0) ? value : null;
}

function describe(values: LineData["values"] & object, index: number): string {
  const state = stateOf(values, index);
  if (state === State.Missing) return text.state.missing;
  if (state === State.NotANumber) return text.state.notANumber;
  if (state === State.PlusInfinity) return text.state.plusInfinity;
  if (state === State.MinusInfinity) return text.state.minusInfinity;
  return formatExact(values[index]);
}

function ChartTooltip(props: {
  title: string;
  left: number;
  rows: { name: LineName; color: string; value: string }[];
}) {
  const box = useRef<HTMLDivElement>(null);
  const [flip, setFlip] = useState(false);
  useLayoutEffect(() => {
    const parent = box.current?.parentElement;
    if (box.current && parent) setFlip(props.left + 24 + box.current.offsetWidth > parent.clientWidth);
  }, [props.left, props.title]);
  const style = flip ? { right: `calc(100% - ${props.left - 12}px)` } : { left: `${props.left + 16}px` };
  return (
    <div class="tooltip chart-tooltip" role="tooltip" ref={box} style={style}>
      <div class="tooltip-name">{props.title}</div>
      {props.rows.map(({ name, color, value }) => (
        <div key={fullName(name)} class="chart-tooltip-row">
          <span class="chip" style={{ background: color }} />
          <Name name={name} />
          <strong>{value}</strong>
        </div>
      ))}
    </div>
  );
}

function options(
  element: HTMLElement,
  drawn: Shown[],
  along: Dimension,
  list: TargetList,
  unit: string,
  logY: boolean,
  dark: boolean,
  onCursor: (index: number | null, left: number) => void,
): UPlot.Options {
  const ink = dark ? "#c8c8c8" : "#555";
  const grid = { stroke: dark ? "#3a3a3c" : "#e6e6e8", width: 1 };
  const font = '11px system-ui, "Segoe UI", Roboto, sans-serif';
  const axis: UPlot.Axis = { stroke: ink, grid, ticks: grid, font, labelFont: font, labelSize: 16 };
  const markRows = Math.min(MAX_MARK_ROWS, drawn.filter(({ data }) => hasMarks(data)).length);
  const few = drawn.every(({ data: { values } }) => (values?.length ?? 0) <= 60);
  return {
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    padding: [10 + (markRows > 0 ? MARK_GAP + markRows * MARK_ROW : 0), along === "target" ? 60 : 16, 0, 0],
    scales: {
      x: { time: false, range: (_, min, max) => (min === max ? [min - 0.5, max + 0.5] : [min, max]) },
      // eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment -- uPlot only declares the enumeration
      y: { distr: logY ? 3 : 1 },
    },
    axes: [
      {
        ...axis,
        size: 30,
        label: along === "target" ? text.axisTitle.target : text.axisTitle[along],
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7, 1e8, 1e9],
        values: (_, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")),
        ...(along === "target" ? targetAxis(list) : {}),
      },
      {
        ...axis,
        label: unit,
        size: 62,
        values: (_, splits) =>
          (splits as (number | null)[]).map((value) => (value === null ? "" : formatNumber(value, 4))),
      },
    ],
    cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
    series: [
      {},
      ...drawn.map(({ name, color }) => ({
        label: fullName(name),
        stroke: color,
        width: 1.5,
        points: { show: few, size: 5, fill: color },
        spanGaps: false,
      })),
    ],
    hooks: {
      setCursor: [
        (chart) => {
          onCursor(chart.cursor.idx ?? null, (chart.cursor.left ?? 0) + chart.bbox.left / devicePixelRatio);
        },
      ],
      draw: [(chart) => drawMarks(chart, drawn)],
    },
  };
}

/** Names under the axis where there is room, otherwise positions. */
function targetAxis(list: TargetList): Partial<UPlot.Axis> {
  return {
    space: 150,
    values: (chart, splits) =>
      splits.map((value) => {
        const label = Number.isInteger(value) ? (list.labels[value] as string | undefined) : undefined;
        if (label === undefined) return "";
        const own = label.slice(list.prefix.length);
        return elideStart(own, 140 * devicePixelRatio, (part) => chart.ctx.measureText(part).width);
      }),
  };
}

/** A symbol for each NaN or infinity, so that it isn't taken for "no data" (or for a number). */
function drawMarks(chart: UPlot, drawn: Shown[]): void {
  const marked = drawn.filter(({ data }) => hasMarks(data));
  if (marked.length === 0) return;
  const { ctx: g, bbox } = chart;
  const rows = Math.min(MAX_MARK_ROWS, marked.length);
  const height = MARK_ROW * devicePixelRatio;
  const top = bbox.top - MARK_GAP * devicePixelRatio - rows * height;
  g.save();
  g.fillStyle = "rgb(128 128 128 / 14%)";
  g.fillRect(bbox.left, top, bbox.width, rows * height);
  g.font = `${11 * devicePixelRatio}px sans-serif`;
  g.textAlign = "right";
  g.textBaseline = "middle";
  g.fillStyle = "#888";
  g.fillText("NaN, ±∞", bbox.left - 6 * devicePixelRatio, top + (rows * height) / 2);
  g.font = `bold ${11 * devicePixelRatio}px sans-serif`;
  g.textAlign = "center";
  const xs = chart.data[0];
  marked.forEach(({ color, data: { values } }, order) => {
    if (!values) return;
    g.fillStyle = color;
    const y = top + ((order % rows) + 0.5) * height;
    for (let index = 0; index < values.length; ++index) {
      if (Number.isFinite(values[index])) continue;
      const symbol = MARKS[stateOf(values, index)];
      const x = chart.valToPos(xs[index], "x", true);
      if (symbol !== undefined && x >= bbox.left && x <= bbox.left + bbox.width) g.fillText(symbol, x, y);
    }
  });
  g.restore();
}
