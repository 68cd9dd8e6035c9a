"""Lists every version pin of the recipes, why it is there, what would loosen it, and the newest candidate.

    python3 tools/pins.py              all of ocr/
    python3 tools/pins.py ocr/x.py ... these files
    python3 tools/pins.py --offline    without asking the package index

A pin is a dependency with ==, ~=, !=, < or a direct reference, a container image, and a window of vLLM versions in
RECIPE. Prints one JSON object per line with --json. The index is the one that `pip` is configured for.
"""

import argparse
import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import check  # noqa: E402

INDEX_TIMEOUT = 20  # seconds; a package index that is there answers in one or two


def pins_of(file):
    """Yields the pins of one `check.File`: dicts of file, line, kind, package, pin, reason."""
    above = []
    for number, line in file.header_lines:
        inner = line.removeprefix("#").strip()
        if inner.startswith("#"):
            above.append(inner.strip("# "))
            continue
        spec = re.match(r'["\']([\w.-]+)(?:\[[\w,-]+\])?\s*([^"\']*)["\'],?', inner)
        image = re.match(r'image\s*=\s*"([^"]+)"', inner)
        reason = " ".join([*above, check.comment_on(inner)]).strip()
        above = []
        if image:
            yield pin(file, number, "image", image[1].partition(":")[0], image[1], reason)
        elif spec and check.PIN.search(spec[2].partition(";")[0]):
            yield pin(file, number, "dependency", check.normal(spec[1]), f"{spec[1]}{spec[2]}", reason)
    window = file.recipe.get("vllm")
    if window:
        number = file.line_of('"vllm":')
        excluded = window.get("exclude", {})
        reasons = [window.get("reason", ""), *(f"{version}: {why}" for version, why in dict(excluded).items())]
        reason = "; ".join(filter(None, reasons)) or check.comment_on(file.lines[number - 1])
        yield pin(file, number, "window", "vllm", f"vllm {check.vllm_words(window)}", reason)


def pin(file, line, kind, package, text, reason):
    return {"file": file.shown, "line": line, "kind": kind, "package": package, "pin": text, "reason": reason}


@cache
def newest(package):
    """The newest release of a package that the configured index has, or None where it cannot be asked."""
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["uvx", "pip"]
    command = [*pip, "index", "versions", package, "--disable-pip-version-check", "--retries=1"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=INDEX_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(rf"{re.escape(package)} \(([^)]+)\)", shown.stdout)
    return found[1] if found else None


def candidate(found, offline):
    """What one would try next, in words. An image of vLLM has the versions of the package."""
    package = {"vllm/vllm-openai": "vllm"}.get(found["package"], found["package"])
    if offline or "/" in package or "@" in found["pin"]:
        return "not looked up"
    return newest(package) or "not looked up"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="files to list (default: all of ocr/)")
    parser.add_argument("--offline", action="store_true", help="do not ask the package index")
    parser.add_argument("--json", action="store_true", help="print one JSON object per pin")
    options = parser.parse_args(arguments)
    count = 0
    for path in options.files or sorted((ROOT / "ocr").glob("*.py")):
        for found in pins_of(check.File(f"ocr/{path.name}", path.read_text())):
            found["newest"] = candidate(found, options.offline)
            count += 1
            if options.json:
                print(json.dumps(found, ensure_ascii=False))
            else:
                print(f"{found['file']}:{found['line']}: {found['pin']}  (newest: {found['newest']})")
                print(f"    {found['reason'] or 'NO REASON GIVEN'}")
    print(f"{count} pins", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
