"""Outputs against ground truth: which page is which, the scores of a page, and the figures over all pages."""

import csv
import io
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from kit.bench_outputs import Output, output_at, page_number, text_columns
from kit.metrics_blocks import formulas_in, score_blocks, score_formulas
from kit.metrics_facts import check_fact
from kit.metrics_order import order_free
from kit.metrics_stats import holm, paired_p_value, ratio_interval
from kit.metrics_tables import score_tables, tables_in
from kit.metrics_text import (
    bag_scores,
    compared_characters,
    confusions,
    edit_counts,
    error_rate,
    is_unspaced,
    normal_text,
    words_of,
)
from kit.plain_text import to_plain_text
from kit.seam import Stop
from kit.tool import parse_json, read_utf8

PAGE_FILES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif", ".webp", ".bmp", ".jp2", ".heic", ".pdf")
TRUTH_SUFFIXES = (".txt", ".md", ".html")


@dataclass
class Truth:
    """The ground truth of one page: its text with or without markup, a blocks document or None, facts about it."""

    text: str
    blocks: dict | None = None
    facts: list = field(default_factory=list)
    strata: dict = field(default_factory=dict)


def read_truth_folder(folder):
    """{page name: Truth} of a folder with NAME.txt, .md or .html and NAME.json (a blocks document) for each page.

    Beside page files, only what has a page counts. A form feed parts the pages of a document: NAME/page_001. What
    `pages.jsonl` says of a page ({"name": ..., "language": ...}) is there to split figures by. Raises Stop.
    """
    root, texts, blocks, pages = Path(folder), {}, {}, set()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).with_suffix("").as_posix()
        if path.suffix.lower() in PAGE_FILES:
            pages.add(name)
        elif path.suffix in TRUTH_SUFFIXES:
            if name in texts:
                raise Stop(f"{folder} has two texts for {name}: keep one of .txt, .md and .html.")
            texts[name] = read_utf8(path)
        elif path.suffix == ".json":
            document = read_blocks(read_utf8(path))
            blocks |= {name: document} if document else {}
    for name in [name for name, text in texts.items() if "\f" in text]:
        parts = texts.pop(name).split("\f")
        texts |= {f"{name}/page_{number:03d}": part for number, part in enumerate(parts, 1)}
    names = [n for n in sorted(set(texts) | set(blocks)) if not pages or {n, re.sub(r"/page_\d+$", "", n)} & pages]
    if not names:
        raise Stop(f"{folder} holds no ground truth: NAME.txt, NAME.md, NAME.html or NAME.json beside each page.")
    strata = {}
    if (root / "pages.jsonl").is_file():
        try:
            rows = [parse_json(line) for line in read_utf8(root / "pages.jsonl").splitlines() if line.strip()]
            strata = {row.pop("name"): row for row in rows}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Stop(f'{folder}/pages.jsonl: a line is {{"name": PAGE, ...}}; {error!r}. Repair it.') from error
    return {
        name: Truth(
            texts[name] if name in texts else blocks_text(blocks[name]), blocks.get(name), [], strata.get(name, {})
        )
        for name in names
    }


def read_blocks(text):
    """The blocks document in a string: itself, or what a recipe's `NAME.json` holds of it. None for anything else."""
    try:
        document = parse_json(text) if text else None
    except ValueError:
        return None
    document = document.get("blocks") if isinstance(document, dict) and "schema" not in document else document
    return document if isinstance(document, dict) and document.get("schema") == "ocr-blocks/1" else None


def blocks_text(document):
    return "\n\n".join(block["content"] for block in document["blocks"] if block["content"])


def truth_blocks(truth):
    """The texts of the true blocks in reading order: of the blocks document, else the paragraphs of the text."""
    if truth.blocks:
        return [block["content"] for block in truth.blocks["blocks"] if block["content"].strip()]
    return re.split(r"\n\s*\n", to_plain_text(truth.text))


# ---- Which output belongs to which page


def row_names(table, row, row_key=None):
    """What may name the page of a row, the surest first: names with and without suffix, then the base name."""
    columns = table.columns
    number = page_number(columns, row)
    if row_key and row_key in columns:
        return [str(columns[row_key][row])]
    names = dict.fromkeys(filter(None, [columns["name"][row]] if "name" in columns else []))
    for column in ("file_name", "id", "image_sha256", "source_row"):
        said = columns[column][row] if column in columns else None
        if said is None:
            continue
        bare = re.sub(r"\.\w{2,4}$", "", str(said))
        several = [f"{bare}/page_{number:03d}", f"{bare}_pg{number}"] if number > 1 else []
        names |= dict.fromkeys([str(said), *several, bare] if number == 1 else several)
        names |= dict.fromkeys([f"{bare}/page_001"] if number == 1 else [])
    return list(names)


def outputs_of(table, column, folder, truths, row_key=None):
    """{key: (Output, blocks)} for every true page, and how many outputs belong to none of them.

    `folder` is where the table is from, None for a dataset. A true page without a row is an error, "no output".
    """
    places, several = {}, len(text_columns(table, None)) > 1 if folder is None else False
    for row in range(len(table.columns[column])):
        for name in row_names(table, row, row_key) or [f"row-{row}"]:
            places.setdefault(name, row)
    blocks, found = blocks_column(table), {}
    for key in truths:
        row = places.get(key, places.get(os.path.basename(key)))
        if row is None:
            found[key] = (Output(None, "error", "no output"), None)
        elif folder:
            found[key] = (output_at(table, column, row, True), folder_blocks(folder, table.columns["name"][row]))
        else:
            document = read_blocks(table.columns[blocks][row]) if blocks else None
            found[key] = (output_at(table, column, row, not several), document)
    used = sum(output.error != "no output" for output, _ in found.values())
    return found, len(table.columns[column]) - used


def blocks_column(table):
    for name, values in table.columns.items():
        first = next((value for value in values if value), None)
        if isinstance(first, str) and read_blocks(first):
            return name
    return None


def folder_blocks(folder, name):
    path = os.path.join(folder, f"{name}.json")
    return read_blocks(read_utf8(path)) if os.path.isfile(path) else None


# ---- Scores


def score_page(truth, output, blocks=None, profile="standard"):
    """The scores of one page, a flat dict of counts and rates; of a failed page, those of an empty reading.

    `output` is an `Output`; `blocks` its blocks document. What does not apply is None.
    """
    said = output.text or ""
    plain = [to_plain_text(text, cell=" ") for text in (truth.text, said)]
    true, read, cut = compared_characters(*plain, profile)
    counts = edit_counts(true, read)
    raw_counts = edit_counts(*compared_characters(truth.text, said, "diplomatic")[:2])
    row = {"state": output.state, "error": output.error, "flags": " ".join(output.flags) or None, "cut": cut}
    row |= {"cer": error_rate(counts), **counts, "read_length": len(read)}
    row |= {"cer_raw": error_rate(raw_counts), "raw_errors": raw_counts["errors"], "raw_length": raw_counts["length"]}
    blank = [not text for text in plain]
    row |= {"missed": blank[1] and not blank[0] and output.state != "error", "invented": blank[0] and not blank[1]}
    true_text, read_text = "".join(true), "".join(read)
    unspaced = is_unspaced(true_text)
    words = [list(text.replace(" ", "")) if unspaced else words_of(text) for text in (true_text, read_text)]
    word_counts = None if unspaced else edit_counts(*words)
    row["wer"] = None if unspaced else error_rate(word_counts)
    row |= {f"word_{kind}": None if unspaced else word_counts[kind] for kind in counts}
    row |= dict(zip(("words_precision", "words_recall", "words_f1"), bag_scores(*words), strict=True))
    blocks_true = [normal_text(to_plain_text(text, cell=" "), profile) for text in truth_blocks(truth)]
    free = order_free([text for text in blocks_true if text], read_text)
    row |= {"free_errors": free["errors"], "free_length": free["length"], "free_cer": error_rate(free)}
    row |= {"order_errors": free["order_errors"], "order_pairs": free["order_pairs"]}
    row |= table_and_formula_scores(truth, said)
    row |= {f"boxes_{name}": value for name, value in (score_blocks(truth.blocks, blocks) or {}).items()}
    checked = [check_fact(fact, said) for fact in truth.facts]
    row |= {"facts": len(checked), "facts_passed": checked.count(True), "facts_open": checked.count(None)}
    return row


def table_and_formula_scores(truth, said):
    """True tables and formulas are those of the text where it has markup, else of the blocks document."""
    tables, formulas = tables_in(truth.text), formulas_in(truth.text)
    for block in truth.blocks["blocks"] if truth.blocks else ():
        if block["label"] == "formula" and not formulas_in(truth.text):
            formulas += formulas_in(f"$${block['content'].strip('$ ')}$$")
        elif block["label"] == "table" and not tables_in(truth.text):
            tables += tables_in(block["content"])
    row = {"tables": len(tables), "tables_extra": None, "teds": None, "structure": None, "tables_unscored": 0}
    if tables:
        scores = score_tables(tables, tables_in(said))
        row |= {"tables_extra": scores["extra"], "tables_unscored": scores["teds"].count(None)}
        row |= {name: mean_of(scores[name]) for name in ("teds", "structure")}
    return row | {"formulas": len(formulas), "formula": mean_of(score_formulas(formulas, formulas_in(said)))}


def mean_of(values):
    values = [value for value in values if value is not None]
    return fmean(values) if values else None


def share(rows, part, whole):
    total = sum(row[whole] or 0 for row in rows)
    return sum(row[part] or 0 for row in rows) / total if total else None


def summarise(rows, resamples=2000, level=0.95):
    """The figures of one run over its page rows. Rates are sums by sums (micro); failed pages count as empty.

    `cer_read` is of the pages that were read. `order` is the share of block pairs in the right order.
    """
    read = [row for row in rows if row["state"] != "error"]
    summary = {"pages": len(rows), "failed": len(rows) - len(read), "coverage": len(read) / len(rows)}
    summary |= {"cer": share(rows, "errors", "length")}
    summary["cer_low"], summary["cer_high"] = ratio_interval(
        [row["errors"] for row in rows], [row["length"] for row in rows], resamples, level
    )
    summary |= {"cer_read": share(read, "errors", "length"), "cer_mean": fmean(min(1, row["cer"]) for row in rows)}
    summary |= {"cer_median": median(row["cer"] for row in rows), "cer_raw": share(rows, "raw_errors", "raw_length")}
    summary |= {kind: share(rows, kind, "length") for kind in ("substitutions", "insertions", "deletions")}
    summary |= {"wer": share(rows, "word_errors", "word_length"), "words_f1": fmean(row["words_f1"] for row in rows)}
    for kind in ("substitutions", "insertions", "deletions"):
        summary[f"word_{kind}"] = share(rows, f"word_{kind}", "word_length")
    wrong = share(rows, "order_errors", "order_pairs")
    summary |= {"free_cer": share(rows, "free_errors", "free_length"), "order": None if wrong is None else 1 - wrong}
    summary |= {name: mean_of(row[name] for row in rows) for name in ("teds", "structure", "formula")}
    summary |= {name: sum(row[name] or 0 for row in rows) for name in ("tables", "tables_extra", "tables_unscored")}
    summary |= box_summary([row for row in rows if row.get("boxes_true") is not None])
    summary |= {"facts": sum(row["facts"] for row in rows), "facts_open": sum(row["facts_open"] for row in rows)}
    summary["facts_passed"] = share(rows, "facts_passed", "facts")
    summary |= {name: sum(bool(row[name]) for row in rows) for name in ("missed", "invented", "cut")}
    return summary | {"looped": sum("looped" in (row["flags"] or "") for row in rows)}


def box_summary(rows):
    """Precision, recall and F1 of boxes at IoU 0.5 over all pages that have them, and the IoU of the covered areas."""
    summed = Counter()
    for row in rows:
        summed.update({name: row[f"boxes_{name}"] for name in (
            "true", "read", "matches", "matches_75", "matches_labelled", "iou", "split", "merged",
            "area_true", "area_read", "area_common")})  # fmt: skip
    sides = summed["true"] + summed["read"]
    covered = summed["area_true"] + summed["area_read"] - summed["area_common"]
    return {
        "box_pages": len(rows),
        "box_precision": summed["matches"] / summed["read"] if summed["read"] else None,
        "box_recall": summed["matches"] / summed["true"] if summed["true"] else None,
        "box_f1": 2 * summed["matches"] / sides if sides else None,
        "box_f1_75": 2 * summed["matches_75"] / sides if sides else None,
        "box_f1_labelled": 2 * summed["matches_labelled"] / sides if sides else None,
        "box_iou": summed["iou"] / summed["matches"] if summed["matches"] else None,
        "box_split": summed["split"],
        "box_merged": summed["merged"],
        "box_area_iou": summed["area_common"] / covered if covered else None,
    }


def compare_runs(rows_of, resamples=10_000):
    """One row per pair of runs: mean difference of their CER (each at most 1) on common pages, p-value, Holm's.

    `rows_of` maps a run to {page: row}.
    """
    names, pairs = list(rows_of), []
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            common = sorted(set(rows_of[one]) & set(rows_of[other]))
            gaps = [min(1, rows_of[one][page]["cer"]) - min(1, rows_of[other][page]["cer"]) for page in common]
            p_value = paired_p_value(gaps, resamples)
            pairs.append({"a": one, "b": other, "pages": len(gaps), "cer_gap": mean_of(gaps), "p": p_value})
            pairs[-1] |= {"a_better": sum(gap < 0 for gap in gaps), "b_better": sum(gap > 0 for gap in gaps)}
    for pair, adjusted in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = adjusted
    return pairs


def page_confusions(truth, output, profile):
    """Counter of (true, read) characters of one page."""
    plain = [to_plain_text(text, cell=" ") for text in (truth.text, output.text or "")]
    return confusions(*compared_characters(*plain, profile)[:2])


def csv_text(rows):
    """Rows (dicts with about the same keys) as CSV with one header; floats with six decimals."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    said = io.StringIO()
    writer = csv.DictWriter(said, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{v:.6f}" if isinstance(v, float) else v for name, v in row.items()})
    return said.getvalue()
