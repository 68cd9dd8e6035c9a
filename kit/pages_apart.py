"""Several pages in one unit: one that cannot be decoded does not cost the others."""

from dataclasses import replace
from typing import NamedTuple

from kit.seam import PageError, Unit
from kit.workers import decoded


class BadPage(NamedTuple):
    """Stands among the pages of a unit for one that cannot be decoded; `problem` is the exception."""

    problem: Exception
    partial: bool = False


def talk_apart(talk, options, recipe, stop):
    """`talk` for an engine: a unit of several pages that cannot be opened as a whole is opened page by page."""

    def talk_about(item, outcome):
        if isinstance(outcome, PageError) and len(item.parts) > 1:
            outcome = opened_apart(item, options, recipe, stop), None
        return talk(item, outcome)

    return talk_about


def opened_apart(item, options, recipe, stop):
    """The Unit of an item, with a BadPage for each page that fails."""
    alone = {str(n): replace(item, id=str(n), parts=[part], pages=2) for n, part in enumerate(item.parts)}
    opened = {one.id: outcome for one, outcome in decoded(alone.values(), options, recipe, stop)}
    unopened = PageError("the run was stopped before this page was opened")
    outcomes = [opened.get(n, unopened) for n in alone]
    return Unit(item.id, [BadPage(o) if isinstance(o, BaseException) else o[0].pages[0] for o in outcomes])
