"""What INPUT means, and the stream of `Item`s it becomes: stable ids, what is done skipped before it is fetched."""

from kit.dataset import DatasetSource
from kit.files import FileSource
from kit.items import where


def open_source(options, recipe):
    """The source that `options.input` names. Raises Stop where it is missing, empty, or has no such column.

    A source has `describe` (one line), `identity` (JSON-able, equal for the same source), `columns` (of the input),
    `features` and `tables(columns)` (what is published), `total` (rows or files that this run goes through, None
    where unknown) and `items(done)`, where `done` answers `id in done` and `done.pages(id)`.
    """
    kind, place = where(options.input)
    return DatasetSource(options, recipe, place) if kind == "hub" else FileSource(options, recipe, kind, place)
