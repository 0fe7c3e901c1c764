"""One frame rendered off screen by MuJoCo; what it came to is printed as JSON.

    python -m safevla_bench.hosts.mujoco.frame_probe

It may crash: run it in a process of its own.
"""

from __future__ import annotations

import importlib
import json

_SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <geom type="sphere" size="0.3" rgba="1 1 1 1"/>
    <camera name="seen" pos="0 -2 0" xyaxes="1 0 0 0 0 1"/>
  </worldbody>
</mujoco>
"""


def main() -> None:
    """Render a white ball on black, 64 x 64; name the renderer and the darkest and brightest value."""
    import mujoco

    gl = importlib.import_module("OpenGL.GL")  # it has no types
    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 64, 64) as renderer:
        renderer.update_scene(data, camera="seen")
        image = renderer.render()
        name = gl.glGetString(gl.GL_RENDERER).decode()
    print(json.dumps({"renderer": name, "darkest": int(image.min()), "brightest": int(image.max())}))


if __name__ == "__main__":
    main()
