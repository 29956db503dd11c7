"""Ray's workers as programs of :mod:`tests.preloaded`, which have loaded what takes seconds to import.

But for Ray itself: it reads what a worker is told by its environment when it is loaded.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.utils import update_envs
from ray._private.workers.setup_worker import parser

from tests.preloaded import set_path

__all__ = ["main"]


def main() -> None:
    """Do what Ray's ``setup_worker.py`` does: set the environment of a job, and become its worker.

    By the same file Ray starts what other clients than drivers talk to, which is a module.
    """
    asked, (worker, *arguments) = parser.parse_known_args()
    update_envs(RuntimeEnvContext.deserialize(asked.serialized_runtime_env_context or "{}").env_vars)
    if worker == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        set_path(str(Path(worker).parent))
        sys.argv = [worker, *arguments]
        runpy.run_path(worker, run_name="__main__")
