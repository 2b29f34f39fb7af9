# SPDX-License-Identifier: Apache-2.0
"""A process that makes calls of junk and may die: what it is about to do stands in a file before it does it.

python tests/hostile/junk_worker.py numpy SEED STATE FAULTS START STOP     a part of the list of calls
python tests/hostile/junk_worker.py numpy SEED 1234                        one call, with what came of it
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import mmap
import os
import random
import resource
import struct
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
COUNTERS = struct.Struct("<6q")  # next position, calls, right, refused, unfit, has ended
STATE_BYTES = 1 << 16
EACH = 40  # calls between two looks at good calls
MEMORY = 6 << 30  # what a call asks for in error is refused, not swapped
FRAMEWORKS = ("numpy", "torch", "jax", "paddle")
OPS = HERE.parents[1] / "ops"


class State:
    """Counters and a text in a file that outlives the process."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), STATE_BYTES)
        self.counters = list(COUNTERS.unpack_from(self.memory))

    def write(self, text: str = "") -> None:
        """What comes next."""
        COUNTERS.pack_into(self.memory, 0, *self.counters)
        data = text.encode("utf-8", "backslashreplace")[: STATE_BYTES - COUNTERS.size - 1] + b"\0"
        self.memory[COUNTERS.size : COUNTERS.size + len(data)] = data


def read_state(path: Path) -> tuple[list[int], str]:
    """Counters and text."""
    data = path.read_bytes()
    text = data[COUNTERS.size :].partition(b"\0")[0].decode("utf-8", "replace")
    return list(COUNTERS.unpack_from(data)), text


def limit_memory() -> None:
    """A sanitizer has its own limit: it maps more than any limit allows."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "LD_PRELOAD" not in os.environ:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


class Calls:
    """The list of calls of one framework: every cell once in a drawn order, then again with other dice."""

    def __init__(self, framework: str, seed: str) -> None:
        import junk_arrays  # noqa: F401
        import junk_objects  # noqa: F401
        import junk_values  # noqa: F401
        from junk_draft import Bridge, cells_of

        self.seed = f"{seed} {framework}"
        self.bridge = Bridge()
        if framework != "numpy":
            self.bridge = importlib.import_module(f"junk_{framework}").BRIDGE()
        from anyop import testing

        self.subjects = list(testing.find_subjects(OPS))
        if framework == "jax":  # whose arrays cannot be written
            self.subjects = [s for s in self.subjects if not any(p["mutated"] for p in s.tensors)]
        self.cells = cells_of(self.subjects)
        self.order = list(range(len(self.cells)))
        random.Random(self.seed).shuffle(self.order)
        self.good: dict[str, tuple] = {}

    def draft(self, position: int):
        """The call at a position; None where its junk does not fit."""
        from junk_draft import Draft, Unfit

        turn, at = divmod(position, len(self.order))
        dice = random.Random(f"{self.seed} {turn} {at}")
        try:
            return Draft(self.bridge, self.cells[self.order[at]], dice)
        except Unfit:
            return None

    def label(self, position: int) -> str:
        """What is tried at a position."""
        subject, place, label = self.cells[self.order[position % len(self.order)]]
        return f"{subject.name} {place.name}: {label}"

    def good_call(self, subject) -> list[bytes]:
        """The results of a good call, by the framework."""
        from anyop import testing

        if subject.name not in self.good:
            good = testing.Good(subject)
            self.good[subject.name] = good, None
        good, before = self.good[subject.name]
        arguments = {name: self._of(value) for name, value in good.arguments().items()}
        found = subject.function(**arguments)
        found = found if isinstance(found, tuple) else (found,)
        bits = [self.bridge.array(value).tobytes() for value in found if value is not None]
        if before is None:
            self.good[subject.name] = good, bits
        elif before != bits:
            return ["a good call of it gives another result than before"]
        return []

    def _of(self, value):
        import numpy as np

        if isinstance(value, list):
            return [self._of(item) for item in value]
        return self.bridge.tensor(value) if isinstance(value, np.ndarray) else value


def describe(draft) -> str:
    """For the report of a death: everything about the call."""

    def text(value) -> str:
        kind = type(value).__name__
        with contextlib.suppress(BaseException):
            import numpy as np

            if type(value) is np.ndarray:
                return f"{value.dtype}{list(value.shape)}"
            if type(value) in (int, float, str, bool, type(None)):
                return repr(value)[:60]
        return kind

    arguments = [text(value) for value in draft.positional[:20]]
    arguments += [
        f"{name[:40]}={text(value)}" for name, value in list(draft.arguments.items())[:20]
    ]
    return "; ".join(draft.notes) + f" | {draft.subject.name}({', '.join(arguments)})"


def main() -> None:
    framework, seed, *rest = sys.argv[1:]
    faulthandler.enable()
    warnings.simplefilter("ignore")
    limit_memory()
    if framework == "jax":
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        os.environ["JAX_PLATFORMS"] = "cpu"
    calls = Calls(framework, seed)
    with calls.bridge.around():
        if len(rest) == 1:
            one(calls, int(rest[0]))
        else:
            many(calls, *rest)


def one(calls: Calls, position: int) -> None:
    """Makes one call and says what came of it."""
    from junk_judge import judge

    draft = calls.draft(position)
    print(calls.label(position) if draft is None else describe(draft), flush=True)
    print("does not fit" if draft is None else judge(draft))


def many(calls: Calls, state_path: str, faults_path: str, start: str, stop: str) -> None:
    """Makes a part of the calls. Faults go to their file as they are found."""
    from junk_judge import Fault, judge

    state = State(state_path)
    counters = state.counters
    for subject in calls.subjects:
        state.write(f"{subject.name}: a good call")
        calls.good_call(subject)
    recent: dict[str, object] = {}
    with open(faults_path, "a", encoding="utf-8", errors="backslashreplace") as faults:

        def fault(position: int, operator: str, label: str, what: str) -> None:
            line = {"position": position, "operator": operator, "call": label, "what": what}
            faults.write(json.dumps(line) + "\n")
            faults.flush()

        for position in range(int(start), int(stop)):
            counters[0] = position + 1
            state.write("drawing " + calls.label(position))
            try:
                draft = calls.draft(position)
            except Exception as error:
                fault(position, "", calls.label(position), f"the test itself: {error!r}")
                continue
            if draft is None:
                counters[4] += 1
                continue
            label = describe(draft)
            counters[1] += 1
            state.write(label)
            try:
                counters[2 if judge(draft) == "right" else 3] += 1
            except Fault as error:
                fault(position, draft.subject.name, label, str(error))
            except (
                BaseException
            ) as error:  # of these tests, or of an odd object that they looked at
                if not any(error is own for own in draft.raised):
                    fault(position, draft.subject.name, label, f"the test itself: {error!r}")
            if problem := calls.bridge.settle(draft):
                fault(position, draft.subject.name, label, problem)
            recent[draft.subject.name] = draft.subject
            if position % EACH == 0:
                for name, subject in recent.items():
                    state.write(f"{name}: a good call, after calls of junk")
                    for problem in calls.good_call(subject):
                        fault(position, name, "a good call, after calls of junk", problem)
                recent.clear()
            if position % 2000 == 0:
                gc.collect()
        counters[5] = 1
        state.write("the end of the process")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.setswitchinterval(1e-4)
    main()
    sys.stdout.flush()
