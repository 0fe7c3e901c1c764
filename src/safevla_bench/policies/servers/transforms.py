"""Conversions of images, states and actions between a host and the models of published evaluations.

All functions are pure. An image is uint8 [H, W, 3], RGB; functions that use Pillow take a Pillow picture. If a function
equals an operation of another project, its docstring names the operation. Tests compare the function with reference
arrays. The operation itself made these arrays, in its project's environment.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import CONTROLLER_POSITION, CONTROLLER_ROTATION, Observation
from safevla_recorder.episode import Floats, Ints

Image = NDArray[np.uint8]
Picture = PillowImage.Image
T = TypeVar("T", bound=NDArray[Any])

JPEG_QUALITY = 95  # the default of `tf.image.encode_jpeg`
_LOBES = 3  # lobes of the Lanczos filter on each side
LEAST_SINE = 1e-10  # a rotation counts as zero if the sine of half its angle is below this
PANDA_OPENING_M = 0.08  # distance between the fingers of a Panda's open gripper


def resize_picture(picture: Picture, size: tuple[int, int], method: str) -> Image:
    """Return the picture resized to (height, width) by `RESIZERS[method]`. Raises `PolicyError` for other methods."""
    # A picture that already has the size is not resized.
    # A protocol that never resizes names a method that is not in `RESIZERS`.
    if (picture.height, picture.width) == size:
        return np.array(picture)
    if method not in RESIZERS:
        problem = f"the image is {picture.height} x {picture.width}, but the protocol sends {size[0]} x {size[1]}"
        remedy = "Render the protocol's size, or choose another protocol."
        raise PolicyError(f"{problem} and does not resize", remedy=remedy)
    return RESIZERS[method](picture, size)


def resize_padded(picture: Picture, size: tuple[int, int]) -> Image:
    """Scale the picture, with unchanged proportions, to fit (height, width), and center it on black: uint8 [height,
    width, 3]. Small pictures are enlarged. The filter is Pillow's bilinear filter. Equals
    `openpi_client.image_tools.resize_with_pad`.
    """
    height, width = size
    ratio = max(picture.height / height, picture.width / width)
    # Rounding down, here and below, is as in openpi.
    inner_height, inner_width = int(picture.height / ratio), int(picture.width / ratio)
    scaled = picture.resize((inner_width, inner_height), PillowImage.Resampling.BILINEAR)
    padded = PillowImage.new("RGB", (width, height))
    padded.paste(scaled, (int((width - inner_width) / 2), int((height - inner_height) / 2)))
    return np.array(padded)


def resize_lanczos(picture: Picture, size: tuple[int, int]) -> Image:
    """Resize the picture to (height, width) by a Lanczos filter of three lobes. If the picture shrinks, the filter is
    wider. Equals `tf.image.resize(image, size, method="lanczos3", antialias=True)`, rounded and clipped to uint8.
    """
    image = np.asarray(picture)
    height, width = image.shape[:2]
    # The filter is separable: first resize all columns of pixels to the new height, then all rows to the new width.
    resized_rows = _lanczos_weights(height, size[0]) @ image.reshape(height, -1).astype(np.float64)
    # Each row [width * 3] becomes a matrix [width, 3], so that the second product resizes the columns.
    return _to_uint8(np.rint(_lanczos_weights(width, size[1]) @ resized_rows.reshape(size[0], width, -1)))


@cache
def _lanczos_weights(length: int, size: int) -> Floats:
    # Return weights [size, length]: the weight of each of `length` old pixels in each of `size` new pixels.
    scale = length / size
    centers = (np.arange(size) + 0.5) * scale  # centers of the new pixels, in units of old pixels
    # distances between the centers of new and old pixels, [size, length], in units of the filter's width
    distances = (np.arange(length) + 0.5 - centers[:, None]) / max(scale, 1.0)
    # Lanczos' kernel: a sinc, multiplied by a wider sinc as a window.
    weights = np.where(np.abs(distances) < _LOBES, np.sinc(distances) * np.sinc(distances / _LOBES), 0.0)
    normalized: Floats = weights / weights.sum(axis=1, keepdims=True)
    normalized.flags.writeable = False  # the cache returns the same array to all callers
    return normalized


def resize_middle(picture: Picture, size: tuple[int, int]) -> Image:
    """Crop the picture to two thirds of each side, and resize it to (height, width) by OpenCV's bilinear filter, with
    weights in multiples of 1/2048. If the picture shrinks, this equals the crop and `cv2.resize` in starVLA's
    `preprocess_metaworld_image` (0ed0aad examples/simBenchmarks/MetaWorld/eval_files/model2metaworld_interface.py).
    """
    # Integers replace fractions, as in OpenCV, so that the results are equal in all digits.
    height, width = round(picture.height * 2 / 3), round(picture.width * 2 / 3)
    top_px, left_px = (picture.height - height) // 2, (picture.width - width) // 2
    middle = np.asarray(picture)[top_px : top_px + height, left_px : left_px + width].astype(np.int64)
    # OpenCV shifts right by 4, 16 and 2 bits: 22 bits, because each of the two weights is scaled by 2^11.
    left, right, left_weights, right_weights = _linear_weights(width, size[1])
    rows = middle[:, left] * left_weights[:, np.newaxis] + middle[:, right] * right_weights[:, np.newaxis] >> 4
    above, below, above_weights, below_weights = _linear_weights(height, size[0])
    from_above = rows[above] * above_weights[:, np.newaxis, np.newaxis] >> 16
    from_below = rows[below] * below_weights[:, np.newaxis, np.newaxis] >> 16
    return _to_uint8(from_above + from_below + 2 >> 2)  # `+ 2` rounds the quarter to the nearest integer


def _linear_weights(length: int, size: int) -> tuple[Ints, Ints, Ints, Ints]:
    # Return four arrays [size], with the indices and weights for resizing an axis of `length` pixels.
    # For each new pixel: indices of the old pixels before and after its center, then the weights of these two pixels.
    # Weights are multiples of 1/2048.
    positions = ((np.arange(size) + 0.5) * (length / size) - 0.5).clip(0, length - 1).astype(np.float32)
    lower = np.floor(positions).astype(np.int64)
    fraction = positions - lower.astype(np.float32)
    lower_weights = np.rint((1 - fraction) * np.float32(2048)).astype(np.int64)
    upper_weights = np.rint(fraction * np.float32(2048)).astype(np.int64)
    return lower, np.minimum(lower + 1, length - 1), lower_weights, upper_weights


def resize_area(picture: Picture, size: tuple[int, int]) -> Image:
    """Shrink the picture to (height, width); each new pixel is the mean of the area that it covers. Equals `cv2.resize`
    with `INTER_AREA` in single precision: x.5 is rounded up if both sides are halved, otherwise to the even integer.
    """
    image = np.asarray(picture)
    if image.shape[:2] == (2 * size[0], 2 * size[1]):
        # Split the image into blocks of 2 x 2 pixels.
        blocks = image.reshape(size[0], 2, size[1], 2, -1).astype(np.uint16)
        return _to_uint8(blocks.sum(axis=(1, 3)) + 2 >> 2)  # a quarter of the sum; `+ 2` rounds it
    values = np.moveaxis(image, 1, 0).astype(np.float32)  # first shrink the columns, then the rows
    # `_add_areas` resizes the first axis, so the axes are exchanged before and after each call.
    for length, new_length in ((image.shape[1], size[1]), (image.shape[0], size[0])):
        values = np.moveaxis(_add_areas(values, length / new_length, new_length), 0, 1)
    return _to_uint8(np.rint(np.moveaxis(values, 0, 1)))


def _add_areas(values: NDArray[np.float32], scale: float, size: int) -> NDArray[np.float32]:
    """Resample rows [length, ...] to rows [size, ...] by area. Rows are added in order, as in OpenCV."""
    # `scale` is the number of old rows that one new row covers.
    sums = np.zeros((size, *values.shape[1:]), np.float32)
    for index in range(size):
        # The new row covers the old rows from `low` to `high`, two real numbers. OpenCV ignores overlaps up to 1e-3.
        low, high = index * scale, min((index + 1) * scale, len(values))
        covered = min(scale, len(values) - low)  # rounding can make this value less than `scale` in the last row
        for row in range(math.floor(low), math.ceil(high - 1e-3)):
            overlap = min(row + 1, high) - max(row, low)
            if overlap > 1e-3:
                sums[index] += values[row] * np.float32(overlap / covered)
    return sums


def crop_center(image: Image, area: float) -> Image:
    """Crop the image to the fraction `area` of its area, and enlarge the crop to full size by bilinear interpolation.
    Equals OpenVLA's `tf.image.crop_and_resize` of a centered box with sides of √area, then `convert_image_dtype`.
    """
    side = math.sqrt(area)  # the crop's side as a fraction of the image's side
    scaled = image.astype(np.float64) / 255.0
    for axis in (0, 1):
        scaled = _stretch_axis(scaled, axis, (1 - side) / 2, (1 + side) / 2)
    return _to_uint8(np.floor(scaled * 255.5))  # the rounding of TensorFlow's `convert_image_dtype`


def _stretch_axis(image: Floats, axis: int, low: float, high: float) -> Floats:
    # Return an image of the same size that shows, along `axis`, only the part between the fractions `low` and `high`.
    # The part is enlarged by linear interpolation.
    last = image.shape[axis] - 1
    positions = np.linspace(low, high, last + 1) * last
    # Indices of the old pixel before each new pixel. At most `last - 1`, so that a next pixel exists.
    below = np.clip(np.floor(positions).astype(np.int64), 0, last - 1)
    # `image` is [H, W, 3]. `fraction` varies only along `axis`.
    fraction = np.expand_dims(positions - below, (1, 2) if axis == 0 else (0, 2))
    first, second = np.take(image, below, axis=axis), np.take(image, below + 1, axis=axis)
    return np.asarray(first + (second - first) * fraction)


def pass_through_jpeg(picture: Picture) -> Picture:
    """Encode a picture as a JPEG of quality 95, like OpenVLA's and Cosmos Policy's training images, and decode it."""
    # The loss of detail is intended: the models were trained with such images.
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return PillowImage.open(buffer).convert("RGB")


def flip_image(image: T, how: str) -> T:
    """Convert an upright image or depth array to the image of a project that flips MuJoCo's rendering by `how`. The
    first row of MuJoCo's rendering is the bottom row. A vertical flip makes it upright. A rotation by 180 degrees, as
    for LIBERO's policies, makes it upright and mirrored left to right. Returns a copy.
    """
    turned = image[FLIPS[how]]
    if turned.ndim == 2:  # a depth array has no channels
        return cast("T", turned.copy())
    channels = [turned[:, :, channel] for channel in range(turned.shape[2])]
    return cast("T", np.dstack(channels))  # copying single channels is four times as fast as copying the whole array


def to_axis_angle(quat_wxyz: Floats) -> Floats:
    """Return the rotation axis times the angle, [3] rad, of a unit quaternion wxyz [4]. Equals robosuite's
    `quat2axisangle`: the angle is from 0 to 2π, so q and −q give different vectors. Tiny rotations give zeros.
    """
    w = float(np.clip(quat_wxyz[0], -1.0, 1.0))
    sine = math.sqrt(1.0 - w * w)
    if math.isclose(sine, 0.0):  # as in robosuite: true only for exactly 0
        return np.zeros(3)
    return np.asarray(quat_wxyz[1:] * (2.0 * math.acos(w)) / sine, dtype=np.float64)


def to_axis_angle_single(quat_wxyz: Floats) -> Floats:
    """Return the rotation axis times the angle, [3] rad, of a unit quaternion wxyz [4], in single precision. Equals
    `LiberoProcessorStep._quat2axisangle` (lerobot 7427f31 src/lerobot/processor/env_processor.py), except that PyTorch
    rounds square roots and arc cosines differently. The arc cosine is computed in double precision and then rounded.
    NumPy's single-precision arc cosine has a wrong last digit in a third of all cases.
    """
    quat = quat_wxyz.astype(np.float32)
    w = np.clip(quat[0], np.float32(-1), np.float32(1))
    sine = np.sqrt(np.maximum(np.float32(1) - w * w, np.float32(0)))
    if sine <= LEAST_SINE:  # for tiny rotations, the axis is not defined
        return np.zeros(3)
    return np.asarray(quat[1:] / sine * (np.float32(2) * np.float32(math.acos(w))), dtype=np.float64)


def convert_switches(actions: Floats, columns: Mapping[int, str]) -> Floats:
    """Return actions [H, A] with switches, such as the gripper, converted to the host's values −1 and +1. `columns`
    maps a switch's column to a name in `SWITCHES`. Infinity and NaN stay unchanged, so that later checks can find them.
    """
    # Models differ in their conventions, such as 0 and 1 for the gripper.
    # `SWITCHES` maps a convention's name to a function that converts a column of values.
    converted = np.array(actions, dtype=np.float64)
    for column, conversion in columns.items():
        values = converted[:, column]
        converted[:, column] = np.where(np.isfinite(values), SWITCHES[conversion](values), values)
    return converted


def _to_uint8(values: NDArray[Any]) -> Image:
    # Return the values, clipped to the range of pixels, as uint8. Fractions are cut off, so callers round before.
    return np.asarray(np.clip(values, 0, 255).astype(np.uint8))


RESIZERS: Mapping[str, Callable[[Picture, tuple[int, int]], Image]] = {
    "pad-bilinear": resize_padded,
    "lanczos3": resize_lanczos,
    "middle-bilinear": resize_middle,
    "area": resize_area,
}
_BACKWARDS = slice(None, None, -1)
FLIPS: Mapping[str, tuple[slice, ...]] = {"none": (_BACKWARDS,), "vertical": (), "180": (slice(None), _BACKWARDS)}
"""Maps a flip of MuJoCo's rendering to slices. The slices convert an upright image to the flipped rendering."""
SWITCHES: Mapping[str, Callable[[Floats], Floats]] = {
    "raw": lambda values: values,
    # In the reply, 0 closes and 1 opens the gripper. Scale the value to [-1, 1]; the result is its negated sign.
    "open-is-one": lambda values: -np.sign(2 * values - 1),
    "open-above-half": lambda values: np.where(values > 0.5, -1.0, 1.0),
    "sign": lambda values: np.where(values < 0, -1.0, 1.0),
    # In RoboCasa's replies, gripper 0 is open and 1 is closed; mode 0 moves the arm and 1 moves the base.
    "close-is-one": lambda values: np.where(values < 0.5, -1.0, 1.0),
    "close-above-half": lambda values: np.where(values > 0.5, 1.0, -1.0),
}


SIMPLER_TASKS: Mapping[str, str] = {  # maps a WidowX task's instruction to its name in SimplerEnv at 4ab7178
    "put the spoon on the towel": "widowx_spoon_on_towel",
    "put carrot on plate": "widowx_carrot_on_plate",
    "stack the green block on the yellow block": "widowx_stack_cube",
    "put eggplant into yellow basket": "widowx_put_eggplant_in_basket",
}


# States


EXTRA = "extra/"  # a state part with this prefix is in `Observation.extra`


def state_part(name: str, observation: Observation) -> Floats:
    """Return one part of the state, [n], by its name: a key of `STATES`, or `extra/NAME` if host-specific.
    Raises `PolicyError` if the host does not provide this part.
    """
    # A model's state is a concatenation of such parts.
    try:
        if name.startswith(EXTRA):
            return np.asarray(observation.extra[name.removeprefix(EXTRA)], np.float64)
        return STATES[name](observation)
    except KeyError:
        problem = f"the policy needs {name}, which this host does not provide"
        raise PolicyError(problem, remedy="Choose an entry or dialect for this host.") from None


def _base_pose(observation: Observation) -> tuple[Floats, Floats]:
    # Return the position [3] in m and the quaternion wxyz [4] of the robot's base in the world frame.
    if observation.base_pos_m is None or observation.base_quat_wxyz is None:
        raise KeyError("the robot has no base")  # `state_part` converts this error to a `PolicyError`
    return observation.base_pos_m, observation.base_quat_wxyz


def _pose_in_base(observation: Observation) -> tuple[Floats, Floats]:
    # Return the end effector's position [3] in m and quaternion wxyz [4], with w >= 0, in the frame of the base.
    base_pos_m, base_quat_wxyz = _base_pose(observation)
    to_base_wxyz = base_quat_wxyz * [1, -1, -1, -1]  # the signs invert the rotation
    eef_quat_wxyz = _shortest_quaternion(_multiply_quaternions(to_base_wxyz, observation.eef_quat_wxyz))
    return _rotate_vector(to_base_wxyz, observation.eef_pos_m - base_pos_m), eef_quat_wxyz


def _shortest_quaternion(quat_wxyz: Floats) -> Floats:
    # q and -q are the same rotation. Return the quaternion with w >= 0, whose angle is at most pi.
    return -quat_wxyz if quat_wxyz[0] < 0 else quat_wxyz


_HALF_ROOT = float(np.sqrt(0.5))
# Orientation of the grip site in the hand: robosuite 1.4 models/assets/grippers/panda_gripper.xml, right_gripper.
_HAND_TO_SITE_WXYZ = np.array([_HALF_ROOT, 0.0, 0.0, -_HALF_ROOT])


def _round_to_single(array: Floats) -> Floats:
    # Return the numbers rounded to single precision, as the projects compute them, but with the dtype float64.
    return array.astype(np.float32).astype(np.float64)


def _shortest_axis_angle(quat_wxyz: Floats) -> Floats:
    # Return the rotation axis times the angle, [3] rad, with an angle of at most pi, rounded to single precision.
    return _round_to_single(to_axis_angle(_shortest_quaternion(quat_wxyz)))


def _controller_rotation(observation: Observation) -> Floats:
    """Return the rotation [3, 3] of the controller's pose or, if the host does not provide it, of the grip site."""
    # The grip site's orientation follows from the hand's by a fixed rotation.
    rotation = observation.extra.get(CONTROLLER_ROTATION)
    if rotation is not None:
        return rotation.reshape(3, 3).astype(np.float64)
    site_quat = _multiply_quaternions(observation.eef_quat_wxyz, _HAND_TO_SITE_WXYZ)
    # The columns of a rotation matrix are the rotated unit vectors.
    return np.column_stack([_rotate_vector(site_quat, axis) for axis in np.eye(3)])


def _rotate_vector(quat_wxyz: Floats, vector: Floats) -> Floats:
    # Return the vector [3], rotated by a unit quaternion: the vector part of q (0, v) q*, where q* is the conjugate.
    half_product = _multiply_quaternions(quat_wxyz, np.concatenate([[0.0], vector]))
    return _multiply_quaternions(half_product, quat_wxyz * [1, -1, -1, -1])[1:]


def read_ee6d(rows: Floats) -> Floats:
    """Convert X-VLA's rows for one arm, [H, 10 or more], to actions [H, 7]: position, axis-angle in rad, gripper. A row
    contains a position, two columns of a rotation matrix, the gripper, and padding. Results are rounded to single
    precision. They equal `ClientModel.step` of X-VLA 6bc2513 evaluation/libero/libero_client.py, except for the last
    digits of the angle: X-VLA computes quaternions from eigenvectors in single precision.
    """
    # Columns of a row: position [0:3], first two columns of the rotation matrix [3:6] and [6:9], gripper [9].
    x_axes = _normalize_rows(rows[:, 3:6])
    # Subtract the second column's projection onto the first axis, so that the axes are perpendicular.
    y_axes = _normalize_rows(rows[:, 6:9] - (x_axes * rows[:, 6:9]).sum(axis=1, keepdims=True) * x_axes)
    matrices = np.stack([x_axes, y_axes, np.cross(x_axes, y_axes)], axis=-1)
    quats = (matrix_to_quaternion(matrix) for matrix in matrices)
    axis_angles = [to_axis_angle(_shortest_quaternion(quat / np.linalg.norm(quat))) for quat in quats]
    return _round_to_single(np.column_stack([rows[:, :3], axis_angles, rows[:, 9]]))


def read_poses(rows: Floats) -> Floats:
    """Convert poses with quaternions wxyz, [H, 7], to poses with axis-angles, [H, 6] rad; zero quaternions give NaN."""
    with np.errstate(invalid="ignore"):  # 0 / 0 gives NaN without a warning
        quats = rows[:, 3:] / np.linalg.norm(rows[:, 3:], axis=1, keepdims=True)
    return np.column_stack([rows[:, :3], [to_axis_angle(_shortest_quaternion(quat)) for quat in quats]])


def read_euler(rows: Floats) -> Floats:
    """Convert rows with Euler angles about the fixed axes x, y, z to actions [H, 7] (position, axis-angle in rad,
    gripper). The axis-angle is the axis times the angle (0 to 2π), as `transforms3d.euler.euler2axangle` gives them.
    """
    # Columns of a row: position [0:3], Euler angles in rad [3:6], gripper [6:].
    cosines, sines = np.cos(rows[:, 3:6] / 2), np.sin(rows[:, 3:6] / 2)
    axes, axis_angles = np.eye(3), []
    for cosine, sine in zip(cosines, sines, strict=True):
        # the quaternions wxyz of the rotations about x, y and z
        about_x, about_y, about_z = (np.array([cosine[k], *(sine[k] * axes[k])]) for k in range(3))
        quat = _multiply_quaternions(_multiply_quaternions(about_z, about_y), about_x)
        axis_angles.append(to_axis_angle(quat / np.linalg.norm(quat)))
    return np.column_stack([rows[:, :3], axis_angles, rows[:, 6:]])


ENSEMBLE_ALPHA = 0.1


def average_predictions(replies: Sequence[Floats]) -> Floats:
    """Return the weighted mean, [1, A], of all predictions of the current step's action. The last replies, [H, A] each
    and oldest first, contain the predictions. A prediction's weight is exp(0.1 c); c is the cosine similarity with the
    newest one. Equals starVLA's `AdaptiveEnsembler.ensemble_action` (0ed0aad
    examples/simBenchmarks/SimplerEnv/eval_files/adaptive_ensemble.py).
    """
    ages = range(len(replies) - 1, -1, -1)  # how many steps ago each reply was given; 0 for the newest
    # Row k of a reply predicts the action for the step that is k steps after the reply.
    predictions = np.array([reply[age] for age, reply in zip(ages, replies, strict=True) if age < len(reply)])
    lengths = np.linalg.norm(predictions, axis=1)  # for the cosines with the newest prediction, the last row
    # The addition of 1e-7 avoids a division by zero, as in starVLA.
    weights = np.exp(ENSEMBLE_ALPHA * (predictions @ predictions[-1]) / (lengths * lengths[-1] + 1e-7))
    mean: Floats = (weights / weights.sum()) @ predictions
    return mean[np.newaxis]


def _normalize_rows(rows: Floats) -> Floats:
    # Return the rows, [N, 3], with a length of almost 1; zeros stay zeros.
    return np.asarray(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6))  # X-VLA adds 1e-6, too


FORMS: Mapping[str, Callable[[Floats], Floats]] = {  # conversions of a reply's rows to columns of actions
    "raw": lambda rows: rows,
    "ee6d": read_ee6d,
    "pose-wxyz": read_poses,
    "euler": read_euler,
    "opening": lambda rows: 1 - rows,  # converts the opening (1 = open) to the closing (1 = closed)
    "base-first": lambda rows: np.roll(rows, -5, axis=1),  # in RoboCasa's data sets, base and mode come before the arm
}


def matrix_to_quaternion(m: NDArray[Any]) -> Floats:
    """Return the quaternion wxyz of a rotation matrix [3, 3] by Shepperd's method. The matrix may be in single
    precision. Equals `matrix_to_quat` of vla-evaluation-harness e1ee9ad src/vla_eval/rotation.py.
    """
    m = m.astype(np.float64)
    # i is the axis with the largest diagonal element; j and k are the next axes in the cycle x, y, z.
    i, j, k = np.roll([0, 1, 2], -int(np.argmax(np.diag(m))))
    # Four times w times the vector part.
    differences = (m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1])
    # Divide by a large component, for accuracy: w if the trace is positive, else component i of the vector part.
    if np.trace(m) > 0:
        scale = 2 * math.sqrt(np.trace(m) + 1)
        return np.array([scale * scale / 4, *differences]) / scale
    scale = 2 * math.sqrt(1 + m[i, i] - m[j, j] - m[k, k])
    quat = np.empty(4)
    quat[[0, 1 + i, 1 + j, 1 + k]] = differences[i], scale * scale / 4, m[i, j] + m[j, i], m[i, k] + m[k, i]
    return quat / scale


def _multiply_quaternions(p: Floats, q: Floats) -> Floats:
    # Return the Hamilton product of two quaternions wxyz: the rotation q, followed by p.
    # `w` is the product's scalar part, and `v` its vector part.
    w, v = p[0] * q[0] - p[1:] @ q[1:], p[0] * q[1:] + q[0] * p[1:] + np.cross(p[1:], q[1:])
    return np.concatenate([[w], v])


STATES: Mapping[str, Callable[[Observation], Floats]] = {  # functions that return one part of the state, [n]
    "eef_pos": lambda seen: seen.eef_pos_m,
    "eef_x": lambda seen: seen.eef_pos_m[0:1],
    "eef_y": lambda seen: seen.eef_pos_m[1:2],
    "eef_z": lambda seen: seen.eef_pos_m[2:3],
    "eef_axis_angle": lambda seen: to_axis_angle(seen.eef_quat_wxyz),
    "eef_axis_angle_float32": lambda seen: to_axis_angle_single(seen.eef_quat_wxyz),
    "eef_axis_angle_single": lambda seen: _round_to_single(to_axis_angle(seen.eef_quat_wxyz)),
    "eef_axis_angle_shortest": lambda seen: _shortest_axis_angle(seen.eef_quat_wxyz),
    "controller_pos": lambda seen: seen.extra.get(CONTROLLER_POSITION, seen.eef_pos_m).astype(np.float64),
    "controller_axis_angle": lambda seen: _shortest_axis_angle(
        matrix_to_quaternion(_round_to_single(_controller_rotation(seen)))
    ),
    "controller_columns": lambda seen: _controller_rotation(seen)[:, :2].T.ravel(),
    "controller_quat_wxyz": lambda seen: _shortest_quaternion(matrix_to_quaternion(_controller_rotation(seen))),
    "panda_opening": lambda seen: (seen.gripper_qpos[:1] - seen.gripper_qpos[1:]) / PANDA_OPENING_M,
    "eleven_zeros": lambda seen: np.zeros(11),
    "eef_axis_angle_x": lambda seen: to_axis_angle(seen.eef_quat_wxyz)[0:1],
    "eef_axis_angle_y": lambda seen: to_axis_angle(seen.eef_quat_wxyz)[1:2],
    "eef_axis_angle_z": lambda seen: to_axis_angle(seen.eef_quat_wxyz)[2:3],
    "eef_quat_xyzw": lambda seen: seen.eef_quat_wxyz[[1, 2, 3, 0]],
    "gripper_qpos": lambda seen: seen.gripper_qpos,
    "gripper_left": lambda seen: seen.gripper_qpos[0:1],
    "gripper_right": lambda seen: seen.gripper_qpos[1:2],
    "eef_pos_in_base": lambda seen: _pose_in_base(seen)[0],
    "eef_quat_xyzw_in_base": lambda seen: _pose_in_base(seen)[1][[1, 2, 3, 0]],
    "joint_cosines": lambda seen: np.cos(seen.extra["joint_pos"]),
    "joint_sines": lambda seen: np.sin(seen.extra["joint_pos"]),
    "base_pos": lambda seen: _base_pose(seen)[0],
    "base_quat_xyzw": lambda seen: _base_pose(seen)[1][[1, 2, 3, 0]],
}
