# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "pillow>=11",
#     "numpy>=1.26",
#     "fontpkg-noto-serif>=2.15",
#     "fontpkg-noto-sans>=2.15",
#     "fontpkg-eb-garamond>=1.3",
#     "fontpkg-caveat>=2.0",
#     "cvttf-notosanscjk-regular>=1.0",
#     "datasets>=5.2.0",
#     "huggingface_hub>=2.4.0",
#     "rapidfuzz>=3.9",
#     "regex>=2024.11.6",
#     "fuzzysearch>=0.8",
#     "apted>=1.0.3",
#     "lxml>=5",
#     "scipy>=1.15",  # the first with `rng`
# ]
#
# [tool.hf-jobs]
# flavor = "cpu-basic"
# timeout = "1h"
# ///
"""OCR smoke set: 29 small pages with true text, tables and boxes, and a check that models read them as before.

    uv run ocr/ocr-smoke.py smoke
    uv run ocr/pp-ocrv6.py smoke ./out/pp
    uv run ocr/ocr-score.py ./out/pp --truth smoke --by quality
    uv run ocr/ocr-smoke.py smoke --check pp=./out/pp --baseline figures.json           exit code 3 where it reads worse
    uv run ocr/ocr-smoke.py smoke --check pp=./out/pp --baseline figures.json --update  these are the figures from now

The pages cross document kind (book, article, newspaper, table, form, title page, letter, list, blank), quality
(clean, skewed, noisy, low contrast, JPEG), language (English, French, German, Polish, Czech, Greek, Russian, Chinese,
Japanese; Fraktur, long s) and layout (one to three columns, footnotes). They say whether a recipe still works after an
update; for a ranking of models they are too few and too clean.

Output: for each page NAME.png or .jpg, NAME.txt (true text in reading order, a line per printed line), NAME.json (a
blocks document, tables as HTML), and `pages.jsonl` (kind, quality, language, layout). The same seed, Pillow and fonts
give the same bytes.
Hardware: any CPU. Licence: Apache-2.0; the texts were written for these pages, the fonts are free (OFL).
"""

import argparse
import base64
import hashlib
import html
import importlib.util
import io
import json
import math
import os
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

# >>> shared imports
# isort: split
import contextlib
import csv
import functools
import random
import re
import secrets
import shutil
import time
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median

# <<< shared imports

WIDTH, HEIGHT, MARGIN = 1240, 1600, 120  # pixels: about 150 dpi of A4, cut to what is printed
FONT_FILES = {
    "serif": ("fontpkg_noto_serif", "NotoSerif[wdth,wght].ttf", [400, 100]),
    "bold": ("fontpkg_noto_serif", "NotoSerif[wdth,wght].ttf", [700, 100]),
    "sans": ("fontpkg_noto_sans", "NotoSans[wdth,wght].ttf", [400, 100]),
    "sans-bold": ("fontpkg_noto_sans", "NotoSans[wdth,wght].ttf", [700, 100]),
    "garamond": ("fontpkg_eb_garamond", "EBGaramond[wght].ttf", [400]),
    "hand": ("fontpkg_caveat", "Caveat[wght].ttf", [400]),
    "cjk": ("cvttf_NotoSansCJK_Regular", "NotoSansCJKtc-Regular.otf", None),
}

MILL = [
    "The mill stood idle for eleven years before the brothers came. They cleared the race of stones and "
    "willow roots, mended the sluice with oak from the old barn, and on the 3rd of March 1887 the wheel "
    "turned again. Half the village walked down to see it.",
    "Elias, the elder, kept the books. He wrote every sack in a blue ledger: 214 of wheat, 96 of rye, 41 "
    "of barley in the first autumn alone. His brother could neither write nor count past twenty, but he "
    "heard a loose bearing from across the yard.",
    '"You hear with your feet," said Elias. "No," said the other, "I hear with the flour." And it was true '
    "that the flour trembled on the board a full day before a tooth broke in the great wheel.",
]
TIDES = [
    "Tide tables were once a secret of pilots. A father taught his son the hours by rhyme, and what was "
    "not in the rhyme was learned on the sandbank.",
    "The first printed table for this coast appeared in 1792. It gave two numbers for each day and was "
    "wrong by as much as 40 minutes, since nobody had measured at night.",
    "Measuring at night needs a lamp, a ruler and patience. The widow Maren Holt had all three; for six "
    "winters she read the gauge at every hour and was paid 2 shillings a week.",
    "Her figures are still in use. The modern prediction for the harbour differs from hers by less than "
    "four minutes, of which three are due to the new breakwater.",
]
NEWS = [
    ("Fire at the Rope Works", [
        "A fire broke out on Tuesday in the drying loft of the rope works. The engine arrived within nine "
        "minutes and saved the walls.",
        "Nobody was hurt. The loss is put at 600 pounds."]),
    ("A Whale in the Bay", [
        "Fishermen saw a whale of some forty feet off the point. It followed the herring boats home and "
        "left again with the tide.",
        "Children are asked not to throw bread."]),
    ("Letters to the Editor", [
        "Sir, the bell of St Anne rings the quarter four minutes late. My eggs are hard in consequence.",
        "We thank the writer and have told the sexton. The sexton says that the eggs are early."]),
]  # fmt: skip
FRENCH = [
    "Le vieux relieur ouvrait sa boutique à sept heures précises, été comme hiver. Sur l'établi "
    "traînaient des peaux de chèvre, un pot de colle tiède et trois aiguilles de tailles différentes.",
    "« Un livre, disait-il, se répare comme une chaussure : on commence par la semelle. » Ses élèves "
    "riaient, puis recousaient le même cahier jusqu'à ce qu'il fût droit.",
    "En 1911, il reçut de Besançon une caisse de 48 volumes brûlés. Il n'en perdit aucun ; l'œuvre dura "
    "dix-huit mois, et la facture ne dépassa pas 350 francs.",
]
GERMAN = [
    "Über dem Schreibtisch des Kartographen hing eine Uhr ohne Zeiger. Er brauchte sie nicht, denn er "
    "maß die Zeit in Blättern: Für einen Höhenzug rechnete er drei Tage, für einen größeren Fluß vier.",
    "Im Frühjahr 1903 zeichnete er das Moor südlich von Königsbrück. Die Wege dort ändern sich nach jedem "
    "Regen; also trug er nur die Bäume ein, 1 127 an der Zahl, und ließ die Wege weg.",
    "»Wer die Bäume kennt«, schrieb er an den Rand, »geht nicht in die Irre.« Das Amt schickte ihm das "
    "Blatt zurück und bat höflich um Straßen.",
]
POLISH_CZECH = [
    "Zegarmistrz z ulicy Długiej naprawiał tylko zegary, które się spieszyły. Te spóźnione odsyłał z "
    "kartką: „Proszę żyć wolniej”. Mimo to miał więcej zamówień, niż mógł przyjąć.",
    "W roku 1926 przyniesiono mu zegar wieżowy z trzema wskazówkami. Źródła milczą, co pokazywała trzecia.",
    "Na náměstí v Třebíči stála žlutá studna. Děti věřily, že kdo z ní pije o půlnoci, uslyší růst trávu, "
    "a proto každé léto někdo usnul na kamenném okraji.",
    "Řezník Šťastný tvrdil, že ji slyšel dvakrát. Podruhé prý šeptala jeho jméno.",
]
GREEK = [
    "Ο φαροφύλακας του νησιού έγραφε κάθε βράδυ τρεις γραμμές: τον άνεμο, τα πλοία και το φαγητό. Το "
    "τετράδιο του 1934 έχει 365 σελίδες και ούτε μία διαγραφή.",
    "Τον Αύγουστο πέρασαν δεκαεπτά καΐκια με σφουγγάρια. Το ένα σταμάτησε για νερό και άφησε δώρο ένα "
    "καρπούζι, που κατά τον φύλακα ζύγιζε εννέα οκάδες.",
    "Όταν έσβησε η λάμπα, άναψε φωτιά στην αυλή. Κανένα πλοίο δεν χάθηκε εκείνη τη νύχτα.",
]
RUSSIAN = [
    "Смотритель метеостанции поднимался на вышку четыре раза в сутки. Зимой он брал с собой топор, "
    "чтобы сбивать лёд со ступеней, и фонарь, который гас на ветру.",
    "В журнале за 1938 год записано: «Минус 41, тихо, слышно, как трещит река». Ниже другой рукой "
    "добавлено: «И как смеётся повар».",
    "Летом приезжала почта. Её читали вслух, по одному письму в день, чтобы хватило до октября.",
]
FRAKTUR = [
    "Der alte Schulmeiſter von Birkenfeld hielt ſeine Stunden im Sommer unter der Linde. Die Kinder "
    "lernten das Leſen an den Grabſteinen und das Rechnen an den Kirſchen.",
    "Wer eine Aufgabe löſte, durfte die Kirſchen eſſen. Daher kam es, daß die Klaſſe im Juni raſch, im "
    "September aber gar nicht mehr rechnete.",
    "Im Jahre 1841 beſuchte ihn der Schulrat. Er prüfte drei Stunden, aß zwei Pfund Kirſchen und ſchrieb "
    "in das Buch, es ſei alles in guter Ordnung.",
]
LONG_S = [
    "Of all Inſtruments the Barometer is the moſt honeſt, for it ſpeaks only when it has ſomething to "
    "ſay. The Author has obſerved one theſe fifteen Years, and found it wrong but twice.",
    "When the Mercury falls ſlowly, expect Rain that laſts; when it falls faſt, a Storm that paſſes. Let "
    "the Glaſs hang in a North Room, and ſuffer no Servant to poliſh it.",
    "He that would travel by its Advice muſt riſe early, and be content to ſtay at home.",
]
CHINESE = [
    "山脚下有一家修伞的小店，门口挂着一把红色的油纸伞。师傅姓陈，说话很少，只问一句：“什么时候要？”",
    "雨天客人最多，晴天他就坐在门槛上削竹子。一把伞有二十八根骨，每一根都要在火上烤三次。",
    "1976年夏天，大雨下了十九天。他修好了四百多把伞，却忘了给自己留一把。",
]
JAPANESE = [
    "港の古い時計屋は、毎朝六時に店を開けた。壁には三十七個の時計があり、どれも少しずつ違う時刻を指していた。",
    "「正しいのはどれですか」と子どもが聞くと、主人は笑って答えた。「君がいちばん好きなのを選びなさい。」",
    "昭和十二年の冬、停電の夜にも、店だけは静かな音で満ちていたという。",
]
LIST = [
    "1. Twelve sacks of seed potatoes, early",
    "2. Lamp oil, 40 litres, in tins",
    "3. Rope, 3/4 inch, 200 yards",
    "4. Nails, assorted, 6 lb 8 oz",
    "5. One stove door, hinged on the left",
    "6. Writing paper and two bottles of ink",
    "7. Tea (not the green)",
    "8. Candles, 15 dozen @ 1s. 4d.",
]
HARVEST = [
    ["Parish", "Wheat (t)", "Rye (t)", "Oats (t)", "Yield"],
    ["Ashcombe", "1,204.5", "310.0", "488.2", "3.1"],
    ["Birchley", "986.0", "275.4", "512.9", "2.8"],
    ["Coldwater", "441.7", "620.3", "190.0", "2.2"],
    ["Denholm", "1,530.9", "88.6", "701.5", "3.6"],
    ["Eastry", "707.2", "154.8", "333.3", "2.9"],
    ["Total", "4,870.3", "1,449.1", "2,225.9", ""],
]
# Cells with spans: (text, rowspan, colspan).
FERRY = [
    [("Ferry", 2, 1), ("Departure", 1, 2), ("Passengers", 1, 2)],
    ["Summer", "Winter", "Summer", "Winter"],
    [("North line", 1, 5)],
    ["Heron", "06:15", "07:40", "148", "61"],
    ["Plover", "09:30", "10:05", "212", "97"],
    [("South line", 1, 5)],
    ["Avocet", "11:45", "12:20", "305", "118"],
]
FORM = [
    ("Surname", "Lindqvist"), ("First name", "Johanna Maria"), ("Born on", "14 June 1891"), ("At", "Harbour Row 7"),
    ("Trade", "bookbinder"), ("Ship", "Aurora"), ("Number of trunks", "3"), ("Signature", "J. M. Lindqvist"),
]  # fmt: skip
LETTER = [
    "Dear Tomas,",
    "the roof is on at last, and it only rains in the pantry now. I have put your boots there to catch it.",
    "Bring two pounds of nails when you come, and the small saw. The cat has had four kittens in your hat.",
    "Your sister, Anna",
]
TITLE_PAGE = ["A Short History", "of the", "Lighthouse Cats", "by Miriam Ackroyd", "with eleven drawings",
              "Saltmarsh Press", "1908"]  # fmt: skip
NOTED = [
    "The canal was dug by hand between 1821 and 1829.¹ Two thousand men worked on the upper section, most "
    "of them from the hill villages, and were paid by the cubic yard.²",
    "No drawing of the first lock survives. What we know of it comes from a bill for oak and from one angry letter.³",
]
NOTES = [
    "¹ Minutes of the Canal Board, vol. 2, p. 118.",
    "² The rate was 4½ pence in clay and 7 pence in rock.",
    "³ E. Marsh to the Board, 9 May 1823.",
]


class Spec(NamedTuple):
    """One page: how it is drawn (a function of a Sheet), and what it stands for."""

    name: str
    draw: object
    kind: str
    quality: str = "clean"
    language: str = "en"
    layout: str = "one column"


class Sheet:
    """A white page in grey and the blocks that are printed on it, in reading order."""

    def __init__(self, width=WIDTH, height=HEIGHT):
        from PIL import Image, ImageDraw

        self.image, self.blocks, self.lines = Image.new("L", (width, height), 255), [], []
        self.draw = ImageDraw.Draw(self.image)

    def add(self, label, boxes, lines, content=None, form="text"):
        """Notes a block around `boxes`; `lines` are its true text as printed."""
        sides = list(zip(*boxes, strict=True))
        box = [min(sides[0]), min(sides[1]), max(sides[2]), max(sides[3])]
        self.blocks.append({"label": label, "bbox": box, "content": content or "\n".join(lines), "format": form})
        self.lines.append(lines)

    def text(self, label, text, font, x, y, width, leading, between=" ", anchor="la"):
        """Prints one paragraph and returns the y of the next line. With anchor "ma", x is its middle."""
        lines, boxes = wrapped(text, font, width, between), []
        for line in lines:
            self.draw.text((x, y), line, font=font, fill=0, anchor=anchor)
            boxes.append(self.draw.textbbox((x, y), line, font=font, anchor=anchor))
            y += leading
        self.add(label, boxes, lines)
        return y


def font_of(name, size):
    """A font of FONT_FILES, or the Fraktur that this file holds, at a size in pixels. Raises Stop."""
    from PIL import ImageFont

    basic = ImageFont.Layout.BASIC  # the same on every platform, with or without Raqm
    if name == "fraktur":
        data = zlib.decompress(base64.b85decode("".join(FRAKTUR_FONT.split())))
        return ImageFont.truetype(io.BytesIO(data), size, layout_engine=basic)
    package, file, axes = FONT_FILES[name]
    found = importlib.util.find_spec(package)
    folders = found.submodule_search_locations if found else []
    paths = [path for folder in folders for path in Path(folder).rglob("*") if path.name == file]
    if not paths:
        raise Stop(f"The font package {package.replace('_', '-').lower()} is not installed; uv run brings it.")
    font = ImageFont.truetype(str(paths[0]), size, layout_engine=basic)
    if axes:
        font.set_variation_by_axes(axes)
    return font


def wrapped(text, font, width, between=" "):
    """Lines no wider than `width` pixels; `between` is "" for scripts without spaces."""
    lines = [""]
    for word in text.split(between) if between else text:
        longer = f"{lines[-1]}{between}{word}" if lines[-1] else word
        # A closing mark never starts a line: it hangs over the margin.
        if font.getlength(longer) <= width or (not between and word in "，。、；：！？」”"):
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


# ---- Pages


def prose(paragraphs, face="serif", size=32, leading=46, title=None, head=None, foot=None, between=" ", height=None):
    """A page of paragraphs in one column, with a title, a running head and a page number where these are given."""

    def draw():
        sheet = Sheet(height=height or HEIGHT)
        font, big, small, y = font_of(face, size), font_of(face, size + 14), font_of(face, size - 6), 90
        if head:
            sheet.text("header", head, small, sheet.image.width // 2, y, WIDTH, leading, between, "ma")
        y = 170
        if title:
            y = sheet.text("title", title, big, MARGIN, y, WIDTH - 2 * MARGIN, leading + 16, between) + 24
        for paragraph in paragraphs:
            y = sheet.text("text", paragraph, font, MARGIN, y, WIDTH - 2 * MARGIN, leading, between) + leading // 2
        bottom = min(sheet.image.height, y + 130)
        if foot:
            sheet.text("page_number", foot, small, WIDTH // 2, bottom - 70, WIDTH, leading, between, "ma")
        sheet.image = sheet.image.crop((0, 0, WIDTH, bottom))
        return sheet

    return draw


def columns(count, title, articles, masthead=None):
    """Articles, each a heading (or None) and paragraphs, dealt to `count` columns below a title."""

    def draw():
        sheet, gap = Sheet(), 50
        size = {2: 28, 3: 25}[count]
        font, bold, leading = font_of("serif", size), font_of("bold", size + 4), size + 12
        y = sheet.text("title", title, font_of("bold", 52), WIDTH // 2, 80, WIDTH, 70, anchor="ma")
        if masthead:
            sheet.draw.line((MARGIN // 2, y + 5, WIDTH - MARGIN // 2, y + 5), fill=0, width=2)
            y = sheet.text("header", masthead, font, WIDTH // 2, y + 14, WIDTH, 44, anchor="ma") + 8
            sheet.draw.line((MARGIN // 2, y, WIDTH - MARGIN // 2, y), fill=0, width=2)
        top, bottom = y + 30, 0
        width = (WIDTH - MARGIN - gap * (count - 1)) // count
        for place in range(count):
            x, y = MARGIN // 2 + place * (width + gap), top
            for heading, paragraphs in articles[place]:
                if heading:
                    y = sheet.text("heading", heading, bold, x, y, width, leading + 4) + 10
                for paragraph in paragraphs:
                    y = sheet.text("text", paragraph, font, x, y, width, leading) + leading // 2
            bottom = max(bottom, y)
        for place in range(1, count if masthead else 0):
            x = MARGIN // 2 + place * (width + gap) - gap // 2
            sheet.draw.line((x, top, x, bottom), fill=0, width=1)
        sheet.image = sheet.image.crop((0, 0, WIDTH, bottom + 70))
        return sheet

    return draw


def table_page(title, rows, note=None, ruled=True):
    """A title, a table with as many columns as its widest row, and a note."""

    def draw():
        sheet, font, high = Sheet(), font_of("sans", 27), 62
        y = sheet.text("title", title, font_of("sans-bold", 38), MARGIN, 90, WIDTH - 2 * MARGIN, 54) + 30
        cells = [[cell if isinstance(cell, tuple) else (cell, 1, 1) for cell in row] for row in rows]
        count = max(sum(cell[2] for cell in row) for row in cells)
        wide, taken = (WIDTH - 2 * MARGIN) // count, set()
        for number, row in enumerate(cells):
            place = 0
            for text, down, across in row:
                while (number, place) in taken:
                    place += 1
                taken |= {(number + i, place + j) for i in range(down) for j in range(across)}
                x0, y0 = MARGIN + place * wide, y + number * high
                x1, y1 = x0 + across * wide, y0 + down * high
                if ruled:
                    sheet.draw.rectangle((x0, y0, x1, y1), outline=0, width=2)
                numeric = text[:1].isdigit()
                x, anchor = (x1 - 18, "rm") if numeric else (x0 + 18, "lm")
                sheet.draw.text((x, (y0 + y1) // 2), text, font=font, fill=0, anchor=anchor)
                place += across
        bottom = y + len(rows) * high
        lines = ["  ".join(cell[0] for cell in row if cell[0]) for row in cells]
        sheet.add("table", [(MARGIN, y, MARGIN + count * wide, bottom)], lines, table_html(cells), "html")
        y = bottom + 40
        if note:
            y = sheet.text("text", note, font, MARGIN, y, WIDTH - 2 * MARGIN, 42)
        sheet.image = sheet.image.crop((0, 0, WIDTH, y + 70))
        return sheet

    return draw


def table_html(rows):
    """HTML of rows of cells (text, rowspan, colspan)."""
    said = ""
    for row in rows:
        said += "<tr>"
        for text, down, across in row:
            spans = f' rowspan="{down}"' * (down > 1) + f' colspan="{across}"' * (across > 1)
            said += f"<td{spans}>{html.escape(text)}</td>"
        said += "</tr>"
    return f"<table>{said}</table>"


def form_page():
    sheet, font, hand = Sheet(), font_of("sans", 27), font_of("hand", 44)
    y = sheet.text("title", "Declaration of Passengers", font_of("sans-bold", 40), MARGIN, 90, WIDTH, 60) + 30
    for label, value in FORM:
        sheet.draw.text((MARGIN, y), f"{label}:", font=font, fill=0)
        sheet.draw.text((MARGIN + 330, y - 14), value, font=hand, fill=30)
        sheet.draw.line((MARGIN + 320, y + 38, WIDTH - MARGIN, y + 38), fill=90, width=2)
        sheet.add("form", [(MARGIN, y - 14, WIDTH - MARGIN, y + 40)], [f"{label}: {value}"])
        y += 82
    sheet.image = sheet.image.crop((0, 0, WIDTH, y + 60))
    return sheet


def title_page():
    sheet = Sheet(height=1300)
    sizes, gaps = [62, 34, 72, 38, 30, 34, 34], [0, 100, 170, 330, 410, 900, 950]
    for line, size, gap in zip(TITLE_PAGE, sizes, gaps, strict=True):
        label = "title" if size > 50 else "text"
        sheet.text(label, line, font_of("bold" if size > 50 else "serif", size), WIDTH // 2, 150 + gap, WIDTH, 80,
                   anchor="ma")  # fmt: skip
    return sheet


def footnote_page():
    sheet, font, small = Sheet(), font_of("serif", 32), font_of("serif", 25)
    y = sheet.text("heading", "2. The Upper Section", font_of("bold", 40), MARGIN, 110, WIDTH, 60) + 20
    for paragraph in NOTED:
        y = sheet.text("text", paragraph, font, MARGIN, y, WIDTH - 2 * MARGIN, 46) + 22
    y += 60
    sheet.draw.line((MARGIN, y, MARGIN + 300, y), fill=0, width=2)
    y += 20
    for note in NOTES:
        y = sheet.text("footnote", note, small, MARGIN, y, WIDTH - 2 * MARGIN, 38)
    sheet.image = sheet.image.crop((0, 0, WIDTH, y + 60))
    return sheet


def blank_page():
    return Sheet(900, 1200)


def list_page():
    sheet, font = Sheet(), font_of("sans", 30)
    y = sheet.text("title", "Stores for the Winter Station", font_of("sans-bold", 40), MARGIN, 100, WIDTH, 60) + 30
    for line in LIST:
        y = sheet.text("list", line, font, MARGIN + 30, y, WIDTH - 2 * MARGIN, 56)
    sheet.image = sheet.image.crop((0, 0, WIDTH, y + 70))
    return sheet


BOOK = prose(MILL, head="THE MILLS OF THE LOWER VALLEY", foot="37")
ARTICLE = columns(2, "Who Measured the Tide", [[(None, TIDES[:2])], [(None, TIDES[2:])]])
PAPER = columns(
    3, "THE HARBOUR OBSERVER", [[article] for article in NEWS], "Friday, 21 October 1904. No. 1,382. One penny."
)
PAGES = [
    Spec("book", BOOK, "book"),
    Spec("book-skewed", BOOK, "book", "skewed"),
    Spec("book-noisy", BOOK, "book", "noisy"),
    Spec("book-low-contrast", BOOK, "book", "low contrast"),
    Spec("book-jpeg", BOOK, "book", "jpeg"),
    Spec("two-columns", ARTICLE, "article", layout="two columns"),
    Spec("two-columns-noisy", ARTICLE, "article", "noisy", layout="two columns"),
    Spec("three-columns", PAPER, "newspaper", layout="three columns"),
    Spec("three-columns-jpeg", PAPER, "newspaper", "jpeg", layout="three columns"),
    Spec("table-ruled", table_page("Harvest by Parish, 1898", HARVEST, "Weights in metric tons."), "table"),
    Spec("table-plain", table_page("Harvest by Parish, 1898", HARVEST, ruled=False), "table"),
    Spec("table-merged", table_page("Ferries in the Season of 1911", FERRY), "table"),
    Spec("table-skewed", table_page("Harvest by Parish, 1898", HARVEST, "Weights in metric tons."), "table", "skewed"),
    Spec("form", form_page, "form"),
    Spec("title-page", title_page, "title page"),
    Spec("footnotes", footnote_page, "book", layout="footnotes"),
    Spec("list", list_page, "list"),
    Spec("letter", prose(LETTER, "hand", 50, 66), "letter"),
    Spec("blank", blank_page, "blank", layout="blank"),
    Spec("blank-noisy", blank_page, "blank", "noisy", layout="blank"),
    Spec("french", prose(FRENCH), "book", language="fr"),
    Spec("german", prose(GERMAN), "book", language="de"),
    Spec("polish-czech", prose(POLISH_CZECH), "book", language="pl, cs"),
    Spec("greek", prose(GREEK), "book", language="el"),
    Spec("russian", prose(RUSSIAN), "book", language="ru"),
    Spec("fraktur", prose(FRAKTUR, "fraktur", 40, 54, "Vom Schulmeiſter"), "book", language="de (Fraktur)"),
    Spec("long-s", prose(LONG_S, "garamond", 38, 50, "Of the Barometer"), "book", language="en (long s)"),
    Spec("chinese", prose(CHINESE, "cjk", 36, 60, "修伞的人", between=""), "book", language="zh"),
    Spec("japanese", prose(JAPANESE, "cjk", 36, 60, "港の時計屋", between=""), "book", language="ja"),
]


# ---- Quality


def worn(image, boxes, quality, random):
    """(image, boxes) as a scan of that quality shows them; boxes stay around what they were around."""
    import numpy as np
    from PIL import Image, ImageFilter

    if quality == "skewed":
        degrees = float(random.choice([-1, 1]) * random.uniform(1.2, 2.0))
        boxes = [turned_box(box, degrees, image.size) for box in boxes]
        return image.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=255), boxes
    if quality == "noisy":
        pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.8)), np.float32)
        light = np.linspace(1.0, 0.88, pixels.shape[1], dtype=np.float32)[None, :]
        pixels = (40 + pixels * (205 / 255)) * light + random.normal(0, 14, pixels.shape)
        pixels[random.random(pixels.shape) < 0.0006] = 30
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), boxes
    if quality == "low contrast":
        pixels = np.asarray(image, np.float32) * (55 / 255) + 165 + random.normal(0, 3, (image.height, image.width))
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), boxes
    return image, boxes


def turned_box(box, degrees, size):
    """The box around a box that is turned counter-clockwise about the middle of the page, as whole pixels on it."""
    angle, middle = math.radians(-degrees), (size[0] / 2, size[1] / 2)
    corners = [
        (
            middle[0] + (x - middle[0]) * math.cos(angle) - (y - middle[1]) * math.sin(angle),
            middle[1] + (x - middle[0]) * math.sin(angle) + (y - middle[1]) * math.cos(angle),
        )
        for x in box[::2]
        for y in box[1::2]
    ]
    (x0, x1), (y0, y1) = ((min(side), max(side)) for side in zip(*corners, strict=True))
    return [max(0, x0), max(0, y0), min(size[0], x1), min(size[1], y1)]


def write_pages(out, seed, only=None):
    """Writes the set and yields the names. Raises Stop for a name in `only` that there is not."""
    import numpy as np
    from PIL import Image

    names = [spec.name for spec in PAGES]
    if unknown := sorted(set(only or ()) - set(names)):
        raise Stop(f"There is no page {', '.join(unknown)}. There are {', '.join(names)}.")
    out.mkdir(parents=True, exist_ok=True)
    notes = []
    for number, spec in enumerate(PAGES):
        if only and spec.name not in only:
            continue
        sheet = spec.draw()
        boxes = [block["bbox"] for block in sheet.blocks]
        image, boxes = worn(sheet.image, boxes, spec.quality, np.random.default_rng([seed, number]))
        place, jpeg = io.BytesIO(), spec.quality == "jpeg"
        if jpeg:
            image.save(place, "JPEG", quality=20)
        else:  # 16 greys are all that clean type needs, and a third of the bytes
            clean = image.quantize(16, dither=Image.Dither.NONE) if spec.quality in ("clean", "skewed") else image
            clean.save(place, "PNG", optimize=True)
        blocks = [
            {"order": order, **block, "bbox": [round(value) for value in box], "confidence": None,
             "raw_label": block["label"]}
            for order, (block, box) in enumerate(zip(sheet.blocks, boxes, strict=True))
        ]  # fmt: skip
        document = {"schema": "ocr-blocks/1", "width": image.width, "height": image.height, "blocks": blocks}
        (out / f"{spec.name}.{'jpg' if jpeg else 'png'}").write_bytes(place.getvalue())
        text = "\n\n".join("\n".join(lines) for lines in sheet.lines)
        (out / f"{spec.name}.txt").write_text(text + "\n" * bool(text), "utf-8")
        (out / f"{spec.name}.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")
        sha256 = hashlib.sha256(place.getvalue()).hexdigest()
        notes.append({"name": spec.name, "kind": spec.kind, "quality": spec.quality, "language": spec.language,
                      "layout": spec.layout, "sha256": sha256})  # fmt: skip
        yield spec.name
    lines = "".join(json.dumps(note, ensure_ascii=False) + "\n" for note in notes)
    (out / "pages.jsonl").write_text(lines, "utf-8")


# ---- Check


def checked_figures(folder, place):
    """{"cer", "failed", "pages": {page: CER}, "truth"} of one folder of outputs; `truth` tells page sets apart."""
    if not os.path.isdir(place):
        raise Stop(f"{place} is no folder. Write NAME=FOLDER, a folder that a recipe wrote.")
    truths = read_truth_folder(folder)
    found, _ = outputs_of(folder_table(place), "markdown", place, truths)
    rows = {key: score_page(truth, *found[key]) for key, truth in truths.items()}
    texts = json.dumps({key: truth.text for key, truth in truths.items()}, sort_keys=True)
    return {
        "cer": round(share(rows.values(), "errors", "length") or 0.0, 5),
        "failed": sum(row["state"] == "error" for row in rows.values()),
        "pages": {key: round(row["cer"], 5) for key, row in sorted(rows.items())},
        "truth": hashlib.sha256(texts.encode()).hexdigest()[:12],
    }


def regressions(name, now, before, tolerance, page_tolerance):
    """Sentences on what is worse than before by more than the tolerances (CER, absolute)."""
    if now["truth"] != before["truth"]:
        raise Stop(f"The figures of {name} are of another page set. Draw that one, or type --update.")
    if now["failed"] > before["failed"]:
        yield f"{name}: {now['failed']} pages failed, {before['failed']} before"
    if now["cer"] > before["cer"] + tolerance:
        yield f"{name}: CER {now['cer']:.2%}, {before['cer']:.2%} before"
    for page, cer in now["pages"].items():
        if cer > before["pages"].get(page, 0) + page_tolerance:
            yield f"{name}: page {page} has CER {cer:.2%}, {before['pages'].get(page, 0):.2%} before"


def check_runs(options):
    """Compares runs with their earlier figures; returns the exit code and what goes into the JSON line."""
    path = Path(options.baseline)
    if not path.is_file() and not options.update:
        raise Stop(f"No earlier figures in {path}. Name them, --baseline FILE, or write them: --update.")
    stored = read_json(path) if path.is_file() else {}
    worse, figures = [], {}
    for word in options.check:
        name, named, place = word.partition("=")
        if not named:
            raise Stop(f"--check {word}: write NAME=FOLDER.")
        now = figures[name] = checked_figures(options.out, os.path.expanduser(place))
        if options.update:
            continue
        if name not in stored:
            raise Stop(f"{path} has no figures of {name}; it has {', '.join(stored) or 'none'}. Add them: --update.")
        worse += regressions(name, now, stored[name], options.tolerance, options.page_tolerance)
        say(f"{name}: CER {now['cer']:.2%} ({stored[name]['cer']:.2%} before), {now['failed']} failed")
    if options.update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**stored, **figures}, indent=1, ensure_ascii=False) + "\n", "utf-8")
        say(f"The figures of {', '.join(figures)} are in {path}.")
    for sentence in worse:
        say(f"Worse: {sentence}")
    return (3 if worse else 0), {"runs": {name: one["cer"] for name, one in figures.items()}, "worse": worse}


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("out", metavar="OUT", help="folder for the pages, or with --check the folder that has them")
    add("--seed", type=int, default=42, help="seed of skew, noise and grain (default 42)")
    add("--only", nargs="+", metavar="PAGE", help="these pages only")
    add("--check", nargs="+", metavar="NAME=FOLDER", help="compare outputs with earlier figures, draw nothing")
    add("--baseline", default="benchmarks/smoke.json", metavar="FILE", help="figures (default benchmarks/smoke.json)")
    add("--update", action="store_true", help="store the figures of --check as the earlier ones")
    add("--tolerance", type=float, default=0.005, help="CER of all pages may rise by this (default 0.005)")
    add("--page-tolerance", type=float, default=0.03, help="CER of one page may rise by this (default 0.03)")
    return made


def main(arguments=None):
    return exit_code_of(lambda: draw_or_check(parser().parse_args(arguments)))


def draw_or_check(options):
    """Draws the pages, or compares runs over them; returns the exit code."""
    if options.check:
        code, said = check_runs(options)
    else:
        names = list(write_pages(Path(options.out), options.seed, options.only))
        say(f"{len(names)} pages with their true text in {options.out}.")
        say(f"Read them: uv run ocr/pp-ocrv6.py {options.out} OUT")
        code, said = 0, {"pages": len(names), "seed": options.seed}
    print(json.dumps({"tool": "ocr-smoke", "out": options.out, **said, "exit": code}, ensure_ascii=False))
    return code


# Blankenburg, (c) 2009 Peter Wiegel, SIL Open Font License 1.1 (https://scripts.sil.org/OFL): the letters that the
# Fraktur page needs, as TrueType, zlib and base 85. No package has a Fraktur.
FRAKTUR_FONT = """
c-
oy<d3+RAp8x$`cT!0pgr?JU5^|AF)8yzhIhumbeUJcx0=dXRLb`JiLeh{xK%!xc#NhH_z=Oj@78M7^@uR4~AcKPn46*~F93rfvxQdG?Gp@rC2D)m0ud2
i4{IR=TU9Vo%d%y4do$vRn0tA2nSOFS{ex%rzQuq6%LjiCsJ)P@XQ0ES45$XZhM!Ns5sdZW7zGYvo0MOE$pvlb*b@e9yDMxASbvnm4(*xgc*#Pywr8Bm
9LFZCu6W$=aemaM@w!7;38=mY2&=3YZy`XNX8+v>lH0DS5(QS1L8Zvf1tOwAS(3<<)?H!%O7yU*K=i|V61vtEGRk5cwDB~K8(p=&X1|CX@=GTvgoO)Z{
EDzOO(&W&sKQK^#M5if|WEiPsH2yYGA>98fP@WX{4udp^2kisnjP5n~Jgx;F_~kDJ{^8FU3ciBIAN{oSM04+Od0|mB<Ulm`utRb%Bx;HfRi3Ch%Z@3Mf
hI&gfd%rH_^N!9)yvmttx%jU@5OQ$g1?b3VUv6d_rfsTDqqDX=$QkC;v|T`P4xURLVt_K`sn#;>OW5X=OK)(k#FKF@^#!pG|xgLcGFli7zyhNP5?bzfM
8rsb7#UxI4%zWpBGR4{V<BT3HN3BHZ~I<s|X`qmf;<+z$dikOEk7l9$+rIz5~N?jXZ#f@)6t$qhT+E!Um$5L%1){noYFcOGF<4W*kKlcR>iY(fASw$6D
~iLXv~eT?b(#S0K$F3O_1(W?oGOQ;W(~3n%Fs3B&2hFw$BQOoSOw4wc}B4tNy4BEP#1x3PzK<yuXIagYnMXuJ*<LFawrp@a63x68k$c8@$uo+;<Z>C$V
;YT-nmLg@Tg_JGAxVFHciKt7@8K_+BF24sN)(!of41rmQcl41k|fgeetg(1W*BmVtCAg%jSyp03{j3r-
Ff8j*$hUZ~79EYEAIF7>^I1m2?x8k4hA_Er5Ca_A@!Cqnq*aaqOLN!U6$(lM%x8?=SF3rc9OIjc8NNuimuC`0NN&B|;koKJRhEK3hhL6jq&*x>Ik9^Mf
T<}HT1m8z|ANBn;9q;&l>id%rAee;$VUExxJSS}9?kImL+fihPh<ngmL?6MZ6D*=pXF30s8I5mkU4A_JPcN|Osg<>d3ZzL33g_fwUmmBsDa-
f<(FGBmQD+n^I*Zzh#!ctbQ|I?4CDx}T&1HwCdOWcuIe5(~1%{NTvdFOVR8D_Qmf1q0kK*(q9V)dURWKQN&m^YWy@;l{!G8$-
b9&1BMcE;ijMVv4LXx{|*7_9oL5jVgz>9x9?j7ez-
U)C%ogfWUmm<58)o~N8V<011bRvfrjY29%wwpv+VRc9C<@o(^2U}`0;yT;9R*4a;Ior89FSc9ydBp6f8>>U4w}Lpwd*u|&VF$_5ppQb%sH!T3(|~i9@!
?@hz6kwnUHIbT?4a52k4|Y!%fwm{zj3z5@aP{R{}sE~5%LAlD}sq8akTLMmeBul?$%+|a8@skh_A`O%QIXqzTPE@wOzz{FwHlJcC+YX5R6<mc8j8+RlU
*|c{r`TJuA7ZH!IoA(*IhwWLin_>r)~xn@e&pCZ3}f-y@`31Xslllb4dNA7H%Tf*3w(@ve|J*M@h#!4BJq?W--e+9Vw5Y>y=$9wrClMs|SwnUugCLuU}
k$n^Ko3ES7Kske`}>d-xJMF<`W^_)GLjUoQU__5&3^;~VGwXc$&>`?v0NAV7wQEdea`kf<3c_PVLpKPteDNIY|lZIIF?_@mB*Q%dTBmpj_J(IMC7M)-
e%%V;-
V#GYhExq*HqQ+h}(JC#UmR2{Z3_qG@CyJqRC{esm(FokJG$wm0Eht!wsRol?7@E5>s4HVk)UqQn`=Xm>w!hsqb%`GfaIR`Bs?J;ElnnFvsu8pgP9O}wJ
GL?k%ijpO+O#X2RZC;zYtmWn<op`1ZdcGuvJxu6qe^GDi1a5n!4*wS3oqItJD%z7eJ1lc6CTcwm2Ou~V55R+%%01!hpkm>6U%G?W?D6xbX~9N3N7TOI?
}X3T^%QV7;~Whu_SwS%|(_U`F)|qvp<`qg#R2-%vp)ymI7bgpjc{%VksNrCNhg;Bv;Z1Y@a7x7_V4Kry9prta{~bTuS_N-
?%UMNa8=d65IVd<JDqQVhfjhmGcS-jt=LmTy)MaH9Up`0n8Lksa$#<VLBW#JMQ^)@7Mg0u)o6Nls;OK%u2GIQUuWqBN{iY$D_!=!(QEPR2BD!l{Pe93O
|!rR^0Rzt@wkFD@=NJ@{F3P=o3(Hz>>*RYDm&B!dOP@YG{82Gr6RO3#!B5=ll@oNKzC2N4R8WxoMt%uS{bi-
>oRQG!R9&x?9=FC&)Y$3kDKcv6#SFutYBGtEpQRbF`wOzdz>a>MeOElG#C<6p((>xjojI^*85sJO1YwSC;3<^vui|Ok*JI>%>hDMb|JjJ~)<{$A{7I>o
sfQj&QY;i$5BIr_#!b6uskV^6*F=<5#KqfcR3hk;-
FS@ix^8{Trpz`S?(FO8Z7SS^Co*6y1{l7>eq^)4bhFy5KM`;9p1=fr>_TdPS8Srnig5?Oyn)Bc&9V510_8uk+Gz)(oq3EVeX-XIpN+GDVNH`;)&Kbc!N
$qVDhRvA^p&;BsAyxrQTh?b80*iEK`ibc$QuNKGW3Q(|M#Jukbrr622AiPfRk<H}MnyE%eOcZHf_wwK4Qs6!D|>;dUo5k__GcGjR4M-
)h>q!X1^Ts%(N!Fi%u5DV}u<xH|IY7}^lXu*Pyx5fWuo^M+lu9yC1ojnn4?b3JaVu_z%ikc+yDAK=Paa#*FE5(i}II&}SN=0U-D-qAHteaXg{&AP*%mn
5F@4hw%&k%1!7ln3JYl1~jAy>K8_Gb6t$4>sZylKqQ%<))MG1ha`nSvwGH{>R*I8qMB47Og$nfHe2GV6M09p8!9Ur!z5d38K12=&C4=CIMgsMgZJN!Cs
Ez>vEclLt#;b5?S@V_c~r2T$fnKhk_Onmv8QBki5Ruz_flh}P5GD6T^Ct$3R4+f+Ow*TK5`V)HzoOv_BikImdVBdIYFZ(JK{{uGsjCzuWtc8fb)<7bbb
72l06lXS~klF1US1CE4+Jl_D-YH*M!eFpcu#|lS3#nyYi3ad(H6F}MPG;9gk#;E3OZ^pi-6^-
w{9=kJhTzeaxZZ21v3(sa{WlP_3xq`;rRxTEgDrIptN4-
sz_6|Y~`Xy@e+_;^D;?5f9cHqg(yg?lEEfs+5$n*Pj{G7P<SM*9`dh+BKcRsoElUDrPF72Le$C=V+QjA0zz0P-7S}RbAICc9`@|oR2snwoPZQa>c?-
WJHW;dQp&&ihdmxLX2V02L7r)J@1#7~@GnfRSf7>XT*JCeV*Hoc2WY_G<%X~pr9SHyJEtcC1&g*5BSH7oFqZk4lYelSb+M5b#@wTW|;jB^zZv#E*{ivM
!hp3Ka`<SsVV?UJs9l_j7A-i)&yPjP*v-pw|O-
o970#r0m9g%PIG9O);E%rD=Yizg~xsKv#^yGGr!Ee4G^n6q%i@}R^I7M{pVDQ&!BzKId(8PcJuL`*QzW}%U9QN32AP!8w0j?<!Ax2ZcPS07$<OZ#dPcA
59IAB_CavAKKhe_L*2Sw^nIktKalWwmBtl-
cLT*a4Dvxcm+7R(%OA>ORbY#5;R4arDGflP0}o{(5YatvD}lRni{Q7JMYW)RkwhwoQ$$413&VOQ>)-l1V26WY-qb3FUmVaIaDf91{Iv1{KqNYWmicltJ
B$k@zJ{bfy%KA(SJ85{Ku#wXo4!3+pX!u8sY!zpeXN^kMA7X{l8+`x2$ss1`23m}DL~qh&olOZL^@v9Iw?9W7eKUT5{0f|Wh(-
SeVc%{~1^gLZdT6uy!u?OPCA6N9?=R|=~@tykgSppU-
?@vW>nKR>^ZPCg=^fNtpJZ%LwH?{@X>+QsuJ)mKx={}q2$q_vY8)oswY=b6US8UH#qWNqV#v@K>Vvb{Sut2C)~*mUc@xmo45RuWXJW)Rk;_=Jwv$@gaw
4Q(A3I`3wa@Y2-WYC8W(R$+N9EiHt}tvZc%E*_QMSR0H?y%%ru&XqeqnZKYkEvK5!`y&-44ntnYbL-
1&8Tq=NV?OBbgS>rvkKa%5a`#LBXBi4A12bHNZ}1XHED&d65N2Z#X1y4;Ic9U%X3UJA9e<8a{w^9q@7LArJ*E2P*5#$Qj;ohz*bs!|^#ADjdg-yrlbgS
ox}gWRZ4P@TTl%cTDy15JC`o+Rk?}?NX=RrZa293S0JTcEn{5bi%5Ux4T29n`ezs%v=qrwJOf4VhIa)RjGf#z`;oOGPJ9FtEt+y`Z<Qg7v<{fD&aVN`-
zLFjx9WNip#L^_`!;_;FYRc015K;ScuSOjYG{J7tYf`CP5=G~0o2shVAxU($S~sx-NyJr31$~3^n^M>5NAuL75%g5vi6$EcCdcZ{lYaH9jiFm@*V&;fP
H9gXKJI$jTiIoL-w5f&#$>o#+>J)`Puo?!rDvzOKC7EKoz9K%Go(K{V=JOCAZh~qe`-
1ils(w4zPVB!9nBLrw~FqmOOvE;u0H0f`o7kQ892<iHuT8~n{=5+7uUhV^bV%f3WGsP-efUVtZi8RWc#1<H}t>g_zgSKxG!8fR&FT?J0E_Ef38x#PaJ1
w)$Azf1p9GU13T;KuVv|J<SO($kAJn$@~UOF@*RWs5n||0?NiNxk9zxo(1QKm{xImnpCKRG!41n`5zK=oXogOz&c=cZ;*_rv<LH=3JtxhGh8fU6;|(-
78p>&Y15q?UD<si9KOP~Z256&RA)&S@Sc~ae@1-eGt_z@p`t8t2Z6jS<>1c;8!fPWuPP>TaHBhfunbk>Sb;`47m`1Z)${HQic7TJtvxxYbrf^-
PjPNz;2$S=>m^g1$Xda~H^6@o0NoJJ~&aah5mMXK{bT?0V8ck?i1}<Nrccp(O>HYY5v@WNcuRL)QCyPkBS}28wp%RjnuSHyci<Nncyi!;R=l>!_G~ql9
1$TI}{x3M=HtwWZ4zSVDr5s75fet#8h=%iN^R9PS(>8kQR&34b7bu(!u6;jZ2hnkF;u`Fr`5n}6y$4z4^nq`ezx@3V`(sMR
"""


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
# >>> kit/seam.py
# The types that pass between a recipe's model part and the shared part.


class Stop(Exception):
    """Ends the run with one message for the user: what happened, what was found, what to type next.

    `code` is the exit code: 2 for usage and preflight, 1 for a stop that the same command resumes.
    """

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class PageError(Exception):
    """One page cannot be read; the message is the sentence that its row gets in `ocr_error`."""


@dataclass
class Page:
    """One page as the model sees it.

    `image` is RGB, upright, on white, and already inside the recipe's image bounds. `width` and `height` are the
    pixels of the original after orientation, the space of every bbox that leaves a recipe; for a PDF page they are
    the pixels at `dpi`. `partial` says that the file ended early and the lower part is missing.
    """

    image: object
    width: int
    height: int
    dpi: int | None = None
    partial: bool = False


@dataclass
class Unit:
    """What one answer is about: a page almost always, a window of pages, a whole document, or a text cell."""

    id: str
    pages: list
    text: str | None = None


@dataclass
class Item:
    """A unit before it is decoded, as the source yields it. Picklable and small: bytes are one page's, or absent.

    `parts` holds one `(data, frame)` per page: data is the encoded bytes, a local path or an `hf://` URI, and frame
    the 0-based page of a PDF or frame of a TIFF or GIF. `row` is the row in the source split (or the position in the
    sorted file list), `page` the 1-based page within that row or file, `pages` how many it has, `name` the output
    name without suffix. `error` is set where the source holds nothing to read.
    """

    id: str
    row: int
    name: str
    parts: list = field(default_factory=list)
    text: str | None = None
    page: int = 1
    pages: int = 1
    error: str | None = None


class Answer(NamedTuple):
    """What the model said to one request. `flags` are those of `flags_of`; `logprobs` one float per output token."""

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: tuple = ()
    logprobs: list | None = None


@dataclass
class Parsed:
    """A recipe's reading of one unit. `markdown` is "" for a blank page and never a sentinel.

    `blocks` is a blocks document (or None), `columns` the recipe's own output columns, `flags` what the parser
    noticed: "unparsed" (the model's protocol was broken; asked again), "repaired", or words of the recipe's own.
    `answers` are those that the reading was made of, where `steps` threw others away; None is all of them. Their flags
    become the row's.
    """

    markdown: str | None
    blocks: dict | None = None
    columns: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    answers: list | None = None


def say(message):
    """Tells the human: stderr, flushed, so that a job log shows it at once. stdout is for the one JSON line."""
    with contextlib.suppress(OSError):  # a terminal that was closed costs no page
        print(message, file=sys.stderr, flush=True)


# <<< kit/seam.py

# >>> kit/answers.py
# What one answer is worth, and the conversation about one unit: ask, check, ask again, choose, make the row.


ASK_AGAIN = {"looped", "degenerate"}
# A tail is a loop when it repeats a unit of at most LOOP_UNIT characters over at least LOOP_SPAN characters (dot
# leaders and ruled lines of forms stay below it). Compression, runs of one character counted as three: prose compresses
# 2 to 3 times, registers written to one formula 7, tables of numbers 7, loops that go on for a page 30 and more
# (the texts of tests/unit/test_answers.py; 345 blocks of a public run: prose about 2, loops 6 to 330).
LOOP_UNIT, LOOP_SPAN = 250, 200
LOOP_BYTES, LOOP_RATIO, LOOP_RATIO_TABLE = 2000, 10.0, 20.0


def flags_of(text, finish_reason):
    """Flags of one answer's text: "truncated", and "degenerate" or "looped". Nothing is ever trimmed.

    The finish reason "repetition" is that of an engine which saw the loop itself (`repetition_detection`).
    """
    flags = ["truncated"] if finish_reason == "length" else []
    words = text.split()
    if len(text.strip()) >= 20 and (len(set(text.strip())) == 1 or (len(words) >= 20 and len(set(words)) == 1)):
        return flags + ["degenerate"]
    if finish_reason == "repetition" or loops_at_end(text) or loops_at_end(text[:-50]) or compresses_like_a_loop(text):
        return flags + ["looped"]
    return flags


def loops_at_end(text):
    """True if the text ends in one unit repeated more than 4 * (1 + 3 / length) times over LOOP_SPAN characters."""
    for length in range(1, min(LOOP_UNIT, len(text) // 2) + 1):
        repeats = max(int(4 * (1 + 3 / length)) + 1, -(-LOOP_SPAN // length))
        if length * repeats <= len(text) and text.endswith(text[-length:] * repeats):
            return True
    return False


def compresses_like_a_loop(text):
    data = re.sub(r"(.)\1{3,}", r"\1\1\1", text).encode("utf-8", "replace")
    if len(data) < LOOP_BYTES:
        return False
    table = text.count("<td") >= 20 or len(re.findall(r"^\s*\|.*\|\s*$", text, re.M)) >= 10
    return len(data) / len(zlib.compress(data, 6)) > (LOOP_RATIO_TABLE if table else LOOP_RATIO)


def one_step(request, parse):
    """The `steps` of a recipe whose unit is one page (or one text cell) and one request."""

    def steps(unit, options):
        (answer,) = yield [request(subject(unit), options)]
        return parse(answer, subject(unit), options)

    return steps


def subject(unit):
    """What a recipe's function is given: the Page of a unit with one, the Unit itself for a text or several pages."""
    return unit.pages[0] if len(unit.pages) == 1 else unit


def complete(body, options, recipe, unit=None):
    """The body with the run's sampling and `max_tokens` where it names none, and every image mark given its image."""
    messages = []
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, list):
            content = [
                {"type": "image", "image": unit.pages[0].image} if part == {"type": "image"} and unit else part
                for part in content
            ]
        messages.append({**message, "content": content})
    sampling = {key: getattr(options, key) for key in recipe.get("sampling", {}) if getattr(options, key) is not None}
    return {"max_tokens": options.max_tokens, **sampling, **body, "messages": messages}


def asked_again(body, answer, options, recipe, attempt):
    """The body to ask when `answer` is not good enough, or None when asking again cannot help.

    Loops and degenerate output: warmer, with the sampling opened, since a top_p near 0 or a top_k of 1 would undo the
    temperature. Truncated: as before, with all the room that the context leaves, unless --max-tokens was given.
    """
    if isinstance(answer, Exception):
        return None
    if ASK_AGAIN & set(answer.flags):
        return None if recipe.get("lock_sampling") else warmer(body, attempt)
    room = options.max_model_len - answer.prompt_tokens - 16 if options.max_model_len else 0
    if "truncated" in answer.flags and not options.max_tokens_given and room > body["max_tokens"] * 1.1:
        return {**body, "max_tokens": room}
    return None


def warmer(body, attempt):
    warm = {**body, "temperature": min(body.get("temperature", 0.0) + 0.2 * attempt, 1.0), "top_p": 0.95}
    if "top_k" in warm:
        warm["top_k"] = -1
    return warm


def better(old, new):
    """Of two answers the one without a flag, else the one that stopped by itself, else the first."""
    rank = [(isinstance(a, Exception), bool(getattr(a, "flags", ())), getattr(a, "finish_reason", None) != "stop")
            for a in (old, new)]  # fmt: skip
    return new if rank[1] < rank[0] else old


def converse(item, unit, sha256, options, recipe, steps):
    """The conversation about one unit: a generator that yields lists of complete bodies, is sent their answers in
    the same order (an Answer each, or the exception that one request failed with), and returns the result row.

    Each flagged answer is asked again by itself at most `options.retries` times; a unit whose parser reports
    "unparsed" is read again as a whole; `attempts` counts all rounds. Page-level trouble never raises: it becomes the
    row's `error`.
    """
    started, attempts, parsed, answers, error = time.monotonic(), 0, None, [], None
    for attempt in range(1 + options.retries):
        try:
            attempts += 1
            reading, read = steps(unit, options), []
            bodies = next(reading)
            while True:
                bodies = [complete(body, options, recipe, unit) for body in bodies]
                if attempt and not recipe.get("lock_sampling"):
                    bodies = [warmer(body, attempt) for body in bodies]
                got = checked((yield bodies))
                for again in range(1, 1 + options.retries):
                    retry = {i: asked_again(body, got[i], options, recipe, again) for i, body in enumerate(bodies)}
                    retry = {i: body for i, body in retry.items() if body}
                    if not retry:
                        break
                    attempts += 1
                    for i, answer in zip(retry, checked((yield list(retry.values()))), strict=True):
                        got[i] = better(got[i], answer)
                read += got
                failed = next((a for a in got if isinstance(a, Exception)), None)
                bodies = reading.throw(failed) if failed else reading.send(got)
        except StopIteration as stop:
            if parsed is None or "unparsed" not in stop.value.flags:
                parsed, answers, error = stop.value, read, None
        except Exception as problem:  # a recipe's parser on hostile text, or a request that failed by itself
            if parsed is None:
                answers, error = read, sentence(problem)
            break
        if "unparsed" not in parsed.flags or recipe.get("lock_sampling"):
            break
    return row_of(item, unit, sha256, parsed, answers, attempts, time.monotonic() - started, error)


def checked(answers):
    return [a._replace(flags=tuple(flags_of(a.text, a.finish_reason))) if isinstance(a, Answer) else a for a in answers]


def sentence(problem):
    """An exception as one line for `ocr_error`: PageErrors are sentences already, others get their type in front."""
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, PageError) else f"{type(problem).__name__}: {text}".rstrip(": ")


def row_of(item, unit, sha256, parsed, answers=(), attempts=0, seconds=0.0, error=None):
    """The result row of one item: see CLAUDE.md for its keys. `unit` is None where nothing could be decoded."""
    answers = [a for a in answers if isinstance(a, Answer)]
    kept = answers if error or parsed is None or parsed.answers is None else parsed.answers
    flags = dict.fromkeys(flag for a in kept for flag in a.flags)
    if parsed is not None:
        flags |= dict.fromkeys(parsed.flags)
    if unit is not None and any(page.partial for page in unit.pages):
        flags["partial"] = None
    return {
        "id": item.id, "row": item.row, "page": item.page, "pages": item.pages, "name": item.name,
        "text": parsed.markdown if parsed and not error else None,
        "blocks": json.dumps(parsed.blocks, ensure_ascii=False) if parsed and not error and parsed.blocks else None,
        "error": error or (None if parsed else "nothing was read"),
        "flags": list(flags),
        "attempts": attempts,
        "finish_reason": kept[-1].finish_reason if kept else None,
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "completion_tokens": sum(a.completion_tokens for a in answers),
        "seconds": round(seconds, 3),
        "sha256": sha256,
        "columns": parsed.columns if parsed and not error else {},
    }  # fmt: skip


def failed_row(item, problem):
    """The row of an item that never reached the model."""
    return row_of(item, None, None, None, error=problem if isinstance(problem, str) else sentence(problem))


# <<< kit/answers.py

# >>> kit/blocks.py
# The blocks document: one form for every model's boxes, so that one exporter serves all.


BLOCK_LABELS = (
    "title", "header", "footer", "page_number", "heading", "text", "list", "caption", "footnote", "table", "formula",
    "picture", "code", "form", "toc", "reference", "seal", "other",
)  # fmt: skip


def blocks_document(page, blocks, size=None):
    """Blocks document of one page: pixels of the original, x right, y down, clipped to the page.

    `blocks` are dicts with `bbox` [x0, y0, x1, y1] and any of `label`, `content`, `format` ("html", "latex",
    "markdown", "text"), `confidence`, `raw_label`; their order is the reading order. `size` is the
    (width, height) of the space the boxes are in: (1000, 1000) for normalised ones, `page.image.size` for pixels of
    what the model saw (the default). A box that is no four numbers, or has no area on the page, becomes null: its
    content stays. Raises ValueError for a label outside BLOCK_LABELS.
    """
    width, height = size or page.image.size
    document = {"schema": "ocr-blocks/1", "width": page.width, "height": page.height, "blocks": []}
    if page.dpi:
        document["dpi"] = page.dpi
    for order, block in enumerate(blocks):
        label = block.get("label", "text")
        if label not in BLOCK_LABELS:
            raise ValueError(f"unknown block label {label!r}; choose one of {', '.join(BLOCK_LABELS)}")
        document["blocks"].append(
            {
                "order": order,
                "label": label,
                "bbox": box_on_page(block.get("bbox"), page, width, height),
                "content": block.get("content", ""),
                "format": block.get("format", "text"),
                "confidence": block.get("confidence"),
                "raw_label": block.get("raw_label", label),
            }
        )
    return document


def box_on_page(box, page, width, height):
    """Box in a `width` x `height` space as [x0, y0, x1, y1] whole pixels of the original page, or None."""
    try:
        x0, y0, x1, y1 = (float(value) for value in box)
        x0, x1 = sorted((x0 * page.width / width, x1 * page.width / width))
        y0, y1 = sorted((y0 * page.height / height, y1 * page.height / height))
        x0, x1 = (min(max(round(x), 0), page.width) for x in (x0, x1))
        y0, y1 = (min(max(round(y), 0), page.height) for y in (y0, y1))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return [x0, y0, x1, y1] if x0 < x1 and y0 < y1 else None


# <<< kit/blocks.py

# >>> kit/grounding.py
# Text with boxes as DeepSeek-OCR and Unlimited-OCR write it: readers of both dialects, their Markdown and blocks.


# An open vocabulary: what is not here becomes "other" and keeps its word in `raw_label`.
GROUNDING_LABELS = {
    "title": "title", "doc_title": "title", "sub_title": "heading", "paragraph_title": "heading",
    "section_title": "heading", "text": "text", "paragraph": "text", "aside_text": "text", "list": "list",
    "table": "table", "image": "picture", "figure": "picture", "picture": "picture", "chart": "picture",
    "caption": "caption", "image_caption": "caption", "figure_caption": "caption", "table_caption": "caption",
    "chart_caption": "caption", "figure_title": "caption", "table_title": "caption", "image_title": "caption",
    "equation": "formula", "formula": "formula", "display_formula": "formula", "code": "code", "algorithm": "code",
    "code_block": "code", "header": "header", "page_header": "header", "footer": "footer", "page_footer": "footer",
    "page_number": "page_number", "footnote": "footnote", "page_footnote": "footnote", "table_footnote": "footnote",
    "image_footnote": "footnote", "toc": "toc", "table_of_contents": "toc", "reference": "reference",
    "ref_text": "reference", "seal": "seal", "form": "form",
}  # fmt: skip
BOX = re.compile(r"\[\s*(-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+(?:\.\d+)?){3})\s*\]")
END_TOKEN = "<｜end▁of▁sentence｜>"


def ref_spans(text):
    """Spans of DeepSeek-OCR's dialect, `<|ref|>label<|/ref|><|det|>[[x0, y0, x1, y1], ...]<|/det|>text`.

    A span is (label, boxes, text): boxes of 4 numbers, maybe none; label None for text outside of spans. A span that
    is broken or cut off keeps what is whole.
    """
    before, *pieces = text.replace(END_TOKEN, "").split("<|ref|>")
    spans = [(None, [], before)]
    for piece in pieces:
        label, closed, rest = piece.partition("<|/ref|>")
        if not closed:
            spans.append((None, [], "" if piece.strip().isidentifier() else piece))
            continue
        det = re.match(r"\s*<\|det\|>(?:(.*?)<\|/det\|>|[\s\d.,\[\]-]*)", rest, re.DOTALL)
        inside = det[0] if det else ""
        spans.append((label.strip(), boxes_in(inside), rest[len(inside) :]))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def det_spans(text):
    """Spans, as of `ref_spans`, of Unlimited-OCR's dialect, `<|det|>label [x0, y0, x1, y1]<|/det|>text`."""
    before, *pieces = re.sub(r"<\|/?ref\|>", "", text.replace(END_TOKEN, "")).split("<|det|>")
    spans = [(None, [], before)]
    for piece in pieces:
        inside, closed, after = piece.partition("<|/det|>")
        if not closed:
            inside = re.match(r"[\w ]*\[[\d\s.,-]*\]?|", piece)[0]
            after = "" if piece.strip().isidentifier() else piece[len(inside) :]
        spans.append((inside.partition("[")[0].strip() or None, boxes_in(inside), after))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def boxes_in(text):
    return [[float(number) for number in found.split(",")] for found in BOX.findall(text)]


def spans_markdown(spans):
    """The text of all spans in their order; pictures have none, they are in the blocks."""
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(text for _, _, text in spans if text))


def spans_blocks(spans):
    """Blocks for `blocks_document` with the size (999, 999): one per box. Of several boxes the first has the text."""
    blocks = []
    for label, boxes, text in spans:
        kind = GROUNDING_LABELS.get((label or "text").lower().replace(" ", "_"), "other")
        form = "html" if text.startswith("<table") else "latex" if kind == "formula" else "markdown"
        for place, box in enumerate(boxes or ([None] if text else [])):
            blocks.append(
                {
                    "bbox": box,
                    "label": kind,
                    "raw_label": label or "text",
                    "format": form,
                    "content": "" if place else text,
                }
            )
    return blocks


def ref_parsed(text, page, asked, said_in_tags=False):
    r"""Parsed of an answer in DeepSeek-OCR's dialect, as upstream's scripts make it: tags gone, `\coloneqq` and
    `\eqqcolon` as `:=` and `=:`; "unparsed" where boxes were `asked` for and none came.

    With `said_in_tags` the tagged words are the text itself, unless a text follows them; then they are a label.
    """
    if said_in_tags and text.rfind("<|/ref|>") < text.rfind("<|ref|>"):
        text += "<|/ref|>"  # cut off within the text
    spans = ref_spans(text.replace("\\coloneqq", ":=").replace("\\eqqcolon", "=:"))
    if said_in_tags:
        spans = [(label if said else "text", boxes, said or label) for label, boxes, said in spans]
    boxed = any(boxes for _, boxes, _ in spans)
    blocks = blocks_document(page, spans_blocks(spans), (999, 999)) if boxed else None
    return Parsed(spans_markdown(spans), blocks, flags=["unparsed"] if asked and spans and not boxed else [])


# <<< kit/grounding.py

# >>> kit/plain_text.py
# What a reader would see of an OCR answer: one text for judge and scorer, whatever markup a model writes.


PLAIN_HTML_BLOCKS = (
    "address article aside blockquote body br caption center col colgroup dd details div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section select "
    "summary table tbody td tfoot th thead title tr ul"
).split()
PLAIN_HTML_INLINE = (
    "a abbr b bdi bdo big button chem cite code del dfn em font i img input ins kbd label mark math meta link q "
    "ruby rp rt s samp small span strike strong sub sup svg time tt u var wbr"
).split()
# Tags of models: Nanonets (page_number, watermark, signature), page wrappers, answers of reasoning models.
PLAIN_MODEL_TAGS = ["answer", "image", "otsl", "page", "page_number", "signature", "watermark"]
PLAIN_DOCTAGS = (
    "chart checkbox_selected checkbox_unselected code doctag document_index footnote formula inline key "
    "key_value_region list_item ordered_list page_break page_footer page_header paragraph picture reference text "
    "title unordered_list value"
).split()
# A tag ends before the next "<", so that the search stays linear on hostile text; a tag cut off at the end counts.
PLAIN_BLOCK_TAG, PLAIN_INLINE_TAG, PLAIN_DOC_TAG = (
    re.compile(rf"</?(?:{'|'.join(names)})(?=[\s/>]|\Z)[^<>]*(?:>|\Z)", re.IGNORECASE)
    for names in (
        PLAIN_HTML_BLOCKS + PLAIN_MODEL_TAGS,
        PLAIN_HTML_INLINE,
        [*PLAIN_DOCTAGS, r"section_header_level_\d+"],
    )
)
PLAIN_UNSEEN = re.compile(
    r"<(script|style|template|think)(?=[\s>])[^<>]*>.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE
)
PLAIN_HTML_TABLE = re.compile(r"<table(?=[\s>])[^<>]*>.*?(?:</table\s*>|\Z)", re.DOTALL | re.IGNORECASE)
PLAIN_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
PLAIN_FRONT_MATTER = re.compile(r"\A\s*---\n(?:[\w-]+:[^\n]*\n)+---(?:\n|\Z)")
PLAIN_FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[\w+-]*[ \t]*$", re.MULTILINE)
PLAIN_RULE = re.compile(r"[-*_=](?:[ \t]*[-*_=]){2,}")
PLAIN_TABLE_LINE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?[ \t]*)?")
PLAIN_MATH = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:[^\\]|\\[^\[\]])+)\\\]|\\\(((?:[^\\]|\\[^()])+)\\\)|(?<![\\$\w])\$(?![\s$])([^$\n]{1,500}?)(?<![\s\\])\$(?![\d$])",
)
PLAIN_CELL = "\0"  # stands between two cells until the end: no printed bar is taken for it


def to_plain_text(text, cell=" | "):
    """Plain text of Markdown, HTML, OTSL, DocTags or grounded text: words in their order, no markup.

    Rows of tables become lines with `cell` between the cells. Removed are boxes and their labels, page wrappers, front
    matter, fences, pictures, comments, hidden HTML, and the marks of headings, lists, emphasis and formulas; LaTeX
    inside of formulas stays. Angle brackets that are no known tag (`<torn>`, `<illegible>`) stay. Blank lines are at
    most one in a row. Never raises on a str; cut and broken markup is read as far as it goes.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace(PLAIN_CELL, " ")
    text = re.sub(r"[^\S\n]+", " ", text)
    if "<|ref|>" in text:
        text = spans_markdown(ref_spans(text))
    elif "<|det|>" in text:
        text = spans_markdown(det_spans(text))
    text = PLAIN_UNSEEN.sub("\n", text)
    text = PLAIN_FENCE.sub("", PLAIN_FRONT_MATTER.sub("", text))
    text = drop_tags(text)
    text = drop_markdown(text)
    text = re.sub(rf"[^\S\n]*{PLAIN_CELL}[^\S\n]*", cell.replace("\\", r"\\"), re.sub(r"[^\S\n]+", " ", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def drop_tags(text):
    if re.search(r"<(?:loc_\d+|doctag)>", text):
        text = PLAIN_DOC_TAG.sub("\n", re.sub(r"<loc_\d+>", "", text))
    # OTSL: a token opens a cell; continuations of merged cells have no text.
    text = re.sub(r"(?<![ \t])[ \t]*<nl>[ \t]*", "\n", re.sub(r"<(?:lcel|ucel|xcel)>", "", text))
    text = re.sub(r"(?:(?<=\n)|\A|(?<=<otsl>))[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", "", text)
    text = re.sub(r"(?<![ \t])[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", PLAIN_CELL, text)
    text = PLAIN_HTML_TABLE.sub(lambda found: plain_table(found[0]), text)
    text = PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub("\n", text))
    return PLAIN_ENTITY.sub(lambda found: html.unescape(found[0]), text)


def plain_table(table):
    table = re.sub(r"</(?:caption|thead|tbody|tr)\s*>|<tr(?=[\s>])[^<>]*>", "\n\n", " ".join(table.split()), flags=re.I)
    table = re.sub(r"<t[dh](?=[\s/>])[^<>]*>", PLAIN_CELL, table, flags=re.IGNORECASE)
    rows = (
        PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub(" ", row)).strip().removeprefix(PLAIN_CELL)
        for row in table.split("\n")
    )
    return "\n\n" + "\n".join(row for row in rows if row) + "\n\n"


def drop_markdown(text):
    text = re.sub(r"!\[[^\[\]\n]*\]\([^)\n]*\)", "", text)
    text = re.sub(r"\[([^\[\]\n]+)\]\((?:https?:|mailto:|#|/|\./)[^)\n]*\)", r"\1", text)
    text = re.sub(r"\[\^([^\]\s]{1,20})\]:?", r"\1", text)
    text = PLAIN_MATH.sub(lambda found: next(filter(None, found.groups())).strip(), text)
    text = "\n".join(plain_lines(text.split("\n")))
    inside = r"([^{0}\s](?:(?:[^{0}\n]|\n(?!\n))*[^{0}\s])?)"
    for mark in (r"\*\*", r"(?<![*\w\\])\*(?!\*)", r"\*\*", r"(?<![\w\\])__?"):
        letter = "_" if "_" in mark else "*"
        close = {r"\*\*": r"\*\*", "_": r"__?(?!\w)"}.get(letter if letter == "_" else mark, r"\*(?![*\w])")
        text = re.sub(mark + inside.format(letter) + close, r"\1", text)
    text = re.sub(r"~~([^~\n]+)~~", r"\1", text)
    text = re.sub(r"`([^`\n]+)`", r"\1", text)
    return re.sub(r"\\([\\`*_{}\[\]()#+\-.!|$%&<>~])", r"\1", text)


def plain_lines(lines):
    in_table = False
    for number, line in enumerate(lines):
        line = line.strip()
        if PLAIN_TABLE_LINE.fullmatch(line):
            in_table = True
            continue
        if PLAIN_RULE.fullmatch(line):
            continue
        opens = number + 1 < len(lines) and "|" in line and PLAIN_TABLE_LINE.fullmatch(lines[number + 1].strip())
        in_table = bool(opens) or (in_table and "|" in line)
        if in_table or (line.startswith("|") and line.endswith("|") and line.count("|") > 1):
            inner = line.removeprefix("|")
            inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
            yield PLAIN_CELL.join(part.strip() for part in re.split(r"(?<!\\)\|", inner))
            continue
        line = re.sub(r"^(?:> ?)+", "", line)
        line = re.sub(r"^#{1,6}(?:[ \t]+|$)", "", line)
        line = re.sub(r"^[-*+] \[([ xX])\] ", lambda found: "☐ " if found[1] == " " else "☑ ", line)
        yield re.sub(r"^[-*+•][ \t]+", "", line)


# <<< kit/plain_text.py

# >>> kit/storage.py
# Where results are kept, a folder here or in a bucket, and the patience that every write to the Hub needs.


FIRST_WAIT, LONGEST_WAIT, PATIENCE = 2.0, 60.0, 600.0  # seconds
FIRST_PATIENCE = 30.0  # before anything has been read
RECENT = 120.0  # seconds in which a run that is at work has written its next part


def persist(call, patience=None):
    """`call()`, again with growing waits while the Hub is busy: conflicts (409, 412), 408, 429, 5xx, lost connections.

    A `Retry-After` is honoured. Needed because huggingface_hub 2.4 retries neither commits nor repository creation.
    Raises the last error after `patience` (PATIENCE) seconds, any other error at once.
    """
    wait, end = FIRST_WAIT, time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        try:
            return call()
        except Exception as error:
            asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
            pause = max(float(asked) if asked.isdigit() else 0.0, wait * random.uniform(0.5, 1))
            if not is_passing(error) or time.monotonic() + pause > end:
                raise
            said = "The Hub answered" if hasattr(error, "response") else "The Hub cannot be reached"
            say(f"{said}: {first_line(error)}. Trying again in {pause:.0f} s.")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)


def is_passing(error):
    """Whether trying again may help: the Hub or the way to it is busy or broken for the moment."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 409, 412, 425, 429) or status >= 500
    transports = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # the client library differs by hub version
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.split(".")[0] in transports:
        return True
    if isinstance(error, RuntimeError) and "xet" in str(error).lower():  # hf_xet's failures have no class of their own
        return True
    return error.__cause__ is not None and is_passing(error.__cause__)


def first_line(error):
    """One line about an exception: its type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def unique_stamp():
    """A name part that sorts by time and is unique across processes and machines."""
    return f"{time.time_ns() // 1_000_000:013d}-{os.getpid()}-{secrets.token_hex(4)}"


def open_storage(uri):
    """A `BucketFolder` for `hf://buckets/...`, else a `LocalFolder`. Raises Stop where the bucket cannot be made."""
    return BucketFolder(uri) if uri.startswith("hf://buckets/") else LocalFolder(uri)


class LocalFolder:
    """Files under one folder. A file appears whole or not at all; what is half written lies under `.tmp`."""

    def __init__(self, path):
        self.where = str(path)
        self.root = Path(path).expanduser()
        self.scratch = self.root / ".tmp"

    def claim(self, name):
        """Takes a lock that ends with this process, or with `close` of what is returned. Raises Stop if it is taken."""
        try:
            import fcntl
        except ImportError:  # Windows
            return io.BytesIO()
        self.scratch.mkdir(parents=True, exist_ok=True)
        lock = open(self.scratch / f"{name}.lock", "wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Stop(
                f"Another run of this command is at work in {self.where}. Wait for it, or share the work by --shard "
                "0/2 and --shard 1/2.",
                code=1,
            ) from None
        except OSError:  # a mount without locks
            pass
        return lock

    def list(self):
        """The relative paths of all files, sorted."""
        found, folders = [], [str(self.root)] if self.root.is_dir() else []
        while folders:
            for entry in os.scandir(folders.pop()):
                if not entry.is_dir(follow_symlinks=False):
                    found.append(os.path.relpath(entry.path, self.root).replace(os.sep, "/"))
                elif entry.name != ".tmp":
                    folders.append(entry.path)
        return sorted(found)

    def open(self, name):
        """A binary file to read."""
        return open(self.root / name, "rb")

    def write(self, files):
        """Writes each of `files`, a dict from relative path to bytes. Raises OSError."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            part, target = self.scratch / unique_stamp(), self.root / name
            part.write_bytes(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)

    def remove(self, names):
        """Removes files, what killed runs left half written, and then the folder if it is empty."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # something else is kept there
            self.root.rmdir()
            if self.root.parent.name == ".ocr-runs":
                self.root.parent.rmdir()


class BucketFolder:
    """The same methods over a folder of a bucket, made private where it is missing. All wait out a busy Hub."""

    scratch = None

    def __init__(self, uri):
        from huggingface_hub import HfApi, HfFileSystem
        from huggingface_hub.errors import HfHubHTTPError

        owner, name, *path = uri.removeprefix("hf://buckets/").strip("/").split("/")
        self.where, self.bucket, self.prefix = uri, f"{owner}/{name}", "".join(f"{part}/" for part in path)
        self.api, self.files = HfApi(), HfFileSystem(skip_instance_cache=True)
        try:
            persist(lambda: self.api.create_bucket(self.bucket, private=True, exist_ok=True))
        except HfHubHTTPError as error:
            raise Stop(
                f"The bucket {self.bucket} cannot be made or written: {first_line(error)}. "
                "Name another place: --checkpoint hf://buckets/OWNER/NAME/FOLDER or --checkpoint FOLDER."
            ) from error

    def claim(self, name):
        """No lock, which buckets do not have: two runs at once lose no page, and pay twice. Says where it may be so."""
        written = [int(when) for path in self.list() for when in re.findall(r"-(\d{13})-\d+-[0-9a-f]{8}\.", path)]
        ago = time.time() - max(written, default=0) / 1000
        if name == "run" and ago < RECENT:  # a shard has others beside it
            say(
                f"Results were written to {self.where} {max(ago, 0):.0f} s ago. If the run that wrote them is still at "
                "work, both read the same pages: stop one, or share the work by --shard 0/2 and --shard 1/2."
            )
        return io.BytesIO()

    def list(self):
        self.files.invalidate_cache()
        tree = persist(lambda: list(self.api.list_bucket_tree(self.bucket, self.prefix or None, recursive=True)))
        return sorted(entry.path.removeprefix(self.prefix) for entry in tree if entry.type == "file")

    def open(self, name):
        return persist(lambda: self.files.open(f"hf://buckets/{self.bucket}/{self.prefix}{name}", "rb"))

    def write(self, files):
        added = [(data, self.prefix + name) for name, data in files.items()]
        if added:
            persist(lambda: self.api.batch_bucket_files(self.bucket, add=added))

    def remove(self, names):
        gone = [self.prefix + name for name in names]
        if gone:
            persist(lambda: self.api.batch_bucket_files(self.bucket, delete=gone))


# <<< kit/storage.py

# >>> kit/tool.py
# The edges of every tool: numbers and files that have to make sense, and the exit code.


NO_SUCH_PLACE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def whole_number(text):
    """An argparse type: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def above_zero(text):
    """An argparse type: a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def share_of_one(text):
    """An argparse type: a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return number


def read_utf8(path):
    """The text of a file. Raises Stop where it is in another encoding, and OSError."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Stop(
            f"{path} is not UTF-8 at byte {error.start}: {error.reason}. Convert it (iconv -t utf-8)."
        ) from error


def parse_json(text):
    """`json.loads(text)`. Raises ValueError also where lists or objects stand in each other too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, kind=dict):
    """What a JSON file holds. Raises Stop where it is damaged or holds something else than `kind`, and OSError."""
    try:
        value = parse_json(read_utf8(path))
    except ValueError as error:
        raise Stop(f"{path} is no JSON: {error}. Repair or remove it.") from error
    if not isinstance(value, kind):
        raise Stop(f"{path} holds {type(value).__name__} where {kind.__name__} was expected. Name another file.")
    return value


def exit_code_of(work):
    """The exit code of a tool: what `work()` returns, or the code of what ended it, told in one sentence.

    2 where a file or folder that was named is not there, not of that kind, or closed to us. 1 for what passes: Ctrl-C,
    a disk that is full, a Hub that does not answer.
    """
    try:
        return work()
    except Stop as problem:
        code, told = problem.code, problem
    except NO_SUCH_PLACE as problem:
        code, told = (2, f"{problem.filename}: {problem.strerror}. Name another.") if problem.filename else (1, problem)
    except KeyboardInterrupt:
        code, told = 1, "the same command starts again."
    except Exception as problem:
        if not (isinstance(problem, OSError) or is_passing(problem)):
            raise
        code, told = 1, f"{first_line(problem)}. The same command starts again."
    say(f"{'Error' if code == 2 else 'Stopped'}: {told}")
    return code


# <<< kit/tool.py

# >>> kit/bench_outputs.py
# The outputs of several models over the same pages, joined on what identifies a page and never on its position.


# What may identify a page, the surest first; the first that is filled and unique in every output decides. Rows of a
# multi-page file share all but the page number.
PAGE_KEYS = (
    ("image_sha256",),
    ("image_sha256", "source_row"),
    ("b_number", "page_index"),
    ("source_row",),
    ("id",),
    ("file_name",),
    ("name",),
)
PAGE_NUMBERS = ("ocr_page", "page")  # the first that is there: `page` may be a column of the input's own
TEXT_NAMES = ("markdown", "ocr", "text")  # names of text columns; "text" only as it stands
NOT_TEXT = re.compile(r"(^|_)(error|flags|status|page|info|blocks|sha256|finish_reason)$")
SUSPECT_FLAGS = {"truncated", "looped", "degenerate", "unparsed"}
GOOD_STATUS = {"", "ok", "success", "done", "completed"}
USABLE = ("ok", "blank", "suspect")


class Output(NamedTuple):
    """One model's reading of one page. `state`:

    "ok"; "error", with the reason in `error` and no text; "blank", nothing visible; "suspect", with the reasons in
    `flags`: a loop, an answer cut at the token limit, or a broken protocol.
    """

    text: str | None
    state: str
    error: str | None = None
    flags: tuple = ()


@dataclass
class Contestant:
    """One model's run: `outputs` maps a page's key to its `Output`, for every page of the bench.

    `name` is unique in the bench: the model id, or `short (config)` where two runs have the same model. `revision` is
    the commit that was read, None for a folder. `kind` is the column's type, `missing` how many pages it has no row
    for. `info` is the entry of `inference_info` that both `model` and `column` are from ({} where there is none).
    """

    name: str
    model: str
    config: str
    revision: str | None
    column: str
    kind: str
    info: dict
    outputs: dict = field(default_factory=dict)
    missing: int = 0

    def coverage(self):
        """Pages with usable output by pages attempted."""
        return sum(output.state in USABLE for output in self.outputs.values()) / max(1, len(self.outputs))

    def states(self):
        """How many pages are in each state."""
        return dict(Counter(output.state for output in self.outputs.values()))


@dataclass
class Bench:
    """All runs over the same pages.

    `keys` are the pages in a stable order; `key_columns` what they are made of; `image(key)` gives `(data, frame)` for
    `open_page`, or None where no image is known; `facts(key)` the columns of the input that all runs carry, for
    strata; `source` the dataset or folders, `revision` the commit of its main branch or None.
    """

    source: str
    revision: str | None
    contestants: list
    keys: list
    key_columns: tuple
    pages: dict = field(repr=False, default_factory=dict)  # key -> (table, row number) of the first run with the page
    images: object = field(repr=False, default=None)

    def facts(self, key):
        table, row = self.pages[key]
        return {name: values[row] for name, values in table.facts.items()}

    def image(self, key):
        table, row = self.pages[key]
        return table.image(row) or (self.images(table, row) if self.images else None)


@dataclass
class Table:
    """The rows of one config or folder before they are joined: `columns` maps names to lists, images left out.

    `image(row)` gives `(data, frame)` or None, `types` the type of every column as text, `facts` are the columns of
    the input (strings, numbers).
    """

    config: str
    revision: str | None
    columns: dict
    types: dict
    image: object
    facts: dict = field(default_factory=dict)


def add_bench_options(add):
    """The options that say which outputs to read; `add` is `parser.add_argument`."""
    add("bench", metavar="BENCH", nargs="*", help="dataset ns/name with one config per model, or one folder per model")
    add("--configs", nargs="+", metavar="NAME", help="these configs only")
    add("--columns", nargs="+", metavar="NAME", help="these text columns of one table only")
    add("--from-prs", action="store_true", help="only configs in open pull requests, whose titles end with [CONFIG]")
    add("--text-column", action="append", default=[], metavar="CONFIG=COLUMN", help="where a config has its text")
    add("--row-key", metavar="COLUMN", help="column that identifies a page (default: image_sha256, then others)")
    add("--assume-aligned", action="store_true", help="row n of every config is the same page; nothing is checked")
    add("--split", default="train", help="split of the dataset (default train)")
    add("--images", metavar="FOLDER", help="folder with the page images, where the outputs do not hold them")
    add("--max-samples", type=whole_number, metavar="N", help="N pages only, drawn at random")
    add("--seed", type=int, default=42, help="seed of every draw (default 42)")


def load_bench(options, least=2):
    """The `Bench` of at least `least` runs that the options of `add_bench_options` name, described on stderr.

    Discovery: `--columns`; `--configs`; `--from-prs`; folders; else open pull requests and the configs of the main
    branch (without `default`, a pull request wins), else all text columns of one table. Raises Stop where outputs are
    missing, ambiguous, or cannot be joined.
    """
    places = [options.bench] if isinstance(options.bench, str) else options.bench
    if not places:
        raise Stop("Name a dataset (ns/name) with one config per model, or one folder per model.")
    chosen = dict(word.split("=", 1) for word in options.text_column if "=" in word)
    if bad := [word for word in options.text_column if "=" not in word]:
        raise Stop(f"--text-column {bad[0]}: write CONFIG=COLUMN.")
    folders = [place for place in places if os.path.isdir(os.path.expanduser(place))]
    if folders and len(folders) < len(places):
        raise Stop(f"{next(p for p in places if p not in folders)} is no folder here; name folders or one dataset.")
    if folders:
        tables, revision = [folder_table(place) for place in model_folders(folders)], None
        # The outputs of one bench lie side by side. Only the name of the folder around them: results are published.
        source = os.path.basename(os.path.commonpath([os.path.abspath(os.path.expanduser(p)) for p in folders]))
        runs = [(table, *text_of_config(table, chosen.get(table.config))) for table in tables]
    elif len(places) == 1 and re.fullmatch(r"[\w.-]+/[\w.-]+", places[0]):
        source = places[0]
        tables, revision, flat = hub_tables(source, options)
        if flat:
            runs = [(tables[0], column, info) for column, info in text_columns(tables[0], options.columns).items()]
        else:
            runs = [(table, *text_of_config(table, chosen.get(table.config))) for table in tables]
    else:
        raise Stop(f"{places[0]} is no folder here; name one dataset (ns/name), or one folder per model.")
    if unknown := set(chosen) - {table.config for table in tables}:
        raise Stop(f"--text-column: no config {min(unknown)}. There are {', '.join(t.config for t in tables)}.")
    if len(runs) < least:
        raise Stop(f"Only one run, {runs[0][0].config} ({runs[0][1]}), and it takes {least}: --configs or --columns.")
    bench = join_runs(runs, options)
    bench.source, bench.revision = source, revision
    if options.images:
        if not os.path.isdir(os.path.expanduser(options.images)):
            raise Stop(f"--images {options.images} is no folder here.")
        bench.images = lambda table, row: image_in_folder(options.images, table, row)
    if options.max_samples and options.max_samples < len(bench.keys):
        drawn = set(random.Random(options.seed).sample(sorted(bench.keys), options.max_samples))
        bench.keys = [key for key in bench.keys if key in drawn]
        for contestant in bench.contestants:
            contestant.outputs = {key: contestant.outputs[key] for key in bench.keys}
    describe_bench(bench)
    return bench


def describe_bench(bench):
    """Says what was understood of every run, before anything is spent: column, type, states, an excerpt."""
    say(f"{len(bench.keys):,} pages of {bench.source}, told apart by {' and '.join(bench.key_columns)}:")
    for one in bench.contestants:
        text = next((o.text for o in one.outputs.values() if o.state == "ok"), "")
        excerpt = " ".join(text.split())[:60]
        states = ", ".join(f"{count} {state}" for state, count in sorted(one.states().items()))
        say(f"  {one.name}: column {one.column} ({one.kind}) of {one.config}; {states}; {excerpt!r}")
        if one.missing:
            say(f"    {one.missing} of {len(bench.keys)} pages have no row in {one.config} and count as errors")


# ---- What is there


def hub_tables(repo, options):
    """(tables, commit of the main branch, whether it is one table with a column per model) of a Hub dataset."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        revision = persist(lambda: api.dataset_info(repo), FIRST_PATIENCE).sha
        requests = {} if options.columns else pull_request_configs(api, repo)
    except Exception as error:
        raise Stop(f"The dataset {repo} cannot be read: {first_line(error)}. Check the name and HF_TOKEN.") from error
    names = [] if options.columns or options.from_prs else main_configs(repo, revision)
    if options.from_prs and not requests:
        raise Stop(f"{repo} has no open pull request whose title ends with [CONFIG]. Leave --from-prs out.")
    if options.columns or (not requests and names in ([], ["default"])):
        config = (options.configs or names or [None])[0]
        return [hub_table(repo, config, revision, options.split)], revision, True
    found = {name: revision for name in names if name != "default" or options.configs} | requests
    if unknown := sorted(set(options.configs or ()) - set(found)):
        raise Stop(f"{repo} has no config {', '.join(unknown)}. It has {', '.join(found)}.")
    wanted = options.configs or list(found)
    return [hub_table(repo, name, found[name], options.split) for name in wanted], revision, False


def pull_request_configs(api, repo):
    """{config: commit} of the open pull requests whose title ends with [CONFIG]; of two, the newer one."""
    found = {}
    listed = partial(api.get_repo_discussions, repo, repo_type="dataset", discussion_type="pull_request")
    for request in sorted(persist(lambda: list(listed())), key=lambda request: request.num):
        name = re.search(r"\[([^\[\]]+)\]\s*$", request.title)
        if request.status not in ("open", "draft") or not name:
            continue
        if name[1] in found:
            say(f"Two open pull requests of {repo} hold the config {name[1]}: the newer one, {request.num}, is read.")
        ref = f"refs/pr/{request.num}"
        found[name[1]] = persist(lambda ref=ref: api.dataset_info(repo, revision=ref)).sha
    return found


def main_configs(repo, revision):
    from datasets import get_dataset_config_names

    try:
        return persist(lambda: get_dataset_config_names(repo, revision=revision))
    except Exception:  # a repository without data of its own, whose runs are all in pull requests
        return []


def hub_table(repo, config, revision, split):
    """One config of a Hub dataset as a `Table`. Images stay on disk, undecoded. Raises Stop."""
    from datasets import Image, load_dataset

    try:
        rows = persist(lambda: load_dataset(repo, config, split=split, revision=revision))
    except Exception as error:
        raise Stop(f"The config {config} of {repo} ({revision}) cannot be read: {first_line(error)}.") from error
    pictures = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    for name in pictures:
        rows = rows.cast_column(name, Image(decode=False))
    plain = [name for name, f in rows.features.items() if name not in pictures and getattr(f, "dtype", "") != "binary"]
    columns = rows.select_columns(plain).to_dict()
    types = {name: getattr(rows.features[name], "dtype", "list") for name in plain}

    def image(row):
        cell = rows[row][pictures[0]] if pictures else None
        data = cell and (cell.get("bytes") or cell.get("path"))
        return (data, max(0, page_number(columns, row) - 1)) if data else None

    return Table(config or "default", revision, columns, types, image, passed_through(columns, types))


def page_number(columns, row):
    name = next((name for name in PAGE_NUMBERS if name in columns), None)
    value = columns[name][row] if name else None
    return value if isinstance(value, int) else 1


def passed_through(columns, types):
    """The columns that describe the page rather than a reading of it: short strings and numbers."""
    own = {"inference_info", "source_row", "image_sha256", *PAGE_NUMBERS}
    return {
        name: values
        for name, values in columns.items()
        if name not in own and not NOT_TEXT.search(name) and types[name] in ("string", "int64", "int32", "bool")
        and all(value is None or len(str(value)) <= 200 for value in values)
    }  # fmt: skip


def model_folders(folders):
    """The folders that hold outputs: those named, or the subfolders of one that holds a folder for each model."""
    found = []
    for folder in map(Path, map(os.path.expanduser, folders)):
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
        runs = [path for path in below if (path / "_run").is_dir()]
        found += runs if runs and not (folder / "_run").is_dir() else [folder]
    return found


def folder_table(folder):
    """What a recipe (or anyone) wrote into a folder, `NAME.md` with or without `NAME.json`, as a `Table`.

    The pages that failed are those of `_run/errors-*.jsonl`, unless their `.md` is there.
    """
    folder = Path(folder)
    texts = {}
    for path in sorted(folder.rglob("*.md")):
        name = path.relative_to(folder).as_posix()
        if not any(part.startswith((".", "_")) for part in name.split("/")):
            texts[name.removesuffix(".md")] = path
    notes = {}
    for path in sorted(folder.glob("_run/errors-*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            try:
                note = parse_json(line)
                notes[note["name"]] = note
            except (ValueError, KeyError, TypeError) as error:
                raise Stop(f"{path} is damaged: {first_line(error)}. Repair or remove it.") from error
    if not texts and not notes:
        raise Stop(f"{folder} holds no .md files: no outputs to compare. Name the folder that a recipe wrote to.")
    rows = []
    for name in sorted(set(texts) | set(notes)):
        page = {"name": name, "text": None, "error": None, "flags": [], "page": 1}
        if name in texts:
            side = texts[name].with_name(texts[name].name.removesuffix(".md") + ".json")
            page |= read_json(side) if side.exists() else {}
            page |= {"name": name, "text": read_utf8(texts[name]), "error": None}
        else:
            page |= notes[name]
        rows.append(page)
    fields = {"name": "name", "id": "id", "image_sha256": "sha256", "page": "page", "markdown": "text",
              "ocr_error": "error", "ocr_flags": "flags", "finish_reason": "finish_reason",
              "inference_info": "inference_info"}  # fmt: skip
    columns = {name: [row.get(key) for row in rows] for name, key in fields.items()}
    # The column's own name in the run does not matter here: a folder has one text per page.
    for entries in filter(None, columns["inference_info"]):
        entries[-1]["column_name"] = "markdown"
    if not all(columns["id"]):  # written by something else: the name is all that there is
        del columns["id"]
    types = dict.fromkeys(columns, "string")
    facts = {"folder": [os.path.dirname(row["name"]) for row in rows]}
    return Table(folder.name, None, columns, types, lambda row: None, facts)


def image_in_folder(folder, table, row):
    """`(path, frame)` of a page's image below `folder`, by the id or the name that its output has; None if none."""
    page = page_number(table.columns, row)
    for column in ("id", "file_name", "name"):
        said = (table.columns.get(column) or {row: None})[row]
        stem = re.sub(r"/page_\d+$", "", said) if isinstance(said, str) else ""
        path = os.path.join(os.path.expanduser(folder), stem)
        if stem and os.path.isfile(path):
            return path, page - 1
        there = os.path.dirname(path)
        for name in sorted(os.listdir(there)) if stem and os.path.isdir(there) else ():
            if os.path.splitext(name)[0] == os.path.basename(path) and not name.endswith((".md", ".json", ".txt")):
                return os.path.join(there, name), page - 1
    return None


# ---- Which column, which model


def info_entries(table):
    """The entries of the first `inference_info` that is filled: a JSON list, but objects and strings are met too."""
    for value in table.columns.get("inference_info") or ():
        try:
            entries = parse_json(value) if isinstance(value, str) else value
        except ValueError:
            continue
        entries = entries if isinstance(entries, list) else [entries]
        if entries := [entry for entry in entries if isinstance(entry, dict)]:
            return entries
    return []


def column_of(entry):
    return entry.get("column_name") or entry.get("output_column")


def text_of_config(table, chosen=None):
    """(text column, entry of inference_info) of a config: both from the last entry, the run that made the config.

    `chosen` is the column of `--text-column`, with the last entry that names it. Raises Stop where several columns
    could be the text, or none.
    """
    entries, strings = info_entries(table), [name for name, kind in table.types.items() if "string" in kind]
    if chosen:
        if chosen not in table.columns:
            raise Stop(f"--text-column: {table.config} has no column {chosen}. It has {', '.join(table.columns)}.")
        return chosen, next((entry for entry in reversed(entries) if column_of(entry) == chosen), {})
    if entries and column_of(entries[-1]) in table.columns:
        return column_of(entries[-1]), entries[-1]
    candidates = [name for name in strings if not NOT_TEXT.search(name)]
    for word in TEXT_NAMES:
        found = [name for name in candidates if name == word or (word != "text" and word in name)]
        if len(found) > 1:
            raise Stop(
                f"{table.config} has several text columns: {', '.join(found)}. "
                f"Type --text-column {table.config}={found[0]}, or the other."
            )
        if found:
            return found[0], entries[-1] if entries and not column_of(entries[-1]) else {}
    raise Stop(
        f"{table.config} has no column that looks like text; it has {', '.join(table.columns)}. "
        f"Type --text-column {table.config}=COLUMN."
    )


def text_columns(table, columns=None):
    """{text column: entry} of a table with a column for each model.

    Those of `columns`, those that inference_info names, or those whose name says so. Raises Stop where there is none.
    """
    named = {column_of(entry): entry for entry in info_entries(table)}
    if unknown := [name for name in columns or () if name not in table.columns]:
        raise Stop(f"--columns: no column {', '.join(unknown)}. There are {', '.join(table.columns)}.")
    found = columns or [name for name in named if name in table.columns]
    if not found:
        found = [
            name
            for name, kind in table.types.items()
            if "string" in kind and not NOT_TEXT.search(name) and any(word in name for word in TEXT_NAMES)
        ]
    if not found:
        raise Stop(f"No text column among {', '.join(table.columns)}; name them: --columns NAME NAME.")
    return {name: named.get(name, {}) for name in found}


# ---- The state of one output


def classify(text, error=None, flags=(), finish_reason=None, status=None):
    """The `Output` of one page. `text` None is an error; a sentinel of other tools is one too, a heading is not."""
    status = str(status or "").strip().lower()
    if isinstance(error, str) and error.strip():
        return Output(None, "error", error.strip())
    if status not in GOOD_STATUS and not status.startswith("partial"):
        return Output(None, "error", f"status {status}")
    if not isinstance(text, str):
        return Output(None, "error", "no text")
    if is_sentinel(text):
        return Output(None, "error", f"the text is {text.strip()}")
    flags = [flag for flag in flags or () if flag in SUSPECT_FLAGS] + (["partial"] if status else [])[: status != "ok"]
    flags += [flag for flag in flags_of(text, finish_reason) if flag not in flags]
    if flags:
        return Output(text, "suspect", flags=tuple(flags))
    return Output(text, "ok" if to_plain_text(text) else "blank")


def is_sentinel(text):
    """One bracketed token in capitals whose last word is ERROR or FAILED, at most 40 characters and 4 words.

    The rule of the public bench: what other scripts wrote where a page failed, and no heading in brackets.
    """
    found = re.fullmatch(r"\s*\[([A-Z][A-Z _-]*)\]\s*", text)
    words = re.split(r"[ _-]+", found[1].strip()) if found else []
    return bool(words) and len(text.strip()) <= 40 and len(words) <= 4 and words[-1] in ("ERROR", "FAILED")


def output_at(table, column, row, alone):
    """The `Output` of one row; `alone` says that the table's status columns are about this text column."""
    columns = table.columns

    def cell(*names):
        return next((columns[name][row] for name in names if name in columns and columns[name][row] is not None), None)

    if not alone:
        return classify(columns[column][row], cell(f"{column}_error"), status=cell(f"{column}_status"))
    loops = cell("looped_blocks")
    flags = list(cell("ocr_flags") or ()) + (["looped"] if isinstance(loops, int) and loops else [])
    error = cell("ocr_error", f"{column}_error", "error")
    return classify(columns[column][row], error, flags, cell("finish_reason"), cell(f"{column}_status", "status"))


# ---- Joining


def join_runs(runs, options):
    """The `Bench` of (table, column, entry) triples. Raises Stop where nothing safe joins them."""
    tables = list({id(table): table for table, _, _ in runs}.values())
    key_columns, keys_of = page_keys(tables, options.row_key, options.assume_aligned)
    pages = {}
    for table in tables:
        for row, key in enumerate(keys_of[id(table)]):
            pages.setdefault(key, (table, row))
    contestants = []
    for (table, column, info), name in zip(runs, contestant_names(runs), strict=True):
        entries = info_entries(table)
        alone = len(runs) == len(tables) or (bool(entries) and column_of(entries[-1]) == column)
        rows = {key: row for row, key in enumerate(keys_of[id(table)])}
        model = info.get("model_id") or info.get("model_name") or (table.config if len(tables) > 1 else column)
        one = Contestant(name, model, table.config, table.revision, column, table.types.get(column, "string"), info)
        for key in pages:
            there = key in rows
            one.outputs[key] = output_at(table, column, rows[key], alone) if there else Output(None, "error", "no row")
        one.missing = len(pages) - len(rows)
        contestants.append(one)
    contestants.sort(key=lambda one: one.name)
    return Bench("", None, contestants, list(pages), key_columns, pages)


def page_keys(tables, row_key=None, assume_aligned=False):
    """(columns of the key, {id(table): list of keys}). A key is a string.

    The first of PAGE_KEYS that is filled and unique in every table, and that every table shares pages by. Positions
    are keys only with `assume_aligned`, or where there is but one table.
    """

    def numbered(columns):
        page = next((name for name in PAGE_NUMBERS if all(name in table.columns for table in tables)), None)
        return [columns] + [(*columns, page)] * bool(page)

    tried = [option for columns in ([(row_key,)] if row_key else PAGE_KEYS) for option in numbered(columns)]
    reasons = []
    for columns in dict.fromkeys(tried):
        said = " and ".join(columns)
        if lacking := [table.config for table in tables if any(name not in table.columns for name in columns)]:
            reasons += [f"{said}: not in {', '.join(lacking)}"] if len(lacking) < len(tables) or row_key else []
            continue
        keys = {id(table): list(zip(*(table.columns[name] for name in columns), strict=True)) for table in tables}
        if any(None in key for rows in keys.values() for key in rows):
            reasons.append(f"{said}: empty in some rows")
        elif any(len(set(rows)) < len(rows) for rows in keys.values()):
            reasons.append(f"{said}: the same in several rows")
        elif not set.intersection(*map(set, keys.values())):
            reasons.append(f"{said}: no page is in all of them")
        else:
            return columns, {table: ["/".join(map(str, key)) for key in rows] for table, rows in keys.items()}
    lengths = {len(next(iter(table.columns.values()))) for table in tables}
    if len(tables) == 1 or (assume_aligned and len(lengths) == 1):
        if not row_key:
            return ("row number",), {id(table): [f"row-{n}" for n in range(max(lengths))] for table in tables}
    if assume_aligned and not row_key:
        raise Stop(f"--assume-aligned: the outputs have {', '.join(map(str, sorted(lengths)))} rows.")
    raise Stop(
        "Nothing says which rows are the same page. Tried "
        + ("; ".join(reasons) or "columns that none has")
        + ". Name a column that is unique per page, --row-key COLUMN, or, if you know that all have the same rows in "
        "the same order, type --assume-aligned."
    )


def contestant_names(runs):
    """A unique name for each run: its model id, or `short (config)` where a model runs twice."""
    flat = len({id(table) for table, _, _ in runs}) == 1
    labels = [column if flat else table.config for table, column, _ in runs]
    models = [
        info.get("model_id") or info.get("model_name") or label
        for (_, _, info), label in zip(runs, labels, strict=True)
    ]
    counts = Counter(models)
    names = [
        f"{model.split('/')[-1]} ({label})" if counts[model] > 1 else model
        for model, label in zip(models, labels, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise Stop(f"Two runs would both be called {twice}. Rename a folder or choose with --configs.")
    return names


# <<< kit/bench_outputs.py

# >>> kit/box_match.py
# Which boxes are the same: intersection over union, and the best pairs.


def overlap_table(true, read):
    """IoU of every true with every read box, shape (true, read); boxes are [x0, y0, x1, y1] in one space."""
    import numpy as np

    a, b = np.asarray(true, float).reshape(-1, 1, 4), np.asarray(read, float).reshape(1, -1, 4)
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    common = sides[..., 0] * sides[..., 1]
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (a, b)]
    return common / np.maximum(areas[0] + areas[1] - common, 1e-9), common


def match_boxes(true, read, least=0.5, labels=None):
    """IoUs of the pairs of boxes with the largest sum of IoU among pairs of at least `least`.

    `labels` are two lists of labels where boxes match only their own kind. Taking pairs in order finds fewer.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    if not len(true) or not len(read):
        return []
    overlaps = overlap_table(true, read)[0]
    overlaps[overlaps < least] = 0
    if labels:
        overlaps[np.asarray(labels[0])[:, None] != np.asarray(labels[1])[None, :]] = 0
    return [float(overlaps[pair]) for pair in zip(*linear_sum_assignment(-overlaps), strict=True) if overlaps[pair]]


# <<< kit/box_match.py

# >>> kit/metrics_blocks.py
# How well read boxes fit the true ones, and formulas the true formulas.


def score_blocks(true, read):
    """Scores of two blocks documents of the same page, or None where one has no boxes to compare.

    `matches` and `matches_labelled` at IoU 0.5, `matches_75` at 0.75, of `true` and `read` boxes; `iou` the sum over
    the matches; `split` true boxes that two or more read boxes lie in, `merged` read boxes over two or more true ones
    (at least half of the inner box); `area_true`, `area_read`, `area_common` in pixels of the page, which compares
    lines with paragraphs too. Boxes of another page size are scaled to the true page's. Raises ValueError for a
    document without a size.
    """
    import numpy as np

    if not true or not read:
        return None
    for document in (true, read):
        if not (document.get("width") or 0) > 0 or not (document.get("height") or 0) > 0:
            raise ValueError(f"a blocks document without width and height: {sorted(document)}")
    scale = [true["width"] / read["width"], true["height"] / read["height"]] * 2
    boxes = [[block["bbox"] for block in document["blocks"] if block["bbox"]] for document in (true, read)]
    labels = [[block["label"] for block in document["blocks"] if block["bbox"]] for document in (true, read)]
    boxes[1] = [[value * by for value, by in zip(box, scale, strict=True)] for box in boxes[1]]
    if not boxes[0]:
        return None
    matches = match_boxes(*boxes)
    scores = {
        "true": len(boxes[0]),
        "read": len(boxes[1]),
        "matches": len(matches),
        "matches_75": len(match_boxes(*boxes, least=0.75)),
        "matches_labelled": len(match_boxes(*boxes, labels=labels)),
        "iou": sum(matches),
        "split": 0,
        "merged": 0,
    }
    if boxes[1]:
        common = overlap_table(*boxes)[1]
        areas = [np.array([(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in side]) for side in boxes]
        inside_true = (common > 0) & (common >= 0.5 * areas[1][None, :])
        inside_read = (common > 0) & (common >= 0.5 * areas[0][:, None])
        scores["split"] = int((inside_true.sum(axis=1) > 1).sum())
        scores["merged"] = int((inside_read.sum(axis=0) > 1).sum())
    covered = [covered_area(side, true["width"], true["height"]) for side in boxes]
    scores["area_true"], scores["area_read"] = (int(area.sum()) for area in covered)
    scores["area_common"] = int((covered[0] & covered[1]).sum())
    return scores


def covered_area(boxes, width, height):
    """A bool array (height, width): which pixels lie in a box."""
    import numpy as np

    area = np.zeros((int(height), int(width)), bool)
    for box in boxes:
        x0, y0, x1, y1 = (max(0, round(value)) for value in box)
        area[y0:y1, x0:x1] = True
    return area


def formulas_in(text):
    """The formulas of an answer, cleaned: in dollars, `\\[ \\]`, `\\( \\)`, `<math>` or `<formula>`."""
    found = [(match.start(), next(filter(None, match.groups()))) for match in PLAIN_MATH.finditer(text)]
    for match in re.finditer(r"<(math|formula)(?=[\s>])[^<>]*>([^<]*)</\1>", text):
        found.append((match.start(), match[2]))
    return [clean for _, latex in sorted(found) if (clean := clean_latex(re.sub(r"<loc_\d+>", "", latex)))]


def clean_latex(latex):
    """LaTeX without what does not change what is printed: spaces, sizes, fonts of text, numbers of equations."""
    latex = re.sub(r"\\(?:label|tag)\{[^{}]*\}", "", latex)
    latex = re.sub(r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|limits|nolimits|quad|qquad)(?![a-zA-Z])", "", latex)
    latex = re.sub(r"\\(?:mathrm|text|textrm|operatorname|mbox|rm)(?![a-zA-Z])", "", latex)
    latex = re.sub(r"\\[,;:!> ]|~", "", latex)
    latex = latex.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    latex = re.sub(r"\s+", "", latex)
    return re.sub(r"\{([^{}\\])\}", r"\1", latex).strip("$")  # x^{2} is x^2


def score_formulas(true, read):
    """One similarity per true formula (1 - edit distance by the longer length), 0 without a partner.

    Partners are those with the largest sum. Spelling of LaTeX counts: two spellings of one formula are not equal.
    """
    import numpy as np
    from rapidfuzz.distance import Levenshtein
    from scipy.optimize import linear_sum_assignment

    if not true or not read:
        return [0.0] * len(true)
    alike = np.array([[Levenshtein.normalized_similarity(one, other) for other in read] for one in true])
    partners = dict(zip(*map(list, linear_sum_assignment(-alike)), strict=True))
    return [float(alike[number, partners[number]]) if number in partners else 0.0 for number in range(len(true))]


# <<< kit/metrics_blocks.py

# >>> kit/otsl.py
# OTSL, the table language of PaddleOCR-VL, MinerU2.5, TeleOCR and the Docling models, as HTML.


# A token says what stands in one place of the grid: a filled or an empty cell, a header of columns, of a row or of a
# section, or the continuation of the cell on the left, above, or both.
OTSL_TOKEN = re.compile(r"<(fcel|ecel|ched|rhed|srow|lcel|ucel|xcel|nl)>")
OTSL_HEADERS, OTSL_CONTINUED = {"ched", "rhed", "srow"}, {"lcel", "ucel", "xcel"}


def otsl_to_html(text, trim=False):
    """The table as HTML; text that is no OTSL, or HTML already, comes back as it is, only stripped.

    Rows are made equally long: filled up to the longest, or with `trim` by PaddleX's rule, to the length that changes
    the rows least and loses no filled cell, which ends runs of empty cells. What stands before the first cell or after
    the end of a row is put before and behind the table. Merged cells never overlap: a continuation that no merged cell
    reaches is a cell of its own.
    """
    text = text.strip()
    before, *pieces = OTSL_TOKEN.split(text)
    rows, outside = [[]], []
    for kind, content in zip(pieces[::2], map(str.strip, pieces[1::2]), strict=True):
        if kind == "nl":
            rows.append([])
            outside.append(content)
        else:
            rows[-1].append((kind, content))
    rows = [row for row in rows if row]
    if not rows or (text.startswith("<table") and text.endswith("</table>")):
        return text
    # Filling up a table of one endless row would take the square of its length.
    width = otsl_width(rows, trim or len(rows) * max(map(len, rows)) > 200_000)
    lines = otsl_lines([(row + [("ecel", "")] * width)[:width] for row in rows])
    table = "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    return "\n\n".join(part for part in (before.strip(), table, *outside) if part)


def otsl_width(rows, trim):
    lengths = sorted(map(len, rows))
    if not trim:
        return lengths[-1]
    filled = max(
        (place for row in rows for place, cell in enumerate(row, 1) if cell[1] or cell[0] == "fcel"), default=1
    )
    return max(filled, lengths[(len(rows) - 1) // 2])  # the median is the length with the smallest sum of changes


def otsl_lines(rows):
    """Yields the inside of each `<tr>` of rows of (kind, text), all of one length."""
    taken = set()

    def continued(row, column, kinds):
        return (
            row < len(rows) and column < len(rows[0]) and rows[row][column][0] in kinds and (row, column) not in taken
        )

    for row, cells in enumerate(rows):
        line = []
        for column, (kind, _) in enumerate(cells):
            if (row, column) in taken:
                continue
            right, below = column + 1, row + 1
            if kind not in OTSL_CONTINUED:
                while continued(row, right, ("lcel", "xcel")):
                    right += 1
                while continued(below, column, ("ucel", "xcel")) and all(
                    continued(below, place, OTSL_CONTINUED) for place in range(column, right)
                ):
                    below += 1
            places = [(r, c) for r in range(row, below) for c in range(column, right)]
            taken.update(places)
            tag = "th" if kind in OTSL_HEADERS else "td"
            spans = "".join(
                f' {name}="{span}"'
                for name, span in (("rowspan", below - row), ("colspan", right - column))
                if span > 1
            )
            inside = html.escape(" ".join(said for r, c in places if (said := rows[r][c][1])))
            line.append(f"<{tag}{spans}>{inside}</{tag}>")
        yield "".join(line)


# <<< kit/otsl.py

# >>> kit/metrics_tables.py
# How like two tables are: TEDS with and without their text, and which tables of a page belong together.


# apted is pure Python: 320 cells a side take 1.8 s, 800 take 41 s. Larger pairs have no score, and are counted.
MOST_NODE_PAIRS = 400_000


def tables_in(text):
    """The tables of an answer in HTML, Markdown or OTSL, each as rows of cells (text, rowspan, colspan), in order."""
    if OTSL_TOKEN.search(text):
        text = re.sub(r"</?otsl>|<loc_\d+>", "", text)
        text = re.sub(
            r"(?:<(?:fcel|ecel|ched|rhed|srow|lcel|ucel|xcel)>[^\n]*?(?:<nl>|\n|\Z)\s*)+",
            lambda found: f"\n\n{otsl_to_html(found[0])}\n\n",
            text,
        )
    found = [(match.start(), html_rows(match[0])) for match in PLAIN_HTML_TABLE.finditer(text)]
    rest = PLAIN_HTML_TABLE.sub(lambda match: " " * len(match[0]), text)
    found += markdown_tables(rest)
    return [rows for _, rows in sorted(found, key=lambda pair: pair[0]) if rows]


def html_rows(table):
    """Rows of cells of the first table in an HTML fragment; those of tables inside its cells are part of its text."""
    import lxml.html

    tree = lxml.html.fromstring(f"<div>{table}</div>").find(".//table")
    rows = []
    for row in tree.iter("tr") if tree is not None else ():
        if next(row.iterancestors("table")) is tree:
            cells = [cell for cell in row if cell.tag in ("td", "th")]
            rows.append([(cell_text(cell), span_of(cell, "rowspan"), span_of(cell, "colspan")) for cell in cells])
    return rows


def cell_text(cell):
    import lxml.html

    for line_break in cell.iter("br"):
        line_break.tail = " " + (line_break.tail or "")
    return normal_cell(to_plain_text(lxml.html.tostring(cell, encoding="unicode", with_tail=False), cell=" "))


def normal_cell(text):
    return " ".join(unicodedata.normalize("NFKC", text).split())


def span_of(cell, name):
    value = (cell.get(name) or "1").strip()
    return min(int(value), 1000) if value.isascii() and value.isdigit() and int(value) > 0 else 1


def markdown_tables(text):
    """(start, rows) of each Markdown table: a header line, a line of dashes, and the lines with bars below."""
    lines, found, place = text.split("\n"), [], 0
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    while place + 1 < len(lines):
        if "|" in lines[place] and PLAIN_TABLE_LINE.fullmatch(lines[place + 1].strip()):
            end = place + 2
            while end < len(lines) and "|" in lines[end]:
                end += 1
            table = [lines[place], *lines[place + 2 : end]]
            found.append((starts[place], [bar_cells(line) for line in table]))
            place = end
        else:
            place += 1
    return found


def bar_cells(line):
    line = line.strip().removeprefix("|")
    line = line[:-1] if line.endswith("|") and not line.endswith("\\|") else line
    return [(normal_cell(to_plain_text(cell)), 1, 1) for cell in re.split(r"(?<!\\)\|", line)]


def teds(true, read, structure_only=False):
    """Tree edit distance similarity of two tables (Zhong et al. 2020), 0 to 1; None where they are too large.

    1 - distance / nodes of the larger tree; nodes are the table, its rows and its cells, the root included. To insert
    or delete a node costs 1; to change one costs 1 where tags or spans differ, and for cells the Levenshtein distance
    of their texts by the length of the longer. `th` is `td`. Rows that both have at the top and at the end are left
    out of the search and counted: the distance is the same (checked on 3,000 random pairs).
    """
    from apted import APTED, Config

    class Costs(Config):
        def rename(self, node1, node2):
            return node_distance(node1, node2)

        def children(self, node):
            return node[1]

    if structure_only:
        true, read = ([[("", *cell[1:]) for cell in row] for row in rows] for rows in (true, read))
    nodes = max(1 + sum(1 + len(row) for row in rows) for rows in (true, read))
    true, read = without_common_rows(list(true), list(read))
    sizes = [1 + sum(1 + len(row) for row in rows) for rows in (true, read)]
    if sizes[0] * sizes[1] > MOST_NODE_PAIRS:
        return None
    distance = APTED(table_tree(true), table_tree(read), Costs()).compute_edit_distance()
    return 1 - distance / nodes


def table_tree(rows):
    """Nodes are (name, children); the name of a cell is (text, rowspan, colspan)."""
    return "table", [("tr", [(cell, []) for cell in row]) for row in rows]


def node_distance(node1, node2):
    name1, name2 = node1[0], node2[0]
    if isinstance(name1, str) or isinstance(name2, str) or name1[1:] != name2[1:]:
        return float(name1 != name2)
    return text_distance(name1[0], name2[0])


@functools.lru_cache(100_000)
def text_distance(one, other):
    """Levenshtein distance by the length of the longer text, 0 for two empty ones."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_distance(one, other)


def without_common_rows(true, read):
    while true and read and true[0] == read[0]:
        true, read = true[1:], read[1:]
    while true and read and true[-1] == read[-1]:
        true, read = true[:-1], read[:-1]
    return true, read


def score_tables(true, read):
    """{"tables", "extra", "teds", "structure"}: one score per true table, 0 where it has no partner.

    Partners are those with the largest sum of text similarity. `extra` counts read tables without a partner. A score
    of None says that the pair was too large.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    scores = {"tables": len(true), "extra": max(0, len(read) - len(true)), "teds": [], "structure": []}
    flat = [[" ".join(cell[0] for row in rows for cell in row) for rows in side] for side in (true, read)]
    partners = {}
    if true and read:
        alike = np.array([[1 - text_distance(one, other) for other in flat[1]] for one in flat[0]])
        partners = dict(zip(*map(list, linear_sum_assignment(-alike)), strict=True))
    for number, rows in enumerate(true):
        other = read[partners[number]] if number in partners else None
        scores["teds"].append(0.0 if other is None else teds(rows, other))
        scores["structure"].append(0.0 if other is None else teds(rows, other, structure_only=True))
    return scores


# <<< kit/metrics_tables.py

# >>> kit/metrics_facts.py
# Facts about pages, one JSON object a line in olmOCR-bench's form, and whether an answer agrees with them.


FACT_TYPES = ("present", "absent", "order", "table", "math", "format", "baseline", "footnote")
ASCII_FORMS = {
    **dict.fromkeys("‘’‚", "'"), **dict.fromkeys("“”„", '"'), "＿": "_", **dict.fromkeys("–—‑‒−", "-"), "µ": "μ",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def read_facts(path):
    """{page name: [facts]} of a JSONL file; names are those of outputs: `x` and `x/page_003` for page 3 of x.pdf.

    Facts that its maker rejected are left out. Raises Stop for a line that is no fact.
    """
    facts = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fact = parse_json(line)
                stem, page, kind = re.sub(r"\.\w+$", "", fact["pdf"]), int(fact["page"]), fact["type"]
            except (ValueError, KeyError, TypeError) as error:
                raise Stop(f"{path}, line {number}: a fact has pdf, page, id and type; {error!r}.") from error
            if kind not in FACT_TYPES:
                raise Stop(f"{path}, line {number}: unknown type {kind!r}; there are {', '.join(FACT_TYPES)}.")
            if fact.get("checked") != "rejected":
                facts.setdefault((stem, page), []).append(fact)
    named = {}
    for (stem, page), listed in facts.items():
        for name in [f"{stem}/page_{page:03d}", f"{stem}_pg{page}"] + [stem] * (page == 1):
            named.setdefault(name, []).extend(listed)
    return named


def fact_text(text):
    """Text as facts compare it: no emphasis, single spaces, NFC, quotation marks and dashes in ASCII."""
    text = re.sub(r"<br/?>", " ", text)
    text = re.sub(r"</?[bi]>", "", re.sub(r"(\*\*|__|\*|_)(.*?)\1", r"\2", text))
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(ASCII_FORMS.get(letter, letter) for letter in text)


def check_fact(fact, text):
    """True or False, or None for a formula that is spelled in another way: to tell needs a browser that draws both."""
    checks = {
        "present": fact_present, "absent": fact_absent, "order": fact_order, "table": fact_table, "math": fact_math,
        "format": fact_format, "baseline": fact_baseline, "footnote": fact_footnote,
    }  # fmt: skip
    return checks[fact["type"]](fact, text)


def fact_present(fact, text):
    from rapidfuzz.fuzz import partial_ratio

    wanted, text = fact_text(fact["text"]), fact_text(text)
    if not fact.get("case_sensitive", True):
        wanted, text = wanted.lower(), text.lower()
    first, last = fact.get("first_n"), fact.get("last_n")
    if first or last:
        text = (text[:first] if first else "") + (text[-last:] if last else "")
    differences = fact.get("max_diffs", 0)
    if len(text) < len(wanted) - differences:  # partial_ratio would look for the text in what is wanted
        return False
    return partial_ratio(wanted, text) / 100 >= 1 - differences / max(1, len(wanted))


def fact_absent(fact, text):
    return not fact_present(fact, text)


def fact_order(fact, text):
    from fuzzysearch import find_near_matches

    text, most = fact_text(text), fact.get("max_diffs", 0)
    before, after = (find_near_matches(fact_text(fact[key]), text, max_l_dist=most) for key in ("before", "after"))
    return bool(before and after) and min(one.start for one in before) < max(one.start for one in after)


def fact_table(fact, text):
    """A cell that says `cell` has the neighbours and headings that the fact names."""
    return any(
        all(
            any(alike(fact[side], grid[place], fact) for place in places_beside(grid, spot, side))
            for side in ("up", "down", "left", "right", "top_heading", "left_heading")
            if fact.get(side)
        )
        for grid in map(table_grid, tables_in(text))
        for spot in grid
        if alike(fact["cell"], grid[spot], fact)
    )


def alike(wanted, cell, fact):
    from rapidfuzz.fuzz import ratio

    wanted = fact_text(wanted)
    return ratio(wanted, fact_text(cell)) / 100 >= max(0.5, 1 - fact.get("max_diffs", 0) / max(1, len(wanted)))


def table_grid(rows):
    """{(row, column): text} of rows of cells (text, rowspan, colspan); a merged cell stands in all of its places."""
    grid = {}
    for row, cells in enumerate(rows):
        column = 0
        for text, high, wide in cells:
            while (row, column) in grid:
                column += 1
            for down in range(min(high, len(rows) - row)):
                for right in range(wide):
                    grid.setdefault((row + down, column + right), text)
            column += wide
    return grid


def places_beside(grid, spot, side):
    """The places that `side` names: the neighbour, or all filled cells to the edge for a heading."""
    row, column = spot
    steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    if side in steps:
        place = (row + steps[side][0], column + steps[side][1])
        return [place] if place in grid else []
    line = [(r, column) for r in range(row)] if side == "top_heading" else [(row, c) for c in range(column)]
    return [place for place in line if grid.get(place)]


def fact_math(fact, text):
    return True if clean_latex(fact["math"]) in formulas_in(text) else None


def fact_format(fact, text):
    from rapidfuzz.fuzz import partial_ratio

    patterns = {
        "heading": [r"(?m)^#{1,6}\s+(.+?)$", r"(?is)<h[1-6][^>]*>(.*?)</h[1-6]>"],
        "bold": [r"(?s)\*\*(.*?)\*\*", r"(?s)__(.*?)__", r"(?is)<(?:b|strong)>(.*?)</(?:b|strong)>"],
        "italic": [r"(?s)(?<!\*)\*(?!\*)(.*?)(?<!\*)\*(?!\*)", r"(?s)(?<!_)_(?!_)(.*?)(?<!_)_(?!_)",
                   r"(?is)<(?:i|em)>(.*?)</(?:i|em)>"],
    }  # fmt: skip
    wanted, fold = fact_text(fact["text"]), str if fact.get("case_sensitive", True) else str.lower
    least = 1 - fact.get("max_diffs", 0) / max(1, len(wanted))
    found = [fact_text(words) for pattern in patterns[fact["format"]] for words in re.findall(pattern, text)]
    return any(partial_ratio(fold(wanted), fold(words)) / 100 >= least for words in found if words)


def fact_baseline(fact, text):
    """Not blank (or, with `max_length`, as good as blank), no loop at the end, no characters of other scripts."""
    count = sum(map(str.isalnum, re.sub(r"!\[.*?\]\(.*?\)", "", text)))
    if fact.get("max_length") is not None:
        return count <= fact["max_length"]
    if not count or (fact.get("check_disallowed_characters", True) and re.search(r"[぀-ヿ一-鿿🌀-🙏🚀-🛿🇦-🇿]", text)):
        return False
    return not any(repeats_at_end(text, size) > fact.get("max_repeats", 30) for size in range(1, 6))


def repeats_at_end(text, size):
    tail, count = text[-size:], 0
    while len(tail) == size and text.endswith(tail, 0, len(text) - count * size):
        count += 1
    return count


def fact_footnote(fact, text):
    """The marker stands as `[^1]`, `<sup>1</sup>` or a superscript, after and before the words that the fact names."""
    from rapidfuzz.fuzz import partial_ratio

    marker = re.escape(fact["marker"])
    forms = [rf"\[\^{marker}\](?!:)", rf"(?i)<sup[^>]*>{marker}</sup>"]
    if fact["marker"].isascii() and fact["marker"].isdigit():
        forms.append(fact["marker"].translate(SUPERSCRIPTS))
    places = [found.span() for form in forms for found in re.finditer(form, text)]

    def letters(words):
        return "".join(filter(str.isalnum, fact_text(words))).lower()

    def near(words, parts):
        least = 1 - fact.get("max_diffs", 0) / max(1, len(words))
        return any(part and partial_ratio(letters(words), part) / 100 >= least for part in parts)

    before, after = fact.get("appears_before_marker"), fact.get("appears_after_marker")
    return bool(places) and (
        (
            not before
            or near(before, [letters(text[max(0, s - 200) : s])[-2 * len(letters(before)) :] for s, _ in places])
        )
        and (not after or near(after, [letters(text[e : e + 200])[: 2 * len(letters(after))] for _, e in places]))
    )


# <<< kit/metrics_facts.py

# >>> kit/metrics_order.py
# How much of a page was read, whatever the order: true blocks found in the read text, and the order they stand in.


LEAST_SIMILARITY = 0.5  # below, a block counts as not found: unrelated prose reaches 0.3 to 0.45


def find_blocks(blocks, read):
    """Where each true block stands in the read text, whatever the order: a list of (start, end, errors) or None.

    Longest first, each takes the best matching span of what the others have left. It counts as found from
    LEAST_SIMILARITY on. Spans are never shared, and a block that was torn apart is found in its largest piece only.
    """
    free, found = [(0, len(read))] if read else [], [None] * len(blocks)
    for index in sorted(range(len(blocks)), key=lambda i: (-len(blocks[i]), i)):
        block = blocks[index]
        spans = [best_span(block, read, start, end) for start, end in free] if block else []
        best = min(spans, default=None, key=lambda span: (span[2], span[0]))
        if best is None or best[2] > (1 - LEAST_SIMILARITY) * max(len(block), best[1] - best[0]):
            continue
        found[index] = best
        start, end = next(piece for piece in free if piece[0] <= best[0] and best[1] <= piece[1])
        free.remove((start, end))
        free += [piece for piece in ((start, best[0]), (best[1], end)) if piece[0] < piece[1]]
        free.sort()
    return found


def best_span(block, read, start, end):
    """(start, end, errors) of the span in read[start:end] that is most like the block, the shortest of equal ones.

    Sellers' algorithm, in the window where rapidfuzz finds the best match of the block's length.
    """
    import numpy as np
    from rapidfuzz.fuzz import partial_ratio_alignment

    if end - start > len(block):
        place = partial_ratio_alignment(block, read[start:end])
        margin = 5 + len(block) // 10  # insertions push text over the edges of a window of the block's length
        start, end = max(start, start + place.dest_start - margin), min(end, start + place.dest_end + margin)
    true, window = (np.array(list(map(ord, text)), np.int64) for text in (block, read[start:end]))
    # A cell holds errors * size + (size - 1 - where the span starts): one comparison decides on both.
    size = len(window) + 1
    steps = np.arange(size) * size
    row = np.arange(size)[::-1].copy()
    for letter in true:
        changed = row[:-1] + size * (window != letter)
        above = row + size
        above[1:] = np.minimum(above[1:], changed)
        row = np.minimum.accumulate(above - steps) + steps
    errors, last = divmod(int(row.min()), size)
    return start + size - 1 - last, start + int(row.argmin()), errors


def order_free(blocks, read):
    """{"errors", "length", "order_errors", "order_pairs", "found"} of true blocks (texts, in reading order).

    `errors`: edits inside the found spans, and the characters of blocks not found or those read beside, what is more.
    `order_errors` of `order_pairs`: pairs of found blocks that stand the other way round (Kendall's distance).
    `found`: one similarity per block, 0 to 1.
    """
    spans = find_blocks(blocks, read)
    lost = sum(len(block) for block, span in zip(blocks, spans, strict=True) if not span)
    pieces, end = [], 0
    for span in sorted(filter(None, spans)):
        pieces.append(read[end : span[0]])
        end = span[1]
    beside = sum(len(piece.strip()) for piece in [*pieces, read[end:]])
    errors = sum(span[2] for span in spans if span) + max(lost, beside)
    starts = [span[0] for span in spans if span]
    pairs = [(a, b) for place, a in enumerate(starts) for b in starts[place + 1 :]]
    found = [
        1 - span[2] / max(len(block), span[1] - span[0], 1) if span else 0.0
        for block, span in zip(blocks, spans, strict=True)
    ]
    return {
        "errors": errors,
        "length": sum(map(len, blocks)),
        "order_errors": sum(a > b for a, b in pairs),
        "order_pairs": len(pairs),
        "found": found,
    }


# <<< kit/metrics_order.py

# >>> kit/metrics_stats.py
# How sure figures over pages are: intervals by resampling pages, and tests of two runs on the same pages.


def ratio_interval(errors, lengths, resamples=2000, level=0.95, seed=42):
    """(low, high) of sum(errors) / sum(lengths), pages resampled together (BCa bootstrap).

    Both None below two pages or where the truth is empty. Where every resample gives the same value, that value twice.
    """
    import warnings

    import numpy as np
    from scipy.stats import bootstrap

    errors, lengths = np.asarray(errors, float), np.asarray(lengths, float)
    if len(errors) < 2 or not lengths.sum():
        return None, None

    def rate(errors, lengths, axis=-1):
        return errors.sum(axis) / np.maximum(lengths.sum(axis), 1e-9)

    options = {"paired": True, "n_resamples": resamples, "confidence_level": level, "vectorized": True, "batch": 500}
    for method in ("BCa", "percentile"):  # BCa has no value where leaving out any page changes nothing
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            draws = bootstrap((errors, lengths), rate, method=method, rng=np.random.default_rng(seed), **options)
        if np.isfinite(draws.confidence_interval).all():
            return tuple(float(end) for end in draws.confidence_interval)
    return (float(rate(errors, lengths)),) * 2


def paired_p_value(differences, resamples=10_000, seed=42):
    """Two-sided p-value of a mean difference of 0 between paired pages: signs flipped, all ways where these are few."""
    import numpy as np
    from scipy.stats import permutation_test

    differences = np.asarray(differences, float)
    if len(differences) < 2 or not differences.any():
        return 1.0
    tested = permutation_test(
        (differences,),
        lambda values, axis: values.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=1000,
        rng=np.random.default_rng(seed),
    )
    return float(tested.pvalue)


def holm(p_values):
    """p-values adjusted for their number by Holm's method, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


# <<< kit/metrics_stats.py

# >>> kit/metrics_text.py
# How far a read text is from the true one: characters that are compared, errors by kind, words free of order.


QUOTES_AND_DASHES = {
    **dict.fromkeys("‘’‚‛′´`‹›", "'"), **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"), "…": "...",
}  # fmt: skip
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
CUT_RATIO, CUT_EXTRA = 20, 10_000  # what is longer than ratio * truth + extra is cut: loops are bad enough
# Scripts written without spaces between words: error rates of words say nothing about them.
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"


def normal_text(text, profile="standard"):
    """Text as it is compared; the same for both sides. Markup is a matter of `to_plain_text`, before this.

    "diplomatic": NFC, kinds of white space unified, invisible characters dropped. "standard": also every run of white
    space one space, words that a line end breaks joined, quotation marks, dashes and ellipses as ASCII. "lenient":
    also NFKC (long s, ligatures, fractions), e above as umlaut, no case, no punctuation. Raises ValueError for another.
    """
    if profile not in ("diplomatic", "standard", "lenient"):
        raise ValueError(f"profile is {profile!r}; choose diplomatic, standard or lenient")
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = re.sub(r"[^\S\n]", " ", text.translate(INVISIBLE))
    if profile == "diplomatic":
        return text.strip()
    text = re.sub(r"(?<=[^\W\d_])[-\u2010\u2e17=¬] *\n+ *(?=[^\W\d_])", joined_hyphen(text), text)
    text = "".join(QUOTES_AND_DASHES.get(letter, letter) for letter in text)
    if profile == "lenient":
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text.replace("\u0364", "\u0308")).casefold())
        text = "".join(" " if unicodedata.category(letter)[0] in "PS" else letter for letter in text)
    return " ".join(text.split())


def joined_hyphen(text):
    """What replaces a hyphen at a line end: nothing before a small letter, else the hyphen stays, without the break."""
    return lambda found: "" if text[found.end()].islower() else "-"


def graphemes(text):
    """The characters that a reader counts: a str where each is one code point, else a list of clusters."""
    import regex

    clusters = regex.findall(r"\X", text)
    return text if len(clusters) == len(text) else clusters


def words_of(text):
    """Words by Unicode's word boundaries (UAX 29), without those of punctuation, symbols and marks only.

    The same words as dinglehopper's.
    """
    import regex

    return [
        word
        for word in regex.split(r"(?V1w)\b", unicodedata.normalize("NFC", text))
        if any(unicodedata.category(letter) not in ("Cc", "Cf") and unicodedata.category(letter)[0] not in "MPSZ"
               for letter in word)
    ]  # fmt: skip


def is_unspaced(text):
    """True if most letters of the text belong to scripts without spaces between words."""
    import regex

    return 2 * len(regex.findall(UNSPACED, text)) > len(regex.findall(r"\p{L}", text)) > 0


def edit_counts(true, read):
    """{"errors", "substitutions", "insertions", "deletions", "length"} of two sequences of hashable items.

    `length` is that of the truth. The kinds are those of one shortest alignment, rapidfuzz's, which jiwer counts too.
    """
    from rapidfuzz.distance import Levenshtein

    kinds = Counter(edit.tag for edit in Levenshtein.editops(true, read))
    return {
        "errors": kinds.total(),
        "substitutions": kinds["replace"],
        "insertions": kinds["insert"],
        "deletions": kinds["delete"],
        "length": len(true),
    }


def error_rate(counts):
    """Errors by length; may exceed 1. Of an empty truth: 0 for nothing read, 1 for anything (jiwer: the count)."""
    return counts["errors"] / counts["length"] if counts["length"] else float(counts["errors"] > 0)


def confusions(true, read, most=50):
    """Counter of (true, read) pairs of characters, "" for an insertion or a deletion."""
    from rapidfuzz.distance import Levenshtein

    pairs = Counter()
    for tag, i, j in Levenshtein.editops(true, read).as_list():
        pairs["" if tag == "insert" else true[i], "" if tag == "delete" else read[j]] += 1
    return Counter(dict(pairs.most_common(most)))


def bag_scores(true, read):
    """(precision, recall, F1) of two multisets of words: what was read, in whatever order. Both empty: 1."""
    common, true_count, read_count = (Counter(true) & Counter(read)).total(), len(true), len(read)
    if not true_count or not read_count:
        return (float(true_count == read_count),) * 3
    precision, recall = common / read_count, common / true_count
    return precision, recall, 2 * common / (true_count + read_count)


def cut_loops(true, read):
    """(read, whether it was cut): no longer than CUT_RATIO times the truth and CUT_EXTRA characters."""
    longest = CUT_RATIO * len(true) + CUT_EXTRA
    return read[:longest], len(read) > longest


def compared_characters(true, read, profile="standard"):
    """(true, read, whether `read` was cut): the characters that CER counts, of two texts without markup."""
    true, read = normal_text(true, profile), normal_text(read, profile)
    read, cut = cut_loops(true, read)
    return graphemes(true), graphemes(read), cut


# <<< kit/metrics_text.py

# >>> kit/scoring.py
# Outputs against ground truth: which page is which, the scores of a page, and the figures over all pages.


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


# <<< kit/scoring.py
# <<< shared part
if __name__ == "__main__":
    sys.exit(main())
