"""What policies are shown equals what their own projects' operations make, in those projects' environments.

`tests/cases/make_processing.py` made the arrays. Padding, Lanczos, crop and axis-angle are equal to the last bit. So is
JPEG where it is decoded accurately; TensorFlow decodes by a fast, coarse transform unless told otherwise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from safevla_bench.errors import PolicyError
from safevla_bench.policies.servers import transforms

CASES = Path(__file__).parents[2] / "cases"
PICTURES = ("square", "wide", "tall")
SMALL = (56, 56)
COARSE_MEAN, COARSE_MOST = 2.0, 16
"""Grey levels of 255, between TensorFlow's fast inverse transform and an accurate one."""


def load_case(which):
    return dict(np.load(CASES / f"processing_{which}.npz"))


def picture(image):
    return PillowImage.fromarray(image)


OPERATIONS = {
    "padding is openpi's resize_with_pad": (
        "openpi",
        "in",
        "out",
        lambda image: transforms.resize_padded(image, SMALL),
    ),
    "Lanczos is TensorFlow's": ("tensorflow", "in", "lanczos", lambda image: transforms.resize_lanczos(image, SMALL)),
    "the crop is OpenVLA's": ("tensorflow", "lanczos", "crop", lambda image: transforms.crop_center(image, 0.9)),
    "JPEG is TensorFlow's accurate one": ("tensorflow", "in", "jpeg_accurate", transforms.pass_through_jpeg),
}


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_its_project_s_own(operation, name):
    project, before, after, change = OPERATIONS[operation]
    case = load_case(project)
    image = case[f"{name}_{before}"]
    changed = change(picture(image) if before == "in" else image)
    np.testing.assert_array_equal(changed, case[f"{name}_{after}"])


@pytest.mark.parametrize("name", PICTURES)
def test_openvla_s_whole_way_differs_by_its_fast_transform_alone(name):
    case = load_case("tensorflow")
    jpeg = transforms.pass_through_jpeg(picture(case[f"{name}_in"]))
    whole = transforms.crop_center(transforms.resize_lanczos(jpeg, SMALL), 0.9)
    for result, expected in ((np.asarray(jpeg), case[f"{name}_jpeg"]), (whole, case[f"{name}_all"])):
        away = np.abs(result.astype(int) - expected.astype(int))
        assert away.mean() < COARSE_MEAN
        assert away.max() <= COARSE_MOST


def test_axis_angle_is_robosuite_s():
    case = load_case("robosuite")
    results = [transforms.to_axis_angle(quat[[3, 0, 1, 2]]) for quat in case["quat_xyzw"]]
    np.testing.assert_array_equal(results, case["axis_angle"])


IMAGE = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)


def test_flips_are_named_as_of_mujoco_s_own_rows():
    raw = IMAGE[::-1]  # MuJoCo's rows begin at the bottom
    np.testing.assert_array_equal(transforms.flip_image(IMAGE, "none"), raw)
    np.testing.assert_array_equal(transforms.flip_image(IMAGE, "vertical"), raw[::-1])
    np.testing.assert_array_equal(transforms.flip_image(IMAGE, "180"), raw[::-1, ::-1])


def test_an_image_of_the_size_is_not_touched_and_another_needs_a_method():
    np.testing.assert_array_equal(transforms.resize_picture(picture(IMAGE), (4, 2), "none"), IMAGE)
    with pytest.raises(PolicyError, match="8 x 8"):
        transforms.resize_picture(picture(IMAGE), (8, 8), "none")


@pytest.mark.parametrize("method", transforms.RESIZERS)
def test_what_is_sent_is_the_sender_s_own_array(method):
    """A policy in this process makes tensors of it, which PyTorch refuses to share where it cannot be written to."""
    assert all(transforms.flip_image(IMAGE, how).flags.writeable for how in transforms.FLIPS)
    for size in ((4, 2), (2, 2)):
        assert transforms.resize_picture(picture(IMAGE), size, method).flags.writeable


@pytest.mark.parametrize(
    ("how", "given_values", "host"),
    [
        ("raw", [-0.3, 0.0, 0.9], [-0.3, 0.0, 0.9]),
        ("open-is-one", [0.0, 0.49, 0.5, 0.51, 1.0], [1.0, 1.0, 0.0, -1.0, -1.0]),
        ("sign", [-1.0, -1e-9, 0.0, 0.2], [-1.0, -1.0, 1.0, 1.0]),
        ("close-is-one", [0.0, 0.49, 0.5, 1.0], [-1.0, -1.0, 1.0, 1.0]),
    ],
)
def test_grippers_become_minus_one_open_and_plus_one_closed(how, given_values, host):
    actions = np.zeros((len(given_values), 7))
    actions[:, 6] = given_values
    np.testing.assert_array_equal(transforms.convert_switches(actions, {6: how})[:, 6], host)
    np.testing.assert_array_equal(actions[:, 6], given_values)


@pytest.mark.parametrize("how", transforms.SWITCHES)
def test_a_switch_that_is_not_finite_stays_so(how):
    """By comparison alone it would become a closed gripper."""
    numbers = np.array([[np.nan], [np.inf], [-np.inf], [0.25]])
    converted = transforms.convert_switches(numbers, {0: how})
    np.testing.assert_array_equal(converted[:3], numbers[:3])
    assert np.isfinite(converted[3])


@pytest.mark.parametrize("shape", [(480, 480), (336, 336), (600, 430)])
def test_the_middle_is_cut_and_resized_as_opencv_does(shape):
    cv2 = pytest.importorskip("cv2")
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    height, width = (round(side * 2 / 3) for side in shape)
    top, left = (shape[0] - height) // 2, (shape[1] - width) // 2
    expected = cv2.resize(image[top : top + height, left : left + width], (224, 224), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_array_equal(transforms.resize_picture(picture(image), (224, 224), "middle-bilinear"), expected)


@pytest.mark.parametrize("size", [(224, 224), (120, 256)])
@pytest.mark.parametrize("shape", [(256, 256), (360, 360), (448, 448), (480, 640)])
def test_areas_are_averaged_as_opencv_does(shape, size):
    cv2 = pytest.importorskip("cv2")
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for image in (noise, noise // 16 * 16, cv2.GaussianBlur(noise, (9, 9), 3)):
        expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(transforms.resize_picture(picture(image), size, "area"), expected)


def test_lerobot_s_rotation_is_computed_in_single_precision():
    """Written from LiberoProcessorStep._quat2axisangle, lerobot 7427f31; the arc cosine is rounded correctly."""
    turned = np.random.default_rng(0).normal(size=(500, 4))
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    single = turned.astype(np.float32)
    angle = np.float32(2) * np.arccos(single[:, 0].astype(np.float64)).astype(np.float32)
    expected = single[:, 1:] / np.sqrt(np.float32(1) - single[:, 0] ** 2)[:, None] * angle[:, None]
    turns = np.array([transforms.to_axis_angle_single(quat) for quat in turned])
    np.testing.assert_array_equal(turns, expected)
    before = np.array([transforms.to_axis_angle(quat) for quat in turned]).astype(np.float32)
    assert (before != expected).any()
    np.testing.assert_array_equal(transforms.to_axis_angle_single(np.eye(4)[0]), 0)


def test_a_rotation_matrix_that_was_rounded_gives_its_quaternion_in_every_branch():
    quats = np.random.default_rng(0).normal(size=(300, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    for w, x, y, z in quats:
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        matrix = (np.eye(3) + 2 * w * cross + 2 * cross @ cross).astype(np.float32)
        quat = transforms.matrix_to_quaternion(matrix)
        np.testing.assert_allclose(quat * np.sign(quat @ [w, x, y, z]), [w, x, y, z], atol=1e-6)
