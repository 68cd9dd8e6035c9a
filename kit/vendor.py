"""Servers that are not the vLLM beside this script: a fork, or another version, in an environment made for them."""

import shutil

from kit.gpus import needed_gpus
from kit.seam import Stop
from kit.vllm import check_lengths, check_room, engine_args, model_config, weight_bytes


def preflight_vendor(options, recipe):
    """Checks what can be checked without that server: a GPU, uv, the room for page and answer, and for the weights."""
    if options.endpoint:
        return
    cards = needed_gpus(recipe["name"], "A server elsewhere is named with --endpoint URL.")
    if not shutil.which("uv"):
        raise Stop("The server is installed with uv, which is not on PATH here. Type: pip install uv")
    check_lengths(options, recipe, model_config(options))
    check_room(engine_args(options, recipe), cards, *weight_bytes(options))
