"""What both vLLM engines share: engine arguments, sampling, the window, and the checks before anything is paid."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kit.gpus import gpus, needed_gpus, on_jobs, this_command
from kit.pages import image_bounds
from kit.processes import server_environment
from kit.seam import Stop, say

GIB = 1 << 30
# Host bytes that a prepared page holds while it is in flight: measured 44 MB at 1,540 px (1.7 MP), 268 MB at 11 MP.
BYTES_PER_PIXEL = 27
UNBOUNDED_PIXELS = 12_845_056  # a recipe without image bounds: the largest cap among the processors of its models


def set_environment(recipe):
    """Sets what vLLM reads when it is imported; values that are set already win. `recipe["environment"]` adds more."""
    defaults = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled with nvcc at start-up, which most images do not have
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the one JSON line
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "4",  # image preparation: more threads than that take turns, fewer are slower
        "TOKENIZERS_PARALLELISM": "false",
    }
    for key, value in (defaults | recipe.get("environment", {})).items():
        os.environ.setdefault(key, value)


def engine_args(options, recipe):
    """Keyword arguments of `vllm.LLM`, which are also the flags of `vllm serve` (see `cli_args`)."""
    args = {
        "model": options.model,
        "generation_config": "vllm",  # sampling is what the recipe says, not what the checkpoint suggests
        # Without a limit for videos vLLM sets memory aside for them.
        "limit_mm_per_prompt": {"image": recipe.get("pages_per_unit") or 1, "video": 0},
        "max_num_seqs": 256,
        # No two pages are alike, so both caches would only cost time and memory.
        "enable_prefix_caching": False,
        "mm_processor_cache_gb": 0,
        **recipe.get("engine_args", {}),
    }
    chosen = ("revision", "max_model_len", "gpu_memory_utilization")
    return args | {key: getattr(options, key) for key in chosen if getattr(options, key) is not None}


def cli_args(args):
    """Arguments of `vllm serve` for the keyword arguments of `vllm.LLM`: the model, then one flag per keyword."""
    words = [args["model"]]
    for key, value in args.items():
        flag = "--" + key.replace("_", "-")
        if key == "model" or value is None:
            continue
        if value is False:
            words.append("--no-" + flag[2:])
        elif value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def chat_arguments(recipe):
    """How messages become a prompt: `chat_template_content_format`, and `chat_template_kwargs` if there are any."""
    chat = recipe.get("chat", {})
    arguments = {"chat_template_content_format": chat.get("content_format", "auto")}
    return arguments | ({"chat_template_kwargs": chat["template_kwargs"]} if chat.get("template_kwargs") else {})


def messages_with(messages, picture):
    """The messages with each image part replaced by `picture(image)`."""
    return [
        {**message, "content": [picture(part["image"]) if part["type"] == "image" else part for part in content]}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def sampling_params(body):
    """`vllm.SamplingParams` of an OpenAI chat body, with the server's meaning of every key.

    Raises TypeError or ValueError for a key or value that vLLM does not know.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    values = {key: value for key, value in body.items() if key not in ("messages", *PROMPT_KEYS)}
    top = values.pop("top_logprobs", 0)
    values["logprobs"] = top if values.pop("logprobs", False) else None
    values["extra_args"] = values.pop("vllm_xargs", None)
    if values.get("structured_outputs"):
        values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
    if values.get("repetition_detection"):
        from vllm.sampling_params import RepetitionDetectionParams  # not in the oldest versions

        values["repetition_detection"] = RepetitionDetectionParams(**values["repetition_detection"])
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **values)


PROMPT_KEYS = ("chat_template_kwargs", "mm_processor_kwargs", "add_generation_prompt", "continue_final_message")


def window_size(options, recipe, engines=1):
    """Most units in flight: twice what the engines compute at once, or what a quarter of the host's memory holds."""
    bounds = image_bounds(options, recipe)
    side = bounds.get("max_side")
    pixels = bounds.get("max_pixels") or (side * side if side else UNBOUNDED_PIXELS)
    args = engine_args(options, recipe)
    unit = BYTES_PER_PIXEL * pixels * args["limit_mm_per_prompt"].get("image", 0)
    return options.window or max(1, min(2 * args["max_num_seqs"] * engines, host_memory() // 4 // max(unit, 1)))


def host_memory():
    """Bytes of memory that this process may use: the container's limit where there is one."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(memory, int(text)) if text.isdecimal() else memory


def preflight_vllm(options, recipe):
    """Checks, before anything is downloaded, that this machine can run this model as asked. Raises Stop."""
    if options.endpoint or recipe.get("server_command"):
        return
    set_environment(recipe)
    args = engine_args(options, recipe)
    cards = needed_gpus(recipe["name"])  # first: where there is none, no vLLM need be fetched
    package = check_version(recipe)
    config = model_config(options)
    check_code(args, config, package)
    check_lengths(options, recipe, config)
    weights, missing = weight_bytes(options)
    check_room(args, cards, weights, missing)
    if options.engine == "offline" and not options.engine_given and (engines := engine_count(options, recipe)) > 1:
        options.engine = "serve"
        say(f"{len(cards)} GPUs: engine serve keeps {engines} copies of the model busy; --engine offline is for one.")


def check_version(recipe):
    """The folder of the vLLM package that will run. Raises Stop if there is none or the recipe does not fit it."""
    from packaging.version import Version

    window, python = recipe.get("vllm", {}), recipe.get("server_python", sys.executable)
    tested = window.get("tested") or window.get("min")
    own = f"uv run --with vllm=={tested} {this_command()}"
    if recipe.get("server_python"):  # this vLLM and this script's packages do not go into one environment
        own = (
            f"docker run --gpus all -p 8000:8000 --entrypoint vllm vllm/vllm-openai:v{tested} "
            f"serve {recipe['model']} --max-model-len {recipe.get('max_model_len')} --generation-config vllm\n"
            f"  uv run {this_command()} --endpoint http://localhost:8000/v1"
        )
    remedy = (
        f"On your own GPU:\n  {own}\n"
        f"On a managed one, in the image that the script names:\n{on_jobs()}\n"
        "Without a GPU there are pp-ocrv6.py and tesseract-ocr.py."
    )
    probe = (
        "import importlib.metadata, importlib.util;"
        "print(importlib.metadata.version('vllm'), importlib.util.find_spec('vllm').submodule_search_locations[0])"
    )
    try:
        output = subprocess.run(
            [python, "-c", probe], env=server_environment(recipe), capture_output=True, text=True, timeout=120
        ).stdout
    except OSError:
        raise Stop(f"This model runs on vLLM {tested} under {python}, which is not there. {remedy}") from None
    version, _, package = output.strip().partition(" ")
    if not version:
        raise Stop(f"vLLM is not installed for {python}. {remedy}")
    found, excluded = Version(version), window.get("exclude", {})
    wrong = found.public in excluded or found < Version(window.get("min", "0"))
    if wrong or (window.get("below") and found >= Version(window["below"])):
        bounds = " and ".join(f"{word} {window[word]}" for word in ("min", "below") if window.get(word))
        reason = excluded.get(found.public, "") or window.get("reason", "")
        raise Stop(
            f"vLLM {version} is installed; {recipe['name']} runs on {bounds or 'others'}"
            + (f" except {', '.join(excluded)}" if excluded else "")
            + (f" ({reason})" if reason else "")
            + f". {remedy}"
        )
    return Path(package)


def engine_count(options, recipe):
    """How many copies of the model the GPUs here hold, one for each `tensor_parallel_size` of them; at least 1."""
    return max(1, len(gpus()) // (engine_args(options, recipe).get("tensor_parallel_size") or 1))


def model_config(options):
    """The model's config.json, from its folder or the Hub."""
    from huggingface_hub import hf_hub_download

    try:
        if os.path.isdir(options.model):
            path = os.path.join(options.model, "config.json")
        else:
            path = hf_hub_download(options.model, "config.json", revision=options.revision)
        return json.loads(Path(path).read_text())
    except Exception as problem:
        where = options.model + (f" at revision {options.revision}" if options.revision else "")
        raise Stop(
            f"The config.json of {where} cannot be read: {str(problem).strip().splitlines()[0]} "
            "Check --model and --revision; for a gated model accept its terms on the Hub and run `hf auth login`."
        ) from problem


def check_code(args, config, package):
    """Raises Stop if the installed vLLM does not know the model's class, or lacks a logits processor."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    wanted = args.get("hf_overrides", {}).get("architectures") or config.get("architectures") or []
    known = (package / "model_executor" / "models" / "registry.py").read_text()
    if wanted and not any(f'"{name}"' in known for name in wanted) and args.get("model_impl") != "transformers":
        if not entry_points(group="vllm.general_plugins"):
            raise Stop(
                f"The installed vLLM has no model class {' or '.join(wanted)}, which {args['model']} asks for. "
                "Check --model, or use the vLLM version that the recipe was tested with."
            )
    for name in args.get("logits_processors", []):
        module, _, attribute = name.partition(":")
        top, *rest = module.split(".")
        # A package of the script's own lies beside the script's other packages, not beside the image's vLLM.
        own = top != "vllm" and find_spec(top)
        folders = [package if top == "vllm" else package.parent / top]
        folders += map(Path, (own and own.submodule_search_locations) or ())
        paths = [p for f in folders for p in (f.joinpath(*rest, "__init__.py"), f.joinpath(*rest).with_suffix(".py"))]
        if not any(attribute in path.read_text() for path in paths if path.exists()):
            raise Stop(f"The logits processor {name} is not installed beside vLLM in {package.parent}.")


def true_context(config):
    """Tokens that the model was built for, from its config.json; None where it does not say."""
    parts = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    text = next((part for part in parts if isinstance(part, dict)), config)
    keys = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
    length = next((text[key] for key in keys if text.get(key)), None)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor") or 1
    if length and kind == "yarn":  # the length is the scaled one already in most checkpoints, the original in some
        return max(length, int(factor * rope.get("original_max_position_embeddings", 0)))
    return length and int(length * (factor if kind in ("linear", "dynamic") else 1))


def check_lengths(options, recipe, config):
    """Raises Stop unless image, prompt and answer fit --max-model-len and that fits the model."""
    context = true_context(config) or recipe.get("context")
    length = options.max_model_len or context
    if context and length > context:
        raise Stop(
            f"--max-model-len {length} is more than the {context} tokens that {options.model} was built for. "
            f"Use --max-model-len {context} or less."
        )
    prompt = max((len(text.encode()) for text in (recipe.get("tasks") or {}).values()), default=0) // 3 + 64
    images = engine_args(options, recipe)["limit_mm_per_prompt"].get("image", 0)
    needed = prompt + (recipe.get("image_tokens") or 0) * images
    if length and options.max_tokens + needed > length:
        room = length - needed
        advice = f"--max-tokens {room}" if room >= 256 else f"--max-model-len {needed + options.max_tokens}"
        raise Stop(
            f"--max-tokens {options.max_tokens} and up to {needed} tokens of image and prompt do not fit "
            f"--max-model-len {length}: long pages would be cut off. Use {advice}."
        )


def weight_bytes(options):
    """(bytes of the model's weight files, bytes of those not on this disk yet); zeros where nobody says."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    if os.path.isdir(options.model):
        files = [(path.name, path.stat().st_size, True) for path in Path(options.model).iterdir()]
    else:
        try:
            info = HfApi().model_info(options.model, revision=options.revision, files_metadata=True)
        except Exception:  # no network: what is in the cache is all there is, and vLLM will say what it misses
            return 0, 0
        names = {file.rfilename: file.size or 0 for file in info.siblings}
        here = {n: isinstance(try_to_load_from_cache(options.model, n, revision=info.sha), str) for n in names}
        files = [(name, size, here[name]) for name, size in names.items()]
    for suffix in (".safetensors", ".bin", ".pt"):
        weights = [(size, here) for name, size, here in files if name.endswith(suffix)]
        if weights:
            return sum(size for size, _ in weights), sum(size for size, here in weights if not here)
    return 0, 0


def check_room(args, cards, weights, missing):
    """Raises Stop if the weights fit neither the disk nor the GPU; warns when the GPU is nearly full."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = next(path for path in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if path.exists())
    free = shutil.disk_usage(cache).free
    if missing and free < missing + GIB // 2:
        raise Stop(
            f"The weights need {missing / GIB:.1f} GiB and {cache} has {free / GIB:.1f} GiB left. "
            "Make room, or set HF_HOME to a folder on a larger disk."
        )
    if not cards:
        return
    free, total = min(cards)
    share = args.get("gpu_memory_utilization") or 0.9
    if share * total > free:
        raise Stop(
            f"The GPU has {free / GIB:.1f} of {total / GIB:.1f} GiB free and vLLM would take {share:.0%} of it. "
            f"End what else runs there, or use --gpu-memory-utilization {int(free / total * 100) / 100:.2f}."
        )
    budget = share * total * (args.get("tensor_parallel_size") or 1)
    if weights >= budget and not args.get("cpu_offload_gb"):
        raise Stop(
            f"{args['model']} has {weights / GIB:.1f} GiB of weights and the GPU gives {budget / GIB:.1f} GiB. "
            "Use a larger GPU (on Jobs: --flavor)."
        )
    if budget - weights < 3 * GIB:
        say(
            f"Little GPU memory: {weights / GIB:.1f} GiB of weights in {budget / GIB:.1f} GiB leaves few pages in "
            "flight. If the start fails, use a lower --max-model-len or a larger GPU."
        )
