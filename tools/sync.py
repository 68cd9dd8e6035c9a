"""Stamps the shared part from kit/ into ocr/*.py, and writes the tables of the docs from models.json.

    python3 tools/sync.py               rewrite what drifted and list the files
    python3 tools/sync.py ocr/x.py ...  these recipes only, no docs
    python3 tools/sync.py --check       write nothing; exit 1 with a unified diff where something drifted

A recipe asks for the shared part with one line below its model part, above its `if __name__ == "__main__":` block:

    # >>> shared part: auto                     what the file uses of kit/, and what that needs
    # >>> shared part: seam pages source cli    exactly these modules, in this order

Below that line sync owns the text down to `# <<< shared part`, and at the top the block between
`# >>> shared imports` and `# <<< shared imports`. An entry of models.json with `variant_of` and `defaults` makes
a whole file from another recipe. Needs Python 3.11 and nothing else.
"""

import argparse
import ast
import builtins
import difflib
import json
import os
import re
import shlex
import symtable
import sys
import textwrap
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NOTE = "(edited in kit/, stamped by tools/sync.py)"
OPEN = re.compile(r"^# >>> shared part:[ ]*([\w ]*?)[ ]*(\(.*)?$", re.MULTILINE)
CLOSE = "# <<< shared part\n"
IMPORTS = re.compile(r"\n*^# >>> shared imports$.*?^# <<< shared imports$\n", re.MULTILINE | re.DOTALL)
LINE_LENGTH = 120
BUILTINS = {*dir(builtins), "__file__"}


class Problem(Exception):
    """What is wrong in the sources, as `file:line: what; what to do`."""


# ---- Kit modules


class Import(NamedTuple):
    """One imported name. `name` is None for `import module`."""

    module: str
    name: str | None
    alias: str | None

    @property
    def binds(self):
        return self.alias or self.name or self.module.split(".")[0]

    def __str__(self):
        words = f"from {self.module} import {self.name}" if self.name else f"import {self.module}"
        return f"imported by `{words}{f' as {self.alias}' if self.alias else ''}`"


class Module(NamedTuple):
    """A kit module taken apart: what it defines, what it imports, and the region that is stamped."""

    stem: str
    names: frozenset
    imports: frozenset
    needs: dict
    region: str


def all_imports(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(nodes):
    """The set of `Import`s of a list of import statements."""
    found = set()
    for node in nodes:
        module = getattr(node, "module", None)
        for alias in node.names:
            found.add(Import(module or alias.name, module and alias.name, alias.asname))
    return found


def top_level_names(text, path):
    """Names that a file binds at top level, imports aside."""
    table = symtable.symtable(text, str(path), "exec")
    return frozenset(s.get_name() for s in table.get_symbols() if s.is_assigned() and not s.is_imported())


def parse_file(text, path):
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise Problem(f"{path}:{error.lineno}: does not parse ({error.msg}); correct the file") from None


def check_import(node, at, is_top):
    """Raises `Problem` for an import of a kit module that cannot be dropped or moved to the top of a recipe."""
    module = getattr(node, "module", None) or node.names[0].name
    package = module.split(".")[0]
    if module == "__future__":
        raise Problem(f"{at}: `from __future__` cannot be stamped; leave it out")
    if getattr(node, "level", 0) or (package == "kit" and (module == "kit" or isinstance(node, ast.Import))):
        raise Problem(f"{at}: cannot be stamped; write `from kit.<module> import <name>`")
    if package == "kit" and not is_top:
        raise Problem(f"{at}: cannot be stamped inside a block; move it to top level")
    if package == "kit" and any(alias.asname for alias in node.names):
        raise Problem(f"{at}: a renamed import cannot be dropped; import the name as it is")
    if package != "kit" and is_top and package not in sys.stdlib_module_names:
        raise Problem(f"{at}: `{module}` is not in the standard library; import it inside the function using it")


def read_module(path):
    """Takes one kit module apart. Raises `Problem` where it cannot be stamped."""
    shown = f"kit/{path.name}"
    if not path.exists():
        raise Problem(f"{shown}: no such module; write it, or take `{path.stem}` off the marker lines that name it")
    text = path.read_text()
    tree = parse_file(text, shown)
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in all_imports(tree):
        check_import(node, f"{shown}:{node.lineno}", node in top)
    needs = {}
    inside = [node for node in top if (getattr(node, "module", None) or "").startswith("kit.")]
    for node in inside:
        needs.setdefault(node.module.removeprefix("kit."), set()).update(alias.name for alias in node.names)
    outside = frozenset(imports_of([node for node in top if node not in inside]))

    docstring = ast.get_docstring(tree)
    lines = text.splitlines(keepends=True)
    for node in top + ([tree.body[0]] if docstring else []):
        lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    body = "".join(lines).strip("\n")
    head = f"# {docstring.splitlines()[0]}\n" if docstring else ""
    region = f"# >>> {shown}\n{head}\n\n{body}\n\n\n# <<< {shown}\n"
    return Module(path.stem, top_level_names(text, shown), outside, needs, region)


class Kit:
    """The modules of kit/, read once and on demand: a broken one stops only the recipes that use it."""

    def __init__(self, folder):
        self.folder = folder
        self.stems = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        self.module = cache(lambda stem: read_module(folder / f"{stem}.py"))

    def problems(self):
        """Modules that cannot be stamped, and names that two modules define."""
        owner = {}
        for stem in self.stems:
            try:
                names = self.module(stem).names
            except Problem as problem:
                yield str(problem)
                continue
            for name in sorted(names):
                if owner.setdefault(name, stem) != stem:
                    yield f"kit/{stem}.py: `{name}` is also defined in kit/{owner[name]}.py; rename one"

    def owner_of(self, names):
        """Stems of the modules that define any of these names, broken modules aside."""
        for stem in self.stems:
            try:
                if self.module(stem).names & names:
                    yield stem
            except Problem:
                continue

    def closure(self, stems):
        """These modules and all that they need, the needed first."""
        ordered, seen = [], set()

        def visit(stem):
            if stem not in seen:
                seen.add(stem)
                for need in self.module(stem).needs:
                    visit(need)
                ordered.append(stem)

        for stem in stems:
            visit(stem)
        return ordered


# ---- Recipes


def split_recipe(text, path):
    """Splits a recipe into its own text above the shared part, the list of modules asked for, and its text below.

    Returns None where the file has no marker line.
    """
    found = OPEN.search(text)
    if not found:
        return None
    line = text.count("\n", 0, found.start()) + 1
    above = IMPORTS.sub("\n", text[: found.start()], count=1)
    below = text[found.end() + 1 :]
    if CLOSE in below:
        below = below[below.index(CLOSE) + len(CLOSE) :]
    elif "# >>> kit/" in below:
        raise Problem(f"{path}:{line}: the shared part has no end; put back its last line `{CLOSE.strip()}`")
    if not found[1]:
        raise Problem(f"{path}:{line}: names no module; write `# >>> shared part: auto`")
    return above, found[1].split(), below


def used_names(text, path):
    """Global names that a file reads anywhere, builtins and its own included; local names of functions are not."""

    def walk(scope):
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or scope.get_type() == "module"):
                yield symbol.get_name()
        for child in scope.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(text, str(path), "exec")))


def import_lines(imports):
    """Import statements in isort's order: plain ones first, members constants, classes, functions."""

    def member(name):
        return (not (name.isupper() and len(name) > 1), not name[0].isupper(), name.lower(), name)

    plain = sorted((i for i in imports if not i.name), key=lambda i: (i.module.lower(), i.alias or ""))
    lines = [f"import {i.module}" + (f" as {i.alias}" if i.alias else "") for i in plain]
    for module in sorted({i.module for i in imports if i.name}, key=str.lower):
        members = sorted((i for i in imports if i.module == module and i.name), key=lambda i: member(i.name))
        lines += [f"from {module} import {i.name} as {i.alias}" for i in members if i.alias]
        names = [i.name for i in members if not i.alias]
        line = f"from {module} import {', '.join(names)}"
        if len(line) > LINE_LENGTH:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
        lines += [line] if names else []
    return lines


def chosen_modules(own, asked, kit, path):
    """The modules that a recipe asks for, in order. Raises `Problem` where names would be undefined."""
    imported = {i.binds for i in imports_of(all_imports(ast.parse(own)))}
    used = used_names(own, path) - top_level_names(own, path) - imported - BUILTINS
    stems = kit.closure(kit.owner_of(used)) if asked == ["auto"] else asked
    modules = {stem: kit.module(stem) for stem in stems}
    for name in sorted(used.difference(*(module.names for module in modules.values()))):
        raise Problem(f"{path}: `{name}` is defined neither here nor in kit/; correct it, or wait for its module")
    for stem, module in modules.items():
        for need, names in module.needs.items():
            if need not in modules:
                raise Problem(
                    f"{path}: asks for kit/{stem}.py, which imports kit/{need}.py; "
                    f"add `{need}` to the marker line, or write `# >>> shared part: auto`"
                )
            for name in sorted(names - modules[need].names):
                raise Problem(f"kit/{stem}.py: imports `{name}`, which kit/{need}.py does not define; correct it")
    return list(modules.values())


def check_names(own_names, own_imports, modules, path):
    """Raises `Problem` where one name would mean two things in the stamped file."""
    meaning = {name: f"defined in {path}" for name in own_names} | {i.binds: i for i in own_imports}
    for module in modules:
        bound = [(name, "defined") for name in sorted(module.names)] + [(i.binds, i) for i in module.imports]
        for name, what in bound:
            if meaning.setdefault(name, what) != what:
                raise Problem(f"{path}: `{name}` is {meaning[name]} and {what} in kit/{module.stem}.py; rename one")


def stamp(text, kit, path="recipe"):
    """The text of a recipe with its shared part as kit/ has it now; unchanged where it has no marker line.

    Raises `Problem`: a module that is missing, not closed under its imports, or defines a name of the recipe's.
    """
    parts = split_recipe(text, path)
    if not parts:
        return text
    above, asked, below = parts
    own = above + "\n" + below
    tree = parse_file(own, path)
    modules = chosen_modules(own, asked, kit, path)
    leading = list(takewhile(lambda node: isinstance(node, ast.Import | ast.ImportFrom | ast.Expr), tree.body))
    own_imports = imports_of([node for node in leading if not isinstance(node, ast.Expr)])
    check_names(top_level_names(own, path), own_imports, modules, path)

    rows = above.splitlines(keepends=True)
    at = leading[-1].end_lineno if leading else 0
    lines = import_lines(set().union(*(module.imports for module in modules)) - own_imports)
    if lines:
        block = ["# >>> shared imports", "# isort: split", *lines, "", "# <<< shared imports"]
        rows.insert(at, "\n" + "\n".join(block) + "\n" + ("" if rows[at : at + 1] == ["\n"] else "\n"))
    marker = f"# >>> shared part: {' '.join(asked)}  {NOTE}\n"
    regions = "\n".join(module.region for module in modules)
    return "".join(rows).rstrip("\n") + "\n\n\n" + marker + regions + CLOSE + below


# ---- Variants


def recipe_node(tree, path):
    """The dict node of the literal RECIPE table."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "RECIPE":
            if isinstance(node.value, ast.Dict):
                return node.value
    raise Problem(f"{path}: has no literal RECIPE table; write `RECIPE = {{...}}`")


def main_call(tree):
    """The call of `main` in the last block of a recipe, or None."""
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "main":
                    return call
    return None


def engines_node(tree):
    """The dict node of the engines that a recipe gives to `main`, or None."""
    call = main_call(tree)
    given = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "engines")] if call else []
    return given[0] if given and isinstance(given[0], ast.Dict) else None


def value_node(table, keys):
    """The node of a value in nested dict nodes, or None."""
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == keys[0]:
            return value if len(keys) == 1 else isinstance(value, ast.Dict) and value_node(value, keys[1:]) or None
    return None


def span(text, node):
    """Character offsets of a node in the text it was parsed from; ast counts columns in UTF-8 bytes."""
    lines = text.splitlines(keepends=True)

    def offset(line, column):
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def literal(value):
    """Python source of a JSON value, strings in double quotes as ruff writes them."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


def make_variant(base, entry, path):
    """The text of a recipe that differs from `base` in defaults only.

    `entry["defaults"]` maps keys of RECIPE (`"sampling.temperature"` reaches inside) to values; a key that the base
    lacks is added at the end of the table. `entry["engine_default"]` comes first of the engines. `entry["says"]` maps
    words of the docstring to those that take their place.
    """
    name, base_name = entry["name"], entry["variant_of"]
    text = base
    for dotted, value in {"name": name, **entry["defaults"]}.items():
        table = recipe_node(parse_file(text, path), path)
        node = value_node(table, dotted.split("."))
        if node:
            start, end = span(text, node)
            text = text[:start] + literal(value) + text[end:]
        elif "." in dotted:
            raise Problem(f"models.json: {name}: ocr/{base_name}.py has no RECIPE value `{dotted}`; set the outer key")
        else:
            _, end = span(text, table)
            added = f"    {literal(dotted)}: {literal(value)},  # this variant's default\n"
            text = text[: end - 1] + added + text[end - 1 :]
    engines = engines_node(parse_file(text, path))
    first_engine = entry.get("engine_default")
    if engines and first_engine in [key.value for key in engines.keys]:
        pairs = sorted(zip(engines.keys, engines.values, strict=True), key=lambda pair: pair[0].value != first_engine)
        words = [text[span(text, key)[0] : span(text, value)[1]] for key, value in pairs]
        start, end = span(text, engines)
        text = text[:start] + "{" + ", ".join(words) + "}" + text[end:]
    docstring = parse_file(text, path).body[0]
    start, end = span(text, docstring)
    first, _, rest = text[start:end].partition("\n")
    changed = ", ".join(f"`{key}` {json.dumps(value, ensure_ascii=False)}" for key, value in entry["defaults"].items())
    lines = [f'"""{entry["title"]}: {entry["summary"]}' if "summary" in entry else first, ""]
    made = f"Made from ocr/{base_name}.py by tools/sync.py; only defaults differ: {changed}."
    lines += textwrap.wrap(made, LINE_LENGTH, break_on_hyphens=False)
    for old, new in entry.get("says", {}).items():
        if old not in rest:
            raise Problem(f"models.json: {name}: the docstring of ocr/{base_name}.py does not say {old!r}")
        rest = rest.replace(old, new, 1)
    said = "\n".join(lines) + "\n" + rest.replace(f"{base_name}.py", f"{name}.py")
    return text[:start] + said + text[end:]


# ---- Documents


def load_catalogue(root):
    """Entries of models.json, sorted by name; a variant takes what it does not state from its base."""
    path = root / "models.json"
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_text())
    except ValueError as error:
        raise Problem(f"models.json: is not JSON ({error}); correct it") from None
    named = {entry["name"]: entry for entry in entries}
    for entry in entries:
        if entry.get("variant_of") and entry["variant_of"] not in named:
            raise Problem(
                f"models.json: {entry['name']}: no entry `{entry['variant_of']}`; add it or correct variant_of"
            )
    whole = [{**named.get(entry.get("variant_of"), {}), **entry} for entry in entries]
    return sorted(whole, key=lambda entry: entry["name"])


def table(head, rows):
    """A Markdown table."""
    cells = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |\n" for row in cells)


def link_of(model):
    return f"[{model}](https://huggingface.co/{model})" if "/" in model else model


OUTPUTS = {"blocks": "Markdown, boxes", "markdown": "Markdown", "json": "JSON"}


def recipes_table(entries):
    """The tables of README.md: recipes that give pages, then those that give JSON."""
    parts = []
    for title, wanted in (("Pages to Markdown", ("markdown", "blocks")), ("Pages to JSON", ("json",))):
        rows = [
            [
                f"[`{e['name']}`](ocr/{e['name']}.py)",
                link_of(e["model"]),
                e["params"] or "not stated",
                "boxes" if e["languages"]["evidence"] == "not-applicable" else OUTPUTS[e["output"]],
                e["licence"] + (f" ({e['licence_note']})" if e.get("licence_note") else ""),
                "any CPU" if (e["flavor"] or "cpu").startswith("cpu") else f"GPU, `{e['flavor']}`",
                e["support"],
            ]
            for e in entries
            if e["output"] in wanted
        ]
        if rows:
            head = ["recipe", "model", "size", "output", "licence", "runs on", "support"]
            parts.append(f"**{title}**\n\n" + table(head, rows))
    return "\n".join(parts)


def status_table(entries):
    """The table of CLAUDE.md: how each recipe runs and what was tested."""

    def tested(entry):
        found = entry.get("engine_tested") or []
        words = (f"{one['version']} on {one['device']}" + ", its weights" * one.get("weights", False) for one in found)
        return "; ".join(words) or "no"

    rows = [
        [f"`{e['name']}`", e["backend"], e["engine_default"], e["vllm"] or "", f"`{e['image']}`" if e["image"] else ""]
        + [tested(e), e["support"], e.get("notes") or ""]
        for e in entries
    ]
    return table(["recipe", "backend", "engine", "vLLM", "image", "engine tested", "support", "notes"], rows)


def tools_table(texts):
    """The table of README.md with the tools beside the recipes: the first line of each docstring."""
    tools = {name: ast.get_docstring(ast.parse(text)) for name, text in texts.items() if name.startswith("ocr/ocr-")}
    rows = [[f"[`{Path(name).stem}`]({name})", told.splitlines()[0]] for name, told in sorted(tools.items())]
    return table(["tool", "what it does"], rows) if rows else ""


LANGUAGES_HEAD = """# Languages

What each model's own card says about languages, and how well that is backed. Nothing here is inferred: a model may
read more than its card says, or less. Generated from `models.json` by `tools/sync.py`.

| evidence | means |
| --- | --- |
| per-language-benchmark | scores per language are published |
| named-list | the languages are named, without scores |
| count-claim | a number of languages is claimed |
| multilingual-unspecified | "multilingual", no list and no number |
| english-only | the card says English |
| not-stated | the card says nothing |
| not-applicable | the model does not read text |

"""


def languages_document(entries):
    """LANGUAGES.md: the claims by recipe, and the recipes by language."""
    rows, by_language = [], {}
    for entry in entries:
        languages = entry["languages"]
        names = languages.get("list") or []
        rows.append(
            [
                f"[`{entry['name']}`](ocr/{entry['name']}.py)",
                languages.get("count") or len(names) or "",
                languages["evidence"],
                languages.get("claim") or "",
            ]
        )
        for name in names:
            by_language.setdefault(name, []).append(f"`{entry['name']}`")
    text = LANGUAGES_HEAD + "## By recipe\n\n" + table(["recipe", "languages", "evidence", "what the card says"], rows)
    if by_language:
        named = [[language, ", ".join(recipes)] for language, recipes in sorted(by_language.items())]
        text += "\n## By language\n\nWhere a card names its languages.\n\n" + table(["language", "recipes"], named)
    return text


def serving_commands(entries, texts):
    """The code block of SERVING.md: how each recipe starts its server, with recipes of one server together."""
    sys.path.insert(0, str(ROOT))
    from kit.vllm import chat_arguments, cli_args, engine_args

    found = {}
    for entry in entries:
        shown = f"ocr/{entry['name']}.py"
        if entry.get("variant_of") or shown not in texts:
            continue
        recipe = ast.literal_eval(recipe_node(parse_file(texts[shown], shown), shown))
        if recipe["engine"] != "vllm" and not recipe.get("vllm"):
            continue
        if entry.get("serving"):  # a recipe that makes its command when it starts
            words = entry["serving"]
        elif recipe.get("server_command"):
            filled = {"{model}": recipe["model"], "{port}": "8000", "{max_model_len}": str(recipe.get("max_model_len"))}
            words = [filled.get(word, word) for word in recipe["server_command"]]
            words = [recipe["server_python"], *words] if words[0] == "-m" else words
        else:
            args = engine_args(
                argparse.Namespace(**{"gpu_memory_utilization": None, "revision": None, **recipe}), recipe
            )
            content = chat_arguments(recipe)["chat_template_content_format"]
            args |= {"chat_template_content_format": content} if content != "auto" else {}
            words = ["vllm", "serve", *cli_args(args)]
        words = [f"{key}={value}" for key, value in recipe.get("environment", {}).items()] + words
        found.setdefault((entry.get("image"), *words), []).append(entry["name"])
    blocks = []
    for (image, *words), names in found.items():
        lines, line = [f"# {', '.join(names)}" + (f": {image}" if image else "")], ""
        for word in map(shlex.quote, words):
            if len(line) + len(word) > LINE_LENGTH - 8:
                lines, line = [*lines, f"{line} \\"], "  "
            line += f" {word}" if line.strip() else line + word
        blocks.append("".join(f"    {text}\n" for text in (*lines, line)))
    return "\n".join(blocks)


def fill(text, mark, content, path):
    """Puts generated text between `<!-- mark:begin -->` and `<!-- mark:end -->`."""
    begin, end = f"<!-- {mark}:begin -->\n", f"<!-- {mark}:end -->\n"
    if begin not in text or end not in text:
        raise Problem(f"{path}: has no {begin.strip()} and {end.strip()}; put the two lines where the table belongs")
    before, _, rest = text.partition(begin)
    return before + begin + "\n" + content + "\n" + end + rest.partition(end)[2]


# ---- The run


def plan(root=ROOT, only=()):
    """What the files should hold: ({relative path: text}, [problem, ...]). A problem stops only its own file."""
    texts, problems = {}, []
    kit = Kit(root / "kit")
    problems += kit.problems()
    try:
        entries = load_catalogue(root)
    except Problem as problem:
        entries = []
        problems.append(str(problem))
    variants = {entry["name"]: entry for entry in entries if entry.get("variant_of")}
    for path in sorted((root / "ocr").glob("*.py")):
        if path.stem in variants:
            continue
        shown = f"ocr/{path.name}"
        try:
            texts[shown] = stamp(path.read_text(), kit, shown)
        except Problem as problem:
            problems.append(str(problem))
    for name, entry in variants.items():
        base = f"ocr/{entry['variant_of']}.py"
        try:
            if base in texts:
                texts[f"ocr/{name}.py"] = make_variant(texts[base], entry, f"ocr/{name}.py")
        except Problem as problem:
            problems.append(str(problem))
    if only:
        return {shown: text for shown, text in texts.items() if shown in only}, list(dict.fromkeys(problems))
    if entries:
        texts["LANGUAGES.md"] = languages_document(entries)
        tables = [("README.md", "recipes", recipes_table(entries)), ("CLAUDE.md", "status", status_table(entries))]
        tables += [("README.md", "tools", told)] if (told := tools_table(texts)) else []
        if (root / "SERVING.md").exists():
            tables += [("SERVING.md", "commands", serving_commands(entries, texts))]
        for name, mark, content in tables:
            path = root / name
            try:
                if path.exists():
                    texts[name] = fill(texts.get(name) or path.read_text(), mark, content, name)
            except Problem as problem:
                problems.append(str(problem))
    return texts, list(dict.fromkeys(problems))


def drift(root, texts):
    """The files whose text on disk differs: yields (relative path, text on disk, text as it should be)."""
    for shown, text in texts.items():
        path = root / shown
        found = path.read_text() if path.exists() else ""
        if found != text:
            yield shown, found, text


def write(path, text):
    """Replaces a file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    if path.exists():
        temporary.chmod(path.stat().st_mode)
    temporary.replace(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="recipes to stamp (default: all of ocr/, and the docs)")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 with a diff where something drifted"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    only = {f"ocr/{Path(name).name}" for name in options.files}
    texts, problems = plan(root, only)
    for shown in sorted(only - set(texts)):
        if not any(problem.startswith(shown) for problem in problems):
            problems.append(f"{shown}: no such recipe; name a file in ocr/")
    changed = list(drift(root, texts))
    for shown, found, text in changed:
        if options.check:
            lines = difflib.unified_diff(
                found.splitlines(keepends=True), text.splitlines(keepends=True), shown, f"{shown} (as it should be)"
            )
            sys.stdout.writelines(lines)
        else:
            write(root / shown, text)
            print(shown)
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.check and changed:
        print(f"{len(changed)} drifted; run `python3 tools/sync.py`", file=sys.stderr)
    return 1 if problems or (options.check and changed) else 0


if __name__ == "__main__":
    sys.exit(main())
