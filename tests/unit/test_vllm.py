"""What both vLLM engines share, without vLLM: arguments, sampling keys, windows, and every stop of the preflight."""

import json
import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kit import vllm
from kit.seam import Stop

RECIPE = {
    "name": "tiny",
    "model": "org/tiny",
    "engine": "vllm",
    "context": 32768,
    "tasks": {"ocr": "Text Recognition:"},
    "vllm": {"min": "0.16.0", "below": "0.40", "tested": "0.29.0", "exclude": {"0.27.1": "every page loops"}},
}


def options(**changed):
    defaults = dict(
        model="org/tiny", revision=None, max_model_len=16384, max_tokens=8192, gpu_memory_utilization=None,
        window=None, endpoint=None, engine="offline", engine_given=False,
    )  # fmt: skip
    return SimpleNamespace(**defaults | changed)


# --- arguments -------------------------------------------------------------------------------------------------------


def test_engine_args_state_the_choices_of_the_user_over_those_of_the_recipe():
    recipe = RECIPE | {"engine_args": {"gpu_memory_utilization": 0.8, "max_num_seqs": 64}}
    args = vllm.engine_args(options(revision="abc", gpu_memory_utilization=0.5), recipe)
    assert args["revision"] == "abc" and args["gpu_memory_utilization"] == 0.5 and args["max_num_seqs"] == 64
    assert vllm.engine_args(options(), recipe)["gpu_memory_utilization"] == 0.8
    assert "revision" not in vllm.engine_args(options(), recipe)


def test_a_page_window_raises_the_limit_of_images():
    assert vllm.engine_args(options(), RECIPE | {"pages_per_unit": 4})["limit_mm_per_prompt"]["image"] == 4


def test_cli_args_mean_what_the_keyword_arguments_mean():
    words = vllm.cli_args(
        {
            "model": "org/tiny", "enforce_eager": True, "enable_prefix_caching": False, "revision": None,
            "max_model_len": 4096, "limit_mm_per_prompt": {"image": 1}, "logits_processors": ["a:B", "c:D"],
        }
    )  # fmt: skip
    assert words == [
        "org/tiny", "--enforce-eager", "--no-enable-prefix-caching", "--max-model-len", "4096",
        "--limit-mm-per-prompt", '{"image": 1}', "--logits-processors", "a:B", "c:D",
    ]  # fmt: skip


def test_every_image_part_is_replaced_and_nothing_else():
    messages = [
        {"role": "system", "content": "plain"},
        {"role": "user", "content": [{"type": "image", "image": 1}, {"type": "text", "text": "t"}]},
        {"role": "user", "content": [{"type": "image", "image": 2}]},
    ]
    made = vllm.messages_with(messages, lambda image: image * 10)
    assert made[0] == messages[0] and [m["content"] for m in made[1:]] == [[10, {"type": "text", "text": "t"}], [20]]
    assert messages[1]["content"][0] == {"type": "image", "image": 1}, "the body is asked again on a retry"


def test_environment_that_is_set_wins(monkeypatch):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "9"})
    vllm.set_environment({"environment": {"VLLM_USE_DEEP_GEMM": "0"}})
    assert os.environ["OMP_NUM_THREADS"] == "9" and os.environ["VLLM_USE_DEEP_GEMM"] == "0"
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


# --- the window ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image, gigabytes, expected",
    [
        ({"max_pixels": 1_700_000}, 1000, 512),  # twice max_num_seqs
        ({"max_pixels": 1_700_000}, 24, 140),  # a quarter of memory / 45.9 MB
        ({"max_pixels": 11_000_000}, 24, 21),
        ({"max_side": 1540}, 24, 100),
        ({}, 8, 6),
        ({"max_pixels": 10**12}, 8, 1),
    ],
)
def test_window_is_bound_by_engine_and_memory(monkeypatch, image, gigabytes, expected):
    monkeypatch.setattr(vllm, "host_memory", lambda: gigabytes << 30)
    assert vllm.window_size(options(), RECIPE | {"image": image}) == expected


def test_window_grows_with_the_engines(monkeypatch):
    monkeypatch.setattr(vllm, "host_memory", lambda: 1000 << 30)
    assert vllm.window_size(options(), RECIPE | {"image": {"max_side": 1540}}, engines=8) == 8 * 512


def test_window_given_by_the_user_wins(monkeypatch):
    monkeypatch.setattr(vllm, "host_memory", lambda: 1)
    assert vllm.window_size(options(window=7), RECIPE) == 7


def test_host_memory_is_positive_and_not_above_the_machine():
    assert 0 < vllm.host_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- preflight -------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    """A model folder that passes, and a function that changes its config."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\0" * 4096)

    def write(**changed):
        config = {"architectures": ["GlmOcrForConditionalGeneration"], "max_position_embeddings": 131072}
        (folder / "config.json").write_text(json.dumps(config | changed))
        return str(folder)

    write()
    return write


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a given vLLM and given GPUs: a fake interpreter-side package and a fake nvidia-smi."""
    package = tmp_path / "site" / "vllm"
    (package / "model_executor" / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model_executor" / "models" / "registry.py").write_text('"GlmOcrForConditionalGeneration": ()')
    binaries = tmp_path / "bin"
    binaries.mkdir()

    def build(version="0.29.0", gpus=((22000, 23000),)):
        for old in (tmp_path / "site").glob("*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        if version:
            info = tmp_path / "site" / f"vllm-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        smi = binaries / "nvidia-smi"
        smi.write_text("#!/bin/sh\n" + ("" if gpus else "exit 9\n") + "".join(f"echo {f}, {t}\n" for f, t in gpus))
        smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site") if version else "")
        monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
        monkeypatch.delenv("OCR_ALLOW_CPU", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(sys, "argv", ["ocr/tiny.py", "scans", "my out"])
        return package

    return build


def stopped(chosen, recipe=RECIPE):
    with pytest.raises(Stop) as caught:
        vllm.preflight_vllm(chosen, recipe)
    assert caught.value.code == 2
    return str(caught.value)


def test_a_machine_that_fits_passes(machine, model):
    machine()
    vllm.preflight_vllm(options(model=model()), RECIPE)


@pytest.mark.parametrize(
    "cards, given, args, engine",
    [
        (4, False, {}, "serve"),
        (4, True, {}, "offline"),  # the user said so
        (1, False, {}, "offline"),
        (2, False, {"tensor_parallel_size": 2}, "offline"),  # one copy of the model fills both
    ],
)
def test_several_gpus_are_all_used(machine, model, cards, given, args, engine):
    machine(gpus=((22000, 23000),) * cards)
    chosen = options(model=model(), engine_given=given)
    vllm.preflight_vllm(chosen, RECIPE | {"engine_args": args})
    assert chosen.engine == engine


def test_an_endpoint_needs_nothing_here(machine):
    machine(version=None, gpus=())
    vllm.preflight_vllm(options(endpoint="http://there/v1"), RECIPE)


def test_missing_vllm_names_the_command_that_works(machine, model):
    machine(version=None)
    message = stopped(options(model=model()))
    assert "vLLM is not installed" in message
    assert "uv run --with vllm==0.29.0 ocr/tiny.py scans 'my out'" in message
    assert "hf jobs uv run ocr/tiny.py scans 'my out'" in message


@pytest.mark.parametrize(
    "version, words",
    [
        ("0.15.1", ["0.15.1 is installed", "0.16.0"]),
        ("0.40.0", ["0.40.0 is installed", "below 0.40"]),
        ("0.27.1", ["0.27.1 is installed", "every page loops"]),
    ],
)
def test_vllm_outside_the_recipes_window(machine, model, version, words):
    machine(version=version)
    message = stopped(options(model=model()))
    assert all(word in message for word in [*words, "uv run --with vllm==0.29.0"])


def test_an_interpreter_that_is_not_there(machine, model):
    machine()
    assert "/no/such/python3" in stopped(options(model=model()), RECIPE | {"server_python": "/no/such/python3"})


def test_another_interpreter_is_asked_without_this_ones_packages(machine, model):
    machine()
    message = stopped(options(model=model()), RECIPE | {"server_python": sys.executable})
    assert "vLLM is not installed" in message, "PYTHONPATH of the driver must not reach it"


def test_no_gpu_and_the_one_override(machine, model, monkeypatch):
    machine(gpus=())
    assert "nvidia-smi shows none" in stopped(options(model=model()))
    monkeypatch.setenv("OCR_ALLOW_CPU", "1")
    vllm.preflight_vllm(options(model=model()), RECIPE)


def test_every_check_for_a_gpu_says_the_same(machine, monkeypatch):
    machine(gpus=())
    for who, instead in (("tiny", "Ask others."), ("SGLang", "")):
        with pytest.raises(Stop) as caught:
            vllm.needed_gpus(who, instead)
        said = str(caught.value)
        assert said.startswith(f"{who} needs an NVIDIA GPU") and said.endswith(f"to try without. {instead}")
        assert "hf jobs uv run ocr/tiny.py scans 'my out'" in said and caught.value.code == 2
    monkeypatch.setenv("OCR_ALLOW_CPU", "1")
    assert vllm.needed_gpus("tiny") == []
    machine(gpus=((10, 20),))
    assert vllm.needed_gpus("tiny") == [(10 << 20, 20 << 20)]


def test_gpus_hidden_by_the_environment_do_not_count(machine, model, monkeypatch):
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "nvidia-smi shows none" in stopped(options(model=model()))


def test_a_gpu_that_others_use_gets_the_share_that_works(machine, model):
    machine(gpus=((10000, 24000),))
    assert "--gpu-memory-utilization 0.41" in stopped(options(model=model()))


def test_weights_larger_than_the_gpu(machine, model, monkeypatch):
    machine()
    monkeypatch.setattr(vllm, "weight_bytes", lambda chosen: (30 << 30, 0))
    assert "30.0 GiB of weights" in stopped(options(model=model()))
    vllm.preflight_vllm(options(model=model()), RECIPE | {"engine_args": {"cpu_offload_gb": 20}})


def test_a_nearly_full_gpu_is_a_warning_with_numbers(machine, model, monkeypatch, capsys):
    machine()
    monkeypatch.setattr(vllm, "weight_bytes", lambda chosen: (18 << 30, 0))
    vllm.preflight_vllm(options(model=model()), RECIPE)
    assert "18.0 GiB of weights in 20.2 GiB" in capsys.readouterr().err


def test_a_disk_without_room_for_the_weights(machine, model, monkeypatch):
    machine()
    monkeypatch.setattr(vllm, "weight_bytes", lambda chosen: (1 << 30, 1 << 60))
    assert "HF_HOME" in stopped(options(model=model()))


def test_a_class_that_vllm_does_not_know(machine, model):
    machine()
    assert "NobodyForCausalLM" in stopped(options(model=model(architectures=["NobodyForCausalLM"])))
    override = RECIPE | {"engine_args": {"hf_overrides": {"architectures": ["GlmOcrForConditionalGeneration"]}}}
    vllm.preflight_vllm(options(model=model(architectures=["NobodyForCausalLM"])), override)


def test_logits_processors_are_looked_up_beside_vllm(machine, model):
    package = machine()
    (package / "model_executor" / "models" / "deep.py").write_text("class NGram: pass")
    good = RECIPE | {"engine_args": {"logits_processors": ["vllm.model_executor.models.deep:NGram"]}}
    vllm.preflight_vllm(options(model=model()), good)
    for name in ("vllm.model_executor.models.deep:Other", "elsewhere.logits:NGram"):
        assert name in stopped(options(model=model()), RECIPE | {"engine_args": {"logits_processors": [name]}})


def test_a_model_that_is_not_there(machine, tmp_path):
    machine()
    (tmp_path / "empty").mkdir()
    message = stopped(options(model=str(tmp_path / "empty")))
    assert "config.json" in message and "--revision" in message


LENGTH, ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"


@pytest.mark.parametrize(
    "config, expected",
    [
        ({LENGTH: 4096}, 4096),
        ({"text_config": {LENGTH: 131072}, LENGTH: 10}, 131072),
        ({"llm_config": {LENGTH: 40960}}, 40960),
        ({LENGTH: 32768, "rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 32768}}, 131072),
        ({LENGTH: 163840, "rope_scaling": {"rope_type": "yarn", "factor": 40, ORIGINAL: 4096}}, 163840),
        ({LENGTH: 8192, "rope_scaling": {"rope_type": "linear", "factor": 2}}, 16384),
        ({LENGTH: 8192, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3]}}, 8192),
        ({LENGTH: 8192, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({}, None),
    ],
)
def test_true_context(config, expected):
    assert vllm.true_context(config) == expected


def test_a_context_beyond_the_model(machine, model):
    machine()
    message = stopped(options(model=model(max_position_embeddings=8192), max_tokens=512))
    assert "--max-model-len 8192" in message


def test_the_image_needs_room_beside_the_answer(machine, model):
    machine()
    recipe = RECIPE | {"image_tokens": 6144}
    vllm.preflight_vllm(options(model=model()), recipe)
    message = stopped(options(model=model(), max_model_len=8192), recipe)
    number = int(message.rsplit("--max-tokens ", 1)[1].rstrip("."))
    vllm.preflight_vllm(options(model=model(), max_model_len=8192, max_tokens=number), recipe)
    message = stopped(options(model=model(), max_model_len=6200), recipe)
    number = int(message.rsplit("--max-model-len ", 1)[1].rstrip("."))
    vllm.preflight_vllm(options(model=model(), max_model_len=number), recipe)


def test_weights_are_counted_once_and_those_of_a_folder_are_here(model, tmp_path):
    chosen = options(model=model())
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"\0" * 99)
    assert vllm.weight_bytes(chosen) == (4096, 0)


def test_the_module_imports_nothing_heavy():
    heavy = {"torch", "vllm", "saturate", "PIL", "huggingface_hub", "httpx2"}
    code = f"import sys, kit.vllm, kit.serve, kit.offline; print({heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
