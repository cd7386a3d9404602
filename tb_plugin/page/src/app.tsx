// The page: resolves what the user chose against what there is, loads it, and lays it out.

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

import { readAddress, watchAddress, writeAddress } from "./address";
import { ApiError, type DatabaseEntry, type Dataset, fetchDatabases, fetchDataset, type Source } from "./api";
import { ColorBar } from "./color_bar";
import { HeatMap } from "./heat_map";
import type { CellPlace } from "./heat_map_canvas";
import { SLICE_AXES } from "./labels";
import { LineChart, lineColor } from "./line_chart";
import { linePlaces, lineThrough, useLineData } from "./lines";
import { text } from "./messages";
import { useResource } from "./resource";
import { makeScale } from "./scale";
import { Sidebar, usePlay } from "./sidebar";
import { loadSlice, loadTargets, type Slice, type TargetList } from "./slice";
import { Splitter, useRememberedShare } from "./splitter";
import { watchDarkMode, watchReload } from "./tensorboard";
import { type State, stateOf } from "./values";
import { type LinePlace, sameLine, type ViewState } from "./view_state";

const ADDRESS_DELAY = 150;
const SLOW_MILLISECONDS = 3000;

export function App() {
  const [state, setState] = useState<ViewState>(readAddress);
  const update = useCallback((change: Partial<ViewState>) => setState((old) => ({ ...old, ...change })), []);
  const [dark, setDark] = useState(false);
  const [reloads, setReloads] = useState(0);
  const reload = useCallback(() => setReloads((count) => count + 1), []);
  useEffect(() => watchDarkMode(setDark), []);
  useEffect(() => watchReload(reload), []);
  useEffect(() => watchAddress(() => setState(readAddress())), []);
  useEffect(() => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }, [dark]);
  useEffect(() => {
    const timer = setTimeout(() => writeAddress(state), ADDRESS_DELAY);
    return () => clearTimeout(timer);
  }, [state]);

  const listing = useResource(`databases ${reloads}`, fetchDatabases);
  const databases = listing.value?.databases ?? [];
  // The first walk through a large log directory is still under way: ask again.
  useEffect(() => {
    if (listing.value?.complete === false) {
      const timer = setTimeout(reload, 1000);
      return () => clearTimeout(timer);
    }
    return undefined;
  }, [listing.value]);

  const { entry, dataset } = useDataset(databases, state.db, reload);
  const opened = dataset.value;
  const metric = opened?.metrics.find(({ name }) => name === state.metric) ?? opened?.metrics[0];
  const statistic = metric?.statistics.find((name) => name === state.statistic) ?? metric?.statistics[0];
  const source: Source | undefined =
    opened && metric && statistic
      ? { db: opened.db, version: opened.version, metric: metric.name, statistic }
      : undefined;

  const targets = useResource(
    source ? `${source.db}\n${source.version}\n${source.metric}` : null,
    async (signal) => {
      const { db, version, metric: name } = source as Source;
      return { db, version, name, list: await loadTargets(db, version, name, signal) };
    },
  );
  const list =
    source &&
    targets.value?.db === source.db &&
    targets.value.version === source.version &&
    targets.value.name === source.metric
      ? targets.value.list
      : undefined;

  const { dimension } = state;
  const index = opened && list ? resolveIndex(state, opened, list) : -1;
  const count = axisLength(state, opened, list);
  const sliceKey = source && list && index >= 0 ? JSON.stringify([source, dimension, index]) : null;
  const slice = useResource(sliceKey, (signal) =>
    loadSlice(opened as Dataset, source as Source, list as TargetList, dimension, index, signal),
  );
  // A replaced database: read the list again, which brings the new version.
  const changed = [targets.error, slice.error].some(
    (error) => error instanceof ApiError && error.code === "changed",
  );
  useEffect(() => {
    if (changed) reload();
  }, [changed]);

  const selectIndex = useCallback(
    (next: number) => {
      if (!opened || !list) return;
      if (dimension === "step") update({ step: opened.steps.step[next] });
      else if (dimension === "rank") update({ rank: opened.ranks.rank[next] });
      else update({ target: list.labels[next] });
    },
    [opened, list, dimension],
  );
  const [playing, setPlaying] = usePlay(slice.value, index, count, selectIndex);
  useArrowKeys(index, count, selectIndex);

  const map = slice.value;
  const scale = useMemo(
    () => (map ? makeScale(map.summary, state.scale, state.range) : undefined),
    [map, state.scale, state.range],
  );
  const [cursor, setCursor] = useState<CellPlace>();
  useEffect(() => setCursor(undefined), [map?.dimension, map?.matrix.rows, map?.matrix.columns]);
  const jump = (wanted: State) => {
    if (!map) return;
    const place = firstInState(map, wanted);
    if (place) setCursor(place);
    if (place && state.zoom) update({ zoom: undefined });
  };

  const [sidebarShare, setSidebarShare] = useRememberedShare("sidebar", 0.2, 0.12, 0.45);
  const [mapShare, setMapShare] = useRememberedShare("map", 0.66, 0.2, 0.9);

  if (listing.error && databases.length === 0) {
    return <Message title={text.failed} detail={listing.error.message} onRetry={reload} />;
  }
  if (!listing.value) return <Message title={text.loading} busy />;
  if (databases.length === 0) {
    return listing.value.complete ? (
      <Message
        title={text.noDatabases}
        detail={text.noDatabasesHelp}
        notes={listing.value.notes}
        onRetry={reload}
      />
    ) : (
      <Message title={text.scanning} busy />
    );
  }

  const error = dataset.error ?? targets.error ?? slice.error;
  const loading = dataset.loading || targets.loading || slice.loading;
  return (
    <div class="page" style={{ gridTemplateColumns: `minmax(200px, ${sidebarShare * 100}%) 6px 1fr` }}>
      <Sidebar
        state={state}
        update={update}
        databases={databases}
        notes={listing.value.notes}
        db={entry?.id}
        dataset={opened}
        metric={metric?.name}
        statistic={statistic}
        list={list}
        index={index}
        selectIndex={selectIndex}
        playing={playing}
        setPlaying={setPlaying}
        slice={map}
        scaleKind={scale ? text.scaleKind[scale.kind].toLowerCase() : undefined}
        dark={dark}
        onJump={jump}
      />
      <Splitter
        orientation="vertical"
        label={text.resizeSidebar}
        share={sidebarShare}
        setShare={setSidebarShare}
      />
      <main class="charts" style={{ gridTemplateRows: `${mapShare * 100}% 6px minmax(0, 1fr)` }}>
        <section class="map-section" aria-busy={loading}>
          {error ? (
            <Message title={text.failed} detail={error.message} onRetry={reload} />
          ) : opened && opened.metrics.length === 0 ? (
            <Message title={text.noMetrics} detail={text.noMetricsHelp} />
          ) : map && scale ? (
            <MapView
              map={map}
              scale={scale}
              state={state}
              update={update}
              dark={dark}
              cursor={cursor}
              loading={loading}
            />
          ) : (
            <Loading />
          )}
        </section>
        <Splitter orientation="horizontal" label={text.resizeChart} share={mapShare} setShare={setMapShare} />
        <section class="line-section">
          {opened && source && list && (
            <Lines state={state} update={update} dataset={opened} source={source} list={list} dark={dark} />
          )}
        </section>
      </main>
    </div>
  );
}

/** The chosen database, or else the newest that can be opened. */
function useDataset(databases: DatabaseEntry[], chosen: string | undefined, reload: () => void) {
  const [broken, setBroken] = useState<readonly string[]>([]);
  const wanted = databases.find(({ id }) => id === chosen);
  // Once it is shown, a newer one that appears must not replace it under the user's hands.
  const initial = useRef<string>(undefined);
  const openable = databases.filter(({ id, version }) => !broken.includes(id + version));
  const byDate = [...(openable.length > 0 ? openable : databases)].sort((a, b) => b.modified - a.modified);
  const entry = wanted ?? byDate.find(({ id }) => id === initial.current) ?? byDate.at(0);
  initial.current = entry?.id;
  const key = entry ? `${entry.id}\n${entry.version}` : null;
  const dataset = useResource(key, async (signal) => {
    const { id, version } = entry as DatabaseEntry;
    try {
      return await fetchDataset(id, version, signal);
    } catch (error) {
      if (!signal.aborted && error instanceof ApiError) {
        if (error.code === "changed" || error.status === 404) reload();
        else if (!wanted) setBroken((known) => [...known, id + version]);
      }
      throw error;
    }
  });
  const current = dataset.value && entry && dataset.value.db === entry.id ? dataset.value : undefined;
  return { entry, dataset: { ...dataset, value: current } };
}

function axisLength(state: ViewState, dataset?: Dataset, list?: TargetList): number {
  if (state.dimension === "step") return dataset?.steps.step.length ?? 0;
  if (state.dimension === "rank") return dataset?.ranks.rank.length ?? 0;
  return list?.labels.length ?? 0;
}

/** Where the chosen value of the dimension is; the first one if it isn't there. */
function resolveIndex(state: ViewState, dataset: Dataset, list: TargetList): number {
  const length = axisLength(state, dataset, list);
  let index = -1;
  if (state.dimension === "step" && state.step !== undefined) index = dataset.steps.step.indexOf(state.step);
  if (state.dimension === "rank" && state.rank !== undefined) index = dataset.ranks.rank.indexOf(state.rank);
  if (state.dimension === "target" && state.target !== undefined) index = list.places.get(state.target) ?? -1;
  return index >= 0 ? index : length > 0 ? 0 : -1;
}

/** ← and → change the value, unless the focus is on something that has its own use for them. */
function useArrowKeys(index: number, count: number, selectIndex: (index: number) => void) {
  const handler = useRef<(event: KeyboardEvent) => void>(undefined);
  handler.current = (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, .popup")) return;
    const next = event.key === "ArrowLeft" ? index - 1 : event.key === "ArrowRight" ? index + 1 : -1;
    if (next < 0 || next >= count) return;
    event.preventDefault();
    selectIndex(next);
  };
  useEffect(() => {
    const listener = (event: KeyboardEvent) => handler.current?.(event);
    document.addEventListener("keydown", listener);
    return () => document.removeEventListener("keydown", listener);
  }, []);
}

function firstInState(slice: Slice, wanted: State): CellPlace | undefined {
  const { values, columns } = slice.matrix;
  for (let index = 0; index < values.length; ++index) {
    if (!Number.isFinite(values[index]) && stateOf(values, index) === wanted) {
      return { row: Math.floor(index / columns), column: index % columns };
    }
  }
  return undefined;
}

interface MapViewProps {
  map: Slice;
  scale: ReturnType<typeof makeScale>;
  state: ViewState;
  update: (change: Partial<ViewState>) => void;
  dark: boolean;
  cursor?: CellPlace;
  loading: boolean;
}

function MapView({ map, scale, state, update, dark, cursor, loading }: MapViewProps) {
  const axes = SLICE_AXES[map.dimension];
  const marks = useMemo(
    () =>
      state.lines
        .filter(({ along }) => along === map.dimension)
        .flatMap((line, position) => {
          const places = linePlaces(line, map.dataset, map.list);
          const row = places?.[axes.row];
          const column = places?.[axes.column];
          return row === undefined || column === undefined
            ? []
            : [{ row, column, color: lineColor(position) }];
        }),
    [state.lines, map],
  );
  return (
    <>
      <header class="map-header">
        <h1 title={map.title}>{map.title}</h1>
        {loading && <span class="spinner" role="status" aria-label={text.loading} />}
        {state.zoom && (
          <button type="button" class="button" onClick={() => update({ zoom: undefined })}>
            {text.fit}
          </button>
        )}
      </header>
      <div class="map-row">
        <HeatMap
          slice={map}
          scale={scale}
          palette={state.palette}
          dark={dark}
          zoom={state.zoom}
          setZoom={(zoom) => update({ zoom })}
          marks={marks}
          cursor={cursor}
          onPick={(place) => {
            const line = lineThrough(map, place);
            if (!state.lines.some((other) => sameLine(other, line)))
              update({ lines: [...state.lines, line] });
          }}
        />
        <ColorBar scale={scale} palette={state.palette} min={map.summary.min} max={map.summary.max} />
      </div>
    </>
  );
}

interface LinesProps {
  state: ViewState;
  update: (change: Partial<ViewState>) => void;
  dataset: Dataset;
  source: Source;
  list: TargetList;
  dark: boolean;
}

function Lines({ state, update, dataset, source, list, dark }: LinesProps) {
  const along = state.dimension;
  const lines = useMemo(() => state.lines.filter((line) => line.along === along), [state.lines, along]);
  const found = useLineData(lines, dataset, list, source);
  const data = new Map(
    [...found].map(([key, value], position) => [
      key,
      linePlaces(lines[position], dataset, list) ? value : { error: text.noSuchLine },
    ]),
  );
  // What the last clearing took, good for as long as nothing else happened to the lines.
  const [cleared, setCleared] = useState<{ taken: LinePlace[]; left: LinePlace[] }>();
  return (
    <>
      <header class="line-header">
        <h2>{text.lineTitle[along]}</h2>
        {lines.length > 0 && (
          <>
            <label class="check">
              <input
                type="checkbox"
                checked={state.logLines}
                onChange={(event) => update({ logLines: event.currentTarget.checked })}
              />
              {text.logY}
            </label>
            <button
              type="button"
              class="button"
              onClick={() => {
                const left = state.lines.filter((line) => line.along !== along);
                update({ lines: left });
                setCleared({ taken: lines, left });
              }}
            >
              {text.clear}
            </button>
          </>
        )}
        {lines.length === 0 && cleared?.left === state.lines && (
          <button
            type="button"
            class="button"
            onClick={() => update({ lines: [...state.lines, ...cleared.taken] })}
          >
            {text.undo}
          </button>
        )}
      </header>
      {lines.length === 0 ? (
        <p class="empty">{text.noLines[along]}</p>
      ) : (
        <LineChart
          along={along}
          lines={lines}
          data={data}
          dataset={dataset}
          list={list}
          unit={`${source.metric} · ${source.statistic}`}
          logY={state.logLines}
          dark={dark}
          onRemove={(line) => update({ lines: state.lines.filter((other) => !sameLine(other, line)) })}
        />
      )}
    </>
  );
}

function Loading() {
  const [slow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), SLOW_MILLISECONDS);
    return () => clearTimeout(timer);
  }, []);
  return <Message title={slow ? text.loadingSlow : text.loading} busy />;
}

interface MessageProps {
  title: string;
  detail?: string;
  notes?: string[];
  busy?: boolean;
  onRetry?: () => void;
}

function Message({ title, detail, notes = [], busy, onRetry }: MessageProps) {
  return (
    <div class="message" role={busy ? "status" : "alert"}>
      {busy && <span class="spinner" />}
      <h1>{title}</h1>
      {detail !== undefined && <p>{detail}</p>}
      {notes.length > 0 && (
        <ul>
          {notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
      {onRetry && (
        <button type="button" class="button" onClick={onRetry}>
          {text.retry}
        </button>
      )}
    </div>
  );
}
