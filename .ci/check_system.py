#!/usr/bin/env python3
"""Name what this machine lacks, with the Debian package that holds it; exit 2 if anything is missing.

Usage: check_system.py [--robocasa] [--packages]     with --robocasa: also what RoboCasa's packages are built with;
with --packages: only the package names, on stdout, exit 0

Runs before anything is installed, under whatever Python there is: the standard library, and old syntax.
"""

import ctypes
import importlib.util
import os
import shutil
import sys
import sysconfig

PYTHON = (3, 11)

LIBRARIES = (
    # any one of these names, the package, who asks for it
    (("libGL.so.1",), "libgl1", "OpenCV, which LIBERO imports"),
    (("libgthread-2.0.so.0",), "libglib2.0-0", "OpenCV, which LIBERO imports"),
    (("libEGL.so.1",), "libegl1", "MuJoCo's renderer, which robosuite imports"),
    (("libEGL_mesa.so.0", "libEGL_nvidia.so.0"), "libegl-mesa0", "rendering without a display"),
)


def loads(name):
    """Whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def missing():
    """Pairs of Debian package and complaint."""
    if sys.version_info < PYTHON:
        found = ".".join(str(part) for part in sys.version_info[:3])
        yield "python3", f"Python {PYTHON[0]}.{PYTHON[1]} or newer is needed, {sys.executable} is {found}"
    elif not importlib.util.find_spec("ensurepip"):
        yield "python3-venv", f"{sys.executable} cannot make virtual environments with pip in them"
    for names, package, user in LIBRARIES:
        if not any(loads(name) for name in names):
            yield package, "{} is missing; needed by {}".format(" or ".join(names), user)
    if "--robocasa" in sys.argv[1:]:
        yield from unbuildable()


def unbuildable():
    """What is missing to build evdev, a requirement of RoboCasa's that is published as source."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        yield "gcc", "there is no C compiler; needed to build evdev, which RoboCasa requires"
    if not os.path.exists("/usr/include/linux/input.h"):
        yield "linux-libc-dev", "/usr/include/linux/input.h is missing; needed to build evdev, which RoboCasa requires"
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        yield "python3-dev", f"{header} is missing; needed to build evdev, which RoboCasa requires"


def main():
    """Print the complaints and the remedy."""
    found = list(missing())
    packages = " ".join(package for package, _ in found)
    if "--packages" in sys.argv[1:]:
        print(packages)
        return 0
    for package, complaint in found:
        print(f"{complaint} (Debian: {package})", file=sys.stderr)
    if found:
        print(f"\nOn Debian or Ubuntu:  apt-get install {packages}", file=sys.stderr)
    if any(package == "python3" for package, _ in found):
        print("With another Python:  make PYTHON=python3.12 ...", file=sys.stderr)
    return 2 if found else 0


if __name__ == "__main__":
    sys.exit(main())
