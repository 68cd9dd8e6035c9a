"""The report page of an endpoint benchmark: one HTML file with its charts, that opens without a network."""

import html

OUTCOME_COLORS = {
    "ok": "#2e7d4f", "invalid_output": "#c0392b", "image_ignored": "#8e44ad", "loop": "#d35400", "truncated": "#e0a100",
    "timeout_total": "#34495e", "timeout_stall": "#5d6d7e", "not_run": "#bdc3c7", "cancelled": "#95a5a6",
}  # fmt: skip
OTHER_COLOR = "#7f2a3d"  # http, connection and other failures
LINE_COLORS = ("#1f6fb2", "#c0562f", "#2e7d4f", "#8e44ad", "#b58900", "#34495e", "#d33682", "#16877a", "#7f2a3d")
CHART_WIDTH, BAR_HEIGHT, LABEL_WIDTH = 720, 26, 190  # pixels
PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --soft: #59636e; --line: #d5dae0; --back: #fff; --card: #f6f8fa;
  --warn: #8a4b00; --warnback: #fff4e0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a0a9b4; --line: #3a424c; --back: #14181d;
  --card: #1d232a; --warn: #ffcf8a; --warnback: #3a2a10 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1100px; padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0 0 .25rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem } p { margin: .3rem 0 } .soft { color: var(--soft) }
.warn { background: var(--warnback); color: var(--warn); padding: .5rem .8rem; border-radius: 6px; margin: .6rem 0 }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { overflow-wrap: normal }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 600 } .n { text-align: right; white-space: nowrap }
td.error { min-width: 14rem; max-width: 34rem; overflow-wrap: anywhere } code { overflow-wrap: anywhere }
svg { display: block; width: 100%; max-width: 720px; height: auto; background: var(--card); border-radius: 8px }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .soft { fill: var(--soft) }
svg .axis { stroke: var(--line) }
.key { display: inline-flex; align-items: center; gap: .35rem; margin: 0 .9rem .2rem 0;
  max-width: 100% }
.key i { flex: none; width: .8rem; height: .8rem; border-radius: 2px }
details { margin: .6rem 0 } summary { cursor: pointer }
"""


def report_page(reports):
    """The HTML of one or more reports (dicts as in REPORT_SCHEMA), compared where there are several."""
    told = [f"<h1>OCR endpoints, {page_text(reports[0]['task'])}</h1>"]
    told += [f'<p class="warn" role="note">{page_text(reason)}</p>' for reason in differences(reports)]
    if len(reports) > 1:
        told.append("<h2>All runs</h2>" + summary_table(reports) + charts(reports))
    for report in reports:
        told.append(report_section(report, alone=len(reports) == 1))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>OCR endpoints, {page_text(reports[0]['task'])}</title><style>{PAGE_STYLE}</style></head><body>\n"
        + "\n".join(told)
        + "\n</body></html>\n"
    )


def page_text(value):
    """A value as HTML text; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return html.escape(str(value))


def differences(reports):
    """Sentences about what makes the numbers of several reports no comparison."""
    first, found = reports[0], []
    for report in reports[1:]:
        pairs = {
            "the task": (first["task"], report["task"]),
            "the pages": (first["input"]["pages_sha256"], report["input"]["pages_sha256"]),
            "parameters": (first["params"], report["params"]),
            "the machine": (first["host"], report["host"]),
        }
        unlike = [name for name, (one, other) in pairs.items() if one != other]
        if unlike:
            found.append(
                f"{first['run_id']} and {report['run_id']} are no comparison: they differ in {', '.join(unlike)}."
            )
    return found


def report_section(report, alone):
    params, gpu = report["params"], report["gpu"] or {}
    told = [f"<h2>{page_text(report['run_id'])}</h2>"]
    told.append(
        f'<p class="soft">{page_text(report["started_at"])}, {report["input"]["n"]} pages of '
        f"<code>{page_text(report['input']['source'])}</code>, {params['repeat']} times each, "
        f"at most {page_text(params['timeout_s'])} s for a page</p>"
    )
    if not report["complete"]:
        told.append('<p class="warn" role="note">This run was stopped before its end.</p>')
    told += [
        f'<p class="warn" role="note">Not comparable: {page_text(reason)}.</p>' for reason in report["invalidations"]
    ]
    if gpu.get("idle") is None:
        why = gpu.get("reason") or "no endpoint is on this machine"
        told.append(f'<p class="soft">Whether a GPU was idle is not known: {page_text(why)}.</p>')
    if alone:
        told.append(summary_table([report]) + charts([report]))
    told.append(pixel_table(report) + settings_table(report) + failures(report) + every_run(report))
    return "\n".join(told)


def summary_table(reports):
    """One row per target and level of concurrency."""
    head = ("target", "model", "provider", "at a time", "ok", "median s", "p90 s", "first token s", "tokens/s",
            "pages/s", "CER", "boxes F1")  # fmt: skip
    rows, reasons = [], []
    for report in reports:
        for target in report["targets"]:
            quality, recipe = target["quality"] or {}, target["recipe"] or {}
            start = [
                title_of(report, target, reports),
                target["served_model"] or recipe.get("model"),
                target["provider"],
            ]
            end = [quality.get("cer_mean"), quality.get("f1_mean")]
            for level in target["levels"]:
                ranks = (("wall_s", "p50"), ("wall_s", "p90"), ("ttft_s", "p50"), ("tokens_per_s", "p50"))
                times = [(level[key] or {}).get(rank) for key, rank in ranks]
                done = f"{level['ok']} of {level['attempted']}"
                rows.append([*start, level["concurrency"], done, *times, level["pages_per_s"], *end])
            if not target["levels"]:
                rows.append([*start, None, target["status"].replace("_", " "), *[None] * 5, *end])
            if target["error"]:
                reasons.append(f"<p>{page_text(start[0])}: {page_text(target['error'])}</p>")
    note = (
        '<p class="soft">ok: the answer keeps the protocol of its model. '
        "CER and F1 are against confirmed pages and are no part of it.</p>"
    )
    return table_html(head, rows, numbers=range(3, 12)) + note + "".join(reasons)


def title_of(report, target, reports):
    return target["label"] + (f" ({report['run_id']})" if len(reports) > 1 else "")


def table_html(head, rows, numbers=()):
    cells = "".join(
        f'<th scope="col"{" class=n" if place in numbers else ""}>{page_text(word)}</th>'
        for place, word in enumerate(head)
    )
    lines = []
    for row in rows:
        kinds = ("n" if place in numbers else "error" if head[place] == "error" else "" for place in range(len(row)))
        lines.append(
            "<tr>"
            + "".join(f'<td class="{kind}">{page_text(v)}</td>' for kind, v in zip(kinds, row, strict=True))
            + "</tr>"
        )
    inside = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{inside}</table></div>'


def charts(reports):
    targets = [(title_of(report, target, reports), target) for report in reports for target in report["targets"]]
    measured = [(title, target) for title, target in targets if target["levels"]]
    if not measured:
        return ""
    told = "<h3>Outcomes</h3>" + outcome_chart(measured)
    told += "<h3>Seconds per page, median and 90th percentile, at the lowest level</h3>" + time_chart(measured)
    if any(len(target["levels"]) > 1 for _, target in measured):
        told += "<h3>Pages per second by pages at a time</h3>" + level_chart(measured)
    return told


def svg(height, label, body):
    return f'<svg viewBox="0 0 {CHART_WIDTH} {height}" role="img" aria-label="{html.escape(label)}">{body}</svg>'


def bar_label(place, title):
    short = title if len(title) <= 28 else title[:27] + "…"
    y = 10 + place * (BAR_HEIGHT + 8) + BAR_HEIGHT / 2 + 4
    return f'<text x="10" y="{y}">{page_text(short)}<title>{page_text(title)}</title></text>'


def outcome_chart(measured):
    """One bar per target, its parts the share of each outcome over all levels."""
    parts, seen, told = [], {}, []
    for place, (title, target) in enumerate(measured):
        counts = {}
        for level in target["levels"]:
            for name, count in level["outcomes"].items():
                counts[name] = counts.get(name, 0) + count
        x, y, total = LABEL_WIDTH, 10 + place * (BAR_HEIGHT + 8), sum(counts.values())
        parts.append(bar_label(place, title))
        for name in sorted(counts, key=lambda name: (name != "ok", name)):
            color, width = (
                OUTCOME_COLORS.get(name, OTHER_COLOR),
                (CHART_WIDTH - LABEL_WIDTH - 20) * counts[name] / total,
            )
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{color}">'
                f"<title>{counts[name]} of {total} {page_text(name)}</title></rect>"
            )
            x, seen[name] = x + width, color
        told.append(f"{title}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    key = "".join(
        f'<span class="key"><i style="background:{color}"></i>{page_text(name)}</span>' for name, color in seen.items()
    )
    return svg(20 + len(measured) * (BAR_HEIGHT + 8), "Outcomes. " + "; ".join(told), "".join(parts)) + f"<p>{key}</p>"


def time_chart(measured):
    spreads = [
        (title, min(target["levels"], key=lambda level: level["concurrency"])["wall_s"]) for title, target in measured
    ]
    most = max((times["p90"] for _, times in spreads if times), default=0) or 1
    parts, told, room = [], [], CHART_WIDTH - LABEL_WIDTH - 200
    for place, (title, times) in enumerate(spreads):
        y = 10 + place * (BAR_HEIGHT + 8)
        parts.append(bar_label(place, title))
        words = f"{page_text(times['p50'])} s, 90 %: {page_text(times['p90'])} s" if times else "no page was ok"
        wide, middle = (room * times[rank] / most if times else 0 for rank in ("p90", "p50"))
        for width, opacity in ((wide, 0.35), (middle, 1)):
            parts.append(
                f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" '
                f'fill="{LINE_COLORS[0]}" fill-opacity="{opacity}"></rect>'
            )
        parts.append(f'<text class="soft" x="{LABEL_WIDTH + wide + 8:.1f}" y="{y + BAR_HEIGHT / 2 + 4}">{words}</text>')
        told.append(f"{title}: {words}")
    return svg(20 + len(spreads) * (BAR_HEIGHT + 8), "Seconds per page. " + "; ".join(told), "".join(parts))


def level_chart(measured):
    """Lines of pages per second over the level of concurrency, levels in even steps."""
    levels = sorted({level["concurrency"] for _, target in measured for level in target["levels"]})
    most = max((level["pages_per_s"] or 0 for _, target in measured for level in target["levels"]), default=0) or 1
    left, right, top, bottom = 60, CHART_WIDTH - 20, 20, 240
    across = {
        number: left + 30 + (right - left - 60) * place / max(1, len(levels) - 1) for place, number in enumerate(levels)
    }
    parts, key = [], []
    for part in range(5):
        y = bottom - (bottom - top) * part / 4
        parts.append(f'<line class="axis" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"></line>')
        parts.append(
            f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{most * part / 4:.2g}</text>'
        )
    for number, x in across.items():
        parts.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{number}</text>')
    for place, (title, target) in enumerate(measured):
        color = LINE_COLORS[place % len(LINE_COLORS)]
        points = [(across[level["concurrency"]], bottom - (bottom - top) * (level["pages_per_s"] or 0) / most, level)
                  for level in sorted(target["levels"], key=lambda level: level["concurrency"])]  # fmt: skip
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2.5"></polyline>')
        for x, y, level in points:
            words = f"{title}: {page_text(level['pages_per_s'])} pages/s, {level['concurrency']} at a time"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"><title>{page_text(words)}</title></circle>'
            )
        key.append(f'<span class="key"><i style="background:{color}"></i>{page_text(title)}</span>')
    return svg(bottom + 40, "Pages per second by pages at a time", "".join(parts)) + f"<p>{''.join(key)}</p>"


def pixel_table(report):
    """Pixels that each target's recipe sent, where they differ: part of what is compared, and no fault."""
    if not report["pixels"]["differ"]:
        return ""
    labels = [target["label"] for target in report["targets"] if target["runs"]]
    rows = [[page, *(f"{seen[label]:,}" if label in seen else None for label in labels)]
            for page, seen in report["pixels"]["pages"].items()]  # fmt: skip
    return (
        "<h3>Pixels sent</h3><p>Each recipe prepares the page as its model needs it, so the targets did not see "
        "the same number of pixels.</p>" + table_html(["page", *labels], rows, numbers=range(1, len(labels) + 1))
    )


def settings_table(report):
    rows = []
    for target in report["targets"]:
        for name, value in ((target["settings"] or {}).get("overrides") or {}).items():
            rows.append([target["label"], name, target["settings"]["recommended"].get(name), value])
    if not rows:
        return ""
    return "<h3>Settings other than the recipe's</h3>" + table_html(["target", "setting", "recipe", "here"], rows)


def failures(report):
    runs = [(target["label"], run) for target in report["targets"] for run in target["runs"] if run["outcome"] != "ok"]
    if not runs:
        return ""
    rows = [[label, run["page"], run["iteration"], run["concurrency"], run["outcome"], run["error"], run["output_file"]]
            for label, run in runs]  # fmt: skip
    head = ["target", "page", "round", "at a time", "outcome", "error", "raw output"]
    return f"<h3>Failures ({len(runs)})</h3>" + table_html(head, rows, numbers=(2, 3))


def every_run(report):
    head = ["target", "page", "round", "at a time", "outcome", "s", "first token s", "tokens/s", "prompt", "tokens",
            "characters", "blocks", "CER", "flags"]  # fmt: skip
    rows = []
    for target in report["targets"]:
        for run in target["runs"]:
            rows.append(
                [
                    target["label"], run["page"], run["iteration"], run["concurrency"],
                    run["outcome"] + (" (warm-up)" if run["warmup"] else ""), run["wall_s"], run["ttft_s"],
                    run["tokens_per_s"], run["prompt_tokens"], run["completion_tokens"], run["chars"], run["blocks"],
                    (run["quality"] or {}).get("cer"), ", ".join(run["flags"]),
                ]
            )  # fmt: skip
    return (
        f"<details><summary>All {len(rows)} requests</summary>{table_html(head, rows, numbers=range(2, 13))}</details>"
    )
