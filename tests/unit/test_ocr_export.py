"""Blocks to hOCR, ALTO, PAGE XML and searchable PDF: valid by the official schemas, read back by other programs."""

import importlib.util
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pypdfium2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from PIL import Image, ImageDraw, ImageFont

from tests.unit.recipe_file import OCR, load_recipe

export = load_recipe("ocr-export")

# htrflow is installed without what it needs (pyproject.toml): its wheel ships the official schemas. alto-4-4.xsd is
# that of github.com/altoxml/schema (CC BY-SA 4.0), compared to be the same; pagecontent.xsd, 2019-07-15, that of
# github.com/PRImA-Research-Lab/PAGE-XML (Apache-2.0), but for one kind of region that was added there later.
HTRFLOW = importlib.util.find_spec("htrflow")
needs_schemas = pytest.mark.skipif(HTRFLOW is None, reason="the schemas come with htrflow, for Python before 3.13")

# What ALTO imports from the address of the XLink schema: one group of attributes, which no file here uses.
XLINK = """<schema xmlns="http://www.w3.org/2001/XMLSchema" targetNamespace="http://www.w3.org/1999/xlink">
<attributeGroup name="simpleLink"><attribute name="href" type="anyURI"/></attributeGroup></schema>"""


class Offline(etree.Resolver):
    def resolve(self, url, public_id, context):
        return self.resolve_string(XLINK, context) if "xlink" in url else None


def schema(name):
    parser = etree.XMLParser(no_network=True)
    parser.resolvers.add(Offline())
    folder = Path(HTRFLOW.submodule_search_locations[0]) / "serialization" / "schemas"
    return etree.XMLSchema(etree.parse(str(folder / name), parser))


def block(bbox, content, label="text", format="text", **more):
    return {"bbox": bbox, "content": content, "label": label, "format": format, "raw_label": label, **more}


def document(*blocks, width=1000, height=1400, **more):
    numbered = [{"order": number, "confidence": None, **b} for number, b in enumerate(blocks)]
    return {"schema": "ocr-blocks/1", "width": width, "height": height, "blocks": numbered, **more}


TABLE = "<table><tr><th>Year</th><th>Births &amp; deaths</th></tr><tr><td>1871</td><td>204</td></tr></table>"
EVERYTHING = document(
    block([100, 40, 900, 90], "# The *Annals* of <Hope> & Glory", "title", "markdown", confidence=0.987),
    block(
        [100, 100, 900, 300], "First line of a text\nand its second line, which goes on for some time.", confidence=1
    ),
    block([100, 310, 900, 500], TABLE, "table", "html"),
    block([100, 510, 900, 560], r"E = mc^{2} < \infty", "formula", "latex"),
    block([100, 600, 900, 800], "", "picture"),
    block([100, 810, 900, 900], "A ship", "picture", "markdown"),
    block([100, 910, 400, 950], "שלום לעולם", "caption"),
    block([100, 960, 400, 1000], "漢字のテスト", "footnote"),
    block(None, "somewhere\x00\x0c on the page \ud83d", "list"),
    block([-50, 1300, 99999, 99999], "\U0001d518nder the edge", "page_number", confidence=17),
    block([5, 5, 5, 900], "no area", "seal"),
    block([0, 0, 10, 10], "unknown", "nonsense"),
    dpi=300,
)
WORDS = ["The", "Annals", "Births", "deaths", "204", "ship", "second", "שלום", "漢", "somewhere", "\U0001d518nder"]


def sheet(document, name="volume/page_003"):
    return export.Sheet(name, document, None, 'scan "3".tif', "some/model")


# ---- XML


@needs_schemas
@pytest.mark.parametrize(
    "write, name", [(export.to_alto, "alto-4-4.xsd"), (export.to_page, "pagecontent.xsd")], ids=["alto", "page"]
)
def test_valid_by_the_official_schema(write, name):
    official = schema(name)
    blocks = export.blocks_of(EVERYTHING)
    for number in range(len(blocks) + 1):  # each kind of block first, and no block at all
        official.assertValid(etree.fromstring(write(sheet(EVERYTHING), blocks[number:])))
    with pytest.raises(etree.DocumentInvalid):
        official.assertValid(etree.fromstring(write(sheet(EVERYTHING), blocks).replace(b"</", b"<x/></", 1)))


def test_alto_and_page_are_read_by_others(tmp_path, capsys):
    from alto_tools.alto_tools import alto_confidence, alto_parse, alto_text
    from pypxml import PageXML

    blocks = export.blocks_of(EVERYTHING)
    (tmp_path / "alto.xml").write_bytes(export.to_alto(sheet(EVERYTHING), blocks))
    (tmp_path / "page.xml").write_bytes(export.to_page(sheet(EVERYTHING), blocks))
    with open(tmp_path / "alto.xml", "rb") as file:
        _, tree, namespace = alto_parse(file)
        alto_text(tree, namespace)
        said = capsys.readouterr().out
        assert 98 < alto_confidence(file, tree, namespace) <= 100
    assert said.split() == [word for b in blocks for _, words in b.lines for word, _, _ in words]
    page = PageXML.open(tmp_path / "page.xml")
    assert page.reading_order == [region["id"] for region in page.regions] and len(page.regions) == len(blocks)
    assert (page["imageWidth"], page["imageHeight"], page.creator) == ("1000", "1400", "some/model")
    assert page.regions[0]["type"] == "heading"


def test_alto_says_where_everything_is():
    root = etree.fromstring(export.to_alto(sheet(EVERYTHING), export.blocks_of(EVERYTHING)))
    space = {"a": export.ALTO}
    (page,) = root.xpath("//a:Page", namespaces=space)
    assert (page.get("WIDTH"), page.get("HEIGHT"), page.get("PHYSICAL_IMG_NR")) == ("1000", "1400", "3")
    strings = root.xpath("//a:String/@CONTENT", namespaces=space)
    assert all(word in strings for word in WORDS) and "#" not in strings and "<table>" not in "".join(strings)
    title = root.xpath("//a:TextBlock", namespaces=space)[0]
    assert [title.get(key) for key in ("HPOS", "VPOS", "WIDTH", "HEIGHT")] == ["100", "40", "800", "50"]
    assert root.xpath("//a:LayoutTag[@ID=$id]/@LABEL", id=title.get("TAGREFS"), namespaces=space) == ["title"]
    assert set(title.xpath(".//a:String/@WC", namespaces=space)) == {"0.987"}
    assert root.xpath("//a:Processing/a:processingSoftware/a:softwareName", namespaces=space)[0].text == "some/model"
    for element in root.xpath("//a:String | //a:TextLine | //a:TextBlock", namespaces=space):
        x, y, w, h = (float(element.get(key)) for key in ("HPOS", "VPOS", "WIDTH", "HEIGHT"))
        assert 0 <= x < x + w <= 1000 and 0 <= y < y + h <= 1400


def test_page_keeps_order_types_and_text():
    root = etree.fromstring(export.to_page(sheet(EVERYTHING), export.blocks_of(EVERYTHING)))
    space = {"p": export.PAGE}
    regions = root.xpath("//p:Page/*[p:Coords]", namespaces=space)
    assert root.xpath("//p:RegionRefIndexed/@regionRef", namespaces=space) == [r.get("id") for r in regions]
    kinds = [(etree.QName(r).localname, r.get("type")) for r in regions]
    assert kinds[:4] == [
        ("TextRegion", "heading"),
        ("TextRegion", "paragraph"),
        ("TableRegion", None),
        ("MathsRegion", None),
    ]
    assert regions[1].get("custom") == "structure {type:text;}"
    texts = [r.xpath("string(.//p:TextEquiv[not(ancestor::p:TextLine)]/p:Unicode)", namespaces=space) for r in regions]
    assert texts[0] == "The Annals of <Hope> & Glory" and texts[2] == "Year Births & deaths\n1871 204"
    assert texts[3] == r"E = mc^{2} < \infty" and texts[4] == "" and texts[5] == "A ship"
    lines = regions[1].xpath("p:TextLine/p:TextEquiv/p:Unicode/text()", namespaces=space)
    assert " ".join(lines) == texts[1].replace("\n", " ")
    assert regions[1].xpath("p:TextEquiv/@conf", namespaces=space) == ["1"]
    assert regions[8].xpath("p:Coords/@points", namespaces=space) == ["0,0 1000,0 1000,1400 0,1400"]


def test_hocr_is_read_by_others(tmp_path):
    data = export.to_hocr(sheet(EVERYTHING), export.blocks_of(EVERYTHING))
    hocr_spec = pytest.importorskip("hocr_spec")
    (tmp_path / "x.hocr").write_bytes(data)
    report = hocr_spec.HocrValidator("standard").validate(str(tmp_path / "x.hocr"))
    assert [str(item) for item in report.items if item.level != "DEBUG" and "in-depth" not in str(item)] == []
    page = etree.fromstring(data, etree.HTMLParser(encoding="utf-8"))  # any HTML parser will do
    (title,) = page.xpath("//div[@class='ocr_page']/@title")
    assert title == 'image "scan _3_.tif"; bbox 0 0 1000 1400; ppageno 2; scan_res 300 300'
    words = page.xpath("//span[@class='ocrx_word']")
    assert all(word in [w.text for w in words] for word in WORDS)
    assert words[0].get("title").endswith("x_wconf 99")
    assert [div.get("class") for div in page.xpath("//div[@data-label]")][2:6] == [
        "ocr_table",
        "ocr_math",
        "ocr_image",
        "ocr_image",
    ]
    assert "first line of a text and its second" in " ".join(page.xpath("string(//body)").split()).lower()


# ---- Lines and words


def test_right_to_left_and_letters_without_spaces():
    ((band, words),) = export.blocks_of(EVERYTHING)[6].lines
    assert [word for word, _, _ in words] == ["שלום", "לעולם"] and words[0][1][0] > words[1][1][0]
    assert words[0][1][2] == band[2] and words[1][1][0] == band[0]
    ((_, letters),) = export.blocks_of(EVERYTHING)[7].lines
    assert [letter for letter, _, _ in letters] == list("漢字のテスト")


def test_long_texts_are_wrapped():
    text = " ".join(f"word{number}" for number in range(120))
    (found,) = export.blocks_of(document(block([100, 100, 900, 400], text)))
    assert 8 <= len(found.lines) <= 14 and not found.on_print
    assert " ".join(w for _, words in found.lines for w, _, _ in words) == text
    assert all(box[0] == 100 and box[2] == 900 for box, _ in found.lines)


FONT = ImageFont.load_default(28)


def printed(lines, left=120, top=200, pitch=44, size=(1000, 1400)):
    """A page with lines of print, and the true box of each word."""
    image, boxes = Image.new("RGB", size, "white"), []
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        x, y = left, top + number * pitch
        for word in line.split():
            draw.text((x, y), word, "black", font=FONT)
            boxes.append((word, draw.textbbox((x, y), word, font=FONT)))
            x += draw.textlength(word + " ", font=FONT)
    return image, boxes


LINES = [
    "The committee met on the fourth of May in the old town hall,",
    "and resolved that a bridge should be built across the river.",
    "Nobody objected,",
    "though the quay was flooded twice, and ferrymen asked for pay.",
]


def a_block_around(boxes, content):
    xs, ys = [x for _, b in boxes for x in b[::2]], [y for _, b in boxes for y in b[1::2]]
    return document(block([min(xs), min(ys), max(xs), max(ys)], content))


@pytest.mark.parametrize("shown", [1, 0.5, "inverted"])
def test_words_stand_on_their_print(shown):
    """A paragraph with one box and no line breaks: each word lands where it is printed."""
    image, boxes = printed(LINES)
    if shown == "inverted":
        image = Image.eval(image, lambda value: 255 - value)
    else:
        image = image.resize((int(1000 * shown), int(1400 * shown)))
    (found,) = export.blocks_of(a_block_around(boxes, " ".join(LINES)), export.ink_of(image))
    assert found.on_print and len(found.lines) == 4
    placed = [(word, at) for _, words in found.lines for word, at, _ in words]
    assert [word for word, _ in placed] == [word for word, _ in boxes]
    for (_, at), (_, true) in zip(placed, boxes, strict=True):
        assert true[1] - 8 <= (at[1] + at[3]) / 2 <= true[3] + 8
        assert true[0] - 30 <= (at[0] + at[2]) / 2 <= true[2] + 30
    assert found.lines[2][0][2] < 420  # the short line ends where its print does


def test_print_that_does_not_fit_the_text_is_not_believed():
    noise = Image.effect_noise((1000, 1400), 200)
    (found,) = export.blocks_of(document(block([100, 100, 900, 140], "one line")), export.ink_of(noise))
    assert len(found.lines) == 1
    blank = export.ink_of(Image.new("RGB", (1000, 1400), "white"))
    (found,) = export.blocks_of(document(block([100, 100, 900, 400], " ".join(LINES))), blank)
    assert not found.on_print and " ".join(w for _, ws in found.lines for w, _, _ in ws) == " ".join(LINES)


@pytest.mark.parametrize(
    "broken",
    [None, [], {}, {"schema": "ocr-blocks/2"}, {**EVERYTHING, "width": 0}, {**EVERYTHING, "blocks": ["x"]}],
)
def test_what_is_no_blocks_document_says_so(broken):
    with pytest.raises(ValueError, match="blocks document"):
        export.blocks_of(broken)


values = st.one_of(st.none(), st.integers(-2000, 2000), st.floats(), st.text(max_size=5))


@given(
    st.lists(values, max_size=5), st.text(max_size=80), st.sampled_from(["markdown", "html", "latex", "text", None, 3])
)
def test_hostile_blocks_give_well_formed_files(bbox, content, form):
    hostile = document(block(bbox, content, format=form, confidence=bbox), width=300, height=200)
    blocks = export.blocks_of(hostile)
    for write in (export.to_hocr, export.to_alto, export.to_page):
        etree.fromstring(
            write(sheet(hostile, "x"), blocks).partition(b"<!DOCTYPE html>\n")[2] or write(sheet(hostile), blocks)
        )
    for _, words in blocks[0].lines:
        for _, (x0, y0, x1, y1), _ in words:
            assert 0 <= x0 < x1 <= 301 and 0 <= y0 < y1 <= 201


HOSTILE_TEXTS = {
    "nothing that is text": "\x00\x01\ufffe\uffff\ud83d",
    "what XML has no place for": "a\ufffeb\uffffc\ud83dd\x1fef\x0cg\x0bh \x85 \u2028i",
    "both directions": "\u202eabc\u202c \u2067שלום\u2069 \u200fdef\u200e ١٢٣ مرحبا (x)",
    "letters without width": "\u200b\u200b \u00ad\u00ad \ufeff e\u0301 👩\u200d👩\u200d👧 กำ \ue000 \U0001fffe",
    "markup": "]]><!-- </Unicode> &#0; <script>alert(1)</script> $$ ``` |",
}
HOSTILE = {
    **{kind: document(block([1, 1, 900, 90], text)) for kind, text in HOSTILE_TEXTS.items()},
    "no blocks": document(),
    "no boxes": document(
        block(None, "somewhere"), block(None, None), block([5, 5, 5, 5], " \n "), block([None] * 4, "x")
    ),
    "no room": document(block([1, 1, 2, 2], "many words " * 90), block([1, 1, 3, 900], "x" * 9000)),
    "broken tables": document(
        block([1, 1, 900, 190], "<table><tr><td colspan=99999999>1<td rowspan=-1>2</table" * 3, "table", "html"),
    ),
    "10,000 blocks": document(
        *(block([n % 100 * 9, n // 100 * 13, n % 100 * 9 + 9, n // 100 * 13 + 13], f"w{n}") for n in range(10_000))
    ),
}


@needs_schemas
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_documents_in_every_format(kind):
    hostile, image = HOSTILE[kind], Image.new("RGB", (1000, 1400), "white")
    blocks = export.blocks_of(hostile, None if kind == "10,000 blocks" else export.ink_of(image))
    for write, name in ((export.to_alto, "alto-4-4.xsd"), (export.to_page, "pagecontent.xsd")):
        schema(name).assertValid(etree.fromstring(write(sheet(hostile), blocks)))
    etree.fromstring(export.to_hocr(sheet(hostile), blocks).partition(b"<!DOCTYPE html>\n")[2])
    words = [word for b in blocks for _, line in b.lines for word, _, _ in line]
    said = pdf_of(hostile, image, blocks=blocks)[0].get_textpage().get_text_range()
    plain = [word for word in words if word.isascii() and word.isalnum() and len(word) < 20]
    assert [word for word in plain if word not in said] == [] and len(blocks) == len(hostile["blocks"])
    if kind == "what XML has no place for":
        assert words == ["abcdef", "g", "h", "i"], "a form feed ends a word"


# ---- PDF


def pdf_of(document, image, dpi=200, blocks=None):
    page = SimpleNamespace(image=image, width=image.width, height=image.height)
    blocks = blocks or export.blocks_of(document, export.ink_of(image))
    options = SimpleNamespace(dpi=dpi, quality=80)
    return pypdfium2.PdfDocument(export.to_pdf(sheet(document), blocks, b"", page, options))


def test_pdf_text_is_found_at_its_place():
    image, boxes = printed(LINES)
    pdf = pdf_of(a_block_around(boxes, " ".join(LINES)), image)
    page, scale = pdf[0], 72 / 200
    assert page.get_size() == pytest.approx((1000 * scale, 1400 * scale), abs=0.1)
    text = page.get_textpage()
    assert " ".join(text.get_text_range().split()) == " ".join(LINES)
    for word in ("committee", "bridge", "flooded", "ferrymen"):
        start, count = text.search(word).get_next()
        lefts, bottoms, rights, tops = zip(*(text.get_charbox(n) for n in range(start, start + count)), strict=True)
        true = dict(boxes)[word]
        x = (min(lefts) + max(rights)) / 2 / scale
        y = 1400 - (min(bottoms) + max(tops)) / 2 / scale
        assert true[0] - 30 <= x <= true[2] + 30 and true[1] - 8 <= y <= true[3] + 8
        assert max(rights) - min(lefts) == pytest.approx((true[2] - true[0]) * scale, rel=0.3)
        assert max(tops) - min(bottoms) > 15 * scale  # a viewer has something to mark


def test_pdf_looks_like_the_image():
    image, boxes = printed(LINES)
    shown = pdf_of(a_block_around(boxes, " ".join(LINES)), image)[0].render(scale=200 / 72).to_pil().convert("L")
    grey = image.convert("L")
    places = random.Random(1).sample(range(1000 * 1400), 3000)
    differing = sum(
        abs(shown.getpixel((p % 1000, p // 1000)) - grey.getpixel((p % 1000, p // 1000))) > 90 for p in places
    )
    assert differing < 60  # the words above it are not seen


def test_pdf_of_any_script():
    image = Image.new("RGB", (1000, 1400), "white")
    text = pdf_of(EVERYTHING, image, 300)[0].get_textpage()
    said = text.get_text_range()
    for word in ("Annals", "שלום", "漢字のテスト", "\U0001d518nder", "somewhere"):
        assert word in said, said


def test_jpegs_are_taken_over_as_they_are():
    image, _ = printed(LINES)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    page = SimpleNamespace(image=image)
    assert export.as_jpeg(file.getvalue(), page, 90) == file.getvalue()
    turned = io.BytesIO()
    image.save(turned, "JPEG", exif=bytes.fromhex("45786966000049492a0008000000010012010300010000000600000000000000"))
    assert export.as_jpeg(turned.getvalue(), page, 90) != turned.getvalue()


# ---- Runs


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["ocr-export.py", *map(str, words)])
    code = export.main()
    told = capsys.readouterr()
    return code, json.loads(told.out.splitlines()[-1]) if told.out else None, told.err


@pytest.fixture
def scans(tmp_path):
    """Results of a recipe in one folder, and its images in another."""
    image, boxes = printed(LINES)
    images, results = tmp_path / "scans", tmp_path / "out"
    for folder in (images, results / "_run", results / "report"):
        folder.mkdir(parents=True)
    image.save(images / "letter.png")
    image.save(images / "report.pdf", save_all=True, append_images=[image], resolution=200)
    record = {"blocks": a_block_around(boxes, " ".join(LINES)), "inference_info": [{"model_id": "some/model"}]}
    for name in ("letter", "report/page_001", "report/page_002"):
        (results / f"{name}.json").write_text(json.dumps(record))
    (results / "_run" / "run.json").write_text('{"blocks": 1}')
    (results / "no-boxes.json").write_text('{"blocks": null}')
    (results / "other.json").write_text("[1]")
    return images, results


def test_a_folder_of_results(scans, tmp_path, monkeypatch, capsys):
    images, results = scans
    words = [results, tmp_path / "exported", "--images", images, "--formats", "hocr,alto,page,pdf"]
    code, counts, _ = run(monkeypatch, capsys, *words)
    assert code == 0 and counts["pages"] == 3 and counts["errors"] == 0 and counts["blocks_on_print"] == 3
    found = {
        str(path.relative_to(tmp_path / "exported")) for path in (tmp_path / "exported").rglob("*.*") if path.is_file()
    }
    pages = ["letter", "report/page_001", "report/page_002"]
    texts = {page + suffix for page in pages for suffix in (".hocr", ".alto.xml", ".page.xml")}
    assert found == texts | {"letter.pdf", "report.pdf"} and counts["files"] == len(found)
    pdf = pypdfium2.PdfDocument(tmp_path / "exported" / "report.pdf")
    assert len(pdf) == 2 and "bridge" in pdf[1].get_textpage().get_text_range()
    assert "some/model" in (tmp_path / "exported" / "letter.alto.xml").read_text()


def test_each_page_of_a_window_is_a_page(tmp_path, monkeypatch, capsys):
    pages = [{"page": n, **document(block([100, 200, 800, 240], f"page {n}"))} for n in (17, 18)]
    window = {"blocks": {"schema": "ocr-blocks/1", "pages": pages}}
    (tmp_path / "in/book").mkdir(parents=True)
    (tmp_path / "in/book/pages_0017-0032.json").write_text(json.dumps(window))
    told = run(monkeypatch, capsys, str(tmp_path / "in"), str(tmp_path / "out"), "--formats", "alto")
    assert sorted(p.name for p in (tmp_path / "out/book").iterdir()) == ["page_017.alto.xml", "page_018.alto.xml"]
    assert 'CONTENT="18"' in (tmp_path / "out/book/page_018.alto.xml").read_text() and told


def test_images_are_needed_for_pdf_only(scans, tmp_path, monkeypatch, capsys):
    _, results = scans
    code, counts, said = run(monkeypatch, capsys, results, tmp_path / "a", "--formats", "pdf")
    assert code == 3 and counts["errors"] == 3 and "--images" in said
    code, counts, _ = run(monkeypatch, capsys, results, tmp_path / "b")
    assert code == 0 and counts["files"] == 9 and counts["blocks_on_print"] == 0


def test_one_bad_page_costs_itself(scans, tmp_path, monkeypatch, capsys):
    images, results = scans
    (results / "broken.json").write_text("{")
    (results / "strange.json").write_text('{"schema": "ocr-blocks/9"}')
    code, counts, said = run(monkeypatch, capsys, results, tmp_path / "a", "--images", images)
    assert code == 0 and counts["errors"] == 2 and counts["pages"] == 3 and "broken.json" in said


@pytest.mark.parametrize(
    "words, message",
    [
        (["nothing-here"], "no such file"),
        ([".", "user/dataset"], "folder"),
        ([".", "./x", "--formats", "hocr"], "no .json"),
    ],
)
def test_usage(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, said = run(monkeypatch, capsys, *words, *(["./y"] if len(words) == 1 else []))
    assert code == 2 and message in said
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, ".", "./x", "--formats", "docx")
    assert "hocr,alto,page,pdf" in capsys.readouterr().err


def test_a_dataset(tmp_path, monkeypatch, capsys):
    """Rows as `publish` writes them: a document's pages share the bytes of its first row."""
    import datasets

    image, boxes = printed(LINES)
    one, many = io.BytesIO(), io.BytesIO()
    image.save(one, "PNG")
    image.save(many, "TIFF", save_all=True, append_images=[image], compression="tiff_lzw")
    text = json.dumps(a_block_around(boxes, " ".join(LINES)))
    rows = datasets.Dataset.from_dict(
        {
            "file_name": ["a/one.png", "many.tif", "many.tif", "unread.png"],
            "image": [{"bytes": one.getvalue(), "path": None}, {"bytes": many.getvalue(), "path": None}, None, None],
            "page": [1, 1, 2, 1],
            "dots_blocks": [text, text, text, None],
            "inference_info": ['[{"model_id": "x"}, {"model_id": "some/model"}]', None, "{", None],
        },
        features=datasets.Features(
            {
                "file_name": datasets.Value("string"),
                "image": datasets.Image(),
                "page": datasets.Value("int64"),
                "dots_blocks": datasets.Value("string"),
                "inference_info": datasets.Value("string"),
            }
        ),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: rows.to_iterable_dataset())
    code, counts, said = run(monkeypatch, capsys, "user/ocr", tmp_path / "out", "--formats", "alto,pdf")
    assert code == 0 and counts["pages"] == 3 and counts["blocks_on_print"] == 3, said
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*") if path.is_file()}
    assert found == {
        "a/one.alto.xml", "a/one.pdf", "many.alto.xml", "many/page_002.alto.xml", "many.pdf",
    }  # fmt: skip
    assert len(pypdfium2.PdfDocument(tmp_path / "out" / "many.pdf")) == 2
    code, _, said = run(monkeypatch, capsys, "user/ocr", tmp_path / "b", "--blocks-column", "x")
    assert code == 2 and "--blocks-column" in said


def test_nothing_is_left_open_at_the_end(tmp_path):
    """pypdfium2 complains on stderr of a PDF that nobody closed."""
    pages = [Image.new("L", (100, 140), 255)] * 2
    (tmp_path / "blocks" / "book").mkdir(parents=True)
    (tmp_path / "images").mkdir()
    pages[0].save(tmp_path / "images" / "book.pdf", save_all=True, append_images=pages[1:])
    for number in (1, 2):
        record = json.dumps({"blocks": document()})
        (tmp_path / "blocks" / "book" / f"page_{number:03d}.json").write_text(record)
    command = [sys.executable, str(OCR / "ocr-export.py"), "blocks", "out", "--images", "images", "--formats", "pdf"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / "out" / "book.pdf").is_file()
    assert done.stderr.strip() == "2 pages, 1 files, 0 blocks, 0 blocks on print, 0 errors"
