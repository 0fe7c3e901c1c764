"""The dialects that the clients speak unless they are told another: LIBERO's, for each kind of server."""

from __future__ import annotations

from dataclasses import replace

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Wants
from safevla_bench.policies.dialect import Dialect, Field, Part, View

CAMERAS = ("agentview", "robot0_eye_in_hand")
_STATE = ("eef_pos", "eef_axis_angle", "gripper_qpos")
_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_PARTS = ("eef_x", "eef_y", "eef_z", "eef_axis_angle_x", "eef_axis_angle_y", "eef_axis_angle_z")
_TURNED = View(flip="180", jpeg=False, size=(256, 256), resize="pad-bilinear", crop=None)

OPENPI = Dialect(
    name="openpi",
    wants=Wants(cameras=CAMERAS, image_size=(256, 256)),
    view=replace(_TURNED, size=(224, 224)),
    fields=(
        Field(("observation/image",), camera=CAMERAS[0]),
        Field(("observation/wrist_image",), camera=CAMERAS[1]),
        Field(("observation/state",), state=_STATE),
        Field(("prompt",)),
    ),
    parts=(Part(("actions",), 7),),
    switches=(),
    replan=5,
    clip=True,
)
VLA_EVAL = Dialect(
    name="vla-eval",
    wants=Wants(cameras=CAMERAS, image_size=(256, 256)),
    view=_TURNED,
    fields=(
        Field(("images", "agentview"), camera=CAMERAS[0]),
        Field(("images", "wrist"), camera=CAMERAS[1]),
        Field(("states",), state=_STATE),
        Field(("task_description",)),
    ),
    parts=(Part(("actions",), 7),),
    switches=((6, "sign"),),
    replan=None,
    clip=True,
)
GR00T = Dialect(
    name="gr00t",
    wants=Wants(cameras=CAMERAS, image_size=(256, 256)),
    view=_TURNED,
    fields=(
        Field(("video.image",), camera=CAMERAS[0], axes=2),
        Field(("video.wrist_image",), camera=CAMERAS[1], axes=2),
        *(
            Field((f"state.{axis}",), state=(part,), dtype="float32", axes=2)
            for axis, part in zip(_AXES, _PARTS, strict=True)
        ),
        Field(("state.gripper",), state=("gripper_qpos",), dtype="float32", axes=2),
        Field(("annotation.human.action.task_description",), axes=1),
    ),
    parts=tuple(Part((f"action.{one}",), 1) for one in (*_AXES, "gripper")),
    switches=((6, "open-is-one"),),
    replan=8,
    clip=True,
)


def seen_by(dialect: Dialect, image: str | None, wrist_image: str | None) -> Dialect:
    """The dialect with other cameras in the places of its two; an empty name leaves that image out.

    Raises `PolicyError` where both are left out: a policy that sees nothing has nothing to be asked.
    """
    names = dict(zip(CAMERAS, (image, wrist_image), strict=True))
    kept = [field for field in dialect.fields if names.get(field.camera or "") != ""]
    fields = tuple(replace(one, camera=names.get(one.camera or "") or one.camera) for one in kept)
    cameras = tuple(field.camera for field in fields if field.camera)
    if not cameras:
        raise PolicyError("no camera is left", remedy="Name one: image=agentview.")
    return replace(dialect, fields=fields, wants=replace(dialect.wants, cameras=cameras))
