"""Stand-ins for what ManiSkill downloads for SimplerEnv's tasks, in a folder of the tests' own: they show that the host
works, and their numbers mean nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path

from safevla_bench.hosts.maniskill.host import ManiskillHost

STANDIN = tempfile.TemporaryDirectory(prefix="maniskill-standin-")
os.environ["MS_ASSET_DIR"] = STANDIN.name  # ManiSkill reads it when it is imported
COLORS = {"bridge_real_eval_1": (40, 160, 60), "bridge_sink": (60, 60, 170)}
"""Name of a background -> its color."""
SIZES_M = {
    "bridge_spoon_generated_modified": (0.1, 0.025, 0.015),
    "table_cloth_generated_shorter": (0.12, 0.1, 0.006),
    "bridge_carrot_generated_modified": (0.1, 0.025, 0.025),
    "bridge_plate_objaverse_larger": (0.12, 0.12, 0.01),
    "baked_green_cube_3cm": (0.03, 0.03, 0.03),
    "baked_yellow_cube_3cm": (0.03, 0.03, 0.03),
    "eggplant": (0.1, 0.04, 0.04),
    "dummy_sink_target_plane": (0.1, 0.1, 0.004),
    "sink": (0.3, 0.3, 0.01),
}
_TOP_M = 0.865
# Joint -> type, axis, place in its parent, limits; each moves a link with a box before it.
_ARM = {
    "waist": ("revolute", "0 0 1", "0 0 0.072", (-3.1, 3.1), 0.04),
    "shoulder": ("revolute", "0 1 0", "0 0 0.0387", (-1.9, 2.0), 0.2),
    "elbow": ("revolute", "0 1 0", "0.0498 0 0.25", (-2.1, 1.6), 0.14),
    "forearm_roll": ("revolute", "1 0 0", "0.175 0 0", (-3.1, 3.1), 0.05),
    "wrist_angle": ("revolute", "0 1 0", "0.075 0 0", (-1.7, 2.1), 0.04),
    "wrist_rotate": ("revolute", "1 0 0", "0.065 0 0", (-3.1, 3.1), 0.04),
}


def _link(name, size, center):
    shape = f'<origin xyz="{center}"/><geometry><box size="{size}"/></geometry>'
    inertia = '<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
    return (
        f'<link name="{name}"><inertial><mass value="0.3"/>{inertia}</inertial>'
        f"<visual>{shape}</visual><collision>{shape}</collision></link>"
    )


def _joint(name, kind, parent, child, axis, place, limits):
    low, high = limits
    limit = f'<axis xyz="{axis}"/><limit lower="{low}" upper="{high}" effort="20" velocity="3"/>'
    ends = f'<parent link="{parent}"/><child link="{child}"/><origin xyz="{place}"/>'
    return f'<joint name="{name}" type="{kind}">{ends}{limit if kind != "fixed" else ""}</joint>'


def _write_robot(path: Path) -> None:
    parts, parent = [_link("base_link", "0.1 0.1 0.06", "0 0 0.03")], "base_link"
    for name, (kind, axis, place, limits, length) in _ARM.items():
        child = f"{name}_link"
        size, center = f"{length} 0.03 0.03", f"{length / 2} 0 0"
        if name in ("waist", "shoulder"):
            size, center = f"0.03 0.03 {length}", f"0 0 {length / 2}"
        parts += [_link(child, size, center), _joint(name, kind, parent, child, axis, place, limits)]
        parent = child
    parts += [
        '<link name="ee_gripper_link"/>',
        _joint("ee", "fixed", parent, "ee_gripper_link", "", "0.136 0 0", (0, 0)),
    ]
    for side, sign in (("left", 1), ("right", -1)):
        link = f"{side}_finger_link"
        parts.append(_link(link, "0.06 0.01 0.02", f"0 {0.005 * sign} 0"))
        parts.append(_joint(f"{side}_finger", "prismatic", parent, link, f"0 {sign} 0", "0.11 0 0", (0.014, 0.038)))
    path.parent.mkdir(parents=True)
    path.write_text(f'<robot name="wx250s">{"".join(parts)}</robot>')


@cache
def write_assets() -> None:
    """Write the robot, tables, backgrounds, objects and success boxes."""
    import trimesh
    from PIL import Image

    root = Path(STANDIN.name, "data")
    _write_robot(root / "robots/widowx/wx250s.urdf")
    scenes = root / "tasks/bridge_v2_real2sim_dataset"
    for folder in ("stages", "real_inpainting"):
        (scenes / folder).mkdir(parents=True)
    for version in ("v1", "v2"):
        table = trimesh.creation.box((0.9, 0.1, 0.9))
        table.apply_translation((-0.16 - 2.0634, _TOP_M - 0.05, 2.8313))  # y is up, and the scene moved by upstream
        table.export(scenes / f"stages/bridge_table_1_{version}.glb")
    for name, color in COLORS.items():
        Image.new("RGB", (64, 48), color).save(scenes / f"real_inpainting/{name}.png")
    boxes = {}
    for name, size_m in SIZES_M.items():
        folder = scenes / "custom/models" / name
        folder.mkdir(parents=True)
        trimesh.creation.box(size_m).export(folder / "collision.obj")
        trimesh.creation.box(size_m).export(folder / "textured.glb")
        half = [size / 2 for size in size_m]
        boxes[name] = {"bbox": {"min": [-part for part in half], "max": half}, "scales": [1.0], "density": 800}
    for file in ("info_bridge_custom_v0", "info_bridge_custom_baked_tex_v0"):
        (scenes / f"custom/{file}.json").write_text(json.dumps(boxes))


def make_widowx_host() -> ManiskillHost:
    return ManiskillHost(robot="widowx")
