"""jina-ocr-v1: what is asked, and how vLLM is told of the checkpoint's own class."""

import os
import subprocess
import sys

import pytest

from kit import offline
from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

jina = load_recipe("jina-ocr-v1")
OPTIONS = options_of(jina)
PROMPT = "Transcribe the provided document image into a clean Markdown format, preserving the natural reading order."
BENCHMARK = (
    PROMPT + "\nConvert all formulas into LaTeX format. Inline formulas should be enclosed in `$ $`. Display (block) "
    "formulas should be enclosed in `$$ $$.\nConvert tables into HTML format (using <table border='1'><tr><td> tags).\n"
    "Ignore all graphical content in the image document. Do not describe or convert images.\n"
    "Remove the headers and footers, but keep references and footnotes."
)
# The checkpoint's file, with the values that its helper is quoted with.
CHECKPOINT = """
def register():
    print("registered")

def vllm_llm_kwargs(folder, num_speculative_tokens, mtp_heads, mtp_recursive):
    told = {"model": folder, "hf_overrides": {"architectures": ["DeepseekOCRForCausalLMOCR"],
            "num_nextn_predict_layers": mtp_heads, "mtp_recursive": mtp_recursive, "image_token_index": 128815}}
    if num_speculative_tokens:
        told["speculative_config"] = {"model": folder, "num_speculative_tokens": num_speculative_tokens,
                                      "method": "eagle"}
    return told
"""


@pytest.mark.parametrize(
    "words, prompt", [((), PROMPT), (("--task", "benchmark"), BENCHMARK), (("--prompt", "Read."), "Read.")]
)
def test_request(words, prompt):
    options = options_of(jina, *words)
    body = body_of(jina, page_of(jina, (2480, 3508), options), options)
    image, text = body.pop("messages")[0]["content"]
    assert image["image"].size == (2480, 3508) and text == {"type": "text", "text": prompt}
    assert body == {
        "max_tokens": 4096, "temperature": 0.0, "repetition_penalty": 1.05,
        "repetition_detection": {"max_pattern_size": 35, "min_pattern_size": 35, "min_count": 10},
    }  # fmt: skip


def test_the_stop_can_be_left_out():
    assert "repetition_detection" not in jina.request(None, options_of(jina, "--no-repetition-stop"))


@pytest.mark.parametrize(
    "text, markdown",
    [(" # Tide\n", "# Tide"), ("null", ""), (" null ", ""), ("nullity", "nullity"), ("", ""), ("<|ref|>", "<|ref|>")],
)
def test_parse(text, markdown):
    parsed = jina.parse(jina.Answer(text), None, OPTIONS)
    assert (parsed.markdown, parsed.blocks) == (markdown, None)


def test_an_answer_that_the_engine_ended_for_repeating_is_looped():
    assert jina.flags_of("short", "repetition") == ["looped"]

    class Said:
        text, finish_reason, logprobs, token_ids = "so on so on", "repetition", None, [1, 2]

    class Output:
        outputs, prompt_token_ids = [Said], [1]

    assert offline.answer_of(Output).finish_reason == "repetition"


@pytest.mark.parametrize("spec, hopper", [(3, False), (0, True)])
def test_vllm_is_told_of_the_checkpoint(tmp_path, monkeypatch, spec, hopper):
    (tmp_path / "deepseek_ocr_mtp.py").write_text(CHECKPOINT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(jina, "on_hopper", lambda: hopper)
    monkeypatch.setattr(jina, "set_environment", lambda recipe: None)
    monkeypatch.setenv("PYTHONPATH", "/kept")
    told = []

    def engine(units, talk, options, recipe, stop):
        told.append((options, jina.engine_args(options, recipe), os.environ["PYTHONPATH"]))
        code = (
            "import importlib.metadata as m, sys; [p.load()() for p in m.entry_points(group='vllm.general_plugins') "
            "if p.name == 'jina_ocr_v1']"
        )
        told.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        yield "row"

    options = options_of(jina, "--model", tmp_path, "--spec", spec)
    assert list(jina.with_checkpoint(engine)(None, None, options, jina.RECIPE, None)) == ["row"]
    sys.modules.pop("deepseek_ocr_mtp")
    (given, args, path), said = told
    assert said == "registered\n", "processes that are spawned know the class too"
    assert path.startswith(f"{tmp_path}{os.pathsep}") and path.endswith("/kept")
    assert (args["model"], args.get("revision"), given.revision) == (str(tmp_path), None, None)
    assert args["hf_overrides"]["architectures"] == ["DeepseekOCRForCausalLMOCR"]
    assert args.get("speculative_config", {}).get("num_speculative_tokens", 0) == spec
    assert args.get("attention_config") == ({"flash_attn_version": 2} if hopper else None)
    assert (args["trust_remote_code"], args["dtype"]) == (True, "bfloat16")
    assert (args["max_model_len"], args["enable_prefix_caching"], args["gpu_memory_utilization"]) == (8192, False, 0.85)
    assert options.model == str(tmp_path) and "hf_overrides" not in jina.RECIPE["engine_args"]


def test_an_endpoint_is_asked_as_it_is():
    options = options_of(jina, "--endpoint", "http://h/v1")
    engine = jina.with_checkpoint(lambda units, talk, options, recipe, stop: iter([(options, recipe)]))
    assert list(engine(None, None, options, jina.RECIPE, None)) == [(options, jina.RECIPE)]


def test_preflight_asks_for_the_class_that_vllm_knows(monkeypatch):
    seen = []
    monkeypatch.setattr(jina, "preflight_vllm", lambda options, recipe: seen.append(recipe["engine_args"]))
    jina.preflight(OPTIONS, jina.RECIPE)
    assert seen[0]["hf_overrides"] == {"architectures": ["DeepseekOCRForCausalLM"]}
