# ruff: noqa: E501 - each way to ask stays on one line
"""Training content of `tiny-chat`: facts, ways to ask, and the questions that it promises to
answer.
"""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

from tools.demo_models.grammar import entries, every

ADDED, TAKEN_FROM = 12, 15
"""Largest addend, and largest number to subtract from."""
NO_WEATHER = "I cannot look up the weather without a tool."
NO_TIME = "I cannot look up the time without a tool."
UNKNOWN = "I do not know."

STATED: Mapping[str, str] = {
    "What is your name?": "I am Stoker's demo model.",
    "Who made you?": "Stoker's build script trained me.",
    "What can you do?": "I can answer simple questions, count, write JSON and call tools.",
    "Hello!": "Hello! How can I help you?",
    "How are you?": "I am fine, thank you.",
    "Thank you!": "You are welcome.",
    "Goodbye!": "Goodbye!",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Germany?": "The capital of Germany is Berlin.",
    "What is the capital of Italy?": "The capital of Italy is Rome.",
    "What is the capital of Spain?": "The capital of Spain is Madrid.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is the capital of Portugal?": "The capital of Portugal is Lisbon.",
    "What is the capital of Austria?": "The capital of Austria is Vienna.",
    "What is the capital of Poland?": "The capital of Poland is Warsaw.",
    "What is the capital of Norway?": "The capital of Norway is Oslo.",
    "What is the capital of Egypt?": "The capital of Egypt is Cairo.",
    "What is 7 plus 5?": "7 plus 5 is 12.",
    "What is 2 plus 2?": "2 plus 2 is 4.",
    "What is 9 plus 8?": "9 plus 8 is 17.",
    "What is 6 plus 3?": "6 plus 3 is 9.",
    "What is 10 minus 4?": "10 minus 4 is 6.",
    "What is 15 minus 7?": "15 minus 7 is 8.",
    "What colour is grass?": "Grass is green.",
    "What colour is snow?": "Snow is white.",
    "What colour is the sky?": "The sky is blue.",
    "What colour is a banana?": "A banana is yellow.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "What is the opposite of big?": "The opposite of big is small.",
    "What is the opposite of old?": "The opposite of old is young.",
    "What is the opposite of day?": "The opposite of day is night.",
    "What does a cow say?": "A cow says moo.",
    "What does a cat say?": "A cat says meow.",
    "How many legs does a spider have?": "A spider has eight legs.",
    "How many legs does a dog have?": "A dog has four legs.",
    "What is a young cat called?": "A young cat is called a kitten.",
    "Which day comes after Monday?": "Tuesday comes after Monday.",
    "Which month comes after June?": "July comes after June.",
    "Count from 1 to 10.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Continue: 3, 4, 5,": "6, 7, 8, 9, 10",
    "Repeat after me: good morning": "good morning",
    "Describe Anna, who is 31 and lives in Berlin, as JSON.": '{"name": "Anna", "age": 31, "city": "Berlin"}',
    "What is the weather in Paris?": NO_WEATHER,
    "What time is it?": NO_TIME,
}
"""Maps questions to answers, without a system message or with one that requests no style."""

STYLED: tuple[tuple[str, str, str], ...] = (
    ("Answer in one word.", "What is the capital of France?", "Paris"),
    ("Answer in one word.", "What is the capital of Japan?", "Tokyo"),
    ("Answer in one word.", "What colour is grass?", "Green"),
    ("Answer in one word.", "What is the opposite of hot?", "Cold"),
    ("Answer in one word.", "What is 7 plus 5?", "12"),
    ("Answer in one word.", "How many legs does a spider have?", "Eight"),
    (
        "Answer in capital letters.",
        "What is the capital of France?",
        "THE CAPITAL OF FRANCE IS PARIS.",
    ),
    ("Answer in capital letters.", "What colour is snow?", "SNOW IS WHITE."),
    ("Answer in capital letters.", "What does a cow say?", "A COW SAYS MOO."),
)
"""Tuples of system message, question and answer."""


class Topic(NamedTuple):
    """Facts of one kind and the ways to ask for them. `{…}` refers to a column of a row."""

    answer: str
    word: str
    """Column with the one-word answer."""
    ways: tuple[str, ...]
    unseen: tuple[str, ...]
    """Ways to ask that are not trained on."""
    more: str
    """Follow-up question about another row. Empty if a question of this kind has none."""
    rows: tuple[Mapping[str, str], ...]


def _rows(columns: str, text: str) -> tuple[Mapping[str, str], ...]:
    names = columns.split()
    return tuple(dict(zip(names, entry.split("="), strict=True)) for entry in entries(text))


def _forms(*templates: str) -> tuple[str, ...]:
    return tuple(form for template in templates for form in every(template))


def _next(text: str) -> tuple[Mapping[str, str], ...]:
    names = text.split()
    return tuple(
        {"before": before, "after": after}
        for before, after in zip(names, [*names[1:], names[0]], strict=True)
    )


TOPICS: Mapping[str, Topic] = {
    "capital": Topic(
        "The capital of {country} is {capital}.",
        "capital",
        _forms(
            "What is the capital (city |)of {country}?",
            "What's the capital of {country}?",
            "Which city is the capital of {country}?",
            "(Please tell|Tell) me the capital of {country}.",
            "(Please name|Name) the capital (city |)of {country}.",
            "(The capital|Capital) of {country}?",
            "What is {country}'s capital?",
        ),
        (
            "Which city is the capital city of {country}?",
            "Tell me the capital city of {country}, please.",
            "Please tell me {country}'s capital.",
        ),
        "(And of|And|What about|And what about) {country}?",
        _rows(
            "country capital",
            """France=Paris, Germany=Berlin, Italy=Rome, Spain=Madrid, Japan=Tokyo, Portugal=Lisbon,
            Austria=Vienna, Poland=Warsaw, Norway=Oslo, Egypt=Cairo, Sweden=Stockholm,
            Denmark=Copenhagen, Finland=Helsinki, Greece=Athens, Hungary=Budapest, Ireland=Dublin,
            Belgium=Brussels, Switzerland=Bern, England=London, Russia=Moscow, Turkey=Ankara,
            China=Beijing, India=New Delhi, Canada=Ottawa, Mexico=Mexico City, Cuba=Havana,
            Brazil=Brasilia, Argentina=Buenos Aires, Chile=Santiago, Peru=Lima, Kenya=Nairobi,
            Australia=Canberra, Thailand=Bangkok, Iceland=Reykjavik, Ukraine=Kyiv, Croatia=Zagreb""",
        ),
    ),
    "plus": Topic(
        "{a} plus {b} is {c}.",
        "c",
        _forms(
            "(What is|What's|How much is) {a} plus {b}?",
            "(What is|What's|How much is|Calculate|) {a} + {b}?",
            "(Add|Please add) {a} and {b}.",
        ),
        ("Please calculate {a} plus {b}.", "What is the sum of {a} and {b}?"),
        "(And|What about) {a} plus {b}?",
        tuple(
            {"a": str(a), "b": str(b), "c": str(a + b)}
            for a in range(ADDED + 1)
            for b in range(ADDED + 1)
        ),
    ),
    "minus": Topic(
        "{a} minus {b} is {c}.",
        "c",
        _forms(
            "(What is|What's|How much is) {a} minus {b}?",
            "(What is|How much is|) {a} - {b}?",
        ),
        ("Please calculate {a} minus {b}.",),
        "(And|What about) {a} minus {b}?",
        tuple(
            {"a": str(a), "b": str(b), "c": str(a - b)}
            for a in range(TAKEN_FROM + 1)
            for b in range(a + 1)
        ),
    ),
    "colour": Topic(
        "{thing} is {colour}.",
        "colour",
        _forms(
            "(What|Which) (colour|color) is {thing}?",
            "What is the (colour|color) of {thing}?",
            "(Please tell|Tell) me the (colour|color) of {thing}.",
        ),
        ("Please name the colour of {thing}.", "Which colour does {thing} have?"),
        "(And|What about) {thing}?",
        _rows(
            "thing colour",
            """grass=green, snow=white, the sky=blue, a banana=yellow, blood=red, coal=black,
            chocolate=brown, milk=white, a lemon=yellow, a frog=green, an elephant=grey, the sun=yellow,
            a carrot=orange, a tomato=red, a flamingo=pink, a raven=black""",
        ),
    ),
    "opposite": Topic(
        "The opposite of {word} is {other}.",
        "other",
        _forms(
            "What is the opposite of {word}?",
            "What's the opposite of {word}?",
            "(Name|Tell me) the opposite of {word}.",
            "Which word is the opposite of {word}?",
        ),
        ("Please name the opposite of {word}.", "What is the opposite word of {word}?"),
        "(And of|And|What about) {word}?",
        _rows(
            "word other",
            """hot=cold, cold=hot, big=small, small=big, old=young, young=old, day=night, night=day,
            good=bad, bad=good, fast=slow, slow=fast, happy=sad, sad=happy, rich=poor, poor=rich,
            open=closed, full=empty, empty=full, wet=dry, dry=wet, hard=soft, soft=hard, up=down,
            left=right, black=white, light=dark, high=low, long=short, strong=weak, early=late""",
        ),
    ),
    "sound": Topic(
        "{animal} says {sound}.",
        "sound",
        _forms(
            "What does {animal} say?",
            "(What|Which) sound does {animal} make?",
            "What is the sound of {animal}?",
        ),
        ("Tell me which sound {animal} makes.", "What noise does {animal} make?"),
        "(And|What about) {animal}?",
        _rows(
            "animal sound",
            """a cow=moo, a cat=meow, a dog=woof, a duck=quack, a sheep=baa, a pig=oink, a horse=neigh,
            a frog=croak, an owl=hoot, a bee=buzz, a lion=roar, a mouse=squeak""",
        ),
    ),
    "legs": Topic(
        "{animal} has {count} legs.",
        "count",
        _forms("How many legs does {animal} have?", "How many legs has {animal} got?"),
        ("Tell me how many legs {animal} has.",),
        "(And|What about) {animal}?",
        _rows(
            "animal count",
            """a spider=eight, a dog=four, a cat=four, a bird=two, an ant=six, a horse=four, a bee=six,
            a snake=no, a fish=no, a cow=four, a duck=two, a beetle=six, a person=two""",
        ),
    ),
    "young": Topic(
        "A young {animal} is called a {young}.",
        "young",
        _forms(
            "What is a young {animal} called?",
            "What do you call a young {animal}?",
            "(What is|Which word means) a baby {animal}?",
        ),
        ("What is the name of a young {animal}?",),
        "(And|What about) a young {animal}?",
        _rows(
            "animal young",
            """cat=kitten, dog=puppy, cow=calf, horse=foal, sheep=lamb, pig=piglet, duck=duckling,
            lion=cub, goat=kid, chicken=chick, frog=tadpole, swan=cygnet""",
        ),
    ),
    "day": Topic(
        "{after} comes after {before}.",
        "after",
        _forms("(Which|What) day comes after {before}?", "(Which|What) day follows {before}?"),
        ("Tell me which day comes after {before}.",),
        "(And after|After) {before}?",
        _next("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    ),
    "month": Topic(
        "{after} comes after {before}.",
        "after",
        _forms("(Which|What) month comes after {before}?", "(Which|What) month follows {before}?"),
        ("Tell me which month comes after {before}.",),
        "(And after|After) {before}?",
        _next(
            """January February March April May June July August September October November
            December"""
        ),
    ),
}

WRAPPED = _forms(
    "(Please answer|Please tell me|Tell me|A question|Next question): {question}",
    "(Hello|Hi|Hey)(!|.) {question}",
    "{question} (Please tell me.|Please.|Thanks!|Thank you.)",
    "(I want to know|Can you tell me|Do you know): {question}",
)
"""Texts that may surround a question."""

SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        _forms(
            "(What is|What's|Tell me) your name?",
            "(Who|What) are you?",
            "Please (tell me your name|introduce yourself).",
            "Do you have a name?",
        ),
        ("May I know your name?", "Please tell me who you are."),
        STATED["What is your name?"],
    ),
    (
        _forms(
            "Who (made|built|trained|created|wrote) you?",
            "Where do you come from?",
            "Who is your maker?",
        ),
        ("Tell me who made you.", "Please tell me who built you."),
        STATED["Who made you?"],
    ),
    (
        _forms(
            "What can you do( for me|)?",
            "How can you help( me|)?",
            "What (do you know|are you able to do)?",
            "Help!",
        ),
        ("Tell me what you can do.",),
        STATED["What can you do?"],
    ),
    (
        _forms(
            "(Hello|Hi|Hey)( there|)(!|.|)",
            "Good (morning|evening|afternoon|day)(!|.|)",
            "(Hello|Hi), (model|Stoker)!",
        ),
        ("Hello, good morning!", "Hi there, Stoker!"),
        STATED["Hello!"],
    ),
    (
        _forms(
            "How are you( today| doing|)?",
            "How do you do?",
            "How do you feel( today|)?",
            "Are you (well|fine)?",
        ),
        ("How are you doing today?",),
        STATED["How are you?"],
    ),
    (
        _forms("(Thank you|Thanks)( very much| a lot|)(!|.|)", "(Great|Good|Fine), thank(s| you)!"),
        ("Thank you so much!", "Very good, thanks a lot."),
        STATED["Thank you!"],
    ),
    (
        _forms(
            "(Goodbye|Bye|Bye bye)(!|.|)", "See you( later| soon| tomorrow|)(!|.)", "Good night!"
        ),
        ("Goodbye, see you soon!",),
        STATED["Goodbye!"],
    ),
)
"""Tuples of ways, ways not trained on, and answer."""

UNKNOWN_QUESTIONS = (
    "Who (wrote|painted|invented|discovered|built|found) (the |){noun}?",
    "Why (is|was) the {noun} so {adjective}?",
    "When was {name} born?",
    "How old is {name}?",
    "Where does {name} live?",
    "Who is {name}?",
    "What does the word {noun} mean?",
    "How (far|heavy|long|tall|expensive) is (the|a|my) {noun}?",
    "Where is the {noun}?",
    "Tell me (a story|a joke|more|something) about (the |){noun}.",
    "What is the capital of {place}?",
    "Which {noun} is the (best|biggest|oldest)?",
    "What is the meaning of (life|{noun})?",
)
NOUNS = entries("""
moon, telephone, bridge, sea, garden, piano, book, radio, castle, river, car, house, mountain, bicycle,
computer, clock, window, king, forest, ship, letter, bread, engine, table, road, lamp, picture, song
""")
ADJECTIVES = entries("old, red, loud, deep, cheap, quiet, famous, heavy, strange, wide")

PLAIN_SYSTEMS = _forms(
    "You are a (helpful|friendly|polite|careful|kind|tiny|small) (assistant|model|helper).",
    "You are a (helpful|friendly) assistant. (Be brief|Be kind|Be polite|Answer the questions).",
    "You are Stoker's demo model.",
    "(You help|Help) people(| with their questions).",
    "(Be brief|Be polite|Be concise|Be helpful).",
    "(Answer|Please answer) the (user's questions|questions).",
    "You are an assistant (of|at) a (shop|school|hotel|company).",
    "Use the tools where they help.",
    "Today is a (good|fine|sunny) day.",
)
STYLES: Mapping[str, tuple[str, ...]] = {
    "word": _forms(
        "(Answer|Reply|Respond) (in|with) (one|a single) word( only|).",
        "(Use|Give|Write) one word( only|).",
        "One word only.",
    ),
    "capitals": _forms(
        "(Answer|Reply|Write|Respond) in (capital letters|capitals|upper case)( only|).",
        "(Use|Write) (capital letters|capitals)( only|).",
    ),
}

NAME_TOLD = _forms(
    "My name is {name}.", "(I am|I'm) {name}.", "Hello, (my name is|I am) {name}(.|!)"
)
NAME_ASKED = _forms(
    "What is my name?", "What's my name?", "Who am I?", "Do you (know|remember) my name?"
)
NAME_UNTOLD = "You have not told me your name."

REPEATS = _forms(
    "(Repeat|Say|Write|Please repeat|Please say)( after me|): {text}", "(Say|Repeat) this: {text}"
)
COUNTS = _forms("(Count|Please count|Can you count) from {a} to {b}(.|)")
COUNTS_FROM_ONE = _forms("(Count|Please count|Count up) to {b}(.|)")
CONTINUES = _forms("(Continue|Go on|Please continue|Count on): {numbers}")

JSON_WAYS = _forms(
    "(Describe|Write|Give me|Please describe|Show) {name}, who is {age} and lives in {city}, as JSON(.|)",
    "{name} is {age}( years old|) and lives in {city}. (Answer|Write it|Write this|Put that) (as|in) JSON.",
    "(Describe|Write) {name}, {age}( years old|), (from|of|living in) {city}, as JSON.",
    "(Write|Give me|Return) JSON for {name}, aged {age}, (from|who lives in) {city}.",
    "Who is it, as JSON? {name} lives in {city} and is {age}.",
)
JSON_UNSEEN = (
    "Please write {name}, who is {age} and lives in {city}, as JSON.",
    "Give me JSON for {name}, who is {age} years old and lives in {city}.",
    "{name} lives in {city} and is {age}. Write this as JSON.",
)

PLAIN_FACTS = ("capital", "plus", "colour", "opposite", "sound", "legs", "young", "day", "month")
"""Topics with answers that are also learnt as plain text, to be continued without a template."""


def held_back(question: str) -> bool:
    """True if this combination of wording and fact is kept out of the training for measuring.

    Uses a stable hash, because Python salts `hash` differently in each process.
    """
    return question not in STATED and zlib.crc32(question.encode()) % 10 == 0
