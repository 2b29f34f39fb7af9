# SPDX-License-Identifier: Apache-2.0
"""Work in a process of its own that tells what it does, so that a crash of a kernel can be reported."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

_PR_SET_PDEATHSIG = 1


def events(
    work: Callable[[Callable[[dict[str, Any]], None]], None], seconds: float | None = None
) -> Iterator[dict[str, Any]]:
    """Runs work(tell) in a fork of this process and yields what it tells.

    An exception of work is the event {"error": text}; an end without word {"died": how}, also where it told nothing
    for so many seconds, and was ended.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _work(work, writer)
    os.close(writer)
    ended = False
    try:
        with open(reader, "rb", buffering=0) as pipe:
            for line in _lines(pipe, seconds):
                event = json.loads(line)
                ended = ended or "end" in event
                if "end" not in event:
                    yield event
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        ended = True
        yield {"died": f"took more than {seconds:g} s, and was ended"}
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended:
        how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        yield {"died": how}


def _lines(pipe: BinaryIO, seconds: float | None) -> Iterator[bytes]:
    """Whole lines; TimeoutError where none comes for so long."""
    rest = b""
    while select.select([pipe], [], [], seconds)[0]:
        block = pipe.read(65536)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    raise TimeoutError


def _work(work: Callable, writer: int) -> None:
    """The child: never returns. It lives no longer than its parent, who also deals with Ctrl-C."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open(writer, "w", encoding="utf-8") as stream:

            def tell(event: dict[str, Any]) -> None:
                stream.write(json.dumps(event) + "\n")
                stream.flush()

            try:
                work(tell)
            except (LookupError, OSError, ValueError) as error:
                tell({"error": str(error)})
            except Exception as error:
                tell({"error": f"{type(error).__name__}: {error}"})
            tell({"end": True})
    finally:
        sys.stdout.flush()
        os._exit(0)
