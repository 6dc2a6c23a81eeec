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
