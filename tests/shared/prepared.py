# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own that begin with frameworks imported: a copy (fork) of one that waits.

Python, torch and Paddle take one to three CPU seconds to start, most programs of tests a tenth. In the long form
(ANYOP_TEST_FULL=1), and for whatever depends on how Python starts, each program has a Python of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from functools import cache
from pathlib import Path

from drawn import FULL

# What is read when Python starts, or when a framework is imported: it must be the server's.
EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "FLAGS_", "XLA_", "JAX_", "ASAN_", "MALLOC_")
BY_PADDLE = "OMP_NUM_THREADS"  # its import sets it, also for what the process starts
LIMIT_S = 300  # for a program of which nothing else is said
_spent = [0.0]  # CPU seconds of the programs
_AT_START = dict(os.environ)
_lock = threading.Lock()


def cpu_seconds() -> float:
    return _spent[0]


def run(frameworks: str, command: list, **options) -> subprocess.CompletedProcess:
    """subprocess.run([sys.executable, "-c", text, ...]) where these are imported already: "torch", "jax", "paddle".

    Or [sys.executable, file, ...]. What it prints is in the result, as text: capture_output and text need not be said.
    """
    options = {"capture_output": True, "text": True} | options
    words = [str(word) for word in command]
    environment = dict(options.get("env") or os.environ)
    if environment.get(BY_PADDLE) == os.environ.get(BY_PADDLE) and BY_PADDLE not in _AT_START:
        environment.pop(BY_PADDLE, None)
    alone = {"timeout": LIMIT_S} | options
    threads = "libtsan" in environment.get("LD_PRELOAD", "")  # which refuses them in a copy
    if FULL or threads or not _alike(environment):
        return subprocess.run(words, **alone)
    assert words[0] == sys.executable and (words[1] == "-c" or words[1][0] != "-"), words[:2]
    assert not options.keys() - {"env", "cwd", "capture_output", "text", "timeout", "check"}
    request = [words[1:], environment, str(options.get("cwd") or os.getcwd())]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            status = _ask(frameworks, request, out, err, alone["timeout"])
        except subprocess.TimeoutExpired:
            if "timeout" in options:
                raise
            print(f"a copy of the process that imports {frameworks} hung:", words, file=sys.stderr)
            return subprocess.run(words, **alone)
        outputs = []
        for file in (out, err):
            file.seek(0)
            outputs.append(file.read().decode())
    done = subprocess.CompletedProcess(command, status, *outputs)
    if options.get("check"):
        done.check_returncode()
    return done


def _alike(environment: dict[str, str]) -> bool:
    """Whether a copy of the server is as a Python that starts with these variables."""
    names = {n for n in environment.keys() | _AT_START.keys() if n.startswith(EARLY)}
    names -= {"PYTHONPATH"}
    return all(environment.get(name) == _AT_START.get(name) for name in names)


def _ask(frameworks: str, request: list, out, err, timeout: float) -> int:
    """The exit status of a copy that has run the request."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with mine, theirs, tempfile.TemporaryFile() as words:
        words.write(json.dumps(request).encode(errors="surrogateescape"))
        words.flush()
        with _lock:
            server = _server(frameworks)
        files = [x.fileno() for x in (theirs, words, out, err)]
        socket.send_fds(server, [b"x"], files)
        theirs.close()
        lines, pid = mine.makefile("r"), 0
        mine.settimeout(LIMIT_S)  # for the imports
        try:
            begun = lines.readline()
            assert begun, f"the process that imports {frameworks} has ended: it says why"
            pid = int(begun)
            mine.settimeout(timeout)
            status, seconds = lines.readline().split()
        except TimeoutError:
            if pid:
                os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(request[0], timeout) from None
    _spent[0] += float(seconds)
    return int(status)


@cache
def _server(frameworks: str) -> socket.socket:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    text = f"import sys; sys.path.insert(1, {str(Path(__file__).parent)!r}); import prepared; prepared.serve()"
    command = [sys.executable, "-c", text, str(theirs.fileno()), *frameworks.split()]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=_AT_START
    )
    theirs.close()

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def serve() -> None:
    """In the process that waits: two copies for each request, one runs it and one tells how it ended."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    path = sys.path[:1] + sys.path[2:]  # without this folder
    for name in sys.argv[2:]:
        __import__(name)
    gc.collect()
    gc.freeze()  # else a copy that ends looks at all of it, and copies its pages
    while True:
        message, files, _, _ = socket.recv_fds(listener, 1, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
        while os.waitpid(-1, os.WNOHANG)[0] if _has_children() else False:
            pass
    listener.close()
    reply, words, out, err = files
    child = os.fork()
    if child:
        os.write(reply, f"{child}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            os.write(reply, f"{status} {used.ru_utime + used.ru_stime}\n".encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    with open(words, "rb") as file:
        file.seek(0)
        words, environment, folder = json.loads(file.read())
    for file in (reply, out, err):
        os.close(file)
    _become(words, environment, folder, path)


def _has_children() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _become(words: list[str], environment: dict, folder: str, path: list[str]) -> None:
    """From here on the process is python -c text, or python file."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    more = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [path[0], *(p for p in more if p not in path), *path[1:]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    name, text = "<string>", words[1] if words[0] == "-c" else ""
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
    else:
        sys.argv[:], name = words, words[0]
        main.__file__, sys.path[0] = name, os.path.dirname(os.path.realpath(name))
        with open(name, encoding="utf-8") as file:
            text = file.read()
    exec(compile(text, name, "exec"), main.__dict__)
