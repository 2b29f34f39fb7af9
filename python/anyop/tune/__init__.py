# SPDX-License-Identifier: Apache-2.0
"""Measures which implementation runs each call of a workload fastest, and writes it down as routes: `anyop tune`.

    kinds, notes = tune.read_record("run.jsonl")
    tuned = tune.tune(tune.merged(kinds), tune.Settings("routes.txt"), print)
    anyop.load_routes("routes.txt")

workload.py and given.py say what is called; arguments.py makes such calls; candidates.py compares each implementation
with the reference; clock.py times them in turns; choice.py finds rules; routes.py writes them; proof.py times them
as a whole; run.py does all of it.
"""

from anyop.tune.run import Settings, Tuned, tune
from anyop.tune.stated_kinds import bench_kinds, given_shapes
from anyop.tune.workload import Kind, Spec, merged, read_record

__all__ = [
    "Kind",
    "Settings",
    "Spec",
    "Tuned",
    "bench_kinds",
    "given_shapes",
    "merged",
    "read_record",
    "tune",
]


def __getattr__(name: str) -> object:
    from anyop._operators import no_attribute

    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    """What users call, without the modules behind it."""
    return sorted({*__all__, *(name for name in globals() if name[:2] == "__")})
