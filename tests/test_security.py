"""Nothing that could run code is ever loaded: every call in `src` is looked at, by its syntax tree."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
SOURCES = sorted(SRC.rglob("*.py"))
PICKLE_ROOM = "mpd_agl/data/cifar.py"
"""The one file that may touch an unpickler, with its own tests."""
RUNS_CODE = {
    *("eval", "exec", "compile", "__import__", "execfile"),
    *(
        "os.system",
        "os.popen",
        "os.execv",
        "os.execvp",
        "os.spawnv",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    ),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle.load", "_pickle.loads", "_pickle.Unpickler"),
    *(
        "cPickle.load",
        "cPickle.loads",
        "dill.load",
        "dill.loads",
        "cloudpickle.load",
        "cloudpickle.loads",
        "joblib.load",
    ),
    *("marshal.load", "marshal.loads", "shelve.open", "code.interact", "runpy.run_path", "runpy.run_module"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "pandas.read_pickle", "pd.read_pickle"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.serialization.load"),
    *("torch.serialization.add_safe_globals", "torch.serialization.safe_globals", "torch.multiprocessing.reductions"),
}


def name_of(node: ast.expr, known: dict[str, str]) -> str:
    """The dotted name of what is called, with imports followed: `p.loads` of `import pickle as p` is pickle.loads."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value, known)}.{node.attr}"
    return ""


def imported(tree: ast.AST) -> dict[str, str]:
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return known


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def dangers(source: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """What in a file could run code that a file brings."""
    tree = ast.parse(source)
    known = imported(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found += [f"class on {b}" for base in node.bases if (b := name_of(base, known)) in RUNS_CODE - allowed]
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(getattr(node, "ctx", None), ast.Store):
            name = name_of(node, known)
            found += [name] if name in RUNS_CODE - allowed else []
        if not isinstance(node, ast.Call):
            continue
        name, options = name_of(node.func, known), {k.arg: k.value for k in node.keywords}
        if name == "torch.load" and not is_constant(options.get("weights_only"), True):
            found.append("torch.load without weights_only=True")
        if name in ("numpy.load", "np.load", "numpy.lib.format.read_array", "np.lib.format.read_array") and (
            len(node.args) > 2 or not is_constant(options.get("allow_pickle"), False)
        ):
            found.append(f"{name} without allow_pickle=False")
        if not is_constant(options.get("shell", ast.Constant(False)), False):
            found.append(f"{name} with shell=")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(SRC)))
def test_no_file_can_run_code_that_it_reads(path: Path) -> None:
    own = str(path.relative_to(SRC)) == PICKLE_ROOM
    allowed = frozenset(["pickle.Unpickler"]) if own else frozenset()
    assert dangers(path.read_text(), allowed) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle\npickle.load(f)",
        "import pickle as p\np.loads(b)",
        "from pickle import loads as read\nread(b)",
        "import pickle\nread = pickle.loads",
        "import pickle\nclass R(pickle.Unpickler): pass",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import torch\ntorch.load(f, weights_only=flag)",
        "from torch import load\nload(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import numpy as np\nnp.load(f)",
        "eval('1')",
        "exec(text)",
        "import yaml\nyaml.load(f)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run('ls', shell=flag)",
        "import os\nos.system('ls')",
        "import torch\ntorch.jit.load(f)",
    ],
)
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    assert dangers(line)


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.load(f, weights_only=True)",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "net.eval()",
        "import subprocess\nsubprocess.run(['ls'])",
        "import pickle\nraise pickle.UnpicklingError('x')",
        "import re\nre.compile('x')",
    ],
)
def test_the_search_lets_the_rest_be(line: str) -> None:
    assert dangers(line) == []
