"""FireRed-OCR: what is asked, and what becomes of the answer."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

firered = load_recipe("firered-ocr")

INDENT = 12 * " "
UPSTREAM = (
    "You are an AI assistant specialized in converting PDF images to Markdown format. Please follow these instructions "
    "for the conversion:\n\n"
    + "".join(
        line and INDENT + line + "\n" or "\n"
        for line in r"""1. Text Processing:
- Accurately recognize all text content in the PDF image without guessing or inferring.
- Convert the recognized text into Markdown format.
- Maintain the original document structure, including headings, paragraphs, lists, etc.

2. Mathematical Formula Processing:
- Convert all mathematical formulas to LaTeX format.
- Enclose inline formulas with,(,). For example: This is an inline formula,( E = mc^2,)
- Enclose block formulas with,\[,\]. For example:,[,frac{-b,pm,sqrt{b^2 - 4ac}}{2a},]

3. Table Processing:
- Convert tables to HTML format.
- Wrap the entire table with <table> and </table>.

4. Figure Handling:
- Ignore figures content in the PDF image. Do not attempt to describe or convert images.

5. Output Format:
- Ensure the output Markdown document has a clear structure with appropriate line breaks between elements.
- For complex layouts, try to maintain the original document's structure and format as closely as possible.
""".split("\n")
    )
    + INDENT
    + "Please strictly follow these guidelines to ensure accuracy and consistency in the conversion. Your task is to "
    "accurately convert the content of the PDF image into Markdown format without adding any extra explanations or "
    "comments.\n" + INDENT
)
CLEAN = (
    UPSTREAM.replace("\n" + INDENT, "\n")
    .removesuffix("\n")
    .replace("formulas with,(,)", r"formulas with \( \)")
    .replace("formula,( E = mc^2,)", r"formula \( E = mc^2 \)")
    .replace(r"formulas with,\[,\]", r"formulas with \[ \]")
    .replace("example:,[,frac{-b,pm,sqrt{b^2 - 4ac}}{2a},]", r"example: \[ \frac{-b \pm \sqrt{b^2 - 4ac}}{2a} \]")
)


@pytest.mark.parametrize("words, prompt", [((), UPSTREAM), (("--prompt-style", "clean"), CLEAN)])
def test_body(words, prompt):
    options, page = options_of(firered, *words), page_of(firered)
    assert body_of(firered, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 8192,
        "temperature": 0.0,
    }


def test_the_mended_prompt_has_whole_formulas():
    assert r"\( E = mc^2 \)" in CLEAN and r"\[ \frac{-b \pm \sqrt{b^2 - 4ac}}{2a} \]" in CLEAN
    assert ",(" not in CLEAN and "\n " not in CLEAN and CLEAN == CLEAN.strip()


def test_worst_case_fits():
    recipe = firered.RECIPE
    assert recipe["image"]["max_pixels"] / 32 / 32 == recipe["image_tokens"]
    needed = recipe["image_tokens"] + recipe["max_tokens"] + len(UPSTREAM) // 3 + 64
    assert needed <= recipe["max_model_len"] <= recipe["context"]


ANSWER = "## Yield\n\nLoss is \\( L = a/b \\).\n\n\\[ x = \\frac{1}{2} \\]\n\n<table><tr><td>A</td></tr></table>"


@pytest.mark.parametrize("text", [ANSWER, ANSWER[:-20], "<tr><td></td></tr>" * 2000, ""])
def test_parse_keeps_the_text(text):
    result = firered.parse(firered.Answer(f"\n{text}\n"), page_of(firered), options_of(firered))
    assert (result.markdown, result.blocks, result.flags) == (text, None, [])
