"""The environment with the real vLLM, tiny checkpoints, and recipes that run on them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a CPU and a tiny model need. float32: rounding in bfloat16 depends on which requests are computed together.
CPU_ARGS = {"enforce_eager": True, "dtype": "float32", "max_num_seqs": 64}
# A random model may write spaces for ever where a schema lets it.
COMPACT = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}
# What an architecture of tiny.py needs besides.
OWN_ARGS = {
    "lfm2": COMPACT,
    "lfm2_vl": COMPACT,
    # The largest page would take minutes: these towers are as large as the model's own.
    **dict.fromkeys(("deepseek_ocr", "deepseek_ocr2"), {"skip_mm_profiling": True}),
    # Its class asks for FlashAttention in the towers, which no CPU has.
    "unlimited_ocr": {"skip_mm_profiling": True, "mm_encoder_attn_backend": "TORCH_SDPA"},
    # The checkpoint's processor is code of its own, the tiny one's that of transformers; vLLM reads them differently.
    "paddleocr_vl": {"trust_remote_code": False},
    "qwen3_5": {"dtype": "bfloat16", **COMPACT},  # the type is all that its linear attention takes on a CPU
}
# HunYuanVL is the class of transformers in vLLM 0.32. Its vision encoder hands a transposed tensor to oneDNN, which
# refuses it ("Expected a.stride(-1) == 1"). A plugin of vLLM, loaded by each of its processes, copies it in order.
OWN_PLUGINS = {
    "hunyuan_vl": """
import vllm._custom_ops as ops

plain = ops.onednn_mm


def register():
    ops.onednn_mm = lambda handler, x, bias: plain(handler, x.contiguous(), bias)
"""
}
CPU_ENVIRONMENT = {
    "OCR_ALLOW_CPU": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    # Threads bound to cores wait for each other where anything else runs there.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@pytest.fixture(scope="session")
def python():
    """The interpreter of the environment that install.sh makes."""
    path = Path(os.environ.get("OCR_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
    if not path.exists():
        pytest.skip(f"no vLLM for CPUs at {path}; make it with tests/engine/install.sh .venv-engine")
    return str(path)


@pytest.fixture(scope="session")
def environment():
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTEST", "VIRTUAL_ENV"))}
    return kept | CPU_ENVIRONMENT | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def tiny(python, environment, tmp_path_factory):
    """`tiny(architecture)`: the folder of that architecture's checkpoint, made once."""
    made = {}

    def build(architecture):
        if architecture not in made:
            folder = tmp_path_factory.mktemp("models") / architecture
            command = [python, ROOT / "tests/engine/tiny.py", architecture, folder]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            assert result.returncode == 0, result.stderr[-3000:]
            made[architecture] = str(folder)
        return made[architecture]

    return build


def runnable(recipe, folder, architecture=None):
    """A copy of ocr/<recipe>.py whose engine fits a CPU; its path. Nothing else in it is changed."""
    source = (ROOT / "ocr" / f"{recipe}.py").read_text()
    start = '\nif __name__ == "__main__":'
    assert source.count(start) == 1
    args = CPU_ARGS | OWN_ARGS.get(architecture, {})
    fitted = (
        f'\nRECIPE["engine_args"] = {{**RECIPE.get("engine_args", {{}}), **{args!r}}}'
        '\nRECIPE.pop("server_python", None)'
        '\nRECIPE.pop("vllm", None)\n'
    )
    script = folder / f"{recipe}.py"
    script.write_text(source.replace(start, fitted + start))
    return script


def with_plugin(environment, folder, architecture):
    """The environment variables, with the plugin of vLLM that the architecture needs on a CPU, if any, in `folder`."""
    if not (code := OWN_PLUGINS.get(architecture)):
        return environment
    info = folder / "plugin" / "ocr_engine_tests-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ocr-engine-tests\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nengine_tests = ocr_engine_tests:register\n")
    (info.parent / "ocr_engine_tests.py").write_text(code)
    return environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{info.parent}"}


def last_json(output):
    return json.loads(output.strip().splitlines()[-1])
