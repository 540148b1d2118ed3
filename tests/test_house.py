"""Rules of the house that a machine can check."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_help_is_quick_and_does_not_import_torch():
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mpd_agl", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "usage: mpd-agl COMMAND" in out.stdout
    imported = {line.split("|")[-1].strip() for line in out.stderr.splitlines()}
    assert "torch" not in imported


def test_version_and_empty_call():
    out = subprocess.run([sys.executable, "-m", "mpd_agl", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout.strip()[0].isdigit()
    alone = subprocess.run([sys.executable, "-m", "mpd_agl"], capture_output=True, text=True, check=True)
    assert "  mpd-agl demo  " in alone.stdout
    assert len(alone.stdout.splitlines()) <= 20
