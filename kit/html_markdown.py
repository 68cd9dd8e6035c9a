"""HTML as models write it to Markdown; tables stay HTML, as Markdown has no merged cells."""

import functools
import re


def html_to_markdown(html):
    """Markdown of an HTML fragment: headings, lists, emphasis, `<math>` in dollars; tables as they are.

    Text that is nested too deeply to be read comes back as it is. Of spaces in a long row one is kept: markdownify
    takes a time that grows with their square.
    """
    try:
        return markdown_converter().convert(re.sub(r"[ \t]{100,}", " ", html)).strip()
    except RecursionError:
        return html


@functools.cache
def markdown_converter():
    from markdownify import ATX, MarkdownConverter

    class Converter(MarkdownConverter):
        def convert_math(self, element, text, parent_tags):
            text, mark = element.get_text().strip(), "$$" if element.get("display") == "block" else "$"
            return f"{mark}{text}{mark}" if text else ""

        def convert_table(self, element, text, parent_tags):
            return f"\n\n{element}\n\n"

    return Converter(heading_style=ATX, bullets="-", escape_asterisks=False, escape_underscores=False)
