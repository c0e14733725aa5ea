"""Builds the native library with cargo and puts it into the package.

The library is the SQLite extension, which contains no SQLite and no Python: one wheel serves every Python 3 of
a platform. For another platform, LITELEASE_LIBRARY names the library that was built for it, and LITELEASE_PLATFORM
the platform as wheels call it, such as linux_aarch64.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # older setuptools
    from wheel.bdist_wheel import bdist_wheel

CONTEXT = Path(__file__).resolve().parent
ROOT = CONTEXT.parent
NAMES = {"darwin": "liblitelease_ext.dylib", "win32": "litelease_ext.dll"}


def library() -> Path:
    """The release build of the extension: the one that was given, or made now."""
    given = os.environ.get("LITELEASE_LIBRARY")
    if given is not None:
        return Path(given)
    if shutil.which("cargo") is None:
        raise SystemExit("litelease is built with cargo: install Rust 1.89 or newer first")
    command = ["cargo", "build", "--locked", "--release", "-q", "-p", "litelease-extension"]
    subprocess.run([*command, "--target-dir", str(ROOT / "target")], cwd=ROOT, check=True)
    return ROOT / "target" / "release" / NAMES.get(sys.platform, "liblitelease_ext.so")


# The libraries that every Linux of a manylinux tag has.
EVERYWHERE = {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


def manylinux(platform: str, built: Path) -> str:
    """The tag of every Linux that has the glibc symbols which the library needs, as auditwheel finds it. Where that cannot
    be told, as on musl, the wheel is for this platform only."""
    if not platform.startswith("linux_") or shutil.which("readelf") is None:
        return platform
    told = subprocess.run(
        ["readelf", "-W", "-d", "-V", str(built)],
        env={**os.environ, "LC_ALL": "C"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    needed = re.findall(r"Shared library: \[(.*?)\]", told)
    versions = [(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", told)]
    if not versions or not all(name in EVERYWHERE or name.startswith("ld-linux") for name in needed):
        return platform
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{platform[len('linux_'):]}"


class BuildWithLibrary(build_py):
    def run(self) -> None:
        # What an earlier build has left there would be packed, too.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        built = library()
        places = [Path(self.build_lib)] if not self.editable_mode else [CONTEXT / "src"]
        for place in places:
            folder = place / "litelease" / "_lib"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, folder / built.name)


class PlatformWheel(bdist_wheel):
    """For this platform, and for every Python 3 on it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> "tuple[str, str, str]":
        platform = os.environ.get("LITELEASE_PLATFORM") or super().get_tag()[2]
        return "py3", "none", manylinux(platform, library())


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
    distclass=WithLibrary,
)
