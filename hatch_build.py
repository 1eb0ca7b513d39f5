"""Build hook of the wheel: the C kernel of the simulation, where a compiler is found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

KERNEL = Path("rlsim/simulation/kernel")


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernel beside its sources; without one the wheel is pure Python and simulates in Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to a wheel, which is then one for each platform; an editable one finds it in the tree."""
        specification = importlib.util.spec_from_file_location("build_kernel", Path(self.root, "rlsim/files/kernel.py"))
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        library = module.build()
        if library is None or version == "editable":
            return
        build_data["force_include"][str(library)] = str(KERNEL / library.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """Tag of this platform (linux_x86_64), which auditwheel makes manylinux or musllinux after it has looked inside."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
