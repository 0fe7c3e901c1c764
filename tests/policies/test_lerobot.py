"""The adapter of LeRobot policies, on an object with their interface."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from policies.servers.stub_servers import TASK, observe
from safevla_bench.errors import PolicyError
from safevla_bench.policies import make_policy
from safevla_bench.policies.python import LerobotModel
from safevla_bench.policies.servers import ChunkedPolicy
from safevla_bench.policies.servers.dialects import choose_dialect


class Tensor:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype=dtype)


class Lero:
    def __init__(self):
        self.calls = []

    def reset(self):
        self.calls.append("reset")

    def select_action(self, batch):
        self.calls.append(batch)
        return Tensor(np.full((1, 7), 2.0, dtype=np.float32))


def test_a_policy_is_asked_as_lerobot_asks_it_and_through_both_processors():
    lero, seeds = Lero(), []
    model = LerobotModel(
        lero,
        before=lambda batch: {"before": batch},
        after=lambda action: Tensor(action.array / 4),
        dialect=choose_dialect("lerobot-libero", "lerobot"),
        make_tensor=Tensor,
        seed_torch=seeds.append,
    )
    policy = ChunkedPolicy(model, None)
    policy.reset(TASK, 3)
    white = np.full((360, 360, 3), 255, np.uint8)
    half = white.copy()
    half[:, :180] = 0
    action = policy.act(observe(images={"agentview": white, "robot0_eye_in_hand": half}))
    policy.close()
    np.testing.assert_array_equal(action, 0.5)
    assert seeds == [3]
    assert lero.calls[0] == "reset"
    batch = lero.calls[1]["before"]
    assert list(batch) == ["observation.images.image", "observation.images.image2", "observation.state", "task"]
    assert batch["task"] == ["put it there"]
    image, wrist = (batch[f"observation.images.{name}"].array for name in ("image", "image2"))
    assert (image.shape, image.dtype, image.max()) == ((1, 3, 360, 360), np.float32, 1.0)
    assert wrist[..., :180].min() == 1.0, "mirrored, as the policies were trained"
    assert wrist[..., 180:].max() == 0.0
    state = batch["observation.state"].array
    assert (state.shape, state.dtype) == ((1, 8), np.float32)


def test_x_vla_s_policies_get_the_controller_s_rotation_one_turned_picture_and_give_poses():
    """By LiberoProcessorStep and XVLARotation6DToAxisAngleProcessorStep of X-VLA's processors, lerobot 7427f31."""

    class Xvla(Lero):
        def select_action(self, batch):
            super().select_action(batch)
            turned = [0.0, 1.0, 0.0, -1.0, 0.0, 0.0]  # columns of a quarter turn about z
            return Tensor(np.float32([[0.1, 0.2, 0.3, *turned, 0.6, *[0.0] * 10]]))

    lero, dialect = Xvla(), choose_dialect("lerobot-xvla-libero", "lerobot")
    model = LerobotModel(lero, lambda batch: batch, lambda action: action, dialect, Tensor, print)
    noise = np.random.default_rng(0).integers(0, 256, (2, 360, 360, 3), dtype=np.uint8)
    columns = np.arange(9.0)
    seen = observe(
        images={"agentview": noise[0], "robot0_eye_in_hand": noise[1]},
        extra={"controller_pos": np.full(3, 9.0), "controller_rotation": columns},
    )
    action = ChunkedPolicy(model, None).act(seen)
    np.testing.assert_allclose(action, [0.1, 0.2, 0.3, 0, 0, np.pi / 2, 1.0], atol=1e-5)
    (batch,) = lero.calls
    assert list(batch) == ["observation.images.image", "observation.images.image2", "observation.state", "task"]
    raw = [image[::-1] for image in noise]  # MuJoCo's rows begin at the bottom
    for name, image in (("image", raw[0][::-1, ::-1]), ("image2", raw[1])):
        tensor = np.moveaxis(image, 2, 0).astype(np.float32)[np.newaxis] / 255
        np.testing.assert_array_equal(batch[f"observation.images.{name}"].array, tensor)
    state = batch["observation.state"].array
    assert state.dtype == np.float32
    assert state.tolist() == [[0, 1, 2, 0, 3, 6, 1, 4, 7, *[0.0] * 11]]
    assert model.wants.absolute


def test_the_rotation_of_the_state_is_lerobot_s_own_where_torch_makes_it():
    lero, quats = Lero(), []
    dialect = choose_dialect("lerobot-libero", "lerobot")

    def rotate(quat_xyzw):
        quats.append(quat_xyzw.tolist())
        return np.float32([7, 8, 9])

    white = np.full((360, 360, 3), 255, np.uint8)
    images = {"agentview": white, "robot0_eye_in_hand": white}
    model = LerobotModel(lero, lambda batch: batch, lambda action: action, dialect, Tensor, print, rotate)
    model.query(observe(images=images, eef_quat_wxyz=np.array([0.1, 0.2, 0.3, 0.4])))
    assert quats == [[0.2, 0.3, 0.4, 0.1]]
    np.testing.assert_allclose(lero.calls[0]["observation.state"].array[0], [0, 1, 2, 7, 8, 9, 0.04, -0.04], rtol=1e-6)


def test_without_lerobot_the_way_round_is_named():
    with pytest.raises(PolicyError, match="cannot be imported") as caught:
        make_policy("lerobot:anything")
    assert "serve it" in caught.value.remedy
    with pytest.raises(PolicyError, match="needs a saved"):
        make_policy("lerobot")


class Config:
    """A saved policy's configuration, as LeRobot's chunking policies have it."""

    def __init__(self, path):
        self.type, self.chunk_size, self.n_action_steps = "pi05", 50, 50
        if path.startswith("xvla"):
            self.type, self.action_mode = path.split("-")
        if path == "broken":
            raise KeyError("no config.json")

    from_pretrained = classmethod(lambda cls, path: cls(path))


@pytest.fixture
def lerobot(monkeypatch):
    """LeRobot's modules, as far as the adapter imports them; returns the configurations of the policies loaded."""
    loaded = []

    class Saved(Lero):
        @classmethod
        def from_pretrained(cls, path, config):
            loaded.append(config)
            policy = cls()
            policy.config = config
            return policy

        def to(self, device):
            return self

        def eval(self):
            return self

    for name, members in {
        "torch": {"from_numpy": Tensor, "manual_seed": int},
        "lerobot": {},
        "lerobot.configs": {},
        "lerobot.configs.policies": {"PreTrainedConfig": Config},
        "lerobot.policies": {},
        "lerobot.policies.factory": {
            "get_policy_class": lambda kind: Saved,
            "make_pre_post_processors": lambda *_, **__: (lambda batch: batch, lambda action: action),
        },
    }.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return loaded


def test_the_actions_of_a_chunk_that_are_carried_out_can_be_chosen_as_by_lerobot_s_own_option(lerobot):
    make_policy("lerobot:saved", {"n_action_steps": "10"})
    make_policy("lerobot:saved")
    assert [config.n_action_steps for config in lerobot] == [10, 50]
    for steps, count in (("51", 51), ("0", 0), ("ten", 0)):
        with pytest.raises(PolicyError, match=f"{count} actions of"):
            make_policy("lerobot:saved", {"n_action_steps": steps})


def test_images_have_the_names_that_the_policy_was_trained_with(lerobot):
    policy = make_policy("lerobot:saved", {"rename": "image:front,image2:wrist"})
    paths = [field.path[0] for field in policy.dialect.fields]
    assert paths == ["observation.images.front", "observation.images.wrist", "observation.state", "task"]
    for text in ("front:image", "image", "image:"):
        with pytest.raises(PolicyError, match="does not fit"):
            make_policy("lerobot:saved", {"rename": text})


def test_a_policy_of_x_vla_needs_its_dialect_and_no_other_policy_takes_it(lerobot):
    """With LeRobot's usual observations it would act on pictures, states and actions that it was not trained on."""
    ours = {"dialect": "lerobot-xvla-libero"}
    for path, arguments, remedy in (
        ("xvla-ee6d", {}, "lerobot-xvla-libero"),
        ("saved", ours, "dialect=lerobot-libero"),
    ):
        with pytest.raises(PolicyError, match="policies of the") as caught:
            make_policy(f"lerobot:{path}", arguments)
        assert remedy in caught.value.remedy
    for arguments in ({}, ours):
        with pytest.raises(PolicyError, match="action_mode auto"):
            make_policy("lerobot:xvla-auto", arguments)
    assert lerobot == []


@pytest.mark.parametrize(("own", "added"), [((), ("Normalize", "AddDomain")), (("Normalize", "AddDomain"), ())])
def test_x_vla_s_pictures_are_normalized_once(lerobot, monkeypatch, own, added):
    kinds = {name: type(name, (), {"__call__": lambda step, batch: batch}) for name in ("Normalize", "AddDomain")}
    xvla, processor = ModuleType("xvla"), ModuleType("processor")
    xvla.XVLAImageNetNormalizeProcessorStep, xvla.XVLAAddDomainIdProcessorStep = kinds.values()

    class Pipeline:
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, batch):
            return {**batch, "by": [*batch.get("by", []), *(type(step).__name__ for step in self.steps)]}

    processor.PolicyProcessorPipeline = Pipeline
    factory = sys.modules["lerobot.policies.factory"]
    saved = Pipeline([kinds[name]() for name in own])
    monkeypatch.setattr(factory, "make_pre_post_processors", lambda *_, **__: (saved, lambda action: action))
    modules = {"lerobot.policies.xvla": ModuleType("p"), "lerobot.policies.xvla.processor_xvla": xvla}
    modules["lerobot.policies.xvla"].processor_xvla = xvla
    for name, module in {**modules, "lerobot.processor": processor}.items():
        monkeypatch.setitem(sys.modules, name, module)
    policy = make_policy("lerobot:xvla-ee6d", {"dialect": "lerobot-xvla-libero"})
    assert policy.model._before({})["by"] == [*added, *own]


def test_what_lerobot_cannot_load_is_the_policy_s_fault_and_not_this_package_s(lerobot):
    with pytest.raises(PolicyError, match="load broken: KeyError") as caught:
        make_policy("lerobot:broken")
    assert "safevla-bench" not in str(caught.value)
