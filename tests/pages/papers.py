"""Small documents: pages with one line of large print each, and PDFs of them."""

import io

from PIL import Image, ImageDraw, ImageFont

WORDS = ["kangaroo", "umbrella", "zeppelin", "mosquito", "broccoli", "xylophone", "quarterly"]


def paper(word, size=(320, 240)):
    """A page with a word on it."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(28)
    draw.text((30, 40), word, fill="black", font=font)
    draw.text((30, 110), "some other text", fill="black", font=font)
    return image


def pdf_of(images):
    """The bytes of a PDF, one page per image, at 100 pixels per inch."""
    file = io.BytesIO()
    images[0].save(file, "PDF", save_all=True, append_images=images[1:], resolution=100)
    return file.getvalue()


def pdf_from(objects, trailer=b""):
    """The bytes of a PDF with these objects, of which the first is the catalogue; trailer: its further entries."""
    body, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    table += b"".join(b"%010d 00000 n \n" % place for place in places)
    ends = b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, trailer, len(body))
    return body + table + ends
