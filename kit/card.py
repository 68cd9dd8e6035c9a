"""The dataset card: one section per published config, between markers; everything else is the user's own."""

import json
import os
import re
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path

from kit.items import where
from kit.storage import persist

TAGS = ["ocr", "ocr-recipes", "uv-script"]


def output_layout(options):
    """(repository, config, folder in the repository, split) of what is published."""
    return where(options.output)[1], options.config or "default", options.config or "data", options.split or "train"


def read_card(api, repo, head):
    """The README of a repository as a `DatasetCard`, an empty one where `head` (a DatasetInfo) lists none."""
    from huggingface_hub import DatasetCard

    if all(file.rfilename != "README.md" for file in head.siblings):
        return DatasetCard("---\n{}\n---\n")
    path = persist(lambda: api.hf_hub_download(repo, "README.md", repo_type="dataset", revision=head.sha))
    return DatasetCard(Path(path).read_text("utf-8"), ignore_metadata_errors=True)


def _config_entries(card):
    entries = card.data.get("configs") or []
    return [entry for entry in (entries if isinstance(entries, list) else [entries]) if isinstance(entry, dict)]


def _split_files(entry):
    """The `data_files` of a config entry as {split: entry}, or None where they do not say which split they are."""
    files = entry.get("data_files")
    named = isinstance(files, list) and all(isinstance(file, dict) and "split" in file for file in files)
    return {file["split"]: file for file in files} if named else None


def has_config(card, paths, options):
    """Whether a repository with that card and those files already has the config and split to be published."""
    _, config, folder, split = output_layout(options)
    entries = {entry.get("config_name", "default"): entry for entry in _config_entries(card)}
    if config in entries:
        files = _split_files(entries[config])
        return files is None or split in files
    undeclared = config == "default" and not entries and any(not re.match(r"README|LICENSE|\.", p) for p in paths)
    return undeclared or any(path.startswith(f"{folder}/{split}-") for path in paths)


def merged_card(card, paths, options, section):
    """The text of the card with our config entry, tags and section put in or replaced.

    Where no config was declared so far, the files in `data/` are declared first, or they would vanish behind ours.
    `dataset_info` of the config is dropped: it described other columns.
    """
    repo, config, folder, split = output_layout(options)
    entries = _config_entries(card)
    splits = {m[1] for m in (re.match(r"data/(\w+)-\d+-of-\d+\.parquet", path) for path in paths) if m}
    if not entries and config != "default" and splits:
        entries = [{"config_name": "default", "data_files": [_data_files("data", name) for name in sorted(splits)]}]
    entry = next((e for e in entries if e.get("config_name", "default") == config), None)
    if entry is None:
        entries.append(entry := {"config_name": config})
    entry["data_files"] = list({**(_split_files(entry) or {}), split: _data_files(folder, split)}.values())
    card.data["configs"] = entries
    infos = card.data.get("dataset_info") or []
    infos = [i for i in (infos if isinstance(infos, list) else [infos]) if i.get("config_name", "default") != config]
    card.data["dataset_info"] = infos or None
    tags = card.data.get("tags") or []
    card.data["tags"] = [*tags, *(tag for tag in TAGS if tag not in tags)]
    begin, end = (f"<!-- ocr-recipes {config}/{split} {word} -->" for word in ("begins", "ends"))
    section, text = f"{begin}\n{section}\n{end}", card.text
    if begin in text and end in text:
        before, after = text.split(begin, 1)[0], text.split(begin, 1)[1].split(end, 1)[-1]
        card.text = before + section + after
    else:
        card.text = (text.rstrip() or f"\n# {repo.split('/')[-1]}") + f"\n\n{section}\n"
    return str(card)


def _data_files(folder, split):
    return {"split": split, "path": f"{folder}/{split}-*"}


def dataset_card(options, recipe, run, told, summary):
    """The section on one published config: how it was made, what to know, three pages. Markdown without secrets.

    `told` holds the counts pages, errors and flags, and examples as pairs of id and text.
    """
    _, config, _, split = output_layout(options)
    command = run.get("command") or shlex.join(["uv", "run", Path(sys.argv[0]).name, *sys.argv[1:]])
    facts = {
        "Model": f"[{run['model']}](https://huggingface.co/{run['model']})",
        "Revision": run.get("revision"), "Input": run.get("source"), "Task": run.get("task"),
        "Engine": run.get("engine"), "Versions": run.get("versions"), "Sampling": run.get("sampling"),
        "Hardware": run.get("hardware") or summary.get("hardware"),
        "Date": run.get("timestamp") or datetime.now(timezone.utc).date().isoformat(),
        "Pages": told["pages"], "Failed": told["errors"], "Flags": dict(told["flags"]) or None,
        "Model licence": recipe.get("licence"),
    }  # fmt: skip
    lines = [
        f"## OCR with {run['model'].split('/')[-1]} (config `{config}`, split `{split}`)",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts.items() if value not in (None, {}, "")]
    lines += ["", "Made with", "", _fenced(command, "sh"), ""]
    lines += [
        f"`{options.output_column}` is the text of the page: empty for a blank page, null where it could not be read; "
        "`ocr_error` then says why. `ocr_flags` names what looks suspicious in an answer (`truncated`, `looped`, "
        "`degenerate`, `unparsed`, ...), and `inference_info` lists how each text column was made. "
        "This is a machine's reading: it contains mistakes.",
    ]
    for name, text in told["examples"]:
        lines += ["", f"Page {_cell(name)}", "", _fenced(text, "markdown")]
    return masked("\n".join(lines))


def _cell(value):
    """One table cell: links as they are, anything else as code that cannot leave its cell."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    if text.startswith("[") and "](https://huggingface.co/" in text:
        return text
    return "`" + re.sub(r"[`|\s<>]+", " ", text)[:400] + "`"


def _fenced(text, language):
    """A code block that its content cannot end, nor can it hold a comment that looks like our markers."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.replace('<!--', '<! --')}\n{fence}"


def masked(text):
    """`text` without tokens: what looks like one, the value of HF_TOKEN, what follows --api-key, passwords in URLs."""
    token = os.environ.get("HF_TOKEN", "")
    if len(token) >= 8:
        text = text.replace(token, "***")
    text = re.sub(r"\bhf_\w{6,}", "hf_***", text)
    text = re.sub(r"(--(?:[\w-]{0,40}-)?(?:token|key|secret|password)[ =])\S+", r"\1***", text)
    return re.sub(r"://[^/\s@]+@", "://***@", text)
