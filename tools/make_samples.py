"""Draws the pages in samples/ and writes their true text beside them.

    python tools/make_samples.py

Needs Pillow >= 11 with Raqm (its wheels have it), NumPy, and free fonts of Debian:

    apt install fonts-linuxlibertine fonts-dejavu-core fonts-ebgaramond fonts-blankenburg fonts-noto-cjk

Every text was written for these pages. Seeds are fixed; another version of Pillow or FreeType may move single pixels.
The true text has one line per printed line in reading order, a blank line between paragraphs, two spaces between the
cells of a table row, and a form feed between pages.
"""

import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SAMPLES = Path(__file__).resolve().parent.parent / "samples"

FONTS = {
    "serif": "/usr/share/fonts/opentype/linux-libertine/LinLibertine_R.otf",
    "bold": "/usr/share/fonts/opentype/linux-libertine/LinLibertine_RB.otf",
    "sans": "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "garamond": "/usr/share/fonts/opentype/ebgaramond/EBGaramond12-Regular.otf",
    "fraktur": "/usr/share/fonts/truetype/blankenburg/Blankenburg_UNZ1A.ttf",
    "chinese": "/usr/share/fonts/opentype/noto/NotoSerifCJK-Regular.ttc",
}
FACES = {"chinese": 2}  # Simplified Chinese in the collection

# Printing types of 1780 have no ligature for "ct" that a reader must know; only the long s is kept.
NO_LIGATURES = ["-liga", "-dlig", "-hlig", "-clig"]

ENGLISH = [
    "The harbour clock had stopped at ten minutes to four, and nobody in the town could say in which "
    "year. Visitors set their watches by it and missed their trains. The station master, a patient "
    "man named Abel Quint, kept a list of them in a green book.",
    "On the first page he wrote the rule of the house: whoever misses the 5:12 may wait by the stove "
    "and drink tea for 3 pence. By the winter of 1907 the book had 418 names, two drawings of a "
    "dog, and one proposal of marriage, which was accepted.",
    "When the railway sent an engineer to mend the clock, the town council met for six hours. They "
    "thanked him, paid his fare (11s. 6d.), and asked him to mend the church organ instead. Then "
    "they voted, 9 to 2, that ten minutes to four was a good time of day.",
    'The engineer missed his train home. "Name, please," said Abel Quint, and opened the book.',
]

COLUMNS_TITLE = "Keeping Bees on a Flat Roof"
COLUMNS = [
    "A flat roof is a better place for bees than most gardens. It is dry, it gets the morning sun, "
    "and nobody walks through the flight path with a tray of glasses.",
    "Begin with two hives, not one. A single colony teaches you little, because you have nothing to "
    "compare it with. Stand the hives on oak beams, 40 cm above the roof, with the entrance to "
    "the south-east.",
    "Wind is the enemy. Tie each hive down with a strap and lay a stone of 15 kg on the lid. After "
    "a storm, look from below first: if bees fly, leave them in peace.",
    "Water must be near, in a dish with pebbles, or the bees will find the neighbour's pool and the "
    "neighbour will find you.",
    "In May the roof smells of wax and lime blossom. A strong colony brings home two kilograms on "
    "one good day. Add the second box before the first is full, never after.",
    "Take honey once, at the end of July, and leave 14 kg for the winter. Greed in summer is paid "
    "for in sugar in autumn.",
    "Write down what you see: the date, the weather, the number of frames with brood. In the third "
    "year the notes are worth more than the honey.",
]

NEWS_TITLE = "THE RIVERSIDE MESSENGER"
NEWS_DATELINE = "Number 37, Saturday, 9 March 1912, price one penny"
NEWS_COLUMNS = [
    [
        "The new bridge was opened at noon by the mayor, who cut a ribbon of blue silk and dropped "
        "the scissors into the river. They were recovered by a diver.",
        "Traffic is to keep left. Carts above two tons must wait for the signal of the keeper.",
    ],
    [
        "The flower market moves to Mill Lane on Monday. Stalls are let by the yard; ask for Mrs "
        "Odell at the corn hall before nine.",
        "Tulips are early this year and dear. Violets may be had for the picking behind the gas works.",
    ],
    [
        "Lost, between the ferry and the school, a brown umbrella with a handle like a duck. The "
        "finder will be rewarded with cake.",
        "Rain is likely before Sunday evening, with wind from the west, and fog upon the lower meadows at dawn.",
    ],
]

TABLE_TITLE = "Lamps, oil and hours at the five lighthouses"
TABLE = [
    ["Station", "Height (m)", "Oil (l)", "Hours lit", "Keeper"],
    ["North Skerry", "31.5", "1,240", "4,012", "M. Hale"],
    ["Gull Point", "18.0", "860", "3,977", "J. Brandt"],
    ["Old Mole", "9.2", "415", "3,650", "S. Okafor"],
    ["Three Sisters", "44.7", "1,905", "4,120", "R. Novak"],
    ["Cape Ember", "27.3", "1,118", "3,988", "L. Duarte"],
    ["Total", "130.7", "5,538", "19,747", "five"],
]
TABLE_NOTE = "Hours are counted from sunset to sunrise; fog hours are not included."

FRAKTUR_TITLE = "Von der Kunſt, das Wetter zu leſen"
FRAKTUR = [
    "Wer früh am Morgen vor die Tür tritt, der ſieht am Himmel, was der Tag ihm bringen will. Steht "
    "der Rauch gerade über dem Dache, ſo bleibt es trocken bis zum Abend. Zieht er aber zur Erde, ſo "
    "laſſe man das Heu nicht liegen.",
    "Die Schwalben fliegen tief, ehe der Regen fällt, denn die Mücken ſuchen Schutz am Waſſer. Auch "
    "die Fröſche wiſſen es und ſchweigen. Ein alter Müller hat dieſes Buch durch dreißig Jahre "
    "geführt und ſich nur ſelten geirrt.",
    "Im Jahre 1834 aber ſchrieb er: Heute ſchien die Sonne, obwohl alle Zeichen dagegen ſtanden. Man "
    "muß dem Himmel auch ein wenig Freiheit laſſen.",
]

LONG_S_TITLE = "Of the proper Seaſon for planting Trees"
LONG_S = [
    "It is a common miſtake to ſuppoſe that Trees may be planted at any Time. The beſt Seaſon is that "
    "in which the Sap is at Reſt, and the Ground moiſt but not frozen; which, in moſt of our "
    "Counties, is from the middle of October to the end of November.",
    "Let the Hole be twice as wide as the Roots, and no deeper than they deſire. Spread them gently, "
    "as one would the Fingers of a ſleeping Child, and caſt in the fineſt Earth firſt. Then tread it "
    "firm, and water it once, even though it ſhould rain.",
    "A Stake is a good Servant for two Years, and a bad Maſter ever after.",
]

GERMAN_FRENCH = [
    "Zwölf Mädchen aßen süße Äpfel vor dem Rathaus; der Bürgermeister zählte die Körbe und schrieb "
    "»über vierzig« in sein Büchlein. Öl, Übermut und große Straßen kosten Geld.",
    "Der Gärtner fürchtete weder Frost noch Hagel, wohl aber die Tür, die nachts von selbst aufging. "
    "Er ölte sie, schloß sie ab und hörte trotzdem Schritte.",
    "À l'été, la forêt près du château sentait le thym et la fumée. L'élève où dînait le garçon reçut "
    "une pêche, deux pâtés et un cœur de sucre. « Voilà », dit-elle, « ça suffit. »",
    "Le maître d'hôtel, très âgé, répétait à chaque fenêtre : il fera beau demain, sauf s'il pleut.",
]

EUROPEAN = [
    "El señor Núñez compró un paraguas en el país de la lluvia. ¿Cuándo dejará de llover? ¡Mañana, "
    "según el periódico! La niña sonrió y guardó el corazón de latón.",
    "Em São João da Ponte, as irmãs vendiam pão, maçãs e limões à porta da estação. Não há avó que não saiba a canção.",
    "På øen bor en gammel smed, som køber æbler og sælger små både. Över bron går en älg; den är trött men nöjd.",
    "Żółty tramwaj jedzie przez most, a pięć gęsi idzie obok. Babcia mówi, że będzie śnieg.",
    "Příští týden přijede strýček ze Žatce a přiveze kůň, tři hrušky a dobrou náladu.",
]

CHINESE_TITLE = "江边的老茶馆"
CHINESE = [
    "清晨六点，茶馆的门就开了。老板姓周，今年七十三岁，走路很慢，泡茶却很快。他说，水要刚刚烧开，"
    "茶叶不能太多，朋友不能太少。",
    "靠窗的桌子总是留给船夫。他们从上游带来木材、竹子和消息，也带来雨季的味道。谁赢了棋，谁就请大家吃花生。",
    "1998年的大水淹到了第三级台阶。周老板在墙上画了一条红线，写下日期，然后继续烧水。",
]

SCAN_TITLE = "Notes of the Night Watch"
SCAN = [
    "At eleven the lamps on the east pier were trimmed and the gate was locked. A cat came in with "
    "the fog and was given the chair by the stove.",
    "At one a fishing boat without lights passed the mole. We called; a voice answered that they had "
    "lost the lantern but not the way.",
    "At three the wind turned north. Two slates fell from the customs house and were laid on the wall for the mason.",
    "At five the baker lit his oven, and all of us remembered that we were hungry.",
]

REPORT = [
    (
        "Report on the Village Library",
        [
            "The library holds 3,214 volumes, of which 1,870 were lent at least once this year. The most "
            "popular book remains the railway timetable.",
            "The roof over the reading room was repaired in June at a cost of 126 crowns. Members "
            "brought ladders, soup and advice.",
            "The committee asks readers not to press flowers in the dictionaries. Volume four now "
            "opens only at the letter R.",
        ],
    ),
    (
        "Plans for the Coming Year",
        [
            "We intend to open on Sunday afternoons, and to heat the smaller room first. A list of "
            "volunteers hangs beside the door.",
            "Forty new books have been ordered: twelve novels, nine books of travel, and the rest as "
            "the children wish.",
            "The treasurer closes the account with 58 crowns in hand and a good conscience.",
        ],
    ),
]

LETTERS = [
    (
        "Letter of 4 April",
        [
            "Dear Ines, the seeds arrived dry and in good order. I have sown half of them under glass "
            "and keep the other half against bad luck.",
            "The hens approve of the new fence. They have already found the hole in it.",
        ],
    ),
    (
        "Letter of 19 May",
        [
            "Dear Ines, the beans stand knee high and the hens are in them. I no longer speak of a "
            "fence, but of a suggestion.",
            "Come before the cherries are ripe, or the blackbirds will answer for me.",
        ],
    ),
]


def font(name, size):
    return ImageFont.truetype(FONTS[name], size, index=FACES.get(name, 0), layout_engine=ImageFont.Layout.RAQM)


def wrap(text, face, width, between=" "):
    """Text broken into lines no wider than `width` pixels; `between` is "" for scripts without spaces."""
    lines = [""]
    for word in text.split(between) if between else text:
        longer = f"{lines[-1]}{between}{word}" if lines[-1] else word
        # A line of Chinese never starts with a closing mark: the mark hangs over instead.
        if face.getlength(longer) <= width or (not between and word in "，。、；：！？"):
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def page(width=1100, height=1400):
    image = Image.new("L", (width, height), 255)
    return image, ImageDraw.Draw(image)


def set_paragraphs(draw, paragraphs, face, x, y, width, leading, between=" ", features=None):
    """Prints paragraphs and returns their lines (a list per paragraph) and the y below them, in pixels."""
    printed = []
    for paragraph in paragraphs:
        lines = wrap(paragraph, face, width, between)
        for line in lines:
            draw.text((x, y), line, font=face, fill=0, features=features)
            y += leading
        y += leading // 2
        printed.append(lines)
    return printed, y


def as_text(paragraphs):
    return "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"


def plain_page(title, paragraphs, face, title_face, width=1100, height=1400, leading=42, between=" ", features=None):
    """One column with an optional title: the image and its true text."""
    image, draw = page(width, height)
    printed, y = [], 110
    if title:
        draw.text((110, y), title, font=title_face, fill=0, features=features)
        printed.append([title])
        y += leading * 2
    body, _ = set_paragraphs(draw, paragraphs, face, 110, y, width - 220, leading, between, features)
    return image, as_text(printed + body)


def two_columns():
    image, draw = page(1300, 960)
    face, left, right, column = font("serif", 28), 100, 680, 520
    draw.text((100, 90), COLUMNS_TITLE, font=font("bold", 46), fill=0)
    first, _ = set_paragraphs(draw, COLUMNS[:4], face, left, 200, column, 38)
    second, _ = set_paragraphs(draw, COLUMNS[4:], face, right, 200, column, 38)
    return image, as_text([[COLUMNS_TITLE], *first, *second])


def newspaper():
    image, draw = page(1400, 740)
    face, title = font("serif", 26), font("bold", 60)
    draw.text((700, 60), NEWS_TITLE, font=title, fill=0, anchor="ma")
    draw.line((80, 145, 1320, 145), fill=0, width=2)
    draw.text((700, 155), NEWS_DATELINE, font=face, fill=0, anchor="ma")
    draw.line((80, 195, 1320, 195), fill=0, width=2)
    printed = [[NEWS_TITLE], [NEWS_DATELINE]]
    for column, paragraphs in enumerate(NEWS_COLUMNS):
        printed += set_paragraphs(draw, paragraphs, face, 80 + 430 * column, 230, 380, 36)[0]
    for x in (485, 915):
        draw.line((x, 230, x, 680), fill=0, width=1)
    return image, as_text(printed)


def table():
    image, draw = page(1240, 760)
    face, bold = font("sans", 26), font("bold", 38)
    draw.text((80, 70), TABLE_TITLE, font=bold, fill=0)
    left, top, row_height = 80, 160, 66
    edges = [left, left + 270, left + 480, left + 680, left + 870, left + 1080]
    for number, row in enumerate(TABLE):
        y = top + number * row_height
        for column, cell in enumerate(row):
            if column in (1, 2, 3):
                draw.text((edges[column + 1] - 16, y + 18), cell, font=face, fill=0, anchor="ra")
            else:
                draw.text((edges[column] + 16, y + 18), cell, font=face, fill=0)
    bottom = top + len(TABLE) * row_height
    for number in range(len(TABLE) + 1):
        draw.line((left, top + number * row_height, edges[-1], top + number * row_height), fill=0, width=2)
    for x in edges:
        draw.line((x, top, x, bottom), fill=0, width=2)
    draw.text((80, bottom + 30), TABLE_NOTE, font=face, fill=0)
    return image, as_text([[TABLE_TITLE], ["  ".join(row) for row in TABLE], [TABLE_NOTE]])


def worn(image, degrees, seed):
    """A poor scan of a clean page: turned, blurred, uneven light, grain, faded ink. Same size."""
    random = np.random.default_rng(seed)
    turned = image.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=255)
    pixels = np.asarray(turned.filter(ImageFilter.GaussianBlur(0.9)), dtype=np.float32)
    pixels = 70 + pixels * (150 / 255)
    light = np.linspace(1.08, 0.86, pixels.shape[1], dtype=np.float32)[None, :]
    pixels = pixels * light + random.normal(0, 9, pixels.shape)
    specks = random.random(pixels.shape) < 0.0004
    pixels[specks] = 40
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def bilevel(image):
    return image.point(lambda value: 255 if value > 140 else 0).convert("1", dither=Image.Dither.NONE)


def save_png(stem, image):
    # 16 greys are all that anti-aliased type needs, and a third of the bytes.
    image.quantize(16, dither=Image.Dither.NONE).save(SAMPLES / f"{stem}.png", optimize=True)


def main():
    serif, bold = font("serif", 32), font("bold", 46)
    pages = {
        "english": plain_page(None, ENGLISH, serif, bold, height=940),
        "two-columns": two_columns(),
        "newspaper": newspaper(),
        "table": table(),
        "fraktur": plain_page(FRAKTUR_TITLE, FRAKTUR, font("fraktur", 36), font("fraktur", 50), height=900, leading=48),
        "long-s": plain_page(
            LONG_S_TITLE, LONG_S, font("garamond", 34), font("garamond", 46), height=860, features=NO_LIGATURES
        ),
        "german-french": plain_page(None, GERMAN_FRENCH, serif, bold, height=820),
        "european": plain_page(None, EUROPEAN, serif, bold, height=840),
        "chinese": plain_page(
            CHINESE_TITLE, CHINESE, font("chinese", 34), font("chinese", 48), height=800, leading=56, between=""
        ),
        "blank": (page(800, 1000)[0], ""),
    }
    for stem, (image, text) in pages.items():
        save_png(stem, image)
        (SAMPLES / f"{stem}.txt").write_text(text, encoding="utf-8")

    image, text = plain_page(SCAN_TITLE, SCAN, serif, bold, height=880)
    worn(image, degrees=1.3, seed=7).save(SAMPLES / "worn-scan.jpg", quality=45)
    (SAMPLES / "worn-scan.txt").write_text(text, encoding="utf-8")

    sheets = [plain_page(title, body, serif, bold, height=760) for title, body in REPORT]
    first, *rest = [bilevel(image) for image, _ in sheets]
    when = time.gmtime(0)
    first.save(
        SAMPLES / "report.pdf", save_all=True, append_images=rest, resolution=150, creationDate=when, modDate=when
    )
    (SAMPLES / "report.txt").write_text("\f".join(text for _, text in sheets), encoding="utf-8")

    sheets = [plain_page(title, body, serif, bold, height=560) for title, body in LETTERS]
    first, *rest = [bilevel(image) for image, _ in sheets]
    first.save(SAMPLES / "letters.tif", save_all=True, append_images=rest, compression="group4", dpi=(150, 150))
    (SAMPLES / "letters.txt").write_text("\f".join(text for _, text in sheets), encoding="utf-8")


if __name__ == "__main__":
    main()
