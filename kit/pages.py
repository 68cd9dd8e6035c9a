"""Encoded bytes, a path or a URI to one upright RGB page on white."""

import atexit
import functools
import hashlib
import io
import itertools
import math
import os
import threading

from kit.seam import Page, PageError
from kit.storage import first_line, persist

# A page is handed over with at most this many pixels, whatever the bounds: 150 MB as RGB. Larger ones are reduced.
PAGE_PIXELS = 50_000_000
# What the decoded file itself may take in memory: 2 gigapixels of grey, 536 megapixels of colour. JPEG, JPEG 2000
# and PDF are reduced while they are decoded and seldom come near it.
PAGE_BYTES = 2 * 2**30
# Named, so that no file starts Ghostscript (EPS, PDF) or meets a format without a signature (TGA).
PILLOW_FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP")
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MULTI_PAGE_SIGNATURES = (*TIFF_SIGNATURES, b"GIF8")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
PDFIUM_LOCK = threading.Lock()  # pdfium is not thread-safe


def open_page(data, frame=0, *, dpi=200, bounds=None):
    """One page as `Page`: RGB, upright, on white, fitted to `bounds` (see `fit`).

    `data` is the encoded bytes, a local path or an `hf://` URI; `frame` the 0-based page of a PDF or frame of a TIFF
    or GIF; `dpi` the resolution of PDF pages. 16-bit, 32-bit and float pixels are scaled to 8 bits
    (see `_value_range`). What a cut file still holds comes back as `partial`, white where nothing came.
    Raises PageError for everything that cannot be read. Sets `PIL.Image.MAX_IMAGE_PIXELS` for the process, as
    `PAGE_BYTES` takes its place.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            return _pdf_page(data, frame, dpi, bounds)
        if frame and not head.startswith(MULTI_PAGE_SIGNATURES):
            raise PageError(f"there is no page {frame + 1}: the file has one")
        try:
            image, size, partial = _pillow_decode(stream, head, frame, bounds)
        except PageError:
            raise
        except Exception as error:  # Pillow's parsers raise whatever they stumble over
            image, partial = _other_decode(stream, head, frame, error), False
            size = image.size
    orientation = _orientation(image)
    if orientation > 4:
        size = size[::-1]
    try:
        image = _flatten(image, shrink=max(1, math.isqrt(image.width * image.height // PAGE_PIXELS)))
    except Exception as error:
        raise PageError(f"the pixels ({image.mode}) cannot be turned into RGB: {error}") from error
    if partial:
        image = _whiten_missing_rows(image)
    image = _turn_upright(fit(image, bounds), orientation).convert("RGB")
    return Page(image, *size, partial=partial)


def count_pages(data):
    """Pages of a PDF, frames of a TIFF or GIF, 1 for everything else, of which only the first bytes are looked at.

    Reduced copies inside a TIFF (thumbnails, pyramid levels) are not pages, nor are the frames of an animated WebP or
    PNG. Raises PageError where there is no file, and for a broken PDF, TIFF or GIF.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            with PDFIUM_LOCK:
                return len(_pdf_document(data))
        if not head.startswith(MULTI_PAGE_SIGNATURES):
            return 1
        try:
            image = _pillow_open(stream)
        except Exception:  # imagecodecs may read it, or open_page says what is wrong
            return 1
        try:
            return sum(1 for _ in _page_frames(image))
        except Exception as error:
            raise PageError(_describe(head, error)) from error


def fit(image, bounds):
    """`image` reduced, never enlarged, to `bounds` and to PAGE_PIXELS.

    `bounds` may have `max_side`, `max_pixels` and `resample` ("lanczos", the default, or "bicubic").
    """
    size = _fitted_size(image.size, bounds)
    if size == image.size:
        return image
    from PIL import Image

    resample = Image.Resampling[((bounds or {}).get("resample") or "lanczos").upper()]
    # At a gap of 3 the result is indistinguishable from a full resampling (Pillow's documentation).
    return image.resize(size, resample, reducing_gap=3.0)


def image_bounds(options, recipe):
    """The recipe's bounds for `fit`, with a recipe's own `--max-pixels` or `--max-side` (0 for none) in their place."""
    chosen = {key: getattr(options, key, None) for key in ("max_side", "max_pixels")}
    return (recipe.get("image") or {}) | {key: value for key, value in chosen.items() if value is not None}


def source_bytes(data):
    """The encoded bytes behind `data`. Raises PageError where there is nothing to read."""
    with _open_stream(data) as stream:
        return stream.read()


def sha256_of(data):
    """Hex SHA-256 of the encoded bytes behind `data`."""
    return hashlib.sha256(source_bytes(data)).hexdigest()


def _open_stream(data):
    if data is None:
        raise PageError("there is no image: the cell is empty (null)")
    if not isinstance(data, str):
        return io.BytesIO(data)
    if data.startswith("hf://"):
        return io.BytesIO(_fetch(data))
    try:
        return open(data, "rb")
    except OSError as error:
        raise PageError(f"cannot open {data}: {error.strerror}") from error


@functools.lru_cache(maxsize=1)  # the pages of one file follow each other
def _fetch(uri):
    from huggingface_hub import HfFileSystem

    try:
        return persist(lambda: HfFileSystem().cat_file(uri), patience=300)  # a worker may be silent for 600 s
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def _peek(stream):
    head = stream.read(1024)
    stream.seek(0)
    if not head:
        raise PageError("the file is empty (0 bytes)")
    return head


def _describe(head, error):
    """The sentence for a file that is no image, or a broken one."""
    start = head[:40].lstrip(b"\xef\xbb\xbf \r\n\t")
    known = {
        b"version https://git-lfs": "a Git LFS pointer; run `git lfs pull`",
        b"<!doctype html": "HTML",
        b"<html": "HTML",
        b"<svg": "SVG; render it to PNG first",
        b"<?xml": "XML",
        b"{": "JSON",
        b"pk\x03\x04": "a ZIP archive; unpack it first",
        b"\x1f\x8b": "gzip; unpack it first",
        b"%!ps": "PostScript; convert it with `ps2pdf`",
        b"at&tform": "DjVu; convert it with `ddjvu -format=pdf`",
    }
    what = next((name for signature, name in known.items() if start.lower().startswith(signature)), None)
    if what is None and start.isascii() and start.decode("ascii").isprintable():
        what = "text"
    shown = repr(start)[1:] if start.isascii() else start[:16].hex(" ")
    if what:
        return f"not an image: the file starts with {shown} (looks like {what})"
    return f"not a readable image: the file starts with {shown} ({type(error).__name__}: {error})"


def _fitted_size(size, bounds):
    bounds = bounds or {}
    max_pixels = min(bounds.get("max_pixels") or PAGE_PIXELS, PAGE_PIXELS)
    max_side = bounds.get("max_side") or max(size)
    scale = min(1.0, max_side / max(size), math.sqrt(max_pixels / math.prod(size)))
    return tuple(max(1, math.floor(side * scale + 1e-6)) for side in size)


def _pillow_open(stream):
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = PAGE_BYTES  # Pillow's own limit warns at 89 and refuses at 179 megapixels
    return Image.open(stream, formats=PILLOW_FORMATS)


def _pillow_decode(stream, head, frame, bounds):
    """The loaded image in its own mode, its size before any reduction, and whether the file ended early."""
    image = _pillow_open(stream)
    if head.startswith(MULTI_PAGE_SIGNATURES):
        number = next(itertools.islice(_page_frames(image), frame, None), None)
        if number is None:
            raise PageError(f"there is no page {frame + 1}: the file has {sum(1 for _ in _page_frames(image))}")
        image.seek(number)
    size = image.size
    target, reduction = _fitted_size(size, bounds), 0
    if image.format in ("JPEG", "MPO"):
        # Decodes to half, a quarter or an eighth where that is still inside the target: 100 ms instead of 206 for
        # 2480 x 3508 to 1540, at the same character error rate (PP-OCRv6, letters of 28 and 34 px before).
        image.draft(None, target)
    elif image.format == "JPEG2000":
        image.reduce = reduction = _jpeg2000_reduction(head, size, target)
    width, height = image.size
    needed = width * height * {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)
    if image.info.get("progressive"):  # libjpeg keeps all coefficients, at full size
        needed = size[0] * size[1] * 2 * len(image.getbands())
    if needed > PAGE_BYTES:
        raise PageError(
            f"the page is too large: {size[0]} x {size[1]} pixels of {image.format} take {needed / 2**30:.1f} GiB to "
            f"decode, and {PAGE_BYTES / 2**30:.0f} GiB are allowed; scale it down first"
        )
    try:
        image.load()
    except Exception:
        if reduction:
            # Reduced decoding failed now and then in a public run. Without its head the file has no levels to use.
            stream.seek(0)
            return _pillow_decode(stream, b"", frame, bounds)
        if image.info.get("progressive"):  # without an end marker libjpeg gives nothing of a progressive file
            image.load_read = lambda size: stream.read(size) or b"\xff\xd9"
        else:
            image.tile = []  # what was decoded stays in the buffer, zero where nothing came
        image.load()
        return image, size, True
    return image, size, False


def _page_frames(image):
    """Frame numbers of the pages of a TIFF or GIF; reduced copies in a TIFF (tag 254, bit 0) are not pages."""
    if image.format == "GIF":
        yield from range(image.n_frames)
        return
    for frame in itertools.count():
        try:
            image.seek(frame)
        except EOFError:
            return
        if frame == 0 or not image.tag_v2.get(254, 0) & 1:
            yield frame


def _jpeg2000_reduction(head, size, target):
    """How many times decoding may halve the page: inside `target`, and inside the levels that the file has."""
    code = head.find(b"\xff\x52")  # the COD marker; the decomposition levels are its tenth byte
    levels = head[code + 9] if 0 <= code < len(head) - 9 else 0
    for level in range(levels, 0, -1):
        step = 2**level
        reduced = [math.ceil(side / step) for side in size]
        # Pillow rounds where OpenJPEG takes the ceiling, and fails where the two differ.
        agree = reduced == [(side + step // 2) // step for side in size]
        if agree and reduced[0] >= target[0] and reduced[1] >= target[1]:
            return level
    return 0


def _other_decode(stream, head, frame, error):
    """What Pillow cannot read: HEIC through pillow-heif, the rest through imagecodecs."""
    names = {
        b"\xff\x0a": "jpegxl",
        b"\0\0\0\x0cJXL ": "jpegxl",
        b"II\xbc": "jpegxr",
        b"\xff\xd8\xff": "jpeg",
        b"\x89PNG": "png",
        **dict.fromkeys(TIFF_SIGNATURES, "tiff"),
    }
    name = next((name for signature, name in names.items() if head.startswith(signature)), None)
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        name = "heic"
    if name is None:
        raise PageError(_describe(head, error)) from error
    stream.seek(0)
    data = stream.read()
    try:
        return _heic_decode(data) if name == "heic" else _imagecodecs_decode(name, frame, data)
    except ImportError as missing:
        library = (missing.name or "imagecodecs").partition(".")[0].replace("_", "-")
        raise PageError(f"this {name} file needs {library}: add `--with {library}` after `uv run`") from missing
    except Exception as second:
        raise PageError(_describe(head, second)) from second


def _heic_decode(data):
    import pillow_heif

    return pillow_heif.open_heif(data).to_pillow()


def _imagecodecs_decode(name, frame, data):
    import imagecodecs
    import numpy as np
    from PIL import Image

    decode = getattr(imagecodecs, f"{name}_decode")
    pixels = np.squeeze(decode(data, index=frame) if name == "tiff" else decode(data))
    if pixels.dtype != np.uint8:
        pixels = _scaled_to_8_bits(pixels, *_value_range(pixels))
    return Image.fromarray(pixels)


def _value_range(pixels):
    """The values that become 0 and 255: 0 and the top of the range that the data uses.

    Integers: the smallest of 8, 10, 12, 14, 16 bits that holds the largest value, so that a 16-bit scan is divided by
    257 and never stretched. Floats: 0 to 1, 0 to 255, 0 to 65,535. Whatever fits none of these: smallest to largest.
    """
    import numpy as np

    low, high = np.fmin.reduce(pixels, axis=None), np.fmax.reduce(pixels, axis=None)  # these pass over NaN
    if not (np.isfinite(low) and np.isfinite(high)):
        return 0, 1
    if pixels.dtype.kind == "f":
        tops = {1: 0, 255: 128, 65535: 32768}
    else:
        tops = {255: 0, 1023: 256, 4095: 1024, 16383: 4096, 65535: 16384}
    for top, least in tops.items():
        if 0 <= low and least <= high <= top:
            return 0, top
    return low, high


def _scaled_to_8_bits(pixels, low, high):
    import numpy as np

    span = float(high) - float(low) or 1.0
    scaled = (np.nan_to_num(pixels.astype(np.float32), nan=float(high)) - float(low)) * (255 / span)
    return scaled.round().clip(0, 255).astype(np.uint8)


def _flatten(image, shrink=1):
    """`image` as 8-bit L or RGB on white, its sides divided by `shrink`, in bands so that memory stays bounded."""
    from PIL import Image

    scale = None
    if image.mode.startswith(("I", "F")):
        import numpy as np

        low, high = _value_range(np.asarray(image))
        inverted = image.format == "TIFF" and image.tag_v2.get(262) == 0  # white is zero; Pillow inverts 8 bits only
        scale = (high, low) if inverted else (low, high)
    if shrink == 1 and not scale:
        return _on_white(image, None)
    rows = shrink * max(1, 2**24 // (image.width * shrink))
    flat = None
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band = _on_white(band, scale).reduce(shrink)
        flat = flat or Image.new(band.mode, (band.width, math.ceil(image.height / shrink)))
        flat.paste(band, (0, top // shrink))
    return flat


def _on_white(image, scale):
    from PIL import Image

    if scale:
        import numpy as np

        return Image.fromarray(_scaled_to_8_bits(np.asarray(image), *scale))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        page = Image.new("RGB", image.size, "white")
        page.paste(image, mask=image.getchannel("A"))
        return page
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _whiten_missing_rows(image):
    """White below the last row that was decoded. Raises PageError where nothing was, or nothing but one colour."""
    box = image.getbbox()
    extrema = image.crop(box).getextrema() if box else ()
    bands = extrema if extrema and isinstance(extrema[0], tuple) else (extrema,)
    if not box or all(low == high for low, high in bands):
        raise PageError("the file ends early, before anything that could be read")
    image.paste("white", (0, box[3], image.width, image.height))
    return image


def _orientation(image):
    try:
        return int(image.getexif().get(274, 1))
    except Exception:  # one bad byte in the EXIF block is no reason to lose the page
        return 1


def _turn_upright(image, orientation):
    from PIL.Image import Transpose as turn

    method = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _pdf_document(data):
    """The opened PDF; call it with PDFIUM_LOCK held."""
    if isinstance(data, str) and not data.startswith("hf://"):
        status = os.stat(data)
        return _open_pdf(data, (status.st_mtime_ns, status.st_size))
    return _open_pdf(_fetch(data) if isinstance(data, str) else bytes(data), None)


@functools.cache
def _pdfium():
    import pypdfium2

    atexit.register(_open_pdf.cache_clear)  # before pypdfium2 looks for what is still open, and complains of it
    return pypdfium2


@functools.lru_cache(maxsize=1)  # opening a PDF of 1,000 pages again for each page would take most of the time
def _open_pdf(source, version):
    pdfium = _pdfium()
    try:
        document = pdfium.PdfDocument(source)
        document.init_forms()
    except Exception as error:
        # For a PDF without pages pdfium reports its last error code, whatever file that came from.
        if getattr(error, "err_code", None) == 4 and b"/Encrypt" in source_bytes(source):  # FPDF_ERR_PASSWORD
            raise PageError("the PDF is encrypted and needs a password; remove it with `qpdf --decrypt`") from error
        raise PageError(f"the PDF is broken or has no pages ({error})") from error
    return document


def _pdf_page(data, frame, dpi, bounds):
    with PDFIUM_LOCK:
        document = _pdf_document(data)
        if frame >= len(document):
            raise PageError(f"there is no page {frame + 1}: the PDF has {len(document)}")
        try:
            page = document[frame]
            width, height = (math.ceil(points * dpi / 72) for points in page.get_size())
            scale = min(1.0, math.sqrt(PAGE_PIXELS / (width * height)))
            image = page.render(scale=scale * dpi / 72, rev_byteorder=True).to_pil()
            page.close()
        except Exception as error:
            raise PageError(f"page {frame + 1} of the PDF cannot be rendered: {error}") from error
    return Page(fit(image.convert("RGB"), bounds), width, height, dpi=dpi)
