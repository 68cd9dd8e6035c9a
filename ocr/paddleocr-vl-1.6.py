# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "datasets>=5.2.0",
#     "huggingface_hub>=2.4.0",
#     "pillow>=11",
#     "pypdfium2>=5.0",
#     "saturate>=0.2.0",
# ]
#
# [tool.hf-jobs]
# # The tag of the newest public recipe; the model's class is in vLLM since 0.11.1 and still in 0.33. Loosen to any
# # later tag once pages were read on it. vllm, torch and transformers come from the image.
# image = "vllm/vllm-openai:v0.29.0"
# flavor = "a10g-small"
# python = "/usr/bin/python3"
# env = { PYTHONPATH = "/usr/local/lib/python3.12/dist-packages" }
# secrets = ["HF_TOKEN"]
# timeout = "8h"
# ///
"""PaddleOCR-VL-1.6: text, tables, formulas, charts, seals, or lines with boxes, one kind per run (0.9B).

    hf jobs uv run ocr/paddleocr-vl-1.6.py user/scans user/scans-ocr
    uv run --with vllm==0.29.0 ocr/paddleocr-vl-1.6.py user/tables user/tables-ocr --task table

A CLI that reads no [tool.hf-jobs] needs: --image vllm/vllm-openai:v0.29.0 --python /usr/bin/python3
-e PYTHONPATH=/usr/local/lib/python3.12/dist-packages --flavor a10g-small -s HF_TOKEN

A server of your own (--endpoint) needs: --trust-remote-code --max-num-batched-tokens 16384
--mm-processor-kwargs '{"min_pixels": 112896, "max_pixels": 2822400}'

Hardware: one GPU with 16 GB or more.
Output: `markdown`: of ocr and seal plain text, of formula LaTeX, of table HTML, of chart a Markdown table; of spotting
the lines, and `paddleocr_vl_blocks`, their boxes. The model was made to read one element that a layout model has cut
out of the page, and its published scores are those of that pipeline: on whole pages it works, without headings, and it
is weak on old scans. A loop is cut as in the authors' client; such rows have `trimmed` in `ocr_flags`.
Licence: Apache-2.0 (model).
Sources: https://huggingface.co/PaddlePaddle/PaddleOCR-VL-1.6 , https://github.com/PaddlePaddle/PaddleX ,
arXiv 2606.03264
"""

import sys

# Sources below: "PaddleX" is the pipeline paddleocr_vl of paddlex 3.7.2; "vLLM" its recipe page for the model.
RECIPE = {
    "name": "paddleocr-vl-1.6",
    "model": "PaddlePaddle/PaddleOCR-VL-1.6",  # card
    "revision": None,  # card gives none
    "engine": "vllm",
    "vllm": {"min": "0.23.0", "tested": "0.29.0"},  # 0.23: the first with the calls that engine offline makes
    "context": 131072,  # config.json, max_position_embeddings
    "max_model_len": 8192,  # 3600 tokens of image, 4096 of answer, the prompt
    "max_tokens": 4096,  # PaddleX
    "image_tokens": 3600,  # worst case: max_pixels below, 28 x 28 each
    "tasks": {  # PaddleX and vLLM
        "ocr": "OCR:",
        "table": "Table Recognition:",
        "formula": "Formula Recognition:",
        "chart": "Chart Recognition:",
        "spotting": "Spotting:",
        "seal": "Seal Recognition:",
    },
    "task": "ocr",
    "sampling": {"temperature": 0.0},  # PaddleX
    # vLLM's flags; public scripts add enforce_eager, for which nobody gives a reason. The bounds: the processor would
    # otherwise reduce pages to the checkpoint's own, which are for elements.
    "engine_args": {
        "trust_remote_code": True,
        "max_num_batched_tokens": 16384,
        "mm_processor_kwargs": {"min_pixels": 112896, "max_pixels": 2822400},
        "gpu_memory_utilization": 0.8,
    },
    # PaddleX's processor default. Its pipeline takes 1003520, for elements: a page would come down to 840 x 1190.
    "image": {"max_pixels": 2822400},
    "body_format": "png",  # PNG loses nothing, so that both engines read the same pixels
    "output_column": "markdown",
    "blocks_column": "paddleocr_vl_blocks",
}

SPOTTING_PIXELS = 1605632  # PaddleX, for the task spotting


def add_options(parser):
    add = parser.add_argument
    add("--max-pixels", type=positive, default=RECIPE["image"]["max_pixels"],
        help="larger pages are reduced to this (default %(default)s, also the engine's limit)")  # fmt: skip
    add("--no-smart-resize", dest="max_pixels", action="store_const", const=0,
        help="send pages in full size; the model's processor reduces them")  # fmt: skip
    add("--otsl", action="store_true", help="leave tables in OTSL, as the model writes them")


def request(page, options):
    image = {"type": "image"}
    if options.task == "spotting":
        image["image"] = spotting_image(page.image, options.max_pixels)
    prompt = {"type": "text", "text": RECIPE["tasks"][options.task]}
    body = {"messages": [{"role": "user", "content": [image, prompt]}]}
    # The places of the task spotting are special tokens.
    return body | ({"skip_special_tokens": False} if options.task == "spotting" else {})


def spotting_image(image, max_pixels):
    """The page as PaddleX shows it for spotting: small ones doubled, then within that task's own bound."""
    from PIL import Image

    if max(image.size) < 1500:
        image = image.resize((2 * image.width, 2 * image.height), Image.Resampling.LANCZOS)
    return fit(image, {"max_pixels": min(max_pixels, SPOTTING_PIXELS)})


def parse(answer, page, options):
    text = answer.text.strip().removesuffix("</s>").strip()
    kept = trim_paddle_loop(text, options.task == "table")
    flags = [] if kept == text else ["trimmed"]
    if options.task != "spotting":
        return Parsed(paddle_markdown(kept, options.task, options.otsl), flags=flags)
    lines = spotted_lines(kept)
    boxed = any(corners for _, corners in lines)
    blocks = blocks_document(page, spotted_blocks(lines), (1000, 1000)) if boxed else None
    markdown = "\n\n".join(said for said, _ in lines if said)
    return Parsed(markdown, blocks, flags=flags + (["unparsed"] if lines and not boxed else []))


# >>> shared part: auto


if __name__ == "__main__":
    sys.exit(
        main(
            RECIPE,
            engines={"offline": offline, "serve": serve},
            request=request,
            parse=parse,
            add_options=add_options,
            preflight=preflight_vllm,
        )
    )
