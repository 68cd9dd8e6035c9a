"""HunyuanOCR-1.5: its locked prompts, and what becomes of each task's answers."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

hunyuan = load_recipe("hunyuan-ocr-1.5")

PROMPTS = {
    "doc_parse": "提取文档图片中正文的所有信息用markdown格式表示，其中页眉、页脚部分忽略，表格用html格式表达，"
    "文档中公式用latex格式表示，按照阅读顺序组织进行解析。",
    "structured_parse": "提取图中的文字。",
    "spotting_json": "检测并识别图中所有的文字行，请按从上到下、从左到右的阅读顺序进行识别。 输出格式为 JSON 数组，"
    '每个元素必须包含："box": [xmin, ymin, xmax, ymax]（坐标需归一化到 [0, 1000] 范围内）；'
    '"text": "识别出的文字内容"。 注意：请直接输出 JSON 数组，不要包含任何多余的描述性文字。',
    "spotting_hunyuan": "检测并识别图片中的文字，将文本坐标格式化输出。",
    "layout": "按照阅读顺序解析图中的版式信息。",
    "layout_parse": "提取文档图片中所有内容用markdown格式表示，表格用html格式表达，文档中公式用latex格式表示，"
    "请按照阅读顺序组织进行全文解析，并输出版式分析信息。",
    "chart_parse": "解析图中的图表，对于流程图使用Mermaid格式表示，其他图表使用Markdown格式表示。",
    "formula": "识别图片中的公式，用LaTeX格式表示。",
    "table": "把图中的表格解析为HTML。",
    "doc_trans_en2zh": "先解析文档，再将文档内容翻译为中文，其中页眉、页脚忽略，公式用latex格式表示，表格用html格式表示。",  # noqa: E501
    "trans_other2en": "按照阅读顺序，提取图中文字，公式用latex格式表示，表格用markdown格式表示，再将文字内容翻译为英文。",  # noqa: E501
    "trans_other2zh": "按照阅读顺序，提取图中文字，公式用latex格式表示，表格用markdown格式表示，再将文字内容翻译为中文。",  # noqa: E501
}


def read(text, *words):
    return hunyuan.parse(hunyuan.Answer(text), page_of(hunyuan), options_of(hunyuan, *words))


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), PROMPTS["doc_parse"]),
        *[(("--task-type", task), prompt) for task, prompt in PROMPTS.items()],
        (("--task", "table", "--custom-prompt", "Who?"), "Who?"),
    ],
)
def test_body(words, prompt):
    options, page = options_of(hunyuan, *words), page_of(hunyuan)
    assert body_of(hunyuan, page, options) == {
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]},
        ],
        "max_tokens": 8192,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.08,
    }


def test_table_of_the_recipe():
    recipe = hunyuan.RECIPE
    assert recipe["tasks"] == PROMPTS and recipe["lock_sampling"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + 400 <= recipe["max_model_len"] <= recipe["context"]
    for rows, columns in [
        (128, 128),
        (1022, 16),
        (16, 1022),
    ]:  # a page, and strips, of all the pixels that there may be
        assert rows * columns * 1024 <= recipe["image"]["max_pixels"]
        assert rows * (columns + 1) + 2 <= recipe["image_tokens"] <= recipe["engine_args"]["max_num_batched_tokens"]
    assert options_of(hunyuan).revision == "de8f10ad2f00a0cefd790b526de8a65dcfdb3205"
    assert body_of(hunyuan, page_of(hunyuan), options_of(hunyuan, "--repetition-penalty", 1))["repetition_penalty"] == 1


BOX = [124, 175, 620, 351]
META = "<hy-meta><layout>{}</layout><poly>(100,100),(500,100),(500,200),(100,200)</poly></hy-meta>"


@pytest.mark.parametrize(
    "task, text, markdown, boxes, flags",
    [
        ("spotting_json", '[{"box":[100,100,500,200],"text":"Lot 7"}]', "Lot 7", [BOX], []),
        ("spotting_json", '[{"box":[100,100,500,200],"text":"Lot 7"},{"bo', "Lot 7", [BOX], ["repaired"]),
        ("spotting_hunyuan", "Lot 7(100,100),(500,200)8(100,100),(500,200)", "Lot 7\n8", [BOX] * 2, []),
        ("spotting_hunyuan", "没有文字", "", [], []),
        ("layout", "Lots" + META.format("para_title") + META.format("figure"), "Lots", [BOX] * 2, []),
        ("layout_parse", "# Lots" + META.format("title") + "One." + META.format("paragraph"), "# Lots\n\nOne.",
         [BOX] * 2, []),
        ("layout_parse", "# Lots", "# Lots", None, ["unparsed"]),
        ("spotting_json", "", "", [], []),
    ],
)  # fmt: skip
def test_places(task, text, markdown, boxes, flags):
    result = read(text, "--task", task)
    assert (result.markdown, result.flags) == (markdown, flags)
    assert boxes == (result.blocks and [block["bbox"] for block in result.blocks["blocks"]])


@pytest.mark.parametrize(
    "words, text, markdown, flags",
    [
        ((), "# Catalogue\nFig. 2 Plan(88,512),(901,930)\n", "# Catalogue\nFig. 2 Plan(88,512),(901,930)", []),
        (
            ("--drop-coordinates",),
            "# Catalogue\nFig. 2 Plan (88,512),(901,930)\n<table><tr><td>a(1,2),(3,4)\n</td></tr></table>\n"
            "$$\nf(1,2),(3,4)\n$$\nf(1,2),(3,4) is",
            "# Catalogue\nFig. 2 Plan\n<table><tr><td>a(1,2),(3,4)\n</td></tr></table>\n"
            "$$\nf(1,2),(3,4)\n$$\nf(1,2),(3,4) is",
            [],
        ),
        (("--drop-coordinates",), "A(1,2),(3,4)\n<table><tr><td>(1,2),(3,4)", "A\n<table><tr><td>(1,2),(3,4)", []),
        ((), "Lot 7. " * 300, "Lot 7. Lot 7.", ["trimmed"]),
        ((), "Lot 7. " * 200, ("Lot 7. " * 200).strip(), []),  # below 2000 characters
        (("--no-clean-output",), "Lot 7. " * 300, ("Lot 7. " * 300).strip(), []),
        (("--task", "layout", "--custom-prompt", "Who?"), "Lot 7", "Lot 7", []),
        ((), "", "", []),
        ((), "!" * 2500, "!!", ["trimmed"]),
    ],
)  # fmt: skip
def test_text(words, text, markdown, flags):
    result = read(text, *words)
    assert (result.markdown, result.blocks, result.flags) == (markdown, None, flags)
