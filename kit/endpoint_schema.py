"""The report of an endpoint benchmark as a JSON Schema (draft 2020-12)."""

REPORT_VERSION = "ocr-endpoint-bench/1"
BENCH_TASKS = ("layout", "text", "table", "end2end")
# Only "ok" is a page that was read. The last two are no verdict on the endpoint: the test did not take place.
OUTCOMES = (
    "ok", "invalid_output", "image_ignored", "loop", "truncated", "timeout_total", "timeout_stall", "http_3xx",
    "http_4xx", "http_5xx", "connect_error", "connection_lost", "bad_response", "oom", "unreadable_page", "cancelled",
    "not_run",
)  # fmt: skip
TEXT, NUMBER, COUNT, FLAG = (
    {"type": "string"},
    {"type": "number"},
    {"type": "integer", "minimum": 0},
    {"type": "boolean"},
)
MOMENT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}


def maybe(schema):
    return {"anyOf": [schema, {"type": "null"}]}


def table_of(*required, **properties):
    """An object with just these properties, all of them required unless some are named."""
    return {
        "type": "object", "properties": properties, "required": list(required or properties),
        "additionalProperties": False,
    }  # fmt: skip


def list_of(schema):
    return {"type": "array", "items": schema}


def map_of(schema):
    return {"type": "object", "additionalProperties": schema}


SPREAD = maybe(table_of(p50=NUMBER, p90=NUMBER, p95=NUMBER, p99=NUMBER))
STAGE = table_of(
    outcome=maybe({"enum": list(OUTCOMES)}), http_status=maybe(COUNT), finish_reason=maybe(TEXT),
    max_tokens=maybe(COUNT), wall_s=maybe(NUMBER), ttft_s=maybe(NUMBER), tokens_per_s=maybe(NUMBER), streamed=FLAG,
    usage=maybe({"type": "object"}), images=list_of({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}),
    flags=list_of(TEXT),
)  # fmt: skip
TABLE = table_of(format=maybe(TEXT), rows=COUNT, columns=COUNT, cells=COUNT, problems=list_of(TEXT))
RUN = table_of(
    page=TEXT, iteration=COUNT, concurrency=COUNT, warmup=FLAG, outcome={"enum": list(OUTCOMES)}, error=maybe(TEXT),
    started_at=MOMENT, wall_s=maybe(NUMBER), client_s=maybe(NUMBER), ttft_s=maybe(NUMBER), tokens_per_s=maybe(NUMBER),
    prompt_tokens=maybe(COUNT), completion_tokens=maybe(COUNT), image_tokens_needed=maybe(COUNT),
    image_ignored=maybe(FLAG), truncated=FLAG, looped=FLAG, flags=list_of(TEXT), chars=maybe(COUNT),
    blocks=maybe(COUNT), boxed_blocks=maybe(COUNT), labels=map_of(COUNT), table=maybe(TABLE), stages=list_of(STAGE),
    output_file=TEXT, output_sha256=TEXT,
    quality=maybe(table_of(cer=maybe(NUMBER), iou_mean=maybe(NUMBER), precision=maybe(NUMBER), recall=maybe(NUMBER),
                           f1=maybe(NUMBER))),
)  # fmt: skip
LEVEL = table_of(
    concurrency=COUNT, attempted=COUNT, ok=COUNT, outcomes=map_of(COUNT), valid_share=maybe(NUMBER), seconds=NUMBER,
    pages_per_s=maybe(NUMBER), completion_tokens_per_s=maybe(NUMBER), wall_s=SPREAD, ttft_s=SPREAD, tokens_per_s=SPREAD,
    failed_wall_s=SPREAD, gpu_use_percent=maybe(NUMBER), vram_mib=maybe(NUMBER),
)  # fmt: skip
SETTINGS = table_of(recommended=map_of({}), effective=map_of({}), overrides=map_of({}))
TARGET = table_of(
    label=TEXT, adapter=TEXT, endpoint=TEXT, where={"enum": ["loopback", "private", "public"]}, provider=maybe(TEXT),
    served_model=maybe(TEXT), reported_model=maybe(TEXT), engine_version=maybe(TEXT), max_model_len=maybe(COUNT),
    recipe=maybe(table_of(name=TEXT, model=TEXT, revision=maybe(TEXT), file_sha256=TEXT, task=maybe(TEXT))),
    workflow=maybe({"enum": ["one request", "several requests"]}),
    settings=maybe(SETTINGS),
    status={"enum": ["measured", "not_ready", "no_recipe", "no_task", "stopped", "given_up"]}, error=maybe(TEXT),
    readiness=maybe(table_of(ok=FLAG, seconds=NUMBER, error=maybe(TEXT))),
    runs=list_of(RUN), levels=list_of(LEVEL),
    quality=maybe(table_of(pages=COUNT, cer_mean=maybe(NUMBER), f1_mean=maybe(NUMBER), iou_mean=maybe(NUMBER))),
)  # fmt: skip
REPORT_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Report of ocr-endpoint-bench.py",
    **table_of(
        schema={"const": REPORT_VERSION}, run_id=TEXT, started_at=MOMENT, finished_at=maybe(MOMENT), complete=FLAG,
        tool_sha256=TEXT, command=list_of(TEXT), task={"enum": list(BENCH_TASKS)},
        params=table_of(warmup=COUNT, repeat=COUNT, concurrency=list_of(COUNT), timeout_s=NUMBER,
                        stall_timeout_s=NUMBER, max_tokens=maybe(COUNT), dpi=COUNT, stream=FLAG),
        input=table_of(source=TEXT, n=COUNT, pages_sha256=TEXT,
                       pages=list_of(table_of(id=TEXT, sha256=maybe(TEXT), width=maybe(COUNT), height=maybe(COUNT)))),
        host=maybe(table_of(os=TEXT, machine=TEXT, python=TEXT, cpus=maybe(COUNT), memory_gib=maybe(NUMBER),
                            gpus=list_of(table_of(name=TEXT, vram_mib=COUNT, compute_capability=maybe(TEXT),
                                                  driver=TEXT)))),
        gpu=maybe(table_of(idle=maybe(FLAG), use_percent=maybe(NUMBER), reason=maybe(TEXT))),
        comparable=FLAG, invalidations=list_of(TEXT),
        pixels=table_of(differ=FLAG, pages=map_of(map_of(COUNT))),
        targets=list_of(TARGET),
    ),
}  # fmt: skip
