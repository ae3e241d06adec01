"""Torch, which commands import when they need it and not before, is imported by this."""

import gc
import sys


def load_torch() -> None:
    """Import torch; Python looks for garbage neither meanwhile nor, from then on, among what there is by then.

    Torch makes a quarter of a million objects that stay until the end. Looking through them again and again takes a
    tenth of the time of its import; at the end of the process they are looked through once more.
    """
    if "torch" in sys.modules:
        return
    looking = gc.isenabled()
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    if looking:
        gc.enable()
