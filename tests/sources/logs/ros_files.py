"""Bags for tests, as their own writers write them: rosbag2 (MCAP, SQLite) and ROS 1, by `rosbags`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_typestore

STORE = get_typestore(Stores.ROS2_HUMBLE)
STORE1 = get_typestore(Stores.ROS1_NOETIC)
T = STORE.types
START_NS = 1_700_000_000_000_000_000
Rows = Iterable[tuple[str, int, Any]]
"""Topic, log time [ns], message."""


def header(stamp_ns: int = 0, frame: str = "world", store: Any = STORE) -> Any:
    time = store.types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 10**9))
    more = {"seq": 0} if store is STORE1 else {}
    return store.types["std_msgs/msg/Header"](stamp=time, frame_id=frame, **more)


def pose(x: float, stamp_ns: int = 0, frame: str = "world", store: Any = STORE) -> Any:
    return store.types["geometry_msgs/msg/PoseStamped"](header(stamp_ns, frame, store), bare_pose(x, store))


def bare_pose(x: float, store: Any = STORE) -> Any:
    place = store.types["geometry_msgs/msg/Point"](x, 0.0, 0.1)
    return store.types["geometry_msgs/msg/Pose"](place, store.types["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0))


def joints(effort: Mapping[str, float], stamp_ns: int = 0, store: Any = STORE) -> Any:
    nothing = np.zeros(0)
    kind = store.types["sensor_msgs/msg/JointState"]
    return kind(header(stamp_ns, "", store), list(effort), nothing, nothing, np.array(list(effort.values())))


def transform(child: str, parent: str, x: float, stamp_ns: int = 0, yaw: float = 0.0) -> Any:
    turn = T["geometry_msgs/msg/Quaternion"](0.0, 0.0, float(np.sin(yaw / 2)), float(np.cos(yaw / 2)))
    moved = T["geometry_msgs/msg/Transform"](T["geometry_msgs/msg/Vector3"](x, 0.0, 0.0), turn)
    inner = T["geometry_msgs/msg/TransformStamped"](header(stamp_ns, parent), child, moved)
    return T["tf2_msgs/msg/TFMessage"]([inner])


def write_rosbag2(folder: Path, rows: Rows, storage: str = "mcap", mode: str = "none") -> Path:
    """A folder of rosbag2; `mode`: none, file or message compression."""
    from rosbags.rosbag2 import CompressionFormat, CompressionMode

    plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
    bag = Writer2(folder, version=9, storage_plugin=plugin)
    if mode != "none":
        bag.set_compression(CompressionMode[mode.upper()], CompressionFormat.ZSTD)
    with bag:
        connections: dict[str, Any] = {}
        for topic, log_ns, message in rows:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = bag.add_connection(topic, kind, typestore=STORE)
            bag.write(connections[topic], log_ns, STORE.serialize_cdr(message, kind))
    return folder


def write_ros1(path: Path, rows: Rows, compression: str | None = None) -> Path:
    bag = Writer1(path)
    if compression is not None:
        bag.set_compression(Writer1.CompressionFormat[compression.upper()])
    with bag:
        connections: dict[str, Any] = {}
        for topic, log_ns, message in rows:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = bag.add_connection(topic, kind, typestore=STORE1)
            bag.write(connections[topic], log_ns, STORE1.serialize_ros1(message, kind))
    return path
