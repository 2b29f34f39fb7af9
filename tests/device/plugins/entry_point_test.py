# SPDX-License-Identifier: Apache-2.0
"""The distribution anyop-device: `import torch` alone knows the device, in 10 ms, or torch stays as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.drawn(2, group="entry point")]

ROOT = Path(__file__).resolve().parents[3]
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
UNTOUCHED = """
import sys, torch
assert torch._C._get_privateuse1_backend_name() == "privateuseone" and "torch.anyop" not in sys.modules
assert "anyop" not in sys.modules
"""
LOADED = "import torch; assert torch._C._get_privateuse1_backend_name() == 'anyop'"
IN_CHILDREN = """
import os, sys, torch

def in_children(cases, call):
    for case in cases:
        if (child := os.fork()) == 0:
            code = 1
            try:
                call(case)
                code = 0
            except BaseException as error:
                print(str(case)[:80], type(error).__name__, error, sys.path[:3], file=sys.stderr)
            sys.stderr.flush()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, case
"""
CHILDREN = f"""{IN_CHILDREN}
import json

def attempt(case):
    _, text, folders, variables = case
    sys.path[:0] = folders
    os.environ.update(variables)
    import anyop_device
    anyop_device.autoload()
    exec(text, {{}})

in_children(json.loads(sys.argv[1]), attempt)
"""


@pytest.fixture
def site(tmp_path) -> Path:
    """A folder of packages with the distribution, as pip would install it."""
    return installed(tmp_path / "site", ROOT / "python" / "anyop_device")


def installed(site: Path, source: Path) -> Path:
    project = tomllib.loads((source / "pyproject.toml").read_text())
    name, version = project["project"]["name"].replace("-", "_"), project["project"]["version"]
    for module in project["tool"]["setuptools"]["py-modules"]:
        site.mkdir(exist_ok=True)
        shutil.copy(source / f"{module}.py", site)
    facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    lines = [f"{key} = {value}" for key, value in
             project["project"]["entry-points"]["torch.backends"].items()]  # fmt: skip
    return distribution(site, name, facts, lines)


def distribution(site: Path, name: str, facts: str, entries: list[str]) -> Path:
    folder = site / f"{name}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(facts)
    (folder / "entry_points.txt").write_text("\n".join(["[torch.backends]", *entries, ""]))
    return site


def backend(site: Path, name: str, text: str) -> Path:
    """Another backend with an entry point; of two, the one in the earlier folder is loaded first."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(text)
    facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n"
    return distribution(site, name, facts, [f"{name} = {name}:load"])


def says(why: str) -> str:
    """Program that holds where torch is as it was and torch.anyop tells why."""
    return (
        UNTOUCHED
        + f"""
assert torch.anyop.is_available() is False and torch.anyop.device_count() == 0
try:
    torch.anyop.Stream
    raise SystemExit("a stream")
except AttributeError as error:
    assert {why!r} in str(error), error
"""
    )


def run_children(*cases: tuple) -> None:
    """Each case (name, text, folders, variables) behind autoload(), in a child of a process that has imported torch."""
    run(CHILDREN, words=[json.dumps(cases, default=str)], TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def run(text: str, *folders: Path, code: int = 0, words: list[str] = (), **variables: str) -> str:
    """Output of a Python of its own that has these folders before all others; errors come behind it."""
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", text, *words], env={**environment, **variables},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_torch_alone_knows_the_device(site, platform):
    said = run(
        """
import sys, torch
assert "anyop" not in sys.modules and not torch.anyop.is_initialized()
torch.manual_seed(5)  # of every program; it wakes nothing
assert torch.ones(2).sum().item() == 2 and "anyop" not in sys.modules
x = torch.rand(4, device="anyop")
assert "anyop.torch.device" in sys.modules and torch.anyop.is_initialized() and x.is_anyop
torch.manual_seed(5)
assert torch.equal(x, torch.rand(4, device="anyop"))
import anyop.torch.device
print(x.device, anyop.torch.device.platform())
""",
        site,
    )
    assert said.split()[:2] == ["anyop:0", platform], said
    warnings = said.count("no backward of native cuda tensors")
    assert warnings == (platform == "cuda") and (warnings or len(said.split()) == 2), said


def test_each_first_use_wakes_it(site, platform, tmp_path):
    """A child process for each, of one that has imported torch alone."""
    run(IN_CHILDREN + """
FIRST = {
    "to": lambda: torch.ones(3).to("anyop"),
    "method": lambda: torch.ones(3).anyop(),
    "layer": lambda: torch.nn.Linear(2, 2, device="anyop").weight,
    "module": lambda: torch.nn.Linear(2, 2).anyop().weight,
    "like": lambda: torch.ones_like(torch.ones(2), device="anyop:0"),
    "current": lambda: torch.empty(0, device=torch.device("anyop", torch.anyop.current_device())),
    "generator": lambda: torch.Generator("anyop"),
    "drawn": lambda: torch.rand(2, device="anyop", generator=torch.Generator("anyop").manual_seed(1)),
    "stream": lambda: torch.Stream("anyop"),
    "event": lambda: torch.Event("anyop"),
    "accelerator": lambda: torch.accelerator.current_stream(),
    "load": lambda: torch.load(saved, map_location="anyop"),
    "pinned": lambda: torch.ones(2).pin_memory().to("anyop", non_blocking=True),
}
saved = os.environ["SAVED"]
torch.save(torch.ones(2), saved)
assert "anyop" not in sys.modules
def attempt(name):
    found = FIRST[name]()
    assert found.device.type == "anyop", found
    assert torch.ones(2, device="anyop").sum().item() == 2 and torch.anyop.is_available()

in_children(FIRST, attempt)
""", site, SAVED=str(tmp_path / "saved.pt"))  # fmt: skip


def test_process_groups_wake_it(site, platform, tmp_path):
    """init_process_group() asks for a backend before any tensor is made; programs that name one wake nothing."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    carrier = "nccl" if platform == "cuda" else "gloo"
    run(f"""{IN_CHILDREN}
import torch.distributed as dist
WAYS = {{
    "default": lambda: {{}},
    "bound": lambda: dict(device_id=torch.device("anyop:0")),
    "asked": lambda: dict(backend=dist.get_default_backend_for_device("anyop")),
    "named": lambda: dict(backend={carrier!r}),
}}
def attempt(way):
    meeting = f"file://{tmp_path}/{{way}}"
    dist.init_process_group(**WAYS[way](), init_method=meeting, rank=0, world_size=1)
    assert torch.anyop.is_initialized() == ("anyop" in sys.modules) == (way != "named")
    x = torch.arange(3.0, device="anyop")
    dist.all_reduce(x)
    assert x.tolist() == [0, 1, 2] and dist.get_default_backend_for_device("anyop") == {carrier!r}
    dist.destroy_process_group()

assert dist.get_default_backend_for_device("cpu") == "gloo"
assert dist.Backend.default_device_backend_map.get("xla") is None and "anyop" not in sys.modules
in_children(WAYS, attempt)
""", site)  # fmt: skip


def test_what_it_costs_before_the_first_use(site, platform, report):
    """Processor time of the entry point by itself, which is told; the functions that it calls are counted."""
    found = [run("""
import time, sys, torch
assert "anyop_device" not in sys.modules and torch._C._get_privateuse1_backend_name() == "privateuseone"
from importlib.metadata import entry_points
backend_extensions = entry_points(group="torch.backends")  # torch has it in a variable of this name
seen = [0]
def count(frame, event, what): seen[0] += "return" not in event
if COUNTS: sys.setprofile(count)
begin = time.process_time()
import anyop_device
anyop_device.autoload()
milliseconds = (time.process_time() - begin) * 1e3
sys.setprofile(None)
print(seen[0] if COUNTS else milliseconds)
assert torch._C._get_privateuse1_backend_name() == "anyop" and not torch.anyop.is_initialized()
""".replace("COUNTS", str(counts)), site, TORCH_DEVICE_BACKEND_AUTOLOAD="0") for counts in (0, 0, 1)]  # fmt: skip
    cost, calls = min(map(float, found[:2])), int(found[2])
    report.append(
        f"anyop-device adds {cost:.1f} ms and {calls:,} calls to import torch before the first use"
    )
    assert 0 < calls < 3_000


def test_without_a_library_torch_stays_as_it_is_and_the_cure_is_named(site, tmp_path):
    cache = tmp_path / "cache"
    variables = {"ANYOP_CACHE_DIR": str(cache), "ANYOP_TORCH_DEVICE": ""}
    said = run(UNTOUCHED + 'torch.randn(4, device="anyop")', site, code=1, **variables)
    assert said.endswith("is not built: run `anyop build-device` once\n") and not cache.exists(), (
        said
    )
    said = run(UNTOUCHED + 'torch.ones(2, device="nn")', site, code=1, ANYOP_DEVICE_NAME="nn")
    assert said.endswith("ANYOP_DEVICE_NAME is 'nn', which torch has already\n"), said
    broken = tmp_path / "broken" / "anyop"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise SystemExit('imported')")
    other = tmp_path / "other" / "anyop"
    shutil.copytree(broken, other)
    (other / "native").mkdir()
    (other / "native" / "device_module.py").write_text("this is no Python")
    run_children(
        ("empty cache", says("run `anyop build-device` once"), [site], variables),
        ("switched off", says("ANYOP_TORCH_DEVICE=0"), [site], {"ANYOP_TORCH_DEVICE": "0"}),
        ("no file", says("/nowhere.so"), [site], {"ANYOP_TORCH_DEVICE": "/nowhere.so"}),
        (
            "no cache",
            says("expected an absolute path"),
            [site],
            {**variables, "ANYOP_CACHE_DIR": "x"},
        ),
        ("no anyop", UNTOUCHED, [site, broken.parent], {}),
        ("a broken anyop", UNTOUCHED, [site, other.parent], {}),
    )


def test_a_library_that_is_not_what_was_noted_is_not_loaded(site, platform, tmp_path):
    """A library, source or header that changed, a damaged note, one that others may write: torch stays as it is."""
    from anyop.cache.place import cache_dir
    from anyop.native import device, device_file

    if not device.find().startswith(cache_dir()):
        pytest.skip(
            "the library is not in the cache here: it is prebuilt, or ANYOP_TORCH_DEVICE names it"
        )
    package = str(Path(device.__file__).parents[1])
    text = Path(device_file.note_path(cache_dir(), package)).read_text()
    cases = []
    notes = {
        "good": text,
        "other file": text.replace("libanyop.so", "no.so"),
        "changed": text.replace("]], [", "1]], [", 1),
        "half": text[:100],
        "list": "[]",
        "empty": "",
        "other torch": text.replace(f'"{torch.version.git_version}"', '"0"'),
        "open": text,
    }
    for n, (name, note) in enumerate(notes.items()):
        cache = tmp_path / f"cache{n}"
        path = Path(device_file.note_path(str(cache), package))
        cache.mkdir(0o700)
        path.parent.mkdir(0o700)
        path.write_text(note)
        path.chmod(0o666 if name == "open" else 0o600)
        why = "can be written by others" if name == "open" else "anyop build-device"
        cases.append(
            (name, LOADED if name == "good" else says(why), [site], {"ANYOP_CACHE_DIR": str(cache)})
        )
    run_children(*cases)


def test_another_backend_keeps_the_place(site, platform, tmp_path):
    name = "import torch\ndef load(): torch.utils.rename_privateuse1_backend('chip')\n"
    check = """
import torch
assert torch._C._get_privateuse1_backend_name() == "chip" and not torch.anyop.is_available()
torch.anyop.Stream
"""
    other = backend(tmp_path / "other", "chip_backend", name)
    for folders in ((other, site), (site, other)):  # loaded before it, and behind it
        said = run(check, *folders, code=1)
        assert "anyop.torch.overlay" in said and "chip" in said, said
    idle = backend(tmp_path / "idle", "idle_backend", "def load(): pass\n")
    run_children(("idle before", LOADED, [idle, site], {}))


def test_anyop_alone_leaves_torch_as_it_is():
    """Its distribution has no entry point of torch's, and torch imports nothing of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (
        "entry-points" not in project
        and "anyop-device" in project["optional-dependencies"]["device"]
    )
    for entry in metadata.entry_points(group="torch.backends"):
        assert entry.dist is None or entry.dist.name != "anyop", entry
    run(UNTOUCHED + "assert not [m for m in sys.modules if 'anyop' in m] and not hasattr(torch, 'anyop')",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0")  # fmt: skip


def pip(*words: str | Path) -> None:
    offline = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, *offline], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_that_pip_builds_and_installs(site, platform, tmp_path):
    """The other tests have the folder that pip would make; here it makes it."""
    setuptools = metadata.version("setuptools") if find_spec("setuptools") else "0"
    if int(setuptools.split(".")[0]) < 71 and not find_spec("wheel"):
        pytest.skip(f"setuptools {setuptools} builds no wheel here: needs 71, or the package wheel")
    source = tmp_path / "source"  # where setuptools leaves what it makes on the way
    shutil.copytree(ROOT / "python" / "anyop_device", source)
    pip("wheel", "--no-build-isolation", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("anyop_device-*-py3-none-any.whl")
    pip("install", "--target", tmp_path / "installed", wheel)
    (found,) = (tmp_path / "installed").glob("*.dist-info/entry_points.txt")
    (expected,) = site.glob("*.dist-info/entry_points.txt")
    assert found.read_text().split() == expected.read_text().split()
    facts = metadata.PathDistribution(found.parent)
    assert facts.metadata["Name"] == "anyop-device" and facts.requires == ["anyop"]
    said = run("import torch; print(torch.rand(4, device='anyop').device)", tmp_path / "installed")
    assert said.startswith("anyop:0\n"), said
