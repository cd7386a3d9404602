"""Reads the tiles of a trend database by docs/format.md, "Tiles", value by value, without any code of TrendProbe."""

import sqlite3
import struct
from pathlib import Path

Cell = tuple[object, ...]  # rank, step, target name, vpp stage, call, metric, statistic

MISSING = (struct.pack("<I", 0x7FC04D56), struct.pack("<Q", 0x7FF809AAC0000000))


def tile_values(path: Path) -> dict[Cell, str]:
    """Every value that is not missing, as repr(float), so that NaN equals NaN."""
    with sqlite3.connect(path) as database:
        info = dict(database.execute("SELECT key, value FROM trendprobe_info"))
        steps = [row[0] for row in database.execute("SELECT step FROM trendprobe_steps ORDER BY step")]
        ranks = [row[0] for row in database.execute("SELECT rank FROM trendprobe_ranks ORDER BY rank")]
        tile_targets, tile_ranks, tile_steps = (info[f"tile_{axis}"] for axis in ("targets", "ranks", "steps"))
        rank_blocks, step_blocks = -(-len(ranks) // tile_ranks), -(-len(steps) // tile_steps)
        values = {}
        for plane, metric_id, metric, statistic in database.execute(
            "SELECT plane_id, metric_id, metric_name, statistic FROM trendprobe_planes "
            "JOIN monitoring_metrics USING (metric_id)"
        ):
            targets = database.execute(
                "SELECT target_name, vpp_stage, micro_step FROM trendprobe_metric_targets "
                "JOIN monitoring_targets USING (target_id) WHERE metric_id = ? ORDER BY column_index",
                (metric_id,),
            ).fetchall()
            tiles = dict(
                database.execute(
                    "SELECT tile_id, data FROM trendprobe_tiles WHERE tile_id >= ? AND tile_id < ?",
                    (plane << 40, plane + 1 << 40),
                )
            )
            for column, target in enumerate(targets):
                for rank_index, rank in enumerate(ranks):
                    for step_index, step in enumerate(steps):
                        tb, rb, sb = column // tile_targets, rank_index // tile_ranks, step_index // tile_steps
                        tile = tiles.get((plane << 40) + (tb * rank_blocks + rb) * step_blocks + sb)
                        if tile is None:
                            continue
                        nt = min(tile_targets, len(targets) - tb * tile_targets)
                        nr = min(tile_ranks, len(ranks) - rb * tile_ranks)
                        ns = min(tile_steps, len(steps) - sb * tile_steps)
                        width = len(tile) // (nt * nr * ns)
                        assert len(tile) == nt * nr * ns * width and width in (4, 8)
                        place = ((step_index % tile_steps) * nr + rank_index % tile_ranks) * nt + column % tile_targets
                        data = tile[place * width : (place + 1) * width]
                        if data not in MISSING:
                            (value,) = struct.unpack("<f" if width == 4 else "<d", data)
                            values[(rank, step, *target, metric, statistic)] = repr(value)
        return values
