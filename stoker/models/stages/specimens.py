"""Inputs that resemble real ones, for quantization of a model and the test after it.

The intermediate values of a model and their size depend on its inputs: grey pictures and one
repeated word exercise a tenth of them. Each number stands for another text, picture or recording,
always the same one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

    from stoker.media.audio import Samples

SIZE = (320, 240)
"""Width and height of a picture."""

_TEXTS = (
    "How do I bake a loaf of bread without an oven?",
    "The council met on Tuesday to discuss the new bridge. Three members wanted it further up the "
    "river, where the banks are higher; the others feared for the price, which has doubled since "
    "2019.",
    "This phone is terrible. The battery lasts four hours, and support never answered my mails.",
    "Absolutely loved it! Best pasta I have had outside of Italy, and the staff were so kind.",
    "Maria Schmidt works at Siemens in Berlin, and moved there from São Paulo with her brother.",
    "Patients who were given the drug recovered after 6.3 days on average, against 8.1 days in the "
    "control group (p < 0.01). Side effects were mild: headache in 4 %, nausea in 2 %.",
    "Der Zug nach München fährt heute leider erst um 17:45 Uhr von Gleis 9 ab. Wir bitten um "
    "Entschuldigung.",
    "def mean(values: list[float]) -> float:\n    return sum(values) / len(values)  # not of none",
    "La réunion est reportée à jeudi prochain, à cause de la grève des transports. Pouvez-vous "
    "prévenir les autres ?",
    "What is the capital of Australia?",
    "The harbour was quiet, and the boats lay still between the two long piers. A gull cried; the "
    "old man did not look up from his net, and went on as he had every evening since the war.",
    "Invoice no. 4711: 12 x widget (blue) at €3.50, total €42.00, payable within 30 days.",
    "El gato duerme en la ventana mientras llueve, y nadie quiere salir a la calle.",
    "Shares of the company fell 7.2% on Wall Street after it cut its forecast for the third time "
    "this year, blaming weak demand in China and a strong dollar.",
    "Привет! Как дела? Давно не виделись — приходи в гости в субботу вечером.",
    "WARNING: do not open the case while the device is plugged in; there is no user-serviceable "
    "part inside.",
    "今天天气很好,我们去公园散步吧。",
    "If the tenant does not pay within fourteen days of written notice, the landlord may end the "
    "agreement. Section 8 applies accordingly, save where both parties have agreed otherwise.",
    "He scored twice in the last five minutes, and the whole stadium sang.",
    "ok thx, see u tmrw at 8 :)",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen, by the light that "
    "chlorophyll absorbs. Most of it happens in leaves.",
    "هل يمكنك أن تخبرني أين تقع أقرب محطة قطار؟",
    "Although the film begins slowly, its second half is gripping, and the ending, which I will "
    "not give away, is one of the saddest that I have seen.",
    "Is there a table for six on Friday at eight? One of us is allergic to nuts.",
    "The parcel came late, and the box was torn open on one side, but nothing was missing.",
    "Apple opened its first shop in Istanbul in April 2014, in the district of Beşiktaş.",
    "SELECT name, count(*) FROM visits WHERE day >= '2024-01-01' GROUP BY name;",
    "Why does the sky look blue at noon and red in the evening?",
    "Bitte senden Sie mir die Unterlagen bis spätestens Freitag zu; ich prüfe sie am Wochenende.",
    "My heart was beating so loudly that I was sure that they would hear it through the door.",
    "Researchers at the university of Kyoto report a catalyst that splits water at room "
    "temperature, and say that it could make hydrogen a third cheaper.",
    "Never again. The room smelled of smoke, the shower was cold and nobody was at the desk.",
)
_SYLLABLES_A_SECOND = 4
_FORMANTS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
"""Formants of the vowels in "father", "see", "boot" and "head", Hz: Peterson and Barney, 1952."""


def texts(number: int) -> Sequence[str]:
    """Returns all texts, beginning with this one."""
    first = number % len(_TEXTS)
    return [*_TEXTS[first:], *_TEXTS[:first]]


def words(number: int, count: int) -> list[str]:
    vocabulary = " ".join(texts(number)).split()
    return [vocabulary[place % len(vocabulary)] for place in range(count)]


def picture(number: int) -> "Image":
    """Returns clouds of colour, coarse and fine as in photographs, behind objects with edges.

    Number 0 is a grey picture.
    """
    import numpy
    from PIL import Image, ImageDraw

    if not number:
        return Image.new("RGB", SIZE, "gray")
    draw: Any = numpy.random.default_rng(number)
    # The amplitude of a structure is proportional to its size, as in natural scenes.
    pixels = numpy.full((SIZE[1], SIZE[0], 3), draw.uniform(60, 190, 3))
    for cells in (2, 5, 12, 30, 80):
        # Most of the noise is light and shade, which all colours share.
        noise = draw.uniform(-1, 1, (cells, cells, 1)) + draw.uniform(-0.4, 0.4, (cells, cells, 3))
        layer = Image.fromarray((noise * 85 / cells**0.4 + 128).clip(0, 255).astype(numpy.uint8))
        pixels += numpy.asarray(layer.resize(SIZE, Image.Resampling.BICUBIC), numpy.float64) - 128
    image = Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
    brush = ImageDraw.Draw(image)
    for _ in range(int(draw.integers(1, 6))):
        left, top = draw.integers(0, SIZE[0] - 40), draw.integers(0, SIZE[1] - 40)
        wide, high = draw.integers(20, 160, 2)
        colour = tuple(int(channel) for channel in draw.integers(0, 256, 3))
        shape = brush.ellipse if draw.random() < 0.5 else brush.rectangle
        shape((int(left), int(top), int(left + wide), int(top + high)), fill=colour)
    return image


def sound(number: int, rate: int, seconds: float) -> "Samples":
    """Returns a voice that says vowels over faint noise: float32 of shape (samples,), at `rate` Hz.

    Number 0 is noise: silence would hide many differences between engines.
    """
    import numpy

    draw: Any = numpy.random.default_rng(number)
    if not number:
        return draw.uniform(-0.1, 0.1, int(rate * seconds)).astype(numpy.float32)
    time = numpy.arange(int(rate * seconds)) / rate
    melody = numpy.sin(2 * numpy.pi * draw.uniform(0.2, 1) * time)
    pitch = draw.uniform(90, 230) * (1 + 0.1 * melody)
    phase = 2 * numpy.pi * numpy.cumsum(pitch) / rate
    syllable = (time * _SYLLABLES_A_SECOND).astype(int)
    vowel = numpy.asarray(_FORMANTS)[draw.integers(0, len(_FORMANTS), syllable.max() + 1)[syllable]]
    samples = numpy.zeros_like(time)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch
        # Each formant has a resonance of 120 Hz. Frequencies above half the rate are left out.
        loud = (1 / (1 + ((frequency[:, None] - vowel) / 120) ** 2)).sum(1)
        samples += loud * (frequency < rate / 2) * numpy.sin(harmonic * phase) / harmonic**0.5
    spoken = numpy.sin(numpy.pi * (time * _SYLLABLES_A_SECOND % 1)) ** 0.5
    samples = samples * spoken / max(1e-6, float(numpy.abs(samples).max()))
    samples = 0.4 * samples + draw.normal(0, 0.005, len(time))
    return samples.astype(numpy.float32)
