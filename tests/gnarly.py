"""Difficult input files with known text, built in memory: `python -m tests.gnarly FOLDER` writes them all.

`READABLE` maps a file name to `Readable(build, texts, ...)`, `BROKEN` maps one to `(build, words)`, where the error
for the file has to contain these words. Every page is `SIZE` pixels (width, height), white with black ink, has its
text in the middle and a black square in the upper left corner, which tells how the page is turned.
"""

import functools
import io
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

SIZE = (600, 240)
SQUARE = (8, 8, 40, 40)
TEXT = "Ledger 1873 paid in full"


@functools.cache
def page(text=TEXT):
    """The page as 8-bit grey; `text` may have several lines."""
    image = Image.new("L", SIZE, 255)
    draw = ImageDraw.Draw(image)
    draw.rectangle(SQUARE, fill=0)
    draw.text((SIZE[0] / 2, SIZE[1] / 2), text, fill=0, font=ImageFont.load_default(size=40), anchor="mm")
    return image


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def between(black, white, dtype):
    """The page as an array whose ink is `black` and whose paper is `white`."""
    return (np.asarray(page()) / 255 * (white - black) + black).astype(dtype)


def tiff(*frames):
    """An uncompressed little-endian TIFF of `(array, photometric, subfile type)`: what Pillow cannot write."""
    out = bytearray(b"II*\0\0\0\0\0")
    link = 4
    for array, photometric, subfile in frames:
        height, width, samples = (*array.shape, 1)[:3]
        kind = {"u": 1, "i": 2, "f": 3}[array.dtype.kind]
        strip = len(out)
        out += array.tobytes()
        extra = len(out)
        out += struct.pack("<6H", *[array.itemsize * 8] * 3, *[kind] * 3)

        def per_sample(value, offset, samples=samples):
            return (3, samples, value if samples == 1 else offset)

        tags = {
            254: (4, 1, subfile),
            256: (4, 1, width),
            257: (4, 1, height),
            258: per_sample(array.itemsize * 8, extra),
            259: (3, 1, 1),
            262: (3, 1, photometric),
            273: (4, 1, strip),
            277: (3, 1, samples),
            278: (4, 1, height),
            279: (4, 1, array.nbytes),
            339: per_sample(kind, extra + 6),
        }
        out[link : link + 4] = struct.pack("<I", len(out))
        out += struct.pack("<H", len(tags))
        for tag, (type_, count, value) in tags.items():
            out += struct.pack("<HHII", tag, type_, count, value)
        link = len(out)
        out += bytes(4)
    return bytes(out)


def pdf(*pages, trailer=""):
    """A PDF with vector text; each page is `(text, entries of its page object)`, or with a text matrix after them."""
    kids = [5 + 2 * number for number in range(len(pages))]
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{kid} 0 R' for kid in kids)}] >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        4: "<< /Type /Annot /Subtype /Square /Rect [6 194 34 222] /F 4 /C [0 0 0] /AP << /N 99 0 R >> >>",
        99: "<< /Type /XObject /Subtype /Form /BBox [0 0 28 28] /Length 16 >>\nstream\n0 g 0 0 28 28 re f\nendstream",
    }
    for kid, (text, entries, *matrix) in zip(kids, pages, strict=True):
        content = f"BT /F1 30 Tf {matrix[0] if matrix else '1 0 0 1 40 105'} Tm ({text}) Tj ET"
        objects[kid] = (
            f"<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> /Contents {kid + 1} 0 R {entries} >>"
        )
        objects[kid + 1] = f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"
    out = b"%PDF-1.4\n"
    offsets = {}
    for number, body in objects.items():
        offsets[number] = len(out)
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    start = len(out)
    out += b"xref\n0 1\n0000000000 65535 f \n"
    for number, offset in offsets.items():
        out += f"{number} 1\n{offset:010d} 00000 n \n".encode()
    out += f"trailer\n<< /Size 100 /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode()
    return out


MEDIA = "/MediaBox [0 0 450 228] /Annots [4 0 R]"


# Pixels that are not 8-bit grey or RGB


def grey_16_bit():
    return saved(Image.fromarray(between(3000, 60000, np.uint16)), "PNG")


def grey_16_bit_tiff():
    return saved(Image.fromarray(between(3000, 60000, np.uint16)), "TIFF", compression="tiff_lzw")


def grey_12_bit():
    return saved(Image.fromarray(between(200, 3900, np.uint16)), "PNG")


def grey_16_bit_white_is_zero():
    return tiff((between(60000, 3000, np.uint16), 0, 0))


def grey_32_bit():
    return saved(Image.fromarray(between(-70_000, 900_000, np.int32)), "TIFF")


def float_to_one():
    return saved(Image.fromarray(between(0.02, 0.97, np.float32)), "TIFF")


def float_to_255():
    return saved(Image.fromarray(between(5, 250, np.float32)), "TIFF")


def float_with_gaps():
    pixels = between(-3, 12, np.float32)
    pixels[:, -20:] = np.nan
    return saved(Image.fromarray(pixels), "TIFF")


def float_rgb():
    return tiff((np.repeat(between(0.02, 0.97, np.float32)[:, :, None], 3, axis=2), 2, 0))


def one_bit_group_4():
    return saved(page().convert("1"), "TIFF", compression="group4")


def palette():
    return saved(page().convert("RGB").quantize(16), "PNG")


def cmyk():
    return saved(page().convert("RGB").convert("CMYK"), "JPEG", quality=90)


def lab():
    pixels = np.zeros((*reversed(SIZE), 3), np.uint8)
    pixels[..., 0] = np.asarray(page())
    return saved(Image.frombytes("LAB", SIZE, pixels.tobytes()), "TIFF")


# Ink on clear paper


def ink_on_nothing():
    clear = Image.new("RGBA", SIZE, (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), mask=ImageOps.invert(page()))
    return clear


def clear_rgba():
    return saved(ink_on_nothing(), "PNG")


def clear_la():
    return saved(ink_on_nothing().convert("LA"), "PNG")


def clear_palette():
    indexed = page().point(lambda value: value > 127).convert("L")
    image = Image.frombytes("P", SIZE, indexed.tobytes())
    image.putpalette([0, 0, 0, 0, 0, 0])
    return saved(image, "PNG", transparency=1)


def clear_grey_by_key():
    """Grey whose paper is the transparent value 7, almost black (PNG tRNS)."""
    return saved(page().point(lambda value: 7 if value > 127 else 0), "PNG", transparency=7)


def clear_rgb_by_key():
    grey = page().point(lambda value: 7 if value > 127 else 0)
    return saved(Image.merge("RGB", [grey] * 3), "PNG", transparency=(7, 7, 7))


def clear_webp():
    return saved(ink_on_nothing(), "WEBP", lossless=True)


# Orientation


def turned(orientation, format="JPEG"):
    """The page stored so that EXIF orientation `orientation` turns it upright."""
    turn = Image.Transpose
    stored = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_90,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_270,
    }
    image = page().transpose(stored[orientation]) if orientation in stored else page()
    if format == "TIFF":
        return saved(image, "TIFF", tiffinfo={274: orientation})
    exif = Image.Exif()
    exif[274] = orientation
    return saved(image, format, exif=exif.tobytes(), **({"quality": 90} if format == "JPEG" else {}))


def bad_exif():
    """An EXIF block whose entries point nowhere."""
    return saved(page(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\xff\xff\xff\xff")


# Containers


def frames_of(count):
    return [page(f"{TEXT}\nframe number {number}") for number in range(1, count + 1)]


def tiff_frames():
    first, *others = [frame.convert("1") for frame in frames_of(3)]
    return saved(first, "TIFF", save_all=True, append_images=others, compression="group4")


def gif_frames():
    first, *others = frames_of(3)
    return saved(first, "GIF", save_all=True, append_images=others, duration=100)


def tiff_pyramid():
    """One page and two reduced copies of it."""
    copies = [(np.asarray(page().reduce(factor)), 1, 1) for factor in (2, 4)]
    return tiff((np.asarray(page()), 1, 0), *copies)


def jpeg():
    return saved(page(), "JPEG", quality=90)


def progressive():
    return saved(page().convert("RGB"), "JPEG", quality=90, progressive=True)


def jp2():
    return saved(page(), "JPEG2000")


def j2k_codestream():
    return saved(page(), "JPEG2000", no_jp2=True)


def webp():
    return saved(page().convert("RGB"), "WEBP")


def avif():
    return saved(page().convert("RGB"), "AVIF")


def heic():
    import pillow_heif

    buffer = io.BytesIO()
    pillow_heif.from_pillow(page().convert("RGB")).save(buffer)
    return buffer.getvalue()


def jpeg_xl():
    import imagecodecs

    return imagecodecs.jpegxl_encode(np.asarray(page()))


def jpeg_xr():
    import imagecodecs

    return imagecodecs.jpegxr_encode(np.asarray(page()))


def half_jpeg():
    """Cut below the middle of the text, so that its first line is whole."""
    data = saved(page(f"{TEXT}\n\n\n"), "JPEG", quality=90)
    return data[: len(data) * 8 // 10]


def half_png():
    data = saved(page(f"{TEXT}\n\n\n"), "PNG", compress_level=1)
    return data[: len(data) * 8 // 10]


def half_progressive():
    data = progressive()
    return data[: len(data) * 6 // 10]


def pdf_pages():
    return pdf(*((f"{TEXT}, {number}", MEDIA) for number in (1, 2, 3)))


def pdf_turned():
    """The content lies on its side, and /Rotate 90 turns it upright."""
    entries = "/MediaBox [0 0 228 450] /Rotate 90 /Annots [4 0 R]"
    return pdf((TEXT, entries, "0 1 -1 0 123 40")).replace(b"[6 194 34 222]", b"[6   6 34  34]")


def pdf_scan():
    return saved(page(), "PDF", resolution=144)


def pdf_without_area():
    """pdfium takes US Letter."""
    return pdf((TEXT, "/MediaBox [0 0 450 0]"))


# Very large: 200 megapixels


LARGE = (22_400, 8_960)


def large_one_bit():
    return saved(page().convert("1").resize(LARGE, Image.Resampling.NEAREST), "PNG", compress_level=1)


def large_jpeg():
    return saved(page().resize(LARGE, Image.Resampling.BILINEAR), "JPEG", quality=75)


# Files that hold no page


def text():
    return b"The quick brown fox jumps over the lazy dog.\n"


def html():
    return b"<!DOCTYPE html>\n<html><body><h1>404 Not Found</h1></body></html>"


def lfs_pointer():
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"


def garbage():
    return np.random.default_rng(0).bytes(2000)


def cut_before_the_ink():
    data = jpeg()
    return data[: data.index(b"\xff\xda") + 40]


def cut_png_header():
    return saved(page(), "PNG")[:20]


def pdf_encrypted():
    """Says that it is encrypted (standard handler, RC4 of 40 bits), with a password that nobody has."""
    key = "".join(f"{value:02x}" for value in range(32))
    security = f"<< /Filter /Standard /V 1 /R 2 /O <{key}> /U <{key}> /P -44 >>"
    return pdf((TEXT, MEDIA), trailer=f"/Encrypt {security} /ID [<{key}> <{key}>]")


def pdf_empty():
    return pdf()


def pdf_broken():
    return b"%PDF-1.7\n" + garbage()


def tiff_broken():
    return b"II*\0" + struct.pack("<I", 8) + b"\x40\0" + garbage()[:100]


def gif_broken():
    return b"GIF89a" + bytes(20)


def too_large():
    """A PNG that claims 60,000 x 60,000 pixels of RGBA."""
    import zlib

    header = struct.pack(">II5B", 60_000, 60_000, 8, 6, 0, 0, 0)
    out = b"\x89PNG\r\n\x1a\n"
    for name, body in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100_000))), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return out


@dataclass(frozen=True)
class Readable:
    """How to build a file, the text of each of its pages, its size in pixels (at 144 dpi), and whether it is cut."""

    build: object
    texts: tuple = (TEXT,)
    size: tuple = SIZE
    partial: bool = False


FRAMES = tuple(f"{TEXT} frame number {number}" for number in (1, 2, 3))

READABLE = {
    "grey-16-bit.png": Readable(grey_16_bit),
    "grey-16-bit.tif": Readable(grey_16_bit_tiff),
    "grey-12-bit.png": Readable(grey_12_bit),
    "grey-16-bit-white-is-zero.tif": Readable(grey_16_bit_white_is_zero),
    "grey-32-bit.tif": Readable(grey_32_bit),
    "float-to-one.tif": Readable(float_to_one),
    "float-to-255.tif": Readable(float_to_255),
    "float-with-gaps.tif": Readable(float_with_gaps),
    "float-rgb.tif": Readable(float_rgb),
    "one-bit-group-4.tif": Readable(one_bit_group_4),
    "palette.png": Readable(palette),
    "cmyk.jpg": Readable(cmyk),
    "lab.tif": Readable(lab),
    "clear-rgba.png": Readable(clear_rgba),
    "clear-la.png": Readable(clear_la),
    "clear-palette.png": Readable(clear_palette),
    "clear-grey-by-key.png": Readable(clear_grey_by_key),
    "clear-rgb-by-key.png": Readable(clear_rgb_by_key),
    "clear.webp": Readable(clear_webp),
    **{f"turned-{number}.jpg": Readable(functools.partial(turned, number)) for number in range(1, 9)},
    **{f"turned-{number}.tif": Readable(functools.partial(turned, number, "TIFF")) for number in range(1, 9)},
    "turned-6.png": Readable(functools.partial(turned, 6, "PNG")),
    "turned-6.webp": Readable(functools.partial(turned, 6, "WEBP")),
    "turned-6.avif": Readable(functools.partial(turned, 6, "AVIF")),
    "bad-exif.jpg": Readable(bad_exif),
    "frames.tif": Readable(tiff_frames, FRAMES),
    "frames.gif": Readable(gif_frames, FRAMES),
    "pyramid.tif": Readable(tiff_pyramid),
    "progressive.jpg": Readable(progressive),
    "page.jp2": Readable(jp2),
    "page.j2k": Readable(j2k_codestream),
    "page.webp": Readable(webp),
    "page.avif": Readable(avif),
    "page.heic": Readable(heic),
    "page.jxl": Readable(jpeg_xl),
    "page.jxr": Readable(jpeg_xr),
    "half.jpg": Readable(half_jpeg, partial=True),
    "half.png": Readable(half_png, partial=True),
    "half-progressive.jpg": Readable(half_progressive, partial=True),
    "pages.pdf": Readable(pdf_pages, tuple(f"{TEXT}, {number}" for number in (1, 2, 3)), (900, 456)),
    "turned.pdf": Readable(pdf_turned, size=(900, 456)),
    "scan.pdf": Readable(pdf_scan),
    "without-area.pdf": Readable(pdf_without_area, size=(1224, 1584)),
}

LARGE_READABLE = {
    "large-one-bit.png": Readable(large_one_bit, size=LARGE),
    "large.jpg": Readable(large_jpeg, size=LARGE),
}

BROKEN = {
    "zero-bytes.png": (bytes, "empty"),
    "text.png": (text, "looks like text"),
    "html.jpg": (html, "looks like HTML"),
    "lfs-pointer.tif": (lfs_pointer, "git lfs pull"),
    "garbage.jpg": (garbage, "not a readable image"),
    "cut-before-the-ink.jpg": (cut_before_the_ink, "ends early"),
    "cut-header.png": (cut_png_header, "not a readable image"),
    "encrypted.pdf": (pdf_encrypted, "needs a password"),
    "empty.pdf": (pdf_empty, "no pages"),
    "broken.pdf": (pdf_broken, "broken"),
    "broken.tif": (tiff_broken, "not a readable image"),
    "broken.gif": (gif_broken, "not a readable image"),
    "too-large.png": (too_large, "60000 x 60000"),
}


@functools.cache
def built(name):
    """The bytes of a file of `READABLE` or `BROKEN`."""
    return READABLE[name].build() if name in READABLE else BROKEN[name][0]()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*READABLE, *BROKEN):
        (folder / name).write_bytes(built(name))
    for name, case in LARGE_READABLE.items():
        (folder / name).write_bytes(case.build())
