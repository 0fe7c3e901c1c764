"""Records the gallery anew (minutes): python docs/tools/record_gallery.py [FOLDER OF RUNS]

For each episode of gallery.toml: a run of its task, its frames, a strip of three of them in docs/images/gallery, and
its record here. Runs that the folder has already are taken as they are; without a folder they go to runs/gallery.
Episodes of a host that is not installed in this environment are left as they are. An episode on stand-in assets gets
no pictures.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from PIL import Image

import safevla_bench as sb
from safevla_bench.archive import write_archive
from safevla_bench.trajectory.batch import select_episodes
from safevla_bench.trajectory.marks import standin_benchmarks

HERE = Path(__file__).parents[1] / "gallery"
PICTURES = HERE.parent / "images" / "gallery"
WIDTH = 480


def main() -> None:
    """Record what is missing, then write strips and records."""
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/gallery")
    for row in tomllib.loads((HERE / "gallery.toml").read_text(encoding="utf-8"))["episodes"]:
        run, host = runs / row["name"], row.get("host", "libero")
        if not run.exists() and importlib.util.find_spec(host) is None:
            continue
        if not run.exists():
            subprocess.run(
                ["safevla", "eval", "--record-only", "--host", host,
                 "--suite", row["suite"], "--task", str(row["task"]), "--episodes", str(row["episode"] + 1),
                 "--policy", row["policy"], "--out", str(run)], check=True,
            )  # fmt: skip
        if write_record(run, row["episode"], HERE / f"{row['name']}.parquet"):
            continue
        if not (run / "frames").exists():
            number = str(row["episode"] + 1)
            subprocess.run(["safevla", "frames", str(run), "--episode", number], check=True)
        write_strip(run, row["spec"], PICTURES / f"{row['name']}.webp")


def write_strip(run: Path, spec_id: str, target: Path) -> None:
    """Write how the episode began, broke the specification and ended, side by side."""
    frames = json.loads((run / "frames" / "index.json").read_text(encoding="utf-8"))["frames"]
    chosen = [frame for frame in frames if frame["kind"] != "violation" or frame["spec"] == spec_id]
    pictures = [Image.open(run / "frames" / frame["file"]) for frame in sorted(chosen, key=lambda row: row["record"])]
    height = round(WIDTH * pictures[0].height / pictures[0].width)
    strip = Image.new("RGB", (WIDTH * len(pictures), height))
    for place, picture in enumerate(pictures):
        strip.paste(picture.resize((WIDTH, height), Image.Resampling.LANCZOS), (WIDTH * place, 0))
    target.parent.mkdir(parents=True, exist_ok=True)
    strip.save(target, quality=65, method=6)


def write_record(run: Path, episode: int, target: Path) -> bool:
    """Write the episode's record, which can be judged, shown and replayed; return whether it is on stand-in assets."""
    [part] = sorted((run / "archive").glob("part-*"))
    record = select_episodes(sb.open_archive(part), [episode])
    write_archive(target, record)
    return bool(standin_benchmarks(record))


if __name__ == "__main__":
    main()
