"""The package without what only Unix has: every module is imported, and what replaces it works."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Hides from the project, not from the libraries it uses, which are imported before.
HIDE = """
import importlib, multiprocessing.context, os, pkgutil, signal, sys

OURS = ("asr", "attention_ext", "recipes", "conf")
MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
SIGNALS = ("ALRM", "CHLD", "CONT", "HUP", "KILL", "PIPE", "QUIT", "STOP", "TSTP", "USR1", "USR2", "XFSZ")
FUNCTIONS = ("fork", "forkpty", "getpgid", "geteuid", "getuid", "killpg", "mkfifo", "nice", "set_blocking",
             "sched_getaffinity", "setsid", "statvfs", "sysconf", "uname", "wait4")


def load():
    for package in OURS[:3]:
        for found in pkgutil.walk_packages([package], f"{package}."):
            if not found.name.endswith(("__main__", "kernels_cpu", "kernels_cuda")):
                importlib.import_module(found.name)
    return sorted(name for name in sys.modules if name.partition(".")[0] in OURS)


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide():
    for name in load():
        del sys.modules[name]
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden())
    for names, module in ((SIGNALS, signal), (FUNCTIONS, os)):
        for name in names:
            name = f"SIG{name}" if module is signal else name
            vars(module).pop(name, None)
    vars(multiprocessing.context).pop("ForkServerProcess", None)
"""
USE = """
hide()
assert len(load()) > 250
import tempfile, threading
from pathlib import Path
from asr import errors, files, parallel
from asr.experiment.timing import OtherProcesses
from asr.training.signals import ANNOUNCEMENTS, HANDLED, Signals

folder = Path(tempfile.mkdtemp())
with files.locked(folder, "asr train"):
    try:
        files.locked(folder, "asr decode").__enter__()
    except errors.UserError as error:
        assert "another asr train is running" in str(error)
    files.write_text("new", folder / "out")
assert (folder / "out").read_text() == "new"
assert ANNOUNCEMENTS == () and len(HANDLED) == 2
with Signals():
    pass
def broken():
    raise BrokenPipeError
assert errors.run_program("asr", broken) == 141
assert parallel.available_cores() >= 1
assert OtherProcesses(folder / "none").cpus() is None
print("done")
"""


@pytest.mark.slow
def test_without_what_only_unix_has() -> None:
    """Four modules imported fcntl and two resource: `import asr.files` failed on Windows."""
    done = subprocess.run([sys.executable, "-c", HIDE + USE], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]
