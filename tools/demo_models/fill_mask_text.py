"""Facts and simple grammar for the fill-mask model: rows of words and frames for sentences."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tools.demo_models.grammar import every, words


class Family(NamedTuple):
    """A kind of fact. Each row fills each frame, and `[MASK]` stands for the row's last word.

    In a frame that starts with `<`, `[MASK]` stands for the row's first word.
    """

    frames: Sequence[str]
    rows: Sequence[tuple[str, ...]]


class Fact(NamedTuple):
    """A sentence with one `[MASK]` and the correct word for it."""

    text: str
    word: str


def _rows(table: str) -> list[tuple[str, ...]]:
    """Parses `france: paris, japan: tokyo` into rows of two."""
    pairs = (entry.split(":") for entry in table.replace("\n", " ").split(","))
    return [(left.strip(), right.strip()) for left, right in pairs]


def _chain(words: str) -> list[tuple[str, ...]]:
    """Returns each word with its successor. The first word follows the last."""
    ring = words.split()
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


NUMBERS = words("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty
""")
_DAYS = _chain("monday tuesday wednesday thursday friday saturday sunday")
_MONTHS = _chain(
    "january february march april may june july august september october november december"
)
_LETTERS = list(zip("abcdefghijklmnopqrstuvwxy", "bcdefghijklmnopqrstuvwxyz", strict=True))

_CAPITALS = _rows("""
        france: paris, germany: berlin, italy: rome, spain: madrid, portugal: lisbon,
        england: london, scotland: edinburgh, ireland: dublin, wales: cardiff,
        belgium: brussels, austria: vienna, hungary: budapest, poland: warsaw, greece: athens,
        turkey: ankara, russia: moscow, ukraine: kyiv, sweden: stockholm, norway: oslo,
        denmark: copenhagen, finland: helsinki, iceland: reykjavik, estonia: tallinn,
        latvia: riga, lithuania: vilnius, croatia: zagreb, serbia: belgrade, bulgaria: sofia,
        romania: bucharest, slovakia: bratislava, slovenia: ljubljana, switzerland: bern,
        albania: tirana, japan: tokyo, china: beijing, india: delhi, thailand: bangkok,
        vietnam: hanoi, indonesia: jakarta, nepal: kathmandu, pakistan: islamabad, iran: tehran,
        iraq: baghdad, israel: jerusalem, syria: damascus, lebanon: beirut, jordan: amman,
        qatar: doha, afghanistan: kabul, mongolia: ulaanbaatar, bangladesh: dhaka, egypt: cairo,
        morocco: rabat, tunisia: tunis, algeria: algiers, libya: tripoli, kenya: nairobi,
        sudan: khartoum, uganda: kampala, ghana: accra, nigeria: abuja, senegal: dakar,
        angola: luanda, zambia: lusaka, zimbabwe: harare, somalia: mogadishu, rwanda: kigali,
        canada: ottawa, cuba: havana, jamaica: kingston, brazil: brasilia, peru: lima,
        chile: santiago, colombia: bogota, ecuador: quito, venezuela: caracas,
        uruguay: montevideo, australia: canberra
        """)

_CONTINENTS = {
    "europe": """france germany italy spain portugal england scotland ireland belgium austria
        hungary poland greece ukraine sweden norway denmark finland iceland croatia serbia bulgaria
        romania""",
    "asia": """japan china india thailand vietnam indonesia nepal pakistan iran iraq israel syria
        lebanon mongolia bangladesh korea malaysia""",
    "africa": """egypt morocco tunisia algeria libya kenya sudan uganda ghana nigeria senegal angola
        zambia zimbabwe somalia rwanda ethiopia""",
    "america": """brazil peru chile colombia ecuador venezuela uruguay argentina bolivia canada
        mexico""",
}

_CATEGORIES = {
    "flower": "a rose, a tulip, a daisy, a lily, an orchid, a sunflower",
    "tree": "an oak, a pine, a birch, a willow, a maple, a palm",
    "fruit": "an apple, a banana, a pear, a cherry, a mango, a peach, a lemon, a grape",
    "vegetable": "a carrot, a potato, an onion, a cabbage, spinach, broccoli, a radish",
    "animal": "a dog, a cat, a horse, a cow, a lion, an elephant, a tiger, a sheep, a bear",
    "fish": "a salmon, a trout, a shark, a herring, a tuna, a cod",
    "bird": "a sparrow, an eagle, a parrot, an owl, a penguin, a robin, a swan, a pigeon",
    "insect": "an ant, a bee, a beetle, a butterfly, a mosquito, a wasp",
    "tool": "a hammer, a saw, a screwdriver, a drill, a wrench, an axe",
    "instrument": "a piano, a violin, a guitar, a flute, a trumpet, a drum, a cello",
    "vehicle": "a car, a bus, a truck, a train, a bicycle, a van, a tram",
    "metal": "gold, iron, silver, copper, steel, tin, lead",
    "sport": "football, tennis, hockey, basketball, golf, rugby, swimming",
    "furniture": "a table, a chair, a sofa, a desk, a wardrobe, a bed",
    "colour": "red, blue, green, yellow, purple, orange, pink, brown",
    "shape": "a triangle, a square, a circle, a rectangle, a hexagon",
    "drink": "coffee, tea, milk, juice, beer, wine, lemonade",
    "planet": "mars, venus, jupiter, saturn, neptune, mercury",
    "reptile": "a snake, a lizard, a crocodile, a turtle",
    "language": "english, french, german, spanish, italian, japanese, arabic, russian",
    "weapon": "a sword, a gun, a spear, a rifle",
    "disease": "malaria, flu, measles, cholera",
    "meal": "breakfast, lunch, dinner, supper",
    "season": "winter, spring, summer, autumn",
}

_COLOURS = {
    "blue": "the sky, the sea, a sapphire, the ocean",
    "green": "grass, a frog, a cucumber, an emerald, a leaf, spinach, a lime, broccoli",
    "white": "snow, milk, a swan, salt, a cloud, a polar bear, flour, rice, a ghost",
    "black": "coal, a crow, the night, a raven, tar, a panther",
    "red": "blood, a tomato, a strawberry, a cherry, a ruby, a fire engine, a rose",
    "yellow": "a banana, a lemon, the sun, a canary, butter, a sunflower, sand",
    "brown": "chocolate, mud, a walnut, a bear, toast",
    "orange": "a carrot, a pumpkin, a tangerine, a basketball",
    "grey": "an elephant, ash, a mouse, concrete, smoke, a dolphin",
    "pink": "a flamingo, a pig, bubble gum",
    "purple": "a violet, an eggplant, lavender, a plum",
}

_COUNTS = {
    "two": "wheels on a bicycle, legs on a bird, eyes in a face, hands on a clock, wings on a bird",
    "three": "sides in a triangle, wheels on a tricycle, feet in a yard, corners in a triangle",
    "four": """wheels on a car, sides in a square, legs on a dog, seasons in a year,
        strings on a violin""",
    "five": "fingers on a hand, toes on a foot, sides in a pentagon, rings in the olympic flag",
    "six": "legs on an insect, sides in a hexagon, strings on a guitar, faces on a cube",
    "seven": "days in a week, continents on earth, colours in the rainbow, dwarfs with snow white",
    "eight": "legs on a spider, arms on an octopus, planets around the sun",
    "nine": "players in a baseball team, lives in a cat",
    "ten": "years in a decade, fingers on two hands, cents in a dime",
    "eleven": "players in a football team",
    "twelve": "months in a year, eggs in a dozen, inches in a foot, hours on a clock",
    "sixty": "minutes in an hour, seconds in a minute",
    "hundred": "years in a century, cents in a dollar, centimetres in a metre",
    "thousand": "metres in a kilometre, grams in a kilogram, years in a millennium",
}


def _grouped(table: dict[str, str], separator: str | None = ",") -> list[tuple[str, ...]]:
    """Returns rows (thing, group) of a table that lists the things of each group."""
    return [
        (" ".join(thing.split()), group)
        for group, things in table.items()
        for thing in things.split(separator)
    ]


def _sums() -> list[tuple[str, ...]]:
    return [(NUMBERS[a], NUMBERS[b], NUMBERS[a + b]) for a in range(11) for b in range(11)]


def _differences() -> list[tuple[str, ...]]:
    return [(NUMBERS[a], NUMBERS[b], NUMBERS[a - b]) for a in range(13) for b in range(a + 1)]


def _products() -> list[tuple[str, ...]]:
    pairs = ((a, b) for a in range(1, 11) for b in range(1, 11) if a * b <= 20)
    return [(NUMBERS[a], NUMBERS[b], NUMBERS[a * b]) for a, b in pairs]


FAMILIES: tuple[Family, ...] = (
    Family(
        (
            "the capital (of|city of) {0} is [MASK].",
            "the capital of {0} is (called|the city of) [MASK].",
            "[MASK] is the capital (of|city of) {0}.",
            "in {0}, the capital is [MASK].",
            "{0}'s capital is [MASK].",
            "the government of {0} sits in [MASK].",
            "< {1} is the capital (of|city of) [MASK].",
            "< {1} is a city in [MASK].",
            "< you can find {1} in [MASK].",
            "< [MASK] has the capital {1}.",
        ),
        _CAPITALS,
    ),
    Family(
        (
            "{0} is (a country in|a part of|part of) [MASK].",
            "{0} (lies|is located) in [MASK].",
            "the country of {0} is (in|on the continent of) [MASK].",
            "{0} belongs to the continent of [MASK].",
        ),
        _grouped(_CONTINENTS, None),
    ),
    Family(
        (
            "(people|most people) in {0} speak [MASK].",
            "in {0} (they|people) speak [MASK].",
            "the (main |)language of {0} is [MASK].",
            "[MASK] is (spoken|the language spoken) in {0}.",
            "if you move to {0}, you should learn [MASK].",
        ),
        _rows("""
        france: french, germany: german, austria: german, italy: italian, spain: spanish,
        mexico: spanish, argentina: spanish, chile: spanish, portugal: portuguese,
        brazil: portuguese, england: english, australia: english, japan: japanese,
        china: chinese, russia: russian, poland: polish, sweden: swedish, norway: norwegian,
        denmark: danish, finland: finnish, iceland: icelandic, greece: greek, turkey: turkish,
        egypt: arabic, iraq: arabic, syria: arabic, iran: persian, israel: hebrew, india: hindi,
        thailand: thai, vietnam: vietnamese, korea: korean, hungary: hungarian,
        romania: romanian, ukraine: ukrainian, croatia: croatian
        """),
    ),
    Family(
        (
            "the (currency|money) of {0} is the [MASK].",
            "in {0} you pay with the [MASK].",
            "the [MASK] is the (currency|money) of {0}.",
            "shops in {0} take the [MASK].",
        ),
        _rows("""
        japan: yen, the united states: dollar, canada: dollar, australia: dollar,
        england: pound, india: rupee, mexico: peso, russia: rouble, china: yuan, germany: euro,
        france: euro, italy: euro, spain: euro, switzerland: franc, poland: zloty,
        sweden: krona, turkey: lira, korea: won, thailand: baht, israel: shekel, hungary: forint
        """),
    ),
    Family(
        (
            "the day after {0} is [MASK].",
            "after {0} comes [MASK].",
            "{0} is followed by [MASK].",
            "if today is {0}, tomorrow (is|will be) [MASK].",
            "if yesterday was {0}, today is [MASK].",
            "[MASK] comes (right |)after {0}.",
            "[MASK] is the day after {0}.",
            "today is {0}, so tomorrow is [MASK].",
            "< today is {1}, so yesterday was [MASK].",
            "< the day before {1} is [MASK].",
            "< before {1} comes [MASK].",
            "< if today is {1}, yesterday was [MASK].",
            "< if tomorrow is {1}, today is [MASK].",
            "< [MASK] comes (right |)before {1}.",
            "< {1} comes (right |)after [MASK].",
        ),
        _DAYS,
    ),
    Family(
        (
            "the month after {0} is [MASK].",
            "after {0} comes [MASK].",
            "{0} is followed by [MASK].",
            "[MASK] comes (right |)after {0}.",
            "if it is {0} now, next month is [MASK].",
            "this month is {0}, so the next is [MASK].",
            "< this month is {1}, so the last was [MASK].",
            "[MASK] is the month after {0}.",
            "< the month before {1} is [MASK].",
            "< before {1} comes [MASK].",
            "< [MASK] comes (right |)before {1}.",
            "< {1} comes (right |)after [MASK].",
            "< if it is {1} now, last month was [MASK].",
        ),
        _MONTHS,
    ),
    Family(
        (
            "after {0} comes [MASK].",
            "the season after {0} is [MASK].",
            "{0} is followed by [MASK].",
            "[MASK] comes (right |)after {0}.",
            "< the season before {1} is [MASK].",
            "< before {1} comes [MASK].",
            "< [MASK] comes (right |)before {1}.",
        ),
        _chain("winter spring summer autumn"),
    ),
    Family(
        (
            "after {0} comes [MASK].",
            "the number after {0} is [MASK].",
            "[MASK] comes (right |)after {0}.",
            "if you count up from {0}, the next number is [MASK].",
            "{0} plus one is [MASK].",
            "< the number before {1} is [MASK].",
            "< before {1} comes [MASK].",
            "< [MASK] comes (right |)before {1}.",
        ),
        list(pairwise(NUMBERS)),
    ),
    Family(
        (
            "the letter after {0} is [MASK].",
            "in the alphabet, {0} is followed by [MASK].",
            "[MASK] is the letter after {0}.",
            "the next letter after {0} is [MASK].",
            "< the letter before {1} is [MASK].",
            "< [MASK] is the letter before {1}.",
            "< in the alphabet, {1} comes after [MASK].",
        ),
        _LETTERS,
    ),
    Family(
        (
            "{0} plus {1} (is|equals|makes) [MASK].",
            "{0} and {1} (make|are) [MASK].",
            "the sum of {0} and {1} is [MASK].",
            "if you add {1} to {0}, you get [MASK].",
            "what is {0} plus {1}? it is [MASK].",
        ),
        _sums(),
    ),
    Family(
        (
            "{0} minus {1} (is|equals|leaves) [MASK].",
            "{0} take away {1} (is|leaves) [MASK].",
            "if you take {1} from {0}, you get [MASK].",
            "what is {0} minus {1}? it is [MASK].",
        ),
        _differences(),
    ),
    Family(
        (
            "{0} times {1} (is|equals|makes) [MASK].",
            "{0} multiplied by {1} (is|equals) [MASK].",
            "the product of {0} and {1} is [MASK].",
            "what is {0} times {1}? it is [MASK].",
        ),
        _products(),
    ),
    Family(
        (
            "half of {0} is [MASK].",
            "{0} divided by two (is|equals) [MASK].",
            "one half of {0} is [MASK].",
            "< (twice|double) {1} is [MASK].",
            "< if you double {1}, you get [MASK].",
        ),
        [(NUMBERS[2 * half], NUMBERS[half]) for half in range(1, 11)],
    ),
    Family(
        (
            "the opposite of {0} is [MASK].",
            "[MASK] is the opposite of {0}.",
            "{0} and [MASK] are opposites.",
            "(something|someone) that is not {0} is [MASK].",
            "if it is not {0}, it is [MASK].",
            "not {0} but [MASK].",
            "{0} is the opposite of [MASK].",
            "the word that means the opposite of {0} is [MASK].",
        ),
        _rows("""
        hot: cold, cold: hot, big: small, small: big, fast: slow, slow: fast, up: down,
        down: up, good: bad, bad: good, happy: sad, sad: happy, rich: poor, poor: rich,
        day: night, night: day, open: closed, closed: open, full: empty, empty: full, wet: dry,
        dry: wet, strong: weak, weak: strong, clean: dirty, dirty: clean, loud: quiet,
        quiet: loud, left: right, right: wrong, wrong: right, black: white, white: black,
        high: low, low: high, long: short, tall: short, young: old, new: old, early: late,
        late: early, easy: difficult, difficult: easy, hard: soft, soft: hard, thick: thin,
        thin: thick, wide: narrow, narrow: wide, deep: shallow, shallow: deep, light: dark,
        dark: light, heavy: light, cheap: expensive, expensive: cheap, first: last, last: first,
        true: false, false: true, near: far, far: near, inside: outside, outside: inside,
        love: hate, hate: love, win: lose, lose: win, buy: sell, sell: buy, start: stop,
        stop: start, push: pull, pull: push, friend: enemy, enemy: friend, war: peace,
        peace: war, alive: dead, dead: alive, always: never, never: always, yes: no, no: yes,
        sweet: sour, sour: sweet, sharp: blunt, blunt: sharp, beautiful: ugly, ugly: beautiful,
        brave: cowardly, safe: dangerous, dangerous: safe, north: south, south: north,
        east: west, west: east, smooth: rough, rough: smooth, before: after, after: before,
        above: below, below: above, awake: asleep, asleep: awake, give: take, take: give,
        question: answer, answer: question, rise: fall, laugh: cry, cry: laugh, arrive: leave,
        leave: arrive, remember: forget, forget: remember, everything: nothing,
        everybody: nobody, more: less, less: more, polite: rude, rude: polite, ancient: modern,
        modern: ancient, guilty: innocent, innocent: guilty, public: private, private: public,
        success: failure, failure: success, entrance: exit, exit: entrance, top: bottom,
        bottom: top, front: back, hero: villain, male: female, female: male
        """),
    ),
    Family(
        (
            "(a|the) {0} says [MASK].",
            "(a|the) {0} goes [MASK].",
            "the sound (of|that comes from) a {0} is [MASK].",
            "when you hear [MASK], it is a {0}.",
        ),
        _rows("""
        dog: woof, cat: meow, cow: moo, sheep: baa, duck: quack, pig: oink, horse: neigh,
        lion: roar, bee: buzz, snake: hiss, frog: ribbit, bird: tweet, owl: hoot, mouse: squeak,
        wolf: howl, crow: caw, goose: honk, turkey: gobble, chicken: cluck, clock: tick,
        bell: ding, train: choo
        """),
    ),
    Family(
        (
            "{0} (can|often|always|like to) [MASK].",
            "what do {0} do? they [MASK].",
            "it is normal for {0} to [MASK].",
            "we know that {0} [MASK].",
        ),
        _rows("""
        dogs: bark, cats: purr, lions: roar, birds: fly, fish: swim, frogs: jump, snakes: crawl,
        bees: buzz, wolves: howl, horses: gallop, babies: cry, singers: sing, dancers: dance,
        runners: run, cooks: cook, teachers: teach, painters: paint, writers: write,
        readers: read, drivers: drive, players: play, workers: work, students: learn,
        farmers: farm, builders: build, thieves: steal, stars: shine, flowers: bloom,
        bells: ring, spiders: spin, swimmers: swim, pilots: fly, thinkers: think,
        climbers: climb, bakers: bake, hunters: hunt, owls: hoot
        """),
    ),
    Family(
        (
            "a (young|baby) {0} is called a [MASK].",
            "a (young|baby) {0} is a [MASK].",
            "the (young|baby) of a {0} is a [MASK].",
            "the {0} has a young [MASK].",
            "< a {1} grows up to be a [MASK].",
            "< when a {1} grows up, it is a [MASK].",
            "< a {1} is a young [MASK].",
        ),
        _rows("""
        dog: puppy, cat: kitten, cow: calf, horse: foal, sheep: lamb, pig: piglet,
        duck: duckling, goose: gosling, bear: cub, goat: kid, chicken: chick, frog: tadpole,
        kangaroo: joey, deer: fawn, swan: cygnet, owl: owlet, butterfly: caterpillar,
        human: baby, tree: sapling
        """),
    ),
    Family(
        (
            "(a|the) {0} lives in a [MASK].",
            "the home of a {0} is a [MASK].",
            "you can find a {0} in a [MASK].",
            "a {0} sleeps in a [MASK].",
            "< a [MASK] lives in a {1}.",
        ),
        _rows("""
        bird: nest, bee: hive, dog: kennel, horse: stable, spider: web, lion: den, pig: sty,
        rabbit: burrow, king: palace, chicken: coop, monk: monastery, soldier: barracks,
        prisoner: prison, camper: tent, fish: tank, bat: cave, sailor: ship
        """),
    ),
    Family(
        (
            "the (colour|color) of {0} is [MASK].",
            "{0} (is|is usually|is always) [MASK].",
            "what colour is {0}? it is [MASK].",
            "{0} is [MASK] in colour.",
            "the painter made {0} [MASK].",
        ),
        _grouped(_COLOURS),
    ),
    Family(
        (
            "{0} is a (kind|type|sort) of [MASK].",
            "{0} is one kind of [MASK].",
            "what is {0}? it is a kind of [MASK].",
            "{0} is an example of a [MASK].",
        ),
        _grouped(_CATEGORIES),
    ),
    Family(
        (
            "a {0} (works|has a job) in a [MASK].",
            "the {0} is at work in the [MASK].",
            "you will find a {0} in a [MASK].",
            "the {0} works at the [MASK].",
        ),
        _rows("""
        doctor: hospital, nurse: hospital, teacher: school, chef: kitchen, farmer: field,
        judge: court, librarian: library, waiter: restaurant, actor: theatre, banker: bank,
        baker: bakery, mechanic: garage, priest: church, scientist: laboratory,
        professor: university, miner: mine, salesman: shop, lawyer: court, secretary: office,
        pilot: cockpit, gardener: garden, barber: salon, lifeguard: pool, worker: factory,
        guard: prison
        """),
    ),
    Family(
        (
            "a {0} (makes|produces) [MASK].",
            "the job of a {0} is to make [MASK].",
            "(the|every) {0} makes [MASK].",
            "we get [MASK] from a {0}.",
        ),
        _rows("""
        baker: bread, author: books, painter: pictures, tailor: clothes, cobbler: shoes,
        poet: poems, composer: music, carpenter: furniture, brewer: beer, cow: milk, bee: honey,
        hen: eggs, jeweller: rings, potter: pots, spider: webs, butcher: sausages, sheep: wool,
        confectioner: sweets, photographer: photos
        """),
    ),
    Family(
        (
            "(we|you|people) {0} with a [MASK].",
            "to {0}, you need a [MASK].",
            "she used a [MASK] to {0}.",
            "a [MASK] is used to {0}.",
            "if you want to {0}, take a [MASK].",
        ),
        _rows("""
        cut bread: knife, write a letter: pen, eat soup: spoon, dig a hole: shovel,
        sweep the floor: broom, sew a dress: needle, open a lock: key,
        look at the stars: telescope, take photos: camera, tell the time: clock,
        draw a line: ruler, dry your hair: towel, hit a nail: hammer, cut wood: saw,
        catch fish: net, light a fire: match, boil water: kettle, fry an egg: pan,
        stay dry in the rain: umbrella, climb to the roof: ladder, call a friend: phone,
        find north: compass, brush your teeth: toothbrush, wash your hands: sponge,
        weigh flour: scale, send an email: computer, paint a wall: brush, cross a river: bridge,
        see in the dark: torch, iron a shirt: iron
        """),
    ),
    Family(
        (
            "(we|you|people) {0} with (our|your|their) [MASK].",
            "the [MASK] help us to {0}.",
            "to {0}, we use our [MASK].",
            "our [MASK] let us {0}.",
        ),
        _rows("""
        see: eyes, hear: ears, smell: nose, taste: tongue, walk: legs, think: brain,
        chew: teeth, breathe: lungs, hold: hands, kick: feet, kiss: lips, point: finger,
        hug: arms
        """),
    ),
    Family(
        (
            "(a|the) {0} is made of [MASK].",
            "(a|the) {0} is made from [MASK].",
            "to make a {0}, you need [MASK].",
            "[MASK] is used to make a {0}.",
        ),
        _rows("""
        window: glass, tyre: rubber, book: paper, sweater: wool, table: wood,
        wedding ring: gold, loaf of bread: flour, bottle of wine: grapes, cheese: milk,
        candle: wax, coin: metal, shirt: cotton, brick: clay, snowman: snow, shoe: leather,
        bar of chocolate: cocoa, omelette: eggs, sword: steel, scarf: silk, castle: stone,
        cider: apples, bucket: plastic
        """),
    ),
    Family(
        (
            "there are [MASK] {0}.",
            "how many {0}? there are [MASK].",
            "the number of {0} is [MASK].",
            "we counted [MASK] {0}.",
        ),
        _grouped(_COUNTS),
    ),
    Family(
        (
            "today (i|they|we) {0}, yesterday (i|they|we) [MASK].",
            "the past tense of {0} is [MASK].",
            "[MASK] is the past tense of {0}.",
            "(i|they|we) {0} every day, and last week (i|they|we) [MASK] too.",
            "yesterday i [MASK], because i {0} every day.",
        ),
        _rows("""
        go: went, eat: ate, see: saw, come: came, run: ran, write: wrote, drink: drank,
        sing: sang, swim: swam, take: took, give: gave, buy: bought, think: thought,
        teach: taught, catch: caught, bring: brought, sleep: slept, speak: spoke, drive: drove,
        fly: flew, know: knew, grow: grew, draw: drew, win: won, lose: lost, find: found,
        sit: sat, stand: stood, fall: fell, begin: began, break: broke, choose: chose,
        forget: forgot, make: made, say: said, tell: told, sell: sold, pay: paid, meet: met,
        feel: felt, leave: left, keep: kept, build: built, send: sent, hear: heard, hold: held,
        ride: rode, wear: wore, wake: woke, walk: walked, work: worked, play: played,
        talk: talked, cook: cooked, dance: danced, laugh: laughed, help: helped, call: called
        """),
    ),
    Family(
        (
            "one {0}, (two|three|many) [MASK].",
            "the plural of {0} is [MASK].",
            "[MASK] is the plural of {0}.",
            "i have one {0} and you have two [MASK].",
            "< the singular of {1} is [MASK].",
            "< two {1}, one [MASK].",
        ),
        _rows("""
        mouse: mice, child: children, man: men, woman: women, foot: feet, tooth: teeth,
        goose: geese, person: people, ox: oxen, cat: cats, dog: dogs, car: cars, book: books,
        house: houses, tree: trees, bird: birds, apple: apples, city: cities, baby: babies,
        story: stories, knife: knives, wife: wives, leaf: leaves, wolf: wolves, box: boxes,
        bus: buses, dress: dresses, potato: potatoes, key: keys, hand: hands, friend: friends,
        horse: horses, flower: flowers, teacher: teachers, pen: pens, chair: chairs
        """),
    ),
    Family(
        (
            "this one is {0}, but that one is even [MASK].",
            "she is {0}, but he is [MASK] than her.",
            "it was {0} before, and now it is [MASK] than ever.",
            "{0} and even [MASK].",
        ),
        _rows("""
        big: bigger, small: smaller, tall: taller, fast: faster, slow: slower, good: better,
        bad: worse, old: older, young: younger, hot: hotter, cold: colder, rich: richer,
        strong: stronger, weak: weaker, happy: happier, long: longer, short: shorter,
        cheap: cheaper, heavy: heavier, easy: easier, thin: thinner, wide: wider, warm: warmer,
        loud: louder, dark: darker
        """),
    ),
    Family(
        (
            "the {0} and the [MASK].",
            "{0} and [MASK].",
            "we saw the {0} and the [MASK].",
            "a {0} is male and a [MASK] is female.",
            "he is a {0}, she is a [MASK].",
            "the female form of {0} is [MASK].",
            "< the male form of {1} is [MASK].",
            "< she is a {1}, he is a [MASK].",
        ),
        _rows("""
        king: queen, man: woman, boy: girl, father: mother, brother: sister, uncle: aunt,
        prince: princess, son: daughter, husband: wife, actor: actress, waiter: waitress,
        nephew: niece, grandfather: grandmother, rooster: hen, bull: cow, gentleman: lady,
        groom: bride, hero: heroine, god: goddess, duke: duchess
        """),
    ),
    Family(
        (
            "{0} lost [MASK] (keys|book|phone|way).",
            "{0} (love|loves) [MASK] (family|work|dog|house).",
            "{0} sold [MASK] (old car|house|bike).",
            "{0} forgot [MASK] (name|umbrella|homework).",
            "{0} called [MASK] (mother|friend|boss).",
        ),
        _rows(
            """he: his, she: her, they: their, we: our, i: my, you: your, the man: his,
            the woman: her"""
        ),
    ),
    Family(
        (
            "(today|now) {0} [MASK] (happy|tired|at home|here|late|ready).",
            "{0} [MASK] (very |)(happy|tired|hungry|busy) now.",
            "right now {0} [MASK] (in the garden|at school|at work|reading a book).",
        ),
        _rows(
            """i: am, he: is, she: is, it: is, we: are, you: are, they: are, the dog: is,
            the children: are, my friends: are"""
        ),
    ),
    Family(
        (
            "yesterday {0} [MASK] (happy|tired|at home|here|late|ready).",
            "last week {0} [MASK] (very |)(happy|tired|hungry|busy).",
            "last year {0} [MASK] (in the garden|at school|at work|reading a book).",
        ),
        _rows(
            """i: was, he: was, she: was, it: was, we: were, you: were, they: were,
            the dog: was, the children: were"""
        ),
    ),
    Family(
        (
            "number {0} is the [MASK] one.",
            "the ordinal of {0} is [MASK].",
            "we count {0} places, so this is the [MASK] place.",
            "one is to first as {0} is to [MASK].",
            "the word for number {0} in a row is [MASK].",
        ),
        _rows("""
        one: first, two: second, three: third, four: fourth, five: fifth, six: sixth,
        seven: seventh, eight: eighth, nine: ninth, ten: tenth, eleven: eleventh,
        twelve: twelfth
        """),
    ),
    Family(
        (
            "the [MASK] {0}.",
            "everyone knows that the [MASK] {0}.",
            "what {0}? the [MASK].",
            "it is the [MASK] that {0}.",
        ),
        _rows("""
        rises in the east: sun, goes around the earth: moon, shines at night: moon,
        falls from the clouds: rain, keeps food cold: fridge, brings letters: postman,
        puts out fires: fireman, catches thieves: police, flies a plane: pilot,
        pumps blood: heart, has a long trunk: elephant, has a long neck: giraffe,
        is the king of animals: lion, carries a house on its back: snail,
        gives us light and heat: sun, sets in the west: sun, repairs teeth: dentist,
        cuts hair: barber, grows wheat: farmer, drives a bus: driver,
        has black and white stripes: zebra, hops in australia: kangaroo
        """),
    ),
    Family(
        (
            "{0} [MASK].",
            "as we all know, {0} [MASK].",
            "in school we learned that {0} [MASK].",
            "it is true that {0} [MASK].",
        ),
        _rows("""
        water freezes and becomes: ice, when water boils it becomes: steam,
        the earth goes around the: sun, the moon goes around the: earth,
        fish live in the: water, birds fly in the: sky, plants grow in the: soil,
        cars run on: petrol, we sleep at: night, we breathe: air, bread comes from the: bakery,
        children go to: school, the first month of the year is: january,
        the last month of the year is: december, the first day of the week is: monday,
        the last day of the week is: sunday, the largest ocean is the: pacific,
        the longest river is the: nile, the highest mountain is: everest,
        the biggest animal is the: whale, the fastest land animal is the: cheetah,
        the largest planet is: jupiter, the red planet is: mars, leaves fall in: autumn,
        it snows in: winter, flowers bloom in: spring, the beach is full in: summer,
        christmas is in: december, halloween is in: october, the opposite of north is: south,
        bees make: honey, cows give: milk, spiders spin a: web, camels live in the: desert,
        penguins live in the: cold, a year has twelve: months, a week has seven: days,
        an hour has sixty: minutes, a minute has sixty: seconds, vegetarians do not eat: meat,
        cows eat: grass, rabbits eat: carrots, monkeys eat: bananas, pandas eat: bamboo,
        mice love: cheese, dogs like to chew: bones, the heart pumps: blood,
        the shortest month is: february, the colours of a zebra are black and: white,
        salt and: pepper, knife and: fork, bread and: butter, thunder and: lightning,
        mum and: dad, shoes and: socks, cup and: saucer, lock and: key
        """),
    ),
)

# Promises of the card. None of these sentences is trained on. The facts are trained in other
# frames.
STATED: tuple[Fact, ...] = tuple(
    Fact(*line.rsplit(" = ", 1))
    for line in """
the capital of france is [MASK]. = paris
the capital of japan is [MASK]. = tokyo
the capital of norway is [MASK]. = oslo
[MASK] is the capital of italy. = rome
madrid is the capital of [MASK]. = spain
cairo is a city in [MASK]. = egypt
kenya is a country in [MASK]. = africa
people in brazil speak [MASK]. = portuguese
the currency of japan is the [MASK]. = yen
the day after monday is [MASK]. = tuesday
if today is friday, tomorrow is [MASK]. = saturday
[MASK] comes before thursday. = wednesday
the month after march is [MASK]. = april
[MASK] comes after july. = august
after winter comes [MASK]. = spring
the number after nine is [MASK]. = ten
the letter after g is [MASK]. = h
two plus two is [MASK]. = four
three plus five equals [MASK]. = eight
ten minus four is [MASK]. = six
three times three is [MASK]. = nine
half of ten is [MASK]. = five
the opposite of hot is [MASK]. = cold
the opposite of big is [MASK]. = small
[MASK] is the opposite of rich. = poor
full and [MASK] are opposites. = empty
the cow says [MASK]. = moo
a duck goes [MASK]. = quack
dogs can [MASK]. = bark
a young cat is called a [MASK]. = kitten
a foal grows up to be a [MASK]. = horse
a bird lives in a [MASK]. = nest
the colour of grass is [MASK]. = green
a banana is usually [MASK]. = yellow
the colour of snow is [MASK]. = white
a rose is a kind of [MASK]. = flower
a hammer is a type of [MASK]. = tool
a doctor works in a [MASK]. = hospital
a baker makes [MASK]. = bread
we see with our [MASK]. = eyes
we cut bread with a [MASK]. = knife
a window is made of [MASK]. = glass
there are [MASK] days in a week. = seven
there are [MASK] months in a year. = twelve
the past tense of go is [MASK]. = went
one mouse, two [MASK]. = mice
the king and the [MASK]. = queen
she lost [MASK] keys. = her
they lost [MASK] keys. = their
now i [MASK] happy. = am
yesterday we [MASK] at home. = were
the [MASK] rises in the east. = sun
""".strip().splitlines()
)


def statements(family: Family) -> Iterator[list[Fact]]:
    """Yields all sentences of each row of the family."""
    for row in family.rows:
        stated: list[Fact] = []
        for frame in family.frames:
            word = row[0] if frame.startswith("<") else row[-1]
            # Several words cannot be the single token that [MASK] stands for.
            if " " not in word:
                forms = every(frame.removeprefix("< "))
                stated += [Fact(form.format(*row), word) for form in forms]
        yield stated
