# SPDX-License-Identifier: Apache-2.0
"""anyop in JAX: ``anyop.<op>(jax_array)``, also inside jit, grad, jvp, vmap, shard_map and jax.export.

One handler of XLA's foreign function interface runs every operator. Needs JAX 0.10 or newer.
"""

OLDEST = (0, 10)


def _import_jax() -> None:
    try:
        import jax
        import jaxlib
    except ImportError as error:
        raise ImportError(
            "anyop.jax needs JAX, which is not installed: pip install jax "
            "(https://docs.jax.dev/en/latest/installation.html)"
        ) from error
    for name, version in (("jax", jax.__version__), ("jaxlib", jaxlib.version.__version__)):
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise ImportError(
                f"anyop.jax needs {name} {OLDEST[0]}.{OLDEST[1]} or newer; this is {name} {version}; "
                "pip install -U jax"
            )


_import_jax()

from anyop.jax import install as _install  # noqa: E402
from anyop.jax.dispatch import slow_call  # noqa: E402
from anyop.jax.primitive import TARGET  # noqa: E402

_install.install_all()

__all__ = ["TARGET", "slow_call"]


def __getattr__(name: str) -> object:
    from anyop._operators import no_attribute

    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    """What users call, without the modules behind it."""
    return sorted({"TARGET", *(name for name in globals() if name[:2] == "__")})
