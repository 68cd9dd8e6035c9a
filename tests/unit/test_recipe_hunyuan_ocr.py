"""HunyuanOCR 1.0: the pinned revision, prompts in two languages, and text lines with boxes."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

hunyuan = load_recipe("hunyuan-ocr")

DOCUMENT = (
    "Extract all information from the main body of the document image and represent it in markdown format, ignoring "
    "headers and footers. Tables should be expressed in HTML format, formulas in the document should be represented "
    "using LaTeX format, and the parsing should be organized according to the reading order."
)
TRANSLATE = (
    "First extract the text, then translate the text content into {}. If it is a document, ignore the header and "
    "footer. Formulas should be represented in LaTeX format, and tables should be represented in HTML format."
)
CHINESE = "先提取文字，再将文字内容翻译为{}。若是文档，则其中页眉、页脚忽略。公式用latex格式表示，表格用html格式表示。"


def read(text, *words):
    return hunyuan.parse(hunyuan.Answer(text), page_of(hunyuan), options_of(hunyuan, *words))


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), DOCUMENT),
        (("--prompt-mode", "parse-formula"), "Identify the formula in the image and represent it using LaTeX format."),
        (("--task", "parse-table"), "Parse the table in the image into HTML."),
        (("--task", "parse-chart"),
         "Parse the chart in the image; use Mermaid format for flowcharts and Markdown for other charts."),
        (("--task", "general"), "Extract the text in the image."),
        (("--task", "spot"),
         "Detect and recognize text in the image, and output the text coordinates in a formatted manner."),
        (("--task", "extract-key", "--key", "{x} date"), "Output the value of {x} date."),
        (("--task", "extract-fields", "--fields", "date, total,"),
         "Extract the content of the fields: ['date', 'total'] from the image and return it in JSON format."),
        (("--task", "extract-fields", "--fields", "date", "total"),
         "Extract the content of the fields: ['date', 'total'] from the image and return it in JSON format."),
        (("--task", "extract-subtitles"), "Extract the subtitles from the image."),
        (("--task", "translate"), TRANSLATE.format("English")),
        (("--task", "translate", "--target-language", "French"), TRANSLATE.format("French")),
        (("--task", "translate", "--use-chinese-prompts"), CHINESE.format("英文")),
        (("--use-chinese-prompts",),
         "提取文档图片中正文的所有信息用 markdown 格式表示，其中页眉、页脚部分忽略，表格用 html 格式表达，"
         "文档中公式用 latex 格式表示，按照阅读顺序组织进行解析。"),
        (("--task", "extract-fields", "--fields", "日期", "--use-chinese-prompts"),
         "提取图片中的: ['日期'] 的字段内容，并按照 JSON 格式返回。"),
        (("--custom-prompt", "Who?"), "Who?"),
    ],
)  # fmt: skip
def test_body(words, prompt):
    options, page = options_of(hunyuan, *words), page_of(hunyuan)
    assert body_of(hunyuan, page, options) == {
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]},
        ],
        "max_tokens": 16384,
        "temperature": 0.0,
        "top_p": 0.95,
        "top_k": 1,
        "repetition_penalty": 1.0,
        "seed": 1234,
    }


def test_table_of_the_recipe():
    recipe, args = hunyuan.RECIPE, hunyuan.engine_args(options_of(hunyuan), hunyuan.RECIPE)
    assert args["revision"] == "f6af82ee007fe6091b29fb3bb287b491ead41c82"
    assert recipe["image_tokens"] + recipe["max_tokens"] + 400 <= recipe["max_model_len"] <= recipe["context"]
    assert hunyuan.CHINESE.keys() == recipe["tasks"].keys()


@pytest.mark.parametrize("words", [("--task", "extract-key"), ("--task", "extract-fields")])
def test_what_to_look_for_is_needed(words):
    with pytest.raises(hunyuan.Stop, match="Name it"):
        hunyuan.check(options_of(hunyuan, *words))


@pytest.mark.parametrize(
    "text, markdown, boxes, flags",
    [
        ("Harbour Road(112,80),(395,131)No. 14(118,140),(240,186)", "Harbour Road\nNo. 14",
         [[139, 140, 490, 230], [146, 246, 298, 326]], []),
        ("Harbour Road(112,80),(395,131)No. 14(118,1", "Harbour Road\nNo. 14(118,1", [[139, 140, 490, 230], None], []),
        ("Harbour Road", "Harbour Road", None, ["unparsed"]),
        ("", "", [], []),
    ],
)  # fmt: skip
def test_spot(text, markdown, boxes, flags):
    result = read(text, "--task", "spot")
    assert (result.markdown, result.flags) == (markdown, flags)
    assert boxes == (result.blocks and [block["bbox"] for block in result.blocks["blocks"]])


@pytest.mark.parametrize(
    "words, text, markdown, flags",
    [
        ((), " # Lots\n", "# Lots", []),
        ((), "Lots\n" + "ditto\n" * 2000, "Lots\nditto", ["trimmed"]),
        ((), "Lots\n" + "ditto\n" * 900, "Lots\n" + ("ditto\n" * 900).strip(), []),  # below 8000 characters
        (("--no-clean-output",), "ditto\n" * 2000, ("ditto\n" * 2000).strip(), []),
        (("--task", "extract-fields", "--fields", "date"), '{"date": "1871', '{"date": "1871', []),
        (("--task", "spot", "--custom-prompt", "Who?"), "a(1,2),(3,4)", "a(1,2),(3,4)", []),
    ],
)
def test_text(words, text, markdown, flags):
    result = read(text, *words)
    assert (result.markdown, result.blocks, result.flags) == (markdown, None, flags)
