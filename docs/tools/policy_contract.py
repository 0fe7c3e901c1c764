"""Makes docs/images/policy-contract.png: one initial state of LIBERO as each `orientation` shows it. Needs LIBERO.

.venv/bin/python docs/tools/policy_contract.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from safevla_bench import hosts
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.policies.python import ORIENTATIONS, orient_images

TARGET = Path(__file__).parents[1] / "images" / "policy-contract.png"
CAMERAS = ("agentview", "robot0_eye_in_hand")
SUITE, TASK, SHOWN_PX, LABEL_PX, COLORS = "libero-goal", 2, 170, 16, 128


def observe() -> Observation:
    """Return the first observation of the task's first initial state."""
    host = hosts.make_host("libero")
    environment = host.make(host.tasks(SUITE)[TASK], Wants(cameras=CAMERAS, image_size=(256, 256)))
    try:
        return environment.reset(EpisodeSeed(0, 0, wait_steps=10))
    finally:
        environment.close()


def draw_sheet(observation: Observation) -> Image.Image:
    """Return a column for each orientation, a row for each camera, with captions."""
    width, height = len(ORIENTATIONS) * SHOWN_PX, len(CAMERAS) * (SHOWN_PX + LABEL_PX)
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    for column, orientation in enumerate(ORIENTATIONS):
        images = orient_images(observation, orientation).images
        for row, camera in enumerate(CAMERAS):
            left, top = column * SHOWN_PX, row * (SHOWN_PX + LABEL_PX)
            pen.text((left + 4, top + 2), f"{orientation}: {camera}", fill="black")
            small = Image.fromarray(np.asarray(images[camera])).resize((SHOWN_PX - 4,) * 2, Image.Resampling.LANCZOS)
            sheet.paste(small, (left + 2, top + LABEL_PX))
    return sheet


def main() -> None:
    """Write the picture."""
    draw_sheet(observe()).quantize(COLORS).save(TARGET, optimize=True)
    print(f"{TARGET}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
