"""``make bench``: every ratio, side by side in one run, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import core
from benchmarks import noop
from benchmarks.measure import Row
from core import runtime as runtimes

_TARGETS = {"Podium, recording on": 1.10}


def main() -> None:
    """Measure, print, and write ``benchmarks/results/<time>.json``."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
        core.init(num_cpus=16, num_gpus=8, _temp_dir=folder, log_to_driver=False)
        try:
            rows = [noop.measure(Path(folder), options.rounds, options.calls)]
        finally:
            runtimes.current().close()
    for row in rows:
        _print(row)
    print("written to", _write(rows, options.out))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="blocks per contender")
    parser.add_argument("--calls", type=int, default=60, help="calls per block")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for the JSON")
    return parser.parse_args()


def _print(row: Row) -> None:
    print(f"\n{row.what} ({next(iter(row.contenders.values())).n_calls} calls each)")
    print(f"  {'':<26}{'median ms':>10}{'quartiles ms':>18}{'ratio':>8}  target")
    for name, measured in row.contenders.items():
        quartiles = f"{measured.low_ms:.2f} - {measured.high_ms:.2f}"
        target = f"<= {_TARGETS[name]:.2f}" if name in _TARGETS else ""
        print(f"  {name:<26}{measured.median_ms:>10.2f}{quartiles:>18}{row.ratio(name):>8.2f}  {target}")


def _write(rows: list[Row], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"{now:%Y%m%d-%H%M%S}.json"
    facts = {
        "at": now.isoformat(timespec="seconds"),
        "podium": core.__version__,
        "python": platform.python_version(),
        "n_cpus": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "rows": [asdict(row) | {"ratios": {name: row.ratio(name) for name in row.contenders}} for row in rows],
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")
    return path


if __name__ == "__main__":
    main()
