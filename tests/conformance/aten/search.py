# SPDX-License-Identifier: Apache-2.0
"""Finds arguments that torch takes, for each overload that has none in by_hand.txt, and writes found.txt.

python tests/conformance/aten/search.py [--only NAME ...] [--tries 700]      some minutes

Each overload is tried in a process of its own, since some of ATen's inner operators check nothing: arguments
that end it are not taken. A call is kept when its results are the same whatever freed memory is filled with,
and the memory around its arguments.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import calls
import compare
import inputs
import numpy as np
import oracle
import torch
from candidates import Maker
from inputs import Call, Spec

HERE = Path(__file__).parent

HEAD = """# SPDX-License-Identifier: Apache-2.0
# Written by search.py: calls that torch takes, by overload.
"""


def outcome(overload, call: Call):
    """Values of the results, or None when they are not arrays or numbers."""
    args, kwargs = oracle.as_torch(overload, *inputs.arrays(call))
    return oracle.to_numpy(oracle.call(call.name, args, kwargs))


def leaves(value) -> list:
    return [x for v in value for x in leaves(v)] if isinstance(value, list) else [value]


def signature(call: Call) -> tuple:
    """What makes a call another one: shapes and dtypes, and which arguments are given."""
    flat = [x for value in (*call.args, *call.kwargs.values()) for x in leaves(value)]
    return tuple((x.dtype, len(x.shape)) for x in flat if isinstance(x, Spec)), bool(call.kwargs)


def worth(value) -> float:
    """How much a result tells: nothing without numbers, less with NaN alone or one number alone."""
    arrays = [np.asarray(v) for v in leaves(value) if v is not None]
    if not arrays or all(a.size == 0 for a in arrays):
        return 0
    numbers = [a.astype(np.complex128) for a in arrays if a.size and a.dtype.kind in "biufcV"]
    finite = min((np.isfinite(a).mean() for a in numbers), default=0)
    differ = any(len(np.unique(a)) > 1 for a in numbers)
    return float(finite) + (0.2 if differ else 0)


def search(overload, tries: int, start: int, note, samples: int = 3) -> list[tuple[float, str]]:
    """The best calls found; note(k) is told which candidate is being tried."""
    best: dict[tuple, tuple[float, int, str]] = {}
    last = ""
    for number, call in enumerate(Maker(overload).candidates(tries)):
        if number < start:
            continue
        note(number)
        try:
            found = outcome(overload, call)
        except Exception as error:
            last = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
            )
            continue
        score = worth(found)
        key = signature(call)
        if key not in best or best[key][0] < score:
            best[key] = (score, number, repr(call))
        good = [b for b in best.values() if b[0] > 1]
        enough = len(good) >= samples + 2 and number > 40
        if enough or (len(best) > samples and number > 400):
            break
    return varied(best, samples), last


def varied(best: dict, samples: int) -> list[tuple[float, str]]:
    """The best calls, such that each has a rank, a dtype or an argument that those before it have not."""
    ranked = sorted(best.items(), key=lambda b: (-(b[1][0] > 1), -(b[1][0] > 0.9), b[1][1]))
    taken, seen = [], set()
    while ranked and len(taken) < samples:
        news = [len({*sig[0], *(d for d, _ in sig[0]), sig[1]} - seen) for sig, _ in ranked]
        at = news.index(max(news)) if taken else 0
        sig, (score, _, text) = ranked.pop(at)
        seen |= {*sig[0], *(d for d, _ in sig[0]), sig[1]}
        if not taken or score > 0.9:
            taken.append((score, text))
    return taken


def in_child(overload, tries: int):
    """search() in a forked process, begun anew behind a candidate that ended it."""
    place = mmap.mmap(-1, 8)
    start, died = 0, []
    for _ in range(12):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)

            resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
            signal.alarm(20)

            def note(number):
                place[:8] = number.to_bytes(8, "little")

            try:
                found = search(overload, tries, start, note)
            except BaseException as error:
                found = ([], f"search: {error!r}")
            with os.fdopen(writer, "wb") as stream:
                pickle.dump(found, stream)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            data = stream.read()
        os.waitpid(child, 0)
        if data:
            found, last = pickle.loads(data)
            return found, last, died
        at = int.from_bytes(place[:8], "little")
        died.append(repr(next(itertools.islice(Maker(overload).candidates(tries), at, None))))
        start = at + 1
    return [], "ended its process 12 times", died


def check_by_hand() -> int:
    """Prints the lines of by_hand.txt that torch refuses, and those whose results tell nothing."""
    wrong = 0
    for call in itertools.chain(*calls.read("by_hand.txt").values()):
        try:
            found = outcome(oracle.overloads()[call.name], call)
            problem = "" if worth(found) > 0.9 or found is None else f"worth {worth(found)}"
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if problem:
            wrong += 1
            print(f"{call}\n    {problem}")
    return wrong


def find(names: list[str], tries: int) -> list[str]:
    lines = []
    for name in names:
        found, last, died = in_child(oracle.overloads()[name], tries)
        lines += [text for _, text in found]
        for text in died:
            print(f"{text} ended its process")
        if not found:
            print(f"{name}: none found; {last}", flush=True)
    return lines


def surround(tensor: torch.Tensor, filling: int) -> torch.Tensor:
    """A copy in the middle of memory full of a byte."""
    data = tensor.reshape(-1).view(torch.uint8)
    if not len(data):
        return tensor
    between = torch.full((len(data) + 8192,), filling, dtype=torch.uint8)
    inner = between[4096 : 4096 + len(data)]
    return inner.copy_(data).view(tensor.dtype).view(tensor.shape)


def hashes(file: str, filling: int) -> None:
    """Prints for each call of a file what its results are, as a hash."""
    plain = oracle.to_torch

    def surrounded(value):
        made = plain(value)
        return surround(made, filling) if isinstance(made, torch.Tensor) else made

    oracle.to_torch = surrounded
    out = os.fdopen(os.dup(1), "w", buffering=1)
    for stream in (1, 2):  # operators that print
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for line in Path(file).read_text().splitlines():
        call = inputs.parse(line)
        try:
            seen = compare.torch_side(oracle.overloads()[call.name], *inputs.arrays(call))
        except compare.Refused:
            print(line, "refused", sep="\t", file=out)
            continue
        data = [
            r.tobytes() if isinstance(r, np.ndarray) else repr(r).encode()
            for r in seen.results + seen.arrays
        ]
        print(line, zlib.crc32(b"".join(data)), sep="\t", file=out)


def steady(lines: list[str]) -> list[str]:
    """The calls with the same results whatever other memory holds: the others read what nobody wrote."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        told = []
        for filling in ("85", "171"):
            command = [sys.executable, __file__, "--hashes", file.name, "--filling", filling]
            environment = {**os.environ, "MALLOC_PERTURB_": filling}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                last = done.stdout.splitlines()[-1:]
                raise RuntimeError(f"the call behind {last} ended its process")
            told.append(set(done.stdout.splitlines()))
    kept = {line.partition("\t")[0] for line in told[0] & told[1] if not line.endswith("\trefused")}
    unset = [line for line in lines if compare.is_unset(oracle.overloads()[line.partition("(")[0]])]
    for line in sorted({*lines} - kept - {*unset}):
        print(f"{line} reads what nobody wrote")
    return sorted({*kept, *unset})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="print what is found for these")
    parser.add_argument("--tries", type=int, default=700)
    parser.add_argument("--by-hand", action="store_true", help="check by_hand.txt alone")
    parser.add_argument("--hashes", help=argparse.SUPPRESS)
    parser.add_argument("--filling", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.hashes:
        return hashes(options.hashes, options.filling)
    if options.by_hand:
        sys.exit(bool(check_by_hand()))
    if options.only:
        return print(*find(options.only, options.tries), sep="\n")
    known = calls.read("by_hand.txt")
    names = [
        name
        for name, overload in oracle.overloads().items()
        if name not in known
        and name not in calls.FRUITLESS
        and overload.kind != "out"
        and calls.origin(name) is None
    ]
    (HERE / "found.txt").write_text(HEAD + "\n".join(steady(find(names, options.tries))) + "\n")


if __name__ == "__main__":
    main()
