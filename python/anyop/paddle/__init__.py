# SPDX-License-Identifier: Apache-2.0
"""anyop in PaddlePaddle: gradients, to_static, static programs and AMP of every operator, as ``anyop.<op>``.

The C entry imports this package when a call first needs it. Needs Paddle 3.3 or newer.
"""

OLDEST = (3, 3)


def _import_paddle() -> None:
    try:
        import paddle
    except ImportError as error:
        raise ImportError(
            "anyop.paddle needs PaddlePaddle, which is not installed: pip install paddlepaddle "
            "(https://www.paddlepaddle.org.cn/install)"
        ) from error
    if not hasattr(paddle.Tensor, "__dlpack_c_exchange_api__"):
        raise ImportError(
            "anyop.paddle needs DLPack's exchange functions, which paddle has from "
            f"{OLDEST[0]}.{OLDEST[1]} on; this is paddle {paddle.__version__}"
        )


_import_paddle()

from anyop.paddle import install as _install  # noqa: E402
from anyop.paddle.dispatch import slow_call  # noqa: E402

_install.install_all()

__all__ = ["slow_call"]


def __getattr__(name: str) -> object:
    from anyop._operators import no_attribute

    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    """Nothing that users call: operators are functions of anyop. The modules behind it are not shown."""
    return [name for name in globals() if name[:2] == "__"]
