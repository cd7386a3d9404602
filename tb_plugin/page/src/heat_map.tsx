// The heat map with its pointer, keys and tooltip.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { type CellDetail, type Dimension, DIMENSIONS, fetchCell } from "./api";
import type { Viewport } from "./cells";
import { formatExact } from "./format";
import { type CellPlace, HeatMapCanvas, type Hit, type Mark } from "./heat_map_canvas";
import { SLICE_AXES } from "./labels";
import { text } from "./messages";
import type { PaletteKind } from "./palette";
import type { ColorScale } from "./scale";
import { axisValue, placeName, type Slice } from "./slice";
import { State, stateOf } from "./values";

interface Props {
  slice: Slice;
  scale: ColorScale;
  palette: PaletteKind;
  dark: boolean;
  /** Fractions of the map; undefined is the whole. */
  zoom?: Viewport;
  setZoom: (zoom?: Viewport) => void;
  marks: Mark[];
  onPick: (place: CellPlace) => void;
  /** A cell that a button elsewhere points to. */
  cursor?: CellPlace;
}

/** A press of the pointer: where it began, and the view at that time. */
interface Drag {
  x: number;
  y: number;
  view: Viewport;
  box: boolean;
  moved: boolean;
}

const WHOLE: Viewport = { left: 0, right: 1, top: 0, bottom: 1 };
const DETAIL_DELAY = 150;

export function HeatMap({ slice, scale, palette, dark, zoom, setZoom, marks, onPick, cursor }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const upper = useRef<HTMLCanvasElement>(null);
  const canvas = useRef<HeatMapCanvas>(undefined);
  const drag = useRef<Drag>(undefined);
  const [hover, setHover] = useState<{ hit: Hit; x: number; y: number }>();
  const [size, setSize] = useState({ width: 0, height: 0 });
  const { rows, columns } = slice.matrix;

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element || !base.current || !upper.current) return undefined;
    canvas.current = new HeatMapCanvas(base.current, upper.current);
    const observer = new ResizeObserver(() =>
      setSize({ width: element.clientWidth, height: element.clientHeight }),
    );
    observer.observe(element);
    setSize({ width: element.clientWidth, height: element.clientHeight });
    return () => observer.disconnect();
  }, []);

  const view = useMemo(() => toCells(zoom ?? WHOLE, rows, columns), [zoom, rows, columns]);

  useLayoutEffect(() => canvas.current?.resize(size.width, size.height), [size]);
  useLayoutEffect(() => {
    canvas.current?.show(
      {
        matrix: slice.matrix,
        scale,
        median: slice.summary.median,
        palette,
        dark,
        rowAxis: slice.rowAxis,
        columnAxis: slice.columnAxis,
      },
      view,
      marks,
    );
    describeDrawing(frame.current, slice, canvas.current, view);
  }, [slice, scale, palette, dark, view, marks, size]);
  useLayoutEffect(() => {
    canvas.current?.drawOverlay(hover?.hit ?? cursor ?? {});
  }, [hover, cursor, slice, view, size, dark]);
  // A place outside a smaller map, or a map of other axes, is none.
  useEffect(() => setHover(undefined), [slice.dimension, rows, columns]);

  const point = (event: MouseEvent) => {
    const box = frame.current?.getBoundingClientRect();
    return { x: event.clientX - (box?.left ?? 0), y: event.clientY - (box?.top ?? 0) };
  };
  const change = (next: Viewport) => setZoom(toFractions(limited(next, rows, columns), rows, columns));

  const zoomAt = (factor: number, x: number, y: number, axes: { across: boolean; down: boolean }) => {
    const plot = canvas.current?.plot;
    if (!plot) return;
    const across = clamp((x - plot.left) / plot.width, 0, 1);
    const down = clamp((y - plot.top) / plot.height, 0, 1);
    const next = { ...view };
    if (axes.across) {
      const center = view.left + across * (view.right - view.left);
      next.left = center + (view.left - center) * factor;
      next.right = center + (view.right - center) * factor;
    }
    if (axes.down) {
      const center = view.top + down * (view.bottom - view.top);
      next.top = center + (view.top - center) * factor;
      next.bottom = center + (view.bottom - center) * factor;
    }
    change(next);
  };

  // Not as a prop: Preact would add a passive listener, which can't keep the page from scrolling.
  const onWheel = useRef<(event: WheelEvent) => void>(undefined);
  onWheel.current = (event) => {
    event.preventDefault();
    const { x, y } = point(event);
    const plot = canvas.current?.plot;
    if (!plot) return;
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const factor = Math.exp(clamp((event.deltaY || event.deltaX) * lines, -240, 240) * 0.002);
    const onRows = x < plot.left;
    const onColumns = y > plot.top + plot.height;
    zoomAt(factor, x, y, { across: !onRows, down: !onColumns && !event.shiftKey });
  };
  useEffect(() => {
    const element = frame.current;
    const listener = (event: WheelEvent) => onWheel.current?.(event);
    element?.addEventListener("wheel", listener, { passive: false });
    return () => element?.removeEventListener("wheel", listener);
  }, []);

  const onPointerDown = (event: PointerEvent) => {
    if (event.button !== 0) return;
    const { x, y } = point(event);
    drag.current = { x, y, view, box: event.shiftKey, moved: false };
    frame.current?.setPointerCapture(event.pointerId);
  };
  const onPointerMove = (event: PointerEvent) => {
    const { x, y } = point(event);
    const start = drag.current;
    const plot = canvas.current?.plot;
    if (!canvas.current || !plot) return;
    if (!start) {
      setHover({ hit: canvas.current.hit(x, y), x, y });
      return;
    }
    if (!start.moved && Math.hypot(x - start.x, y - start.y) < 4) return;
    start.moved = true;
    setHover(undefined);
    if (start.box) {
      canvas.current.drawOverlay({}, { x0: start.x, y0: start.y, x1: x, y1: y });
      return;
    }
    const across = ((start.x - x) / plot.width) * (start.view.right - start.view.left);
    const down = ((start.y - y) / plot.height) * (start.view.bottom - start.view.top);
    change({
      left: start.view.left + across,
      right: start.view.right + across,
      top: start.view.top + down,
      bottom: start.view.bottom + down,
    });
  };
  const onPointerUp = (event: PointerEvent) => {
    const start = drag.current;
    drag.current = undefined;
    if (!start || !canvas.current) return;
    const { x, y } = point(event);
    if (!start.moved) {
      const { row, column } = canvas.current.hit(x, y);
      if (row !== undefined && column !== undefined) onPick({ row, column });
      return;
    }
    if (start.box) {
      const plot = canvas.current.plot;
      const across = (value: number) =>
        view.left + clamp((value - plot.left) / plot.width, 0, 1) * (view.right - view.left);
      const down = (value: number) =>
        view.top + clamp((value - plot.top) / plot.height, 0, 1) * (view.bottom - view.top);
      canvas.current.drawOverlay({});
      change({
        left: Math.floor(across(Math.min(start.x, x))),
        right: Math.ceil(across(Math.max(start.x, x))),
        top: Math.floor(down(Math.min(start.y, y))),
        bottom: Math.ceil(down(Math.max(start.y, y))),
      });
    }
  };

  const onKeyDown = (event: KeyboardEvent) => {
    const plot = canvas.current?.plot;
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = { x: plot.left + plot.width / 2, y: plot.top + plot.height / 2 };
    const both = { across: true, down: true };
    const at = hover?.hit ?? cursor ?? {};
    const place = {
      row: at.row ?? Math.floor((view.top + view.bottom) / 2),
      column: at.column ?? Math.floor((view.left + view.right) / 2),
    };
    const moves: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      PageUp: [-10, 0],
      PageDown: [10, 0],
    };
    if (event.key in moves) {
      const [down, across] = moves[event.key];
      const hit = {
        row: clamp(place.row + down, 0, rows - 1),
        column: clamp(place.column + across, 0, columns - 1),
      };
      change(including(view, hit));
      const cell = canvas.current?.cellRectangle(hit);
      if (cell) setHover({ hit, x: cell.x + cell.width / 2, y: cell.y + cell.height / 2 });
    } else if (event.key === "Enter" || event.key === " ") onPick(place);
    else if (event.key === "+" || event.key === "=") zoomAt(0.7, middle.x, middle.y, both);
    else if (event.key === "-") zoomAt(1 / 0.7, middle.x, middle.y, both);
    else if (event.key === "0") setZoom(undefined);
    else if (event.key === "Escape") setHover(undefined);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <div
      class="heat-map"
      ref={frame}
      tabIndex={0}
      role="application"
      aria-label={text.mapLabel(slice.title)}
      onPointerDown={onPointerDown}
      onPointerMove={onPointerMove}
      onPointerUp={onPointerUp}
      onPointerCancel={() => (drag.current = undefined)}
      onPointerLeave={() => setHover(undefined)}
      onKeyDown={onKeyDown}
    >
      <canvas ref={base} class="map-cells" />
      <canvas ref={upper} class="map-marks" />
      {hover && (hover.hit.row !== undefined || hover.hit.column !== undefined) && (
        <Tooltip
          slice={slice}
          hit={hover.hit}
          x={hover.x}
          y={hover.y}
          width={size.width}
          height={size.height}
          color={(place) => canvas.current?.cellColor(place) ?? "transparent"}
        />
      )}
    </div>
  );
}

/** Says on the element what the canvas shows, for programs that look at the page: nothing in the page reads it. */
function describeDrawing(
  element: HTMLElement | null,
  slice: Slice,
  canvas: HeatMapCanvas | undefined,
  view: Viewport,
): void {
  if (!element || !canvas || canvas.plot.width <= 0) return;
  const { left, top, width, height } = canvas.plot;
  element.dataset.drawn = slice.title;
  element.dataset.rows = String(slice.matrix.rows);
  element.dataset.columns = String(slice.matrix.columns);
  element.dataset.plot = [left, top, width, height].join(",");
  element.dataset.view = [view.left, view.right, view.top, view.bottom].join(",");
}

interface TooltipProps {
  slice: Slice;
  hit: Hit;
  x: number;
  y: number;
  width: number;
  height: number;
  color: (place: CellPlace) => string;
}

function Tooltip({ slice, hit, x, y, width, height, color }: TooltipProps) {
  const { dataset, list, dimension, matrix, source } = slice;
  const axes = SLICE_AXES[dimension];
  const { row, column } = hit;
  const indices: Partial<Record<Dimension, number>> = { [dimension]: slice.index };
  if (row !== undefined) indices[axes.row] = row;
  if (column !== undefined) indices[axes.column] = column;
  const cellIndex = row !== undefined && column !== undefined ? row * matrix.columns + column : undefined;
  const detail = useCellDetail(slice, cellIndex === undefined ? undefined : indices);
  const tooltip = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ left: 0, top: 0 });
  useLayoutEffect(() => {
    const box = tooltip.current;
    if (!box) return;
    const right = x + 16 + box.offsetWidth <= width;
    const below = y + 14 + box.offsetHeight <= height;
    setPlace({
      left: Math.max(2, right ? x + 16 : x - 12 - box.offsetWidth),
      top: Math.max(2, below ? y + 14 : y - 10 - box.offsetHeight),
    });
  }, [x, y, detail, width, height]);
  const shown = DIMENSIONS.filter(
    (name) => indices[name] !== undefined && (cellIndex !== undefined || name !== dimension),
  );
  return (
    <div
      class="tooltip"
      role="tooltip"
      ref={tooltip}
      style={{ left: `${place.left}px`, top: `${place.top}px` }}
    >
      {indices.target !== undefined && shown.includes("target") && (
        <div class="tooltip-name">{list.labels[indices.target]}</div>
      )}
      {shown
        .filter((name) => name !== "target")
        .map((name) => (
          <div key={name}>{placeName(dataset, list, name, indices[name] as number)}</div>
        ))}
      {cellIndex !== undefined && row !== undefined && column !== undefined && (
        <div class="tooltip-value">
          <span class="chip" style={{ background: color({ row, column }) }} />
          {source.statistic} <strong>{valueText(slice, cellIndex)}</strong>
        </div>
      )}
      {detail && (
        <dl class="tooltip-statistics">
          {Object.entries(detail.statistics)
            .filter(([name]) => name !== source.statistic)
            .map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{typeof value === "number" ? formatExact(value) : stateWord(value)}</dd>
              </div>
            ))}
        </dl>
      )}
    </div>
  );
}

function stateWord(word: string): string {
  if (word === "NaN") return text.state.notANumber;
  if (word === "+inf") return text.state.plusInfinity;
  if (word === "-inf") return text.state.minusInfinity;
  return text.state.missing;
}

/** The value in words: exact, or what it is instead of a number. */
export function valueText(slice: Slice, index: number): string {
  const { values } = slice.matrix;
  switch (stateOf(values, index)) {
    case State.Missing:
      return `${text.state.missing} (${text.stateHelp.missing.toLowerCase()})`;
    case State.NotANumber:
      return `${text.state.notANumber} (${text.stateHelp.notANumber.toLowerCase()})`;
    case State.PlusInfinity:
      return text.state.plusInfinity;
    case State.MinusInfinity:
      return text.state.minusInfinity;
    case State.Number:
  }
  const exact = formatExact(values[index]);
  const cut = slice.dataset.cut_at;
  return cut !== null && Math.abs(values[index]) === cut ? text.cut(exact) : exact;
}

/** All statistics of a cell, once the pointer has rested on it. */
function useCellDetail(
  slice: Slice,
  indices: Partial<Record<Dimension, number>> | undefined,
): CellDetail | undefined {
  const [detail, setDetail] = useState<{ key: string; value: CellDetail }>();
  const key = indices ? `${slice.title}\n${DIMENSIONS.map((name) => indices[name]).join(",")}` : "";
  useEffect(() => {
    if (!indices) return undefined;
    const controller = new AbortController();
    const value = (name: Dimension) => axisValue(slice.dataset, slice.list, name, indices[name] as number);
    const timer = setTimeout(() => {
      const place = { step: value("step"), rank: value("rank"), target: value("target") };
      fetchCell(slice.source, place, controller.signal).then(
        (answer) => setDetail({ key, value: answer }),
        () => undefined, // The tooltip says what the map knows; the map itself reports errors.
      );
    }, DETAIL_DELAY);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
  return detail?.key === key ? detail.value : undefined;
}

function clamp(value: number, low: number, high: number): number {
  return Math.min(high, Math.max(low, value));
}

function toCells(zoom: Viewport, rows: number, columns: number): Viewport {
  return {
    left: zoom.left * columns,
    right: zoom.right * columns,
    top: zoom.top * rows,
    bottom: zoom.bottom * rows,
  };
}

/** Undefined for (almost) the whole map, so that it stays whole when its size changes. */
function toFractions(view: Viewport, rows: number, columns: number): Viewport | undefined {
  const zoom = {
    left: view.left / columns,
    right: view.right / columns,
    top: view.top / rows,
    bottom: view.bottom / rows,
  };
  const whole = zoom.left < 1e-4 && zoom.right > 1 - 1e-4 && zoom.top < 1e-4 && zoom.bottom > 1 - 1e-4;
  return whole ? undefined : zoom;
}

/** Keeps a view inside the map and not smaller than a cell. */
export function limited(view: Viewport, rows: number, columns: number): Viewport {
  const axis = (from: number, to: number, length: number): [number, number] => {
    const extent = clamp(to - from, Math.min(1, length), length);
    const start = clamp((from + to - extent) / 2, 0, length - extent);
    return [start, start + extent];
  };
  const [left, right] = axis(view.left, view.right, columns);
  const [top, bottom] = axis(view.top, view.bottom, rows);
  return { left, right, top, bottom };
}

/** The view, moved as little as needed to show a cell. */
export function including(view: Viewport, { row, column }: CellPlace): Viewport {
  const shift = (from: number, to: number, cell: number) =>
    cell < from ? cell - from : cell + 1 > to ? cell + 1 - to : 0;
  const across = shift(view.left, view.right, column);
  const down = shift(view.top, view.bottom, row);
  return {
    left: view.left + across,
    right: view.right + across,
    top: view.top + down,
    bottom: view.bottom + down,
  };
}
