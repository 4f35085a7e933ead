"""``make bench``: every ratio, side by side in one run, as a table and as JSON.

``make bench ARGS="--sizes 64 --workers 2 8"`` measures other sizes (MiB) and numbers of ranks, ``--quick`` the four
rows of the targets only. The package verl is measured beside Podium when it is importable.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import core
from benchmarks import live, noop, record
from benchmarks.measure import Effort, Row
from benchmarks.traffic import MIB, Traffic
from benchmarks.workers import podium_group, verl_group, verl_is_importable
from core import runtime as runtimes

_TARGET_MIB, _TARGET_BROADCAST_MIB = 256, 64
_SIZES = (1, 16, 64, 256, 1024)
_COLUMNS = 4
_STORE_SHARE = 5
"""The store holds a batch on its way out and back, by contenders the last of which is just being freed."""


def main() -> None:
    """Measure, print, and write ``benchmarks/results/<time>.json``."""
    options = _options()
    rows = [] if options.only == "record" else _on_ray(options)
    recorded = record.report(options.big_run) if options.only in (None, "record") else {}
    print("\nwritten to", _write(rows, recorded, options.out))


def _on_ray(options: argparse.Namespace) -> list[Row]:
    """Measure and print everything that needs a cluster."""
    sizes = [size for size in options.sizes if _fits(size)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
        store = max(_STORE_SHARE * max(sizes), 1024) * MIB
        core.init(num_cpus=32, num_gpus=8, _temp_dir=folder, log_to_driver=False, object_store_memory=store)
        try:
            # verl would else start a Ray of its own accord, with other resources.
            assert runtimes.current().cluster.kind.startswith("ray")
            for n_ranks in options.workers:
                for row in _rows(n_ranks, sizes, Path(folder), options):
                    rows.append(row)
                    _print(row)
            if options.only in (None, "live") and not options.quick:
                rows.append(live.measure())
                _print(rows[-1])
        finally:
            runtimes.current().close()
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES), help="MiB of a batch")
    parser.add_argument("--workers", type=int, nargs="+", default=[4], help="numbers of ranks")
    parser.add_argument("--quick", action="store_true", help="the rows of the targets only")
    parser.add_argument(
        "--only", choices=["noop", "one-way", "round-trip", "broadcast", "live", "record"], help="one kind of row"
    )
    parser.add_argument("--big-run", type=Path, help="a file of benchmarks.synth to time the pages' questions on")
    parser.add_argument("--no-verl", action="store_true", help="leave verl out")
    parser.add_argument("--rounds", type=int, default=15, help="blocks per contender at most")
    parser.add_argument("--calls", type=int, default=60, help="no-op calls per block")
    parser.add_argument("--budget", type=float, default=10, help="seconds per row; three rounds are made in any case")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for the JSON")
    options = parser.parse_args()
    if options.quick:
        options.sizes = [_TARGET_MIB]
    return options


def _rows(n_ranks: int, sizes: list[int], folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure everything on groups of ``n_ranks``."""
    verl = verl_group(n_ranks) if verl_is_importable() and not options.no_verl else None
    with podium_group(n_ranks) as group:
        traffic = Traffic(group, verl)
        if options.only in (None, "noop"):
            yield noop.measure(group, verl, folder, Effort(options.rounds, options.calls, options.budget))
        # The rows of the targets first; verl is measured in these only, it takes its time.
        for size in sorted(sizes, key=lambda size: size != _TARGET_MIB):
            effort = Effort(options.rounds, 1 if size > 16 else 3, options.budget if size >= 64 else options.budget / 3)
            small = min(size, _TARGET_BROADCAST_MIB) if size == _TARGET_MIB else size
            for n_columns in (1, _COLUMNS) if size == _TARGET_MIB else (_COLUMNS,):
                if options.only in (None, "one-way"):
                    yield traffic.one_way(size, n_columns, effort, is_target=size == _TARGET_MIB)
                if options.only in (None, "round-trip"):
                    yield traffic.round_trip(size, n_columns, effort, is_target=size == _TARGET_MIB)
            if options.only in (None, "broadcast") and (size != _TARGET_BROADCAST_MIB or _TARGET_MIB not in sizes):
                yield traffic.broadcast(small, effort, is_target=size == _TARGET_MIB)
    if verl is not None:
        _end(verl[0])


def _end(group: object) -> None:
    """End verl's workers: its groups have no close."""
    import ray

    for worker in getattr(group, "workers", ()):
        ray.kill(worker)


def _fits(n_mib: int) -> bool:
    """Tell whether a size can be measured here: the store, both sides' arrays and what is joined."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shm = os.statvfs("/dev/shm")
    fits = 10 * n_mib * MIB < available and _STORE_SHARE * n_mib * MIB < shm.f_bavail * shm.f_frsize
    if not fits:
        print(f"{n_mib} MiB are left out: {available // MIB} MiB of memory are free")
    return fits


def _print(row: Row) -> None:
    print(f"\n{row.what}")
    print(f"  {'':<26}{'median ms':>10}{'quartiles ms':>22}{'calls':>7}{'ratio':>8}")
    for name, measured in row.contenders.items():
        quartiles = f"{measured.low_ms:.2f} - {measured.high_ms:.2f}"
        print(f"  {name:<26}{measured.median_ms:>10.2f}{quartiles:>22}{measured.n_calls:>7}{row.ratio(name):>8.2f}")
    for target, met in row.verdicts().items():
        print(f"  {'met' if met else 'MISSED':>8}: {target}")
    for fact, value in row.facts.items():
        print(f"  {fact}: {value:.2f}")


def _write(rows: list[Row], recorded: dict[str, object], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"{now:%Y%m%d-%H%M%S}.json"
    facts = {
        "at": now.isoformat(timespec="seconds"),
        "podium": core.__version__,
        "python": platform.python_version(),
        "n_cpus": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "rows": [
            asdict(row) | {"ratios": {name: row.ratio(name) for name in row.contenders}, "targets": row.verdicts()}
            for row in rows
        ],
        "record": recorded,
    }
    path.write_text(json.dumps(facts, indent=2, default=asdict) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
