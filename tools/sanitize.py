"""Runs the kernel tests under AddressSanitizer with UBSan, then under ThreadSanitizer (`make sanitize`; Linux and gcc).

Each time the package is built into a folder of its own under build/, with the sanitizer in the kernels, and the tests
run on that copy. The installed library stays as it is. Tests of torch.compile are left out: they compile code that has
nothing to do with the kernels.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {
    "address,undefined": (
        ("libasan.so", "libstdc++.so"),
        # Python and torch keep memory until the process ends, so leaks are not looked for.
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"},
    ),
    "thread": (
        ("libtsan.so",),
        # Python and torch are built without the sanitizer: only what our own code does is judged.
        {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66:report_signal_unsafe=0"},
    ),
}


def library(name: str) -> str:
    """The compiler's own copy of a runtime library."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def run(kind: str, tests: list[str]) -> int:
    """Build with the sanitizer and test; the exit code of pytest."""
    base = ROOT / "build" / f"sanitize-{kind.replace(',', '-')}"
    build = [sys.executable, "setup.py", "-q", "build", "--build-base", str(base), "--build-lib", str(base / "lib")]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "MPD_AGL_SANITIZE": kind})
    preload, options = [library(name) for name in KINDS[kind][0]], KINDS[kind][1]
    if kind == "thread":
        helper = base / "tsan_openmp.so"
        source = ROOT / "tools" / "tsan_openmp.cpp"
        subprocess.run(["g++", "-O1", "-fPIC", "-shared", str(source), "-o", str(helper), "-ldl"], check=True)
        preload.append(str(helper))
    environment = {
        **os.environ,
        **options,
        "LD_PRELOAD": " ".join(preload),
        "PYTHONPATH": str(base / "lib"),
        "MPD_AGL_TEST_THREADS": "2",
    }
    # ThreadSanitizer needs addresses where it expects them, so they are not randomised.
    command = ["setarch", platform.machine(), "-R", sys.executable, "-m", "pytest", "-q", "-x", "--capture=sys"]
    print(f"-fsanitize={kind}", flush=True)
    chosen = ["-k", "not compiled and not openmp", *(tests or ["tests/ops"])]
    return subprocess.run([*command, *chosen], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(max(run(kind, sys.argv[1:]) for kind in KINDS))
