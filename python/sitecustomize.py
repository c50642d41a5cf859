# SPDX-License-Identifier: Apache-2.0
"""For --monarch-hints=torch (monarch(7)): hooks torch.utils.data once a program imports it.

Python imports one module of this name. So the one that would be imported without this directory, if there is
any, is loaded in this one's place.
"""

import importlib.machinery
import importlib.util
import os
import sys

NAME = "sitecustomize"


class Finder:
    """Finds torch.utils.data as it would be found without this, and has it hooked when it is loaded."""

    asked = False

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch.utils.data" or cls.asked:
            return None
        cls.asked = True
        spec = importlib.util.find_spec(name)
        load = getattr(spec.loader, "exec_module", None) if spec else None
        if load:
            spec.loader.exec_module = lambda module: (load(module), hook())
        return spec


def hook():
    try:
        from monarch_io import torch_hints
        torch_hints.install()
    except Exception:  # such as that the program has taken the directory out of sys.path
        pass


def load_next():
    """Only what is behind this directory in sys.path: that of another installation may be there, too."""
    here, behind = os.path.dirname(os.path.realpath(__file__)), []
    for path in reversed(sys.path):
        if os.path.realpath(path) == here:
            break
        behind.insert(0, path)
    spec = importlib.machinery.PathFinder.find_spec(NAME, behind)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named '%s'" % NAME, name=NAME)
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("MONARCH_IO_HINTS") == "torch":
    sys.meta_path.insert(0, Finder)
load_next()
