"""Builds the optional native CPU kernels: each source compiled once per SIMD level, without torch or Python headers.

Where no C++ compiler works the install goes on. The reason is kept beside the package, and backend `native` gives it to
whoever asks for it.
"""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

OPS = Path("src/mpd_agl/ops")
FOLDERS = (OPS, OPS / "step", OPS / "conv", OPS / "plan")
SOURCES = (
    "step/native.cpp",
    "step/general.cpp",
    "conv/event.cpp",
    "conv/winograd.cpp",
    "plan/plan.cpp",
)
COMMON = [
    "-std=c++17",
    "-O3",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-g0",
]
X86_LEVELS = {
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"],
    "avx2": ["-mavx2", "-mfma"],
}
# For `make sanitize`: the kernels with a sanitizer in them, and lines in its reports.
if kind := os.environ.get("MPD_AGL_SANITIZE"):
    SANITIZE = [f"-fsanitize={kind}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g"]
else:
    SANITIZE = []


class BuildNative(build_ext):
    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name))
        reason = target.parent / "_native_build_error.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        reason.unlink(missing_ok=True)
        for openmp in (["-fopenmp"], []):  # some compilers have no OpenMP: one thread then
            try:
                self._build(ext, target, openmp)
                return
            except Exception as error:
                reason.write_text(f"{type(error).__name__}: {error}\n")

    def _build(self, ext, target, openmp):
        levels = {"base": []}
        if platform.machine().lower() in ("x86_64", "amd64"):
            levels |= X86_LEVELS
        objects = []
        for level, flags in levels.items():
            objects += self.compiler.compile(
                [str(OPS / name) for name in SOURCES],
                include_dirs=[str(folder) for folder in FOLDERS],
                output_dir=str(Path(self.build_temp) / level),
                macros=[("LEVEL", level)],
                extra_postargs=[*COMMON, *openmp, *flags, *SANITIZE],
            )
        # No -lgomp: the symbols resolve to the OpenMP runtime that torch has loaded, so there is one thread pool.
        objects += self.compiler.compile(
            [str(OPS / "dispatch.cpp")],
            include_dirs=[str(folder) for folder in FOLDERS],
            output_dir=str(Path(self.build_temp) / "dispatch"),
            macros=[("HAVE_X86_LEVELS", "1" if "avx2" in levels else "0")],
            extra_postargs=[*COMMON, *openmp, *SANITIZE],
        )
        self.compiler.link_shared_object(objects, str(target), extra_postargs=SANITIZE)
        Path(target.parent / "_native_build_error.txt").unlink(missing_ok=True)


setup(ext_modules=[Extension("mpd_agl.ops._native", sources=[])], cmdclass={"build_ext": BuildNative})
