"""Archives, pickles and weight files made to do harm: each is read in a process that is watched for time and memory."""

import gzip
import io
import json
import os
import pickle
import stat
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from mpd_agl.data import archives, cifar
from mpd_agl.errors import InputError
from mpd_agl.export import import_weights
from mpd_agl.models import create_model, load_weights
from tests.data.samplefiles import make_pt, make_tar, make_zip
from tests.faults.forks import fork, wait
from tests.faults.stopped import contents
from tests.faults.tally import Tally

SECONDS, MEGABYTES = 5.0, 256.0


def leads_out(draw: Random) -> str:
    return draw.choice(
        (
            "../" * draw.randint(1, 9) + "evil",
            "a/../../evil",
            "/evil",
            "..\\evil",
            "C:evil",
            "./../evil",
            "a\\..\\..\\evil",
        )
    )


def traversal_zip(path: Path, draw: Random) -> None:
    make_zip(path, ("good", b"1"), (leads_out(draw), b"2"))


def traversal_tar(path: Path, draw: Random) -> None:
    make_tar(path, (tarfile.TarInfo("good"), b"1"), (tarfile.TarInfo(leads_out(draw)), b"2"))


def link_tar(path: Path, draw: Random) -> None:
    link = tarfile.TarInfo("link")
    link.type = draw.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE))
    link.linkname = draw.choice(("..", "/", "../../evil"))
    make_tar(path, (link, b""), (tarfile.TarInfo("link/evil"), b"2"))


def link_zip(path: Path, draw: Random) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (draw.choice((stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO)) | 0o777) << 16
    make_zip(path, (info, b".."), ("link/evil", b"2"))


def bomb_zip(path: Path, draw: Random) -> None:
    make_zip(path, *((f"zeros{i}", bytes(draw.randint(32, 64) << 20)) for i in range(3)))


def bomb_tar(path: Path, draw: Random) -> None:
    make_tar(path, (tarfile.TarInfo("zeros"), bytes(draw.randint(32, 96) << 20)))


def long_header(path: Path, draw: Random) -> None:
    head = tarfile.TarInfo("././@LongLink" if draw.random() < 0.5 else "pax")
    head.type = draw.choice((tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGLINK))
    head.size = draw.randint(64, 200) << 20
    path.write_bytes(gzip.compress(head.tobuf() + bytes(head.size), compresslevel=9))


def many_members(path: Path, draw: Random) -> None:
    """Hundreds of thousands of directory entries that all claim the one local file."""
    single = io.BytesIO()
    with zipfile.ZipFile(single, "w") as pack:
        pack.writestr("a", b"x")
    data = single.getvalue()
    at = data.index(b"PK\x01\x02")
    local, entry = data[:at], data[at : data.index(b"PK\x05\x06")]
    count = 320_000
    central = entry * count
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(central), len(local))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(local) + len(central), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(local + central + record + locator + end)


def lying_sizes(path: Path, draw: Random) -> None:
    make_zip(path, ("x", bytes(draw.randint(1, 8) << 20)))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = draw.choice((10, 2**32 - 2)).to_bytes(4, "little")
    path.write_bytes(content)


def huge_tar_claim(path: Path, draw: Random) -> None:
    head = tarfile.TarInfo("big")
    head.size = draw.choice((1 << 40, 1 << 33))
    path.write_bytes(gzip.compress(head.tobuf(format=tarfile.GNU_FORMAT) + bytes(1024)))


class Call:
    """Pickles as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


def a_call(draw: Random) -> Call:
    return draw.choice(
        (
            Call(os.system, "touch evil"),
            Call(eval, "open('evil', 'w')"),
            Call(exec, "open('evil', 'w')"),
            Call(os.mkdir, "evil"),
        )
    )


def code_pickle(path: Path, draw: Random) -> None:
    path.write_bytes(pickle.dumps({b"data": a_call(draw)}, protocol=draw.randint(0, 5)))


def instructions(path: Path, draw: Random) -> None:
    attacks = (
        b"(S'touch evil'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch evil'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch evil\x85R.",
        b"cbuiltins\nopen\n(S'evil'\nS'w'\ntR.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nN}X\x05\x00\x00\x00_callcos\nsystem\ns\x86b.",
        b"\x80\x02cbuiltins\ngetattr\ncos\nX\x06\x00\x00\x00system\x86R.",
    )
    path.write_bytes(draw.choice(attacks))


def heavy_pickle(path: Path, draw: Random) -> None:
    attacks = (
        b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b".",
        b"\x80\x02" + b"]" * 200000 + b"a" * 199999 + b".",
        b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b"K\x01}.",
        b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b"}h\x00K\x01s.",
        b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\x01.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x02]" + b"2" * 100000 + b"l.",
        b"I" + b"9" * 2_000_000 + b"\n.",
    )
    path.write_bytes(draw.choice(attacks))


def code_pt(path: Path, draw: Random) -> None:
    torch.save({"net": a_call(draw)}, path)


def heavy_pt(path: Path, draw: Random) -> None:
    heavy_pickle(path, draw)
    make_pt(path, path.read_bytes())


def huge_pt(path: Path, draw: Random) -> None:
    state = create_model("cnn8", width_mult=1 / 32).state_dict()
    key = draw.choice([k for k in state if "num_batches" not in k])
    torch.save({**state, key: torch.zeros(1).expand(1 << draw.randint(33, 45))}, path)


def bomb_pt(path: Path, draw: Random) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("archive/data.pkl", bytes(draw.randint(64, 200) << 20))


def bad_safetensors(path: Path, draw: Random) -> None:
    header = draw.choice(
        (
            b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}',
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}',
            b"[" * 500_000,
            b'{"a":' * 100_000,
        )
    )
    length = draw.choice((len(header), 2**63, 2**40))
    path.write_bytes(struct.pack("<Q", length) + header + bytes(4))


def read_archive(path: Path) -> None:
    archives.unpack([path], path.parent / "out")


def read_pt(path: Path) -> None:
    source = "spikingjelly" if path.stat().st_size % 2 else "mpd-agl"
    import_weights(create_model("cnn8", width_mult=1 / 32), path, source)


def read_weights(path: Path) -> None:
    load_weights(create_model("cnn8", width_mult=1 / 32), path)


KINDS: dict[str, tuple[Callable[[Path, Random], None], Callable[[Path], None]]] = {
    "zip: a member leads out": (traversal_zip, read_archive),
    "tar: a member leads out": (traversal_tar, read_archive),
    "tar: links and devices": (link_tar, read_archive),
    "zip: links and devices": (link_zip, read_archive),
    "zip: bomb": (bomb_zip, read_archive),
    "tar: bomb": (bomb_tar, read_archive),
    "tar: a header of a hundred megabytes": (long_header, read_archive),
    "tar: a member of a terabyte": (huge_tar_claim, read_archive),
    "zip: 320,000 members": (many_members, read_archive),
    "zip: lies about sizes": (lying_sizes, read_archive),
    "pickle: calls": (code_pickle, cifar.read_pickle),
    "pickle: instructions": (instructions, cifar.read_pickle),
    "pickle: heavy": (heavy_pickle, cifar.read_pickle),
    ".pt: calls": (code_pt, read_pt),
    ".pt: heavy": (heavy_pt, read_pt),
    ".pt: a view of terabytes": (huge_pt, read_pt),
    ".pt: bomb": (bomb_pt, read_pt),
    "safetensors: impossible headers": (bad_safetensors, read_weights),
}


def memory_mb(which: str) -> float:
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(which))
    return int(line.split()[1]) / 1024


def read_watched(read: Callable[[Path], None], path: Path, out: Path) -> int:
    """Read in a child, in its own folder; time, memory over what it began with, and what it said go to `out`."""

    def work() -> int:
        os.chdir(path.parent)
        before, began = memory_mb("VmRSS"), time.process_time()
        code, said = 0, "read without complaint"
        try:
            read(path)
        except InputError as error:
            code, said = 2, str(error)
        facts = {"s": time.process_time() - began, "mb": memory_mb("VmHWM") - before, "said": said}
        out.write_text(json.dumps(facts))
        return code

    return wait(fork(work), timeout=60)


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally = Tally()
    create_model(
        "cnn8", width_mult=1 / 32
    )  # imports what readers import: the memory that is measured is the file's doing
    for number in range(tries):
        kind = list(KINDS)[number % len(KINDS)]
        make, read = KINDS[kind]
        around = folder / f"try{number}"
        path = around / "inner" / "file"
        path.parent.mkdir(parents=True)
        seed = draw.random()
        assert wait(fork(lambda make=make, path=path, seed=seed: make(path, Random(seed)) or 0)) == 0
        before = contents(around)
        with tally.attempt(kind, path.parent.parent.name):
            code = read_watched(read, path, folder / "facts")
            facts = json.loads((folder / "facts").read_text())
            assert code == 2, f"exit code {code}: {facts['said']}"
            assert "\n" not in facts["said"], facts["said"]
            assert str(path) in facts["said"], facts["said"]
            tally.at_most_s("processor seconds", facts["s"], SECONDS)
            tally.at_most("memory over the process's own, MB", facts["mb"], MEGABYTES)
            assert contents(around) == before, "files appeared"
            assert not (folder / "evil").exists()
            assert not Path("/evil").exists()
        path.unlink()
    return tally
