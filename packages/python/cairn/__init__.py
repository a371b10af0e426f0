"""The memory allocator cairn, for programs in Python.

The command `cairn` comes with this package and carries the library inside. `python -m cairn run` has the
interpreter that reads this run a program on cairn.
"""

import importlib.metadata
import os
import subprocess

_PACKAGE = "cairn-malloc"

version = "0.0.0"


def command():
    """The path of the command `cairn` that was installed with this package."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [os.path.realpath(file.locate()) for file in files if file.name == "cairn"]
    # `pip install --target` puts commands elsewhere than it says.
    paths.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin", "cairn"))
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("the command cairn is not at {}: install {} anew".format(paths[0], _PACKAGE))


def library(hardened=False):
    """The path of libcairn.so, for LD_PRELOAD. The command keeps the file in the user's cache folder."""
    options = ["--hardened"] if hardened else []
    found = subprocess.run([command(), "path"] + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if found.returncode != 0:
        raise OSError(os.fsdecode(found.stderr).strip())
    return os.fsdecode(found.stdout[:-1])
