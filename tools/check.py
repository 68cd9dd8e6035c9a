"""Checks that every file in ocr/ keeps the conventions; prints `ocr/x.py:LINE: what is wrong; what to do`.

    python3 tools/check.py              all files, and that stamped regions and docs are up to date
    python3 tools/check.py ocr/x.py ... these files

Exits 1 where something was found. A file with a RECIPE table is a recipe and keeps every rule; the tools beside the
recipes keep those about the header, imports, docstring and text. Needs Python 3.11 and nothing else.
"""

import argparse
import ast
import builtins
import re
import sys
import tomllib
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import sync  # noqa: E402

# The keys of [tool.hf-jobs] that huggingface_hub 2.4.0 accepts; another key makes its CLI refuse the file.
JOB_KEYS = {
    "image": str,
    "flavor": str,
    "python": str,
    "timeout": (str, int),
    "name": str,
    "namespace": str,
    "network_group": str,
    "network_aliases": list,
    "env": dict,
    "secrets": list,
    "labels": dict,
    "volumes": list,
}
SECTIONS = ("Hardware", "Output", "Licence", "Source")
# Values that are this collection's own choice and have no source.
OWN_VALUES = {"name", "engine", "task", "output_column", "blocks_column", "columns"}
# What the installed package is called where it differs from what is imported.
PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "docx": "python-docx",
    "fpdf": "fpdf2",
    "google": "google-genai",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
COMES_WITH = {
    "datasets": {"huggingface-hub", "pyarrow", "fsspec", "numpy", "pandas", "packaging"},
    "huggingface-hub": {"fsspec", "packaging", "httpx2"},
    "saturate": {"httpx2", "pyarrow", "fsspec"},
    "rapidocr": {"numpy", "pillow"},
    "vllm": {"torch", "transformers", "numpy", "pillow"},
    "gradio": {"huggingface-hub", "numpy", "pandas", "pillow"},
}
# Decoders of rare formats: kit/pages.py says how to add them where a page needs one.
OPTIONAL = {"imagecodecs", "pillow-heif"}
ON_THE_IMAGE = {"vllm", "sglang", "torch", "transformers"}
NEW_IN_311 = ("UTC", "StrEnum", "Self", "Never", "assert_never", "TaskGroup", "ExceptionGroup", "chdir")
# Packages that a file of the same name would hide from the recipe or from the model's own code.
SHADOWED = {"chandra", "docling", "glmocr", "lift", "marker", "mineru", "paddleocr", "saturate", "surya", "tesserocr"}
# `PYTHONPATH` of an image older than this breaks the driver's own packages, so there only the server uses the image.
OLDEST_SHARED_IMAGE = (0, 23)
HEADER = re.compile(r"^# /// script\n(?P<body>(?:#(?: .*)?\n)+)# ///$", re.MULTILINE)
REGION = re.compile(r"^# >>> (kit/\w+\.py)$.*?^# <<< \1$\n", re.MULTILINE | re.DOTALL)
PIN = re.compile(r"===?|~=|!=|<=?|@|git\+")
REASON = re.compile(r"\b(loosen|until|once|when|drop|lift|remove)", re.IGNORECASE)


# What no file may contain: (pattern, what is wrong, what to do).
TEXTS = (
    (re.compile(r":/data\b(?!/)"), "mounts on /data, which jobs reserve", "mount on /in and /out"),
    (
        re.compile(r"\[(?:[A-Z0-9]+ )?(?:ERROR|FAILED|EMPTY)\]"),
        "writes a sentinel text",
        "leave text null and say why in ocr_error",
    ),
    (
        re.compile(r"HF_HUB_ENABLE_HF_TRANSFER"),
        "names HF_HUB_ENABLE_HF_TRANSFER, which does nothing any more",
        "remove it",
    ),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), "holds what looks like a token", "remove it and revoke the token"),
)


class Facts(NamedTuple):
    """What the rules need to know of a piece of Python."""

    imports: list  # (line, module, whether inside a function, whether a missing package is caught)
    strings: set
    calls: set
    names: set  # of functions and classes at top level
    late: list  # (line, variable of vLLM) below an import of vllm in the same function


def facts_of(tree):
    """Facts of a piece of Python. `inside` is the line of the outermost function around a node, or 0."""
    imports, strings, calls, late = [], set(), set(), []

    def visit(node, inside, caught):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom):
                imports.append((child.lineno, "." * child.level + (child.module or ""), inside, caught))
            elif isinstance(child, ast.Import):
                imports.extend((child.lineno, alias.name, inside, caught) for alias in child.names)
            elif isinstance(child, ast.Constant) and isinstance(child.value, str):
                strings.add(child.value)
                if child.value.startswith("VLLM_") and inside:
                    above = [line for line, module, *_ in imports if line > inside and module.split(".")[0] == "vllm"]
                    late.extend([(child.lineno, child.value)] if above else [])
            elif isinstance(child, ast.Call) and isinstance(child.func, ast.Name):
                calls.add(child.func.id)
            optional = isinstance(child, ast.Try | ast.With) and "ImportError" in ast.dump(child)
            function = isinstance(child, ast.FunctionDef | ast.Lambda)
            visit(child, inside or (child.lineno if function else 0), caught or optional)

    visit(tree, 0, False)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return Facts(imports, strings, calls, names, late)


@cache
def facts_of_region(text):
    """Facts of one stamped module: the same text in every recipe, so it is read once."""
    return facts_of(ast.parse(text))


class File:
    """One file of ocr/. `tree` and `facts` are those of its own text; `regions` has the stamped modules.

    `entry` is its catalogue entry or None.
    """

    def __init__(self, shown, text, entry=None):
        self.shown, self.text, self.entry = shown, text, entry
        self.name = shown.rpartition("/")[2]
        self.stem = self.name.removesuffix(".py")
        self.lines = text.splitlines()
        # The shared part is blanked rather than cut, so that line numbers stay those of the file.
        self.own = REGION.sub(lambda found: "\n" * found[0].count("\n"), text)
        self.tree = ast.parse(self.own)
        self.facts = facts_of(self.tree)
        self.docstring = ast.get_docstring(self.tree) or ""

    def line_of(self, needle, default=1):
        """Number of the first line that contains the text."""
        return next((number for number, line in enumerate(self.lines, 1) if needle in line), default)

    @cached_property
    def regions(self):
        """(line number, facts) of each stamped module."""
        return [
            (self.text.count("\n", 0, found.start()) + 1, facts_of_region(found[0]))
            for found in REGION.finditer(self.text)
        ]

    @cached_property
    def header(self):
        """The metadata block as a dict; {} where it is missing or broken, which `header_parses` reports."""
        found = HEADER.search(self.text)
        try:
            return tomllib.loads(re.sub(r"(?m)^# ?", "", found["body"])) if found else {}
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def job(self):
        return self.header.get("tool", {}).get("hf-jobs", {})

    @cached_property
    def header_lines(self):
        """(line number, text) of the metadata block."""
        found = HEADER.search(self.text)
        first = self.text.count("\n", 0, found.start()) + 1 if found else 0
        return list(enumerate(found[0].splitlines(), first)) if found else []

    @cached_property
    def table(self):
        """The dict node of RECIPE, or None."""
        try:
            return sync.recipe_node(self.tree, self.shown)
        except sync.Problem:
            return None

    @cached_property
    def recipe(self):
        """RECIPE as a dict; {} where the file is no recipe or the table is not literal."""
        try:
            return ast.literal_eval(self.table) if self.table else {}
        except (ValueError, TypeError):
            return {}

    @cached_property
    def is_recipe(self):
        return bool(re.search(r"(?m)^RECIPE = ", self.own))

    @cached_property
    def functions(self):
        return {node.name for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def dependencies(self):
        """Normalised names of the declared dependencies."""
        return {normal(re.match(r"[\w.-]+", spec)[0]) for spec in self.header.get("dependencies", [])}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def comment_on(line):
    """The comment of one line of Python, or "". Strings that contain a hash are told apart by their quotes."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', "", line)
    return bare.partition("#")[2].strip()


# ---- Rules: generators of (line, what is wrong, what to do)


def header_parses(file):
    found = list(HEADER.finditer(file.text))
    if len(found) != 1:
        yield 1, f"has {len(found)} metadata blocks", "open the file with one `# /// script` ... `# ///` block"
        return
    try:
        header = tomllib.loads(re.sub(r"(?m)^# ?", "", found[0]["body"]))
    except tomllib.TOMLDecodeError as error:
        yield file.line_of("# /// script"), f"metadata is not TOML ({error})", "correct the block"
        return
    for key in ("requires-python", "dependencies"):
        if key not in header:
            yield file.line_of("# /// script"), f"metadata lacks `{key}`", "add it"
    for other in set(header.get("tool", {})) - {"hf-jobs", "uv"}:
        line = file.line_of(f"tool.{other}")
        yield line, f"`[tool.{other}]` is read by nothing", "the jobs CLI reads `[tool.hf-jobs]`"


def header_jobs(file):
    line = file.line_of("[tool.hf-jobs]")
    for key, value in file.job.items():
        at = file.line_of(f"# {key} =", line)
        if key not in JOB_KEYS:
            yield at, f"`{key}` is no key of [tool.hf-jobs]", f"use one of {', '.join(JOB_KEYS)}"
        elif not isinstance(value, JOB_KEYS[key]):
            yield at, f"`{key}` has the wrong type ({type(value).__name__})", "env and labels are tables, secrets names"
        elif key in ("env", "labels") and not all(isinstance(item, str) for item in value.values()):
            yield at, f"`{key}` holds a value that is no string", "quote it"
    if not file.is_recipe or not file.header:
        return
    wanted = {"flavor", "secrets", "timeout"}
    if file.recipe.get("engine") == "vllm":
        wanted |= {"image"} if "server_python" in file.recipe else {"image", "python", "env"}
    for key in sorted(wanted - set(file.job)):
        yield line, f"[tool.hf-jobs] lacks `{key}`", "add it, so that the bare `hf jobs uv run` command is enough"
    if "secrets" in file.job and "HF_TOKEN" not in file.job["secrets"]:
        yield file.line_of("# secrets", line), "`secrets` lacks HF_TOKEN", "add it: the job reads and writes the Hub"


def header_image(file):
    image = file.job.get("image")
    if not isinstance(image, str):
        return
    line = file.line_of("# image =")
    if "@sha256:" not in image and (":" not in image.rpartition("/")[2] or re.search(r":(latest|nightly)$", image)):
        yield line, f"image `{image}` moves", "pin a version tag or a digest"
    tag = re.match(r"vllm/vllm-openai:v(\d+)\.(\d+)", image)
    alone = "server_python" in file.recipe
    if not alone and tag and (int(tag[1]), int(tag[2])) < OLDEST_SHARED_IMAGE:
        yield (
            line,
            f"the old packages of `{image}` would hide the script's own, which breaks datasets",
            "leave python and PYTHONPATH out, and give RECIPE `server_python`: the image's interpreter for the server",
        )
    elif alone and {"python", "PYTHONPATH"} & {*file.job, *file.job.get("env", {})}:
        yield line, "`server_python` keeps the image's packages apart, PYTHONPATH mixes them in", "leave one out"
    elif not alone and not ("python" in file.job and "PYTHONPATH" in file.job.get("env", {})):
        yield line, "an image without `python` and `PYTHONPATH` hides its packages from the script", "add both"
    if file.is_recipe and not alone:
        for part in (image, "PYTHONPATH"):
            if part not in file.docstring:
                yield (
                    1,
                    f"the docstring does not name `{part}`",
                    "give the flags for a CLI that reads no [tool.hf-jobs]",
                )


def header_pins(file):
    """A pin carries its reason and what loosens it in a comment on its line or just above."""
    above = ""
    for number, line in file.header_lines:
        inner = line.removeprefix("#").strip()
        if inner.startswith("#"):
            above += " " + inner
            continue
        spec = re.match(r'["\']([\w.-]+(?:\[[\w,-]+\])?)\s*([^"\']*)["\'],?', inner)
        image = re.match(r'image\s*=\s*"([^"]+)"', inner)
        comment = f"{above} {comment_on(inner)}".strip()
        pinned = spec and PIN.search(spec[2].partition(";")[0])
        if pinned and normal(spec[1].partition("[")[0]) == "pyarrow" and "<" in spec[2]:
            yield (
                number,
                f"`{spec[1]}{spec[2]}` caps pyarrow, which breaks the Json feature of datasets",
                "drop the cap",
            )
        elif (pinned or image) and not comment:
            what = f"{spec[1]}{spec[2]}" if spec else f"image {image[1]}"
            yield number, f"`{what}` is pinned without a reason", "say why, and what would loosen it, in a comment"
        elif (pinned or image) and not REASON.search(comment):
            what = f"{spec[1]}{spec[2]}" if spec else f"image {image[1]}"
            yield number, f"the comment on `{what}` does not say what loosens it", "add `loosen when ...`"
        above = ""


def text(file):
    for pattern, what, do in TEXTS:
        for found in pattern.finditer(file.text):
            yield file.text.count("\n", 0, found.start()) + 1, what, do


def imports_stand_alone(file):
    for line, module, inside, _ in file.facts.imports:
        top = module.split(".")[0]
        if module.startswith(".") or top in ("kit", "tools", "ocr"):
            yield line, f"imports `{module}`, which is not there when the file runs from a URL", "stamp or copy it"
        elif not inside and top not in sys.stdlib_module_names:
            yield (
                line,
                f"imports `{module}` at top level, so --help pays for it",
                "import it inside the function using it",
            )


def python_floor(file):
    """Nothing newer than the oldest Python that the metadata allows."""
    if ">=3.10" not in file.header.get("requires-python", ""):
        return
    imported = re.compile(rf"^ *from (\w+) import .*\b({'|'.join(NEW_IN_311)})\b|^ *import (tomllib)$", re.MULTILINE)
    for found in imported.finditer(file.text):
        line = file.text.count("\n", 0, found.start()) + 1
        yield line, f"`{found[2] or found[3]}` came with Python 3.11", "write it for 3.10, or raise requires-python"


def imports_declared(file):
    if not file.header:
        return
    known = set(file.dependencies)
    for name in file.dependencies:
        known |= COMES_WITH.get(name, set())
    if "image" in file.job or {"vllm", "server_python"} & set(file.recipe) or file.recipe.get("engine") == "vllm":
        known |= ON_THE_IMAGE
    known |= OPTIONAL
    found = list(file.facts.imports)
    for at, facts in file.regions:
        found += [(at, module, inside, caught) for _, module, inside, caught in facts.imports]
    for line, module, inside, caught in found:
        top = module.split(".")[0]
        package = normal(PACKAGES.get(top, top))
        if not inside or caught or top in sys.stdlib_module_names or top in ("", "kit", "tools", "ocr"):
            continue
        if package not in known:
            known.add(package)
            yield line, f"imports `{module}`, which the metadata does not declare", f"add `{package}` to dependencies"


def guards(file):
    """Switches of vLLM are read when it is imported."""
    for at, facts in [(None, file.facts), *file.regions]:
        for line, name in facts.late:
            yield at or line, f"`{name}` is set after vllm was imported", "set it before"
    if file.recipe.get("engine") == "vllm":
        if not any("VLLM_USE_FLASHINFER_SAMPLER" in facts.strings for _, facts in file.regions):
            yield 1, "never sets VLLM_USE_FLASHINFER_SAMPLER", "stamp the module that sets it before vllm is imported"


def file_name(file):
    if file.stem in SHADOWED | set(sys.stdlib_module_names) or normal(file.stem) in file.dependencies:
        yield (
            1,
            f"`{file.name}` hides the package `{file.stem}` from itself",
            "name the file <model>-ocr.py or the like",
        )


def docstring(file):
    line = next((n.lineno for n in file.tree.body[:1] if isinstance(n, ast.Expr)), 1)
    if not file.docstring:
        yield line, "has no docstring", "add one: title, one command, Hardware, Output, Licence, Source"
        return
    first = file.docstring.splitlines()[0]
    if not re.match(r"[^:]{2,60}: \S", first):
        yield line, f"the docstring opens with `{first[:60]}`", "open it with `<Title>: <what comes out>`"
    if not re.search(rf"(?m)^.*\brun\b.*\b{re.escape(file.name)}\b", file.docstring):
        yield line, f"the docstring shows no command with `{file.name}`", f"add `uv run ocr/{file.name} INPUT OUTPUT`"
    if file.is_recipe:
        for section in SECTIONS:
            if not re.search(rf"(?m)^{section}s?:? ", file.docstring):
                yield line, f"the docstring does not say `{section}: ...`", "add the line"


def recipe_literal(file):
    if not file.is_recipe:
        return
    line = file.line_of("RECIPE =")
    try:
        ast.literal_eval(file.table)
    except (ValueError, TypeError):
        yield line, "RECIPE is no literal table", "write the values out; `ast.literal_eval` must read it"
        return
    for key in ("name", "model", "engine", "image", "output_column"):
        if key not in file.recipe:
            yield line, f"RECIPE lacks `{key}`", "add it"
    if file.recipe.get("name", file.stem) != file.stem:
        yield file.line_of('"name":', line), f"RECIPE names `{file.recipe['name']}`", f'write "name": "{file.stem}"'
    if file.recipe.get("engine") not in ("vllm", "local", None):
        yield file.line_of('"engine":', line), f"no engine `{file.recipe['engine']}`", 'write "vllm" or "local"'
    if file.recipe.get("tasks") and file.recipe.get("task") not in file.recipe["tasks"]:
        yield file.line_of('"task":', line), "the default task is not among the tasks", "name one of them"
    needed = {"vllm": ({"request", "parse"}, {"steps"}), "local": ({"load", "predict"},)}
    options = needed.get(file.recipe.get("engine"), ())
    if options and not any(names <= file.functions for names in options):
        said = " or ".join(" and ".join(sorted(names)) for names in options)
        yield line, f"engine {file.recipe['engine']} needs the functions {said}", "define them"


def recipe_sourced(file):
    """Every value has its source in a comment on its line, the line above, or on the table that holds it.

    A table with a `reason` among its values needs no comment.
    """
    if not file.table:
        return

    def sourced(key, value):
        above = file.lines[key.lineno - 2].strip()
        return above.startswith("#") or any(
            comment_on(file.lines[number - 1]) for number in {key.lineno, value.end_lineno, value.lineno}
        )

    def visit(table, path):
        for key, value in zip(table.keys, table.values, strict=True):
            name = path + [str(getattr(key, "value", "?"))]
            if name[0] in OWN_VALUES or key is None or sourced(key, value):
                continue
            if isinstance(value, ast.Dict) and any(getattr(k, "value", None) == "reason" for k in value.keys):
                continue
            if isinstance(value, ast.Dict) and value.lineno != value.end_lineno:
                yield from visit(value, name)
            else:
                yield (
                    key.lineno,
                    f"RECIPE `{'.'.join(name)}` has no source",
                    "cite it in a comment, or `card gives none`",
                )

    yield from visit(file.table, [])


def recipe_context(file):
    """max_tokens < max_model_len <= context, with room for the image where its tokens are stated."""
    recipe = file.recipe
    if recipe.get("engine") != "vllm":
        return
    line = file.line_of('"max_model_len":', file.line_of("RECIPE ="))
    for key in ("context", "max_model_len", "max_tokens"):
        if key not in recipe:
            yield file.line_of("RECIPE ="), f"RECIPE lacks `{key}`", "state it"
    context, length, tokens = (recipe.get(key) for key in ("context", "max_model_len", "max_tokens"))
    if context is None and "context" in recipe:
        at = file.line_of('"context":')
        if "not found" not in file.lines[at - 1] + file.lines[at - 2]:
            yield at, "`context` is None", "cite the config, or write `not found` in the comment"
    if length and tokens and tokens >= length:
        yield line, f"max_tokens {tokens} leaves no room in max_model_len {length}", "raise max_model_len"
    if length and context and length > context:
        yield line, f"max_model_len {length} is above the model's context {context}", "lower it"
    image = recipe.get("image_tokens")
    if length and tokens and image and tokens + image >= length:
        yield line, f"max_tokens {tokens} + image {image} does not fit max_model_len {length}", "raise max_model_len"


def recipe_bounds(file):
    if file.is_recipe and "image" in file.recipe:
        image = file.recipe["image"]
        at = file.line_of('"image":')
        if image is None and comment_on(file.lines[at - 1]):
            return
        if not image or not {"max_side", "max_pixels"} & set(image):
            yield at, "states no image bounds", "add max_side or max_pixels, or None with the reason in a comment"


def recipe_read(file):
    """A key of RECIPE that nothing reads is a typo or dead."""
    if not file.table or not file.regions:
        return
    rest = [node for node in file.tree.body if getattr(node, "value", None) is not file.table]
    read = {"image_tokens"} | facts_of(ast.Module(rest, [])).strings
    for _, facts in file.regions:
        read |= facts.strings
    for key in file.table.keys:
        if key.value not in read:
            yield key.lineno, f"nothing reads RECIPE `{key.value}`", "correct the spelling or remove it"


def recipe_shared(file):
    """The shared part is there, with the guard for output columns, and `main` gets functions that exist."""
    if not file.is_recipe:
        return
    if not sync.OPEN.search(file.text):
        yield len(file.lines), "has no shared part", "add the line `# >>> shared part: auto` and run tools/sync.py"
        return
    if not any("check_columns" in facts.calls for _, facts in file.regions):
        line = file.line_of("# >>> shared part")
        yield line, "never calls check_columns, the guard for output columns that exist", "stamp cli and publish"
    call = sync.main_call(file.tree)
    if not call:
        yield len(file.lines), "does not call main", 'end with `if __name__ == "__main__": main(...)`'
        return
    imported = [node for node in file.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    defined = sync.top_level_names(file.own, file.shown) | {i.binds for i in sync.imports_of(imported)}
    for _, facts in file.regions:
        defined |= facts.names
    for node in ast.walk(call):
        if isinstance(node, ast.Name) and node.id not in defined and not hasattr(builtins, node.id):
            yield node.lineno, f"passes `{node.id}` to main, which is not defined", "define it or leave it out"


def default_engine(file):
    """The first of the engines given to `main`."""
    engines = sync.engines_node(file.tree)
    return engines.keys[0].value if engines and engines.keys else None


def vllm_words(window):
    """The window of vLLM versions as the catalogue writes it, or None."""
    if not isinstance(window, dict):
        return window or None
    words = [f"{sign}{window[key]}" for key, sign in (("min", ">="), ("below", "<")) if window.get(key)]
    return ", ".join(words + [f"!={version}" for version in window.get("exclude", ())])


def catalogue(file):
    """The entry of models.json says what the file says."""
    if not file.is_recipe or not file.recipe:
        return
    entry = file.entry
    if not entry:
        yield 1, f"has no entry `{file.stem}` in models.json", "add one"
        return
    served = ("vllm", "sglang", "own") if file.recipe.get("server_command") else ("vllm",)
    backend = {"vllm": served, "local": ("transformers", "onnx", "own", "sglang")}.get(file.recipe.get("engine"))
    pairs = [
        ("model", file.recipe.get("model"), file.line_of('"model":')),
        ("revision", file.recipe.get("revision"), file.line_of('"revision":')),
        ("blocks_column", file.recipe.get("blocks_column"), file.line_of('"blocks_column":')),
        ("image", file.job.get("image"), file.line_of("# image =")),
        ("flavor", file.job.get("flavor"), file.line_of("# flavor =")),
        ("vllm", vllm_words(file.recipe.get("vllm")), file.line_of('"vllm":')),
        ("engine_default", default_engine(file), file.line_of("engines=", len(file.lines))),
        ("title", file.docstring.partition(":")[0], file.line_of('"""')),
    ]
    for key, found, line in pairs:
        if entry.get(key) != found:
            yield line, f"{key} is {found!r}, models.json says {entry.get(key)!r}", "make them agree"
    if backend and entry.get("backend") not in backend:
        yield file.line_of('"engine":'), f"models.json says backend {entry.get('backend')!r}", "make them agree"
    tasks = list(file.recipe.get("tasks") or {})
    if tasks and sorted(entry.get("tasks") or []) != sorted(tasks):
        yield file.line_of('"tasks":'), f"tasks are {tasks}, models.json says {entry.get('tasks')}", "make them agree"
    said = re.search(r"(?m)^Licence:? .*", file.docstring)
    if said and entry.get("licence", "") not in said[0]:
        yield file.line_of("Licence"), f"models.json says licence {entry.get('licence')!r}", "make them agree"


RULES = (
    header_parses,
    header_jobs,
    header_image,
    header_pins,
    imports_stand_alone,
    python_floor,
    imports_declared,
    guards,
    text,
    file_name,
    docstring,
    recipe_literal,
    recipe_sourced,
    recipe_context,
    recipe_bounds,
    recipe_read,
    recipe_shared,
    catalogue,
)


# ---- The catalogue itself

EVIDENCE = {
    "per-language-benchmark",
    "count-claim",
    "named-list",
    "multilingual-unspecified",
    "english-only",
    "not-stated",
    "not-applicable",
}
FIELDS = {
    "name": str,
    "model": str,
    "revision": str | None,
    "title": str,
    "params": str | None,
    "backend": ("vllm", "sglang", "transformers", "onnx", "own"),
    "engine_default": ("offline", "serve", "local"),
    "image": str | None,
    "flavor": str | None,
    "vllm": str | None,
    "tasks": list,
    "output": ("markdown", "blocks", "json"),
    "blocks_column": str | None,
    "licence": str,
    "languages": dict,
    "support": ("supported", "experimental", "broken"),
    "engine_tested": list | None,
    "sources": list,
    "notes": str | None,
}
OPTIONAL_FIELDS = {"licence_note", "variant_of", "defaults", "summary", "says", "serving"}


def check_entries(entries, stems):
    """Findings about models.json; `stems` are those of the recipes in ocr/."""
    for entry in entries:
        name = entry.get("name")
        at = f"models.json:1: {name}"
        for key in set(entry) - set(FIELDS) - OPTIONAL_FIELDS:
            yield f"{at}: `{key}` is no field; correct it or add it to FIELDS in tools/check.py"
        for key, kind in FIELDS.items():
            value = entry.get(key)
            if key not in entry:
                yield f"{at}: lacks `{key}`; add it (null where unknown)"
            elif isinstance(kind, tuple) and value not in kind:
                yield f"{at}: `{key}` is {value!r}; write one of {', '.join(kind)}"
            elif not isinstance(kind, tuple) and not isinstance(value, kind):
                yield f"{at}: `{key}` is {value!r}; wrong type"
        languages = entry.get("languages") or {}
        if languages.get("evidence") not in EVIDENCE:
            yield f"{at}: language evidence {languages.get('evidence')!r}; write one of {', '.join(sorted(EVIDENCE))}"
        if languages.get("evidence") == "named-list" and not languages.get("list"):
            yield f"{at}: evidence named-list without a list; add `list`"
        if languages.get("evidence") == "count-claim" and not languages.get("count"):
            yield f"{at}: evidence count-claim without a count; add `count`"
        if name not in stems:
            yield f"{at}: no recipe ocr/{name}.py; add the file or remove the entry"
    names = [entry.get("name") for entry in entries]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"models.json:1: {name}: stands twice; remove one"


# ---- The run


def check_text(shown, text, entry=None):
    """Findings about one file, as lines of text."""
    try:
        file = File(shown, text, entry)
    except SyntaxError as error:
        return [f"{shown}:{error.lineno}: does not parse ({error.msg}); correct it"]
    return [f"{shown}:{line}: {what}; {do}" for rule in RULES for line, what, do in rule(file)]


def check(root=ROOT, only=()):
    """All findings below a root, each one line."""
    findings = []
    try:
        entries = {entry["name"]: entry for entry in sync.load_catalogue(root)}
    except sync.Problem as problem:
        return [str(problem)]
    stems = set()
    for path in sorted((root / "ocr").glob("*.py")):
        shown = f"ocr/{path.name}"
        if re.search(r"(?m)^RECIPE = ", path.read_text()):
            stems.add(path.stem)
        if not only or shown in only:
            findings += check_text(shown, path.read_text(), entries.get(path.stem))
    texts, problems = sync.plan(root, only)
    findings += problems
    findings += [f"{name}:1: is not what tools/sync.py makes; run it" for name, _, _ in sync.drift(root, texts)]
    if not only:
        findings += check_entries(entries.values(), stems)
    return findings


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files to check (default: all of ocr/, the catalogue and the docs)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    findings = check(options.root.resolve(), {f"ocr/{Path(name).name}" for name in options.files})
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings" if findings else "no findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
