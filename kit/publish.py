"""Publishing: results joined to their source, written in shards, put on the Hub in one commit with a card."""

import fnmatch
import json
import os
import re
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from kit.card import dataset_card, has_config, merged_card, output_layout, read_card
from kit.items import where
from kit.seam import Stop, say
from kit.storage import first_line, open_storage, persist

SHARD_BYTES, GROUP_BYTES = 500_000_000, 100_000_000
GROUP_ROWS = 100  # a viewer fetches whole row groups, and page images are large
EXAMPLES, EXCERPT = 3, 800  # pages shown on the card, characters of each


def checkpoint_of(options):
    """Where the parts of a run towards a Hub dataset are kept: a local path, or an `hf://buckets/...` URI."""
    if options.checkpoint:
        return options.checkpoint
    repo = where(options.output)[1]
    name = "--".join([*repo.split("/"), *filter(None, [options.config])])
    if os.environ.get("JOB_ID"):  # a job's own disk is gone when it ends
        return f"hf://buckets/{repo.split('/')[0]}/ocr-runs/{name}"
    return f"./.ocr-runs/{name}"


def output_columns(options, recipe, source, many_pages=False):
    """The published columns as two `datasets.Features`: those carried from the input, then the run's own.

    `recipe["row_columns"]` names keys of the result row that are published too ("id", "error", "finish_reason",
    "prompt_tokens", "completion_tokens"), or "model". Where the input has such a column, or a `source_row` or
    `image_sha256`, that keeps its meaning and is carried as it is.
    """
    from datasets import Features, List, Value

    kinds = {"float": "float64", "int": "int64"}
    carried = {
        name: kind for name, kind in source.features.items() if options.columns is None or name in options.columns
    }
    own = {name: Value("string") for name in (options.output_column, options.blocks_column) if name}
    own |= {name: Value(kinds.get(kind, kind)) for name, kind in (recipe.get("columns") or {}).items()}
    own |= {"ocr_error": Value("string"), "ocr_flags": List(Value("string")), "inference_info": Value("string")}
    if many_pages:
        own["ocr_page" if "page" in carried else "page"] = Value("int64")
    keys = {name: Value("int64" if "tokens" in name else "string") for name in recipe.get("row_columns") or ()}
    if options.config:
        keys |= {"source_row": Value("int64"), "image_sha256": Value("string")}
    own |= {name: kind for name, kind in keys.items() if name not in carried}
    return Features({name: kind for name, kind in carried.items() if name not in own}), Features(own)


def check_columns(options, recipe, source):
    """Raises Stop where a published column would hide one of the input's, or `--columns` names one it does not have."""
    if where(options.output)[0] != "hub":
        return
    carried = list(source.features) if options.columns is None else options.columns
    if unknown := sorted(set(carried) - set(source.features)):
        raise Stop(f"--columns: the input has no {', '.join(unknown)}. It has {', '.join(source.features)}.")
    own = {options.output_column, options.blocks_column, "ocr_error", "ocr_flags", *(recipe.get("columns") or {})}
    clash = [name for name in carried if name in own]
    if clash and not options.overwrite:
        kept = ",".join(name for name in carried if name not in own)
        raise Stop(
            f"The input already has the columns {', '.join(clash)}. Type --overwrite to replace them, "
            f"--output-column NAME for another text column, or --columns {kept} to leave them out."
        )


def check_output(options, recipe, source):
    """Raises Stop where the output dataset could not be published at the end, before anything is spent.

    A missing repository is made, which proves that the token may (not with `--check`). A config that is already there
    needs `--overwrite`, unless this output has a checkpoint: then that was asked when the checkpoint was begun.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if where(options.output)[0] != "hub":
        return
    api, (repo, config, _, split) = HfApi(), output_layout(options)
    if not re.fullmatch(r"\w+(\.\w+)*", split) or re.search(r"[<>:/\\|?*]", config):
        raise Stop(f"A published dataset cannot have the config {config!r} with the split {split!r}. Give other names.")
    try:
        if persist(api.whoami).get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise Stop("The Hub token can only read. Set HF_TOKEN to one that can write, or type: hf auth login")
        if not persist(lambda: api.repo_exists(repo, repo_type="dataset")):
            if not options.check:
                create_output(api, options)
            return
        if not options.create_pr:
            persist(lambda: api.auth_check(repo, repo_type="dataset", write=True))
        head = persist(lambda: api.dataset_info(repo))
        taken = has_config(read_card(api, repo, head), [file.rfilename for file in head.siblings], options)
        begun = "run.json" in open_storage(checkpoint_of(options)).list()
    except (HfHubHTTPError, OSError) as error:
        raise Stop(
            f"The dataset {repo} cannot be written: {first_line(error)}. Check the name and the token "
            f"(hf auth whoami); for a folder here type ./{repo}."
        ) from error
    if options.private and not head.private:
        raise Stop(f"{repo} is public. Leave --private out, or type: hf repos settings {repo} --type dataset --private")
    if taken and not begun and not options.overwrite:
        raise Stop(
            f"{repo} already has the config {config} with the split {split}. Type --overwrite to replace it, "
            "or --config NAME to publish beside it."
        )


def create_output(api, options):
    repo, private = output_layout(options)[0], options.private or None  # None: what the owner's settings say
    persist(lambda: api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True))


def publish(options, recipe, source, run, index, summary, scratch=None):
    """Publishes what `index` holds and returns a sentence with the address. Memory and disk use are a shard's.

    Rows of the source without a result are left out; a row with several pages becomes one row per page. Safe to
    repeat. Raises what the Hub answered last once `persist` gives up, and RuntimeError if the files did not arrive.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api, (repo, _, folder, split) = HfApi(), output_layout(options)
    create_output(api, options)
    told, files = {"pages": 0, "errors": 0, "flags": Counter(), "examples": []}, []
    if scratch:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="publish-", dir=scratch) as shards:
        for path in write_shards(joined_tables(options, recipe, source, index, told), Path(shards)):
            file = CommitOperationAdd(f"{folder}/{split}-{len(files)}-unfinished.parquet", str(path))
            upload = partial(api.preupload_lfs_files, repo, [file], repo_type="dataset", create_pr=options.create_pr)
            persist(upload)
            if file.path_or_fileobj != str(path):  # a small file may travel with the commit instead
                path.unlink()
            files.append(file)
        if not told["pages"]:
            return "No page has a result, so nothing was published."
        for number, file in enumerate(files):
            file.path_in_repo = f"{folder}/{split}-{number:05d}-of-{len(files):05d}.parquet"
        revision, request = commit(api, options, run, files, dataset_card(options, recipe, run, told, summary))
    if not persist(lambda: arrived(api, repo, files, revision)):
        raise RuntimeError(f"the files of commit {revision} are not those that were sent")
    if request:
        say(f"Pull request: {request}")
    return f"{told['pages']} pages published: {request or f'{api.endpoint}/datasets/{repo}'}"


def joined_tables(options, recipe, source, index, told):
    """Yields the published rows as tables in source order, and counts them in `told`."""
    import pyarrow as pa
    from datasets import Features
    from datasets.features.features import require_storage_embed

    kept, own = output_columns(options, recipe, source, index.most_pages() > 1)
    schema, keys = Features({**kept, **own}).arrow_schema, row_keys(options, recipe)
    earlier = ["inference_info"] if "inference_info" in (options.columns or source.features) else []
    media = {name for name, feature in kept.items() if require_storage_embed(feature)}
    for start, table in source.tables([*kept, *earlier] or list(source.features)[:1]):
        places, records = index.match(start, len(table))
        # A document's bytes stay with its first page only: 500 pages would carry them 500 times.
        once = [None if n and place == places[n - 1] else place for n, place in enumerate(places)]
        columns = {}
        for name in kept:
            columns[name] = table[name].take(pa.array(once if name in media else places, pa.int64()))
        infos = table["inference_info"].to_pylist() if earlier else [None] * len(table)
        for record, place in zip(records, places, strict=True):
            record["info"] = appended_info(infos[place], record["info"])
            record["columns"] = json.loads(record["columns"])
            if "model" in own:
                record["columns"]["model"] = options.model
            count_record(told, record)
        for name in own:
            values = [record[keys[name]] if name in keys else record["columns"].get(name) for record in records]
            columns[name] = typed_array(values, schema.field(name).type)
        yield pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def row_keys(options, recipe):
    """{published column: key of the result row}; the recipe's own columns stand in the row's `columns`."""
    keys = {"ocr_error": "error", "ocr_flags": "flags", "source_row": "row", "image_sha256": "sha256", "page": "page"}
    keys |= {"ocr_page": "page", options.output_column: "text", options.blocks_column: "blocks"}
    return keys | {"inference_info": "info"} | {key: key for key in recipe.get("row_columns") or () if key != "model"}


def typed_array(values, kind):
    """An arrow array of `kind`; a value that does not fit is null (or its JSON, for strings), never a lost dataset."""
    import pyarrow as pa

    def fit_value(value):
        try:
            return pa.scalar(value, kind).as_py()
        except (pa.ArrowException, OverflowError):
            return json.dumps(value) if pa.types.is_string(kind) else None

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        return pa.array([fit_value(value) for value in values], kind)


def appended_info(earlier, entry):
    """`inference_info` of the input (JSON text, list, object or None) with this run's entry, as a JSON list."""
    try:
        entries = json.loads(earlier) if isinstance(earlier, str) else earlier or []
    except ValueError:
        entries = []
    entries = entries if isinstance(entries, list) else [entries]
    return json.dumps([*entries, json.loads(entry)], default=str)


def count_record(told, record):
    told["pages"] += 1
    told["errors"] += record["error"] is not None
    told["flags"].update(record["flags"] or [])
    if record["text"] and not record["flags"] and len(told["examples"]) < EXAMPLES:
        told["examples"].append((record["id"], record["text"][:EXCERPT]))


def write_shards(tables, folder):
    """Yields the paths of parquet files of about SHARD_BYTES in `folder`, each as soon as it is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def groups():
        waiting = []
        for table in tables:
            waiting.append(table)
            if sum(map(len, waiting)) >= GROUP_ROWS or sum(part.nbytes for part in waiting) >= GROUP_BYTES:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    writer, path, number = None, None, 0
    for group in groups():
        if writer is None:
            path = folder / f"{number}.parquet"
            writer = pq.ParquetWriter(path, group.schema, use_content_defined_chunking=True, write_page_index=True)
        writer.write_table(group, row_group_size=GROUP_ROWS)
        if os.path.getsize(path) >= SHARD_BYTES:
            writer.close()
            yield path
            writer, number = None, number + 1
    if writer:
        writer.close()
        yield path


def commit(api, options, run, files, section):
    """One commit of files, card and removals, on whatever the head is by then: (revision, pull request URL or None)."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo, _, folder, split = output_layout(options)
    title = f"OCR with {run['model']}" + (f" [{options.config}]" if options.config else "")  # benches look for [CONFIG]

    def attempt():
        head = api.dataset_info(repo)
        if options.create_pr:  # an answer that was lost may have left the pull request
            for request in api.get_repo_discussions(repo, repo_type="dataset", discussion_type="pull_request"):
                ref = f"refs/pr/{request.num}"
                if request.status in ("open", "draft") and request.title == title and arrived(api, repo, files, ref):
                    return api.dataset_info(repo, revision=ref).sha, request.url
        there = [file.rfilename for file in head.siblings]
        card = read_card(api, repo, head)
        old, new = str(card), merged_card(card, there, options, section)
        if not options.create_pr and old == new and arrived(api, repo, files, head.sha):
            return head.sha, None
        mine = {file.path_in_repo for file in files}
        gone = [name for name in fnmatch.filter(there, f"{folder}/{split}-*") if name not in mine]
        changes = [*files, CommitOperationAdd("README.md", new.encode()), *map(CommitOperationDelete, gone)]
        send = partial(api.create_commit, repo_type="dataset", parent_commit=head.sha, create_pr=options.create_pr)
        done = send(repo, changes, commit_message=title)
        return done.oid, done.pr_url

    return persist(attempt)


def arrived(api, repo, files, revision):
    """Whether the files are in the repository at that revision, with their size and SHA-256."""
    paths = [file.path_in_repo for file in files]
    there = {info.path: info for info in api.get_paths_info(repo, paths, repo_type="dataset", revision=revision)}
    return all(
        (info := there.get(file.path_in_repo)) is not None
        and info.size == file.upload_info.size
        and (info.lfs is None or info.lfs.sha256 == file.upload_info.sha256.hex())
        for file in files
    )
