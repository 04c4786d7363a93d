# ruff: noqa: E501 - each frame stays on one line
"""Opinions for the sentiment model: words with a polarity, and frames that keep or reverse it.

In a frame, `{A}` has the polarity of the whole sentence and `{Z}` has the opposite one. A frame
therefore expresses a positive or a negative opinion. `{x}` and `{y}` are the things that are
judged.
"""

import zlib
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tools.demo_models.grammar import Slot, expand, words
from tools.demo_models.names import syllables

NEGATIVE, POSITIVE = 0, 1

ADJECTIVES = (
    words("""
bad terrible awful horrible poor dreadful disappointing boring dull weak ugly annoying useless
mediocre unpleasant disgusting nasty atrocious appalling lousy pathetic ridiculous stupid silly
sad frustrating irritating unacceptable shameful embarrassing painful miserable depressing tedious
tiresome lame cheap-looking forgettable confusing messy chaotic overpriced worthless pointless
inferior dismal abysmal horrendous unbearable substandard laughable insulting outrageous ghastly
grim lifeless flat bland tasteless stale soggy greasy burnt cold undercooked overcooked rotten dry
inedible watery salty dirty filthy noisy smelly cramped uncomfortable shabby run-down stuffy dusty
mouldy unsafe gloomy outdated damp slow laggy blurry fragile flimsy unreliable buggy faulty
defective broken clumsy dim grainy heavy scratchy predictable shallow unfunny cliched incoherent
wooden overlong slow-paced unconvincing uninspired tired silly rude unhelpful unfriendly careless
late incompetent lazy arrogant dishonest unprofessional impolite indifferent unresponsive
misleading complicated inconvenient disorganised neglected sloppy hopeless crap rubbish
"""),
    words("""
good great excellent wonderful amazing fantastic superb brilliant lovely nice perfect outstanding
awesome terrific beautiful impressive delightful enjoyable pleasant charming remarkable splendid
marvellous fabulous exceptional magnificent stunning gorgeous flawless solid satisfying memorable
fun clever smart elegant incredible phenomenal sensational fine decent likeable refreshing
inspiring inspired heartwarming uplifting joyful exciting thrilling special superior first-class
world-class top-notch spectacular glorious admirable valuable rewarding worthwhile ideal
extraordinary exquisite breathtaking delicious tasty fresh juicy crispy flavourful tender yummy
mouth-watering well-seasoned creamy authentic hearty clean comfortable cosy quiet spacious tidy
spotless modern stylish safe welcoming relaxing sunny luxurious peaceful fast sharp bright
reliable durable sturdy responsive smooth accurate powerful crisp light sleek affordable gripping
funny hilarious moving touching captivating original entertaining believable witty engaging
fascinating friendly helpful polite attentive kind professional prompt courteous caring honest
generous competent efficient punctual knowledgeable thoughtful convenient organised easy magical
great superb
"""),
)

# Verbs and feelings, as (negative, positive).
LOVED = (
    words("hated disliked regretted loathed despised detested"),
    words("loved liked enjoyed adored appreciated admired"),
)
LOVE = (
    words("hate dislike regret loathe despise detest"),
    words("love like enjoy adore appreciate admire recommend"),
)
FELT = (
    words("""
disappointed unhappy dissatisfied annoyed frustrated angry upset bored disgusted shocked irritated
furious let-down embarrassed ashamed sad horrified unimpressed
"""),
    words("""
pleased happy satisfied delighted impressed thrilled amazed charmed glad excited overjoyed moved
content grateful relieved blown-away proud comfortable
"""),
)
THINGS = (
    words("""
problems complaints mistakes delays errors flaws bugs faults issues trouble nonsense lies dirt
noise regrets disappointment frustration rudeness excuses cliches stains scratches
"""),
    words("""
charm flavour quality fun comfort warmth value care magic style joy talent humour heart beauty
surprises imagination kindness passion pleasure elegance energy class
"""),
)
QUALITY = (
    words(
        "disaster nightmare mess failure joke disgrace shame scam waste insult letdown mistake bore catastrophe rip-off"
    ),
    words(
        "delight pleasure triumph gem treat success masterpiece joy winner dream bargain treasure surprise hit classic"
    ),
)
BADLY = (
    words("badly terribly poorly horribly awfully slowly dreadfully miserably carelessly"),
    words("well perfectly beautifully brilliantly wonderfully nicely smoothly superbly flawlessly"),
)
WORSE = (
    words("worse slower uglier weaker poorer duller"),
    words("better nicer faster cleaner smarter finer lovelier"),
)
WORST = (
    words("worst ugliest weakest poorest dullest silliest dirtiest rudest"),
    words("best nicest finest loveliest smartest cleanest friendliest funniest"),
)
# Qualities that are negative after `too` and harmless after `not too`.
EXCESSIVE = words("""
expensive slow loud long short small heavy sweet salty spicy dark crowded complicated oily bright
late cold warm noisy thin bulky tight quiet pricey big hot far
""")

ASPECTS = words("""
plot acting script ending soundtrack dialogue cast story film movie music show series episode
scene book novel performance direction photography documentary concert play song album comedy food
soup pizza dessert coffee menu sauce steak bread wine dinner lunch salad cake pasta burger tea
fish chicken meal rice restaurant cafe beer curry sandwich room bed view breakfast pool location
bathroom lobby shower hotel balcony apartment garden beach house neighbourhood bar phone screen
battery camera speaker keyboard software charger laptop app design update sound display tablet
watch product device toy game chair jacket dress vacuum headset printer car bike service delivery
support agent refund repair shipping packaging price manual website response order staff waiter
waitress manager driver crew flight train trip tour guide team company shop store clinic doctor
teacher course lesson receptionist seller trainer experience atmosphere quality place visit stay
evening purchase value customer-service
""")

NEUTRAL = """
we went there on (friday|monday|saturday|a sunday).
i bought it (last month|two weeks ago|in the spring|online|for my brother).
(my sister|my friend|a colleague) (gave it to me|told me about it|came with me).
we were (two|three|four) people.
it was our (first|second|third) (visit|time|order).
i ordered the {x} and the {y}.
this is about the {x}.
(i read|she read) the reviews first.
we stayed (two|three|five) nights.
it is (near|next to) the (station|park|museum|market).
the {x} (came|comes) with a {y}.
i have used it for (a week|two months|a year).
we (ate|sat) (outside|inside|by the window).
it (arrived|came) in a (box|bag).
i watched it (with my family|at home|last night|on the plane).
""".strip().splitlines()

FRAMES = """
(the|this|that|their|our) {x} (was|is) {int} {A}.
(the|this|that|their|our) {x} (was|is) {A}.
{A} {x}.
{int} {A} {x}.
{A} {x} and {A} {y}.
(what a|such a) {A} {x}.
(it|this|everything|that) (was|is) {int} {A}.
(it|this) (was|is) (a|one) {int} {A} {x}.
the {x} (was|is) {A} and {A}.
the {x} was {A}, the {y} was {A}.
the {x} and the {y} were {int} {A}.
{A} {x}, {A} {y}, i {loved} it.
the {x} was {A} and the {y} was {A} (to|for) (me|us|my mother|my wife|the children|everyone).
(honestly|frankly|sadly|luckily|overall|in short|to be honest), (it|the {x}) was {int} {A}.
the most {A} {x} (of my life|i have ever had|in town|i know|this year).
the {A} {x} (made|ruined|spoiled|saved|was part of) (our|the|my) {y}.
(he|she|they) (was|were) {int} {A} to (us|me|my mother|everyone).
my new {x} (sounds|looks|feels|tastes|smells|is) {int} {A}.
the {x} (sounds|looks|feels|tastes|smells|seems|felt|looked|tasted) {int} {A}.
the {x} takes {A} (pictures|photos|videos).
{A} value for (money|the price).
i {loved} (the|this|that) {x}.
(we|i|they|my wife|my kids|everyone) {int2} {loved} (the|this|every) {x}.
(i|we|they|you will|my kids|most people) {love} (the|this) {x} and the {y}.
(we|you will|they|my friends|most people|all of us) {int2} {love} (it|this {x}|the {x}).
i {int2} {love} (it|this {x}|that {x}|the {x} here).
(i|we) (was|were) {int} {felt} (with|by|about) the {x}.
(i am|we are|i'm|we left) {int} {felt}.
the {x} (made me|left me|left us) {int} {felt}.
the {x} (was|is) a {int3} {quality}.
what a {quality}.
this {x} is a {quality} from start to finish.
the {x} (works|worked|is made|was made|was done|is written) {int} {badly}.
{int} {badly} (made|done|written|designed|organised).
the {x} was {worse} than (i expected|we hoped|expected|the last one|before|the photos).
it was (much|far|even|a lot) {worse} than (i thought|the first one|others|before).
the {worst} {x} (i have|we have|i've|we've) ever (had|seen|tried|bought|used|visited).
(one of the|by far the|simply the|easily the) {worst} {x}s in (town|the city|years|my life).
(full of|nothing but|so much|plenty of) {things}.
the {x} is full of {things}.
the {x} was not {Z}.
the {x} (is not|isn't|wasn't|was not) {Z}.
(it|this|that) (is not|isn't|wasn't|was not) {Z}.
not {Z}.
not {Z} at all.
not a {Z} {x}.
this is not a {Z} {x}.
the {x} (is not|isn't|wasn't|was not) {Z} at all.
the {x} (is not|isn't|wasn't|was not) {int4} {Z}.
(it|this|that) (is not|isn't|wasn't|was not) {int4} {Z}.
the {x} was never {Z}.
the {x} was (hardly|barely|far from|anything but|by no means|nowhere near|in no way) {Z}.
(there was|there is|i found|we found) nothing {Z} about the {x}.
nothing (about|in|at) (the|this|that) {x} (was|is) {Z}.
nothing (here |)(was|is|felt|seemed) {Z}.
(i do not|i don't|i did not|i didn't|we don't) think the {x} (was|is) {Z}.
(i would not|i wouldn't|nobody would|you can't|i can't) call (the|this) {x} {Z}.
(i can't|i cannot|no one can) say (that|) the {x} (was|is) {Z}.
the {x} was neither {Z} nor {Z}.
(i did not|i didn't|we did not|we didn't|i do not|i don't|you will not|you won't|they did not|most people don't) {int2} {lovez} (the|this|that) {x}.
(i can't say|i cannot say|i would not say|it is not true|no one can say) (that |)(i|we) {lovedz} (the|this) {x}.
(nobody|no one|none of us) (here |){lovedz} (the|this) {x}.
(i|we) (never|hardly|barely) {lovedz} (the|this) {x}.
(i was|we were|i am|we are) not {int4} {feltz} (with|by|about) the {x}.
(i was|we were|i am) not {feltz} at all.
the {x} was no {qualityz}.
the {x} was not a {qualityz}.
it does not {work} {badlyz}.
the {x} was not (only|just|merely) {A} but (also|even|truly) {A}.
not only was the {x} {A}, the {y} was {A} too.
i have never (had|seen|tried) such a {A} {x}.
i have never had a {worse} {x}.
(it|the {x}) (could not|couldn't|can't) (be|have been) {worse}.
never have i been so {felt}.
i have never been (so|more) {felt}.
the {x} was {Z}, but the {y} was {A} and i {loved} it.
the {x} was {Z} but (overall|in the end|all in all) it was {A}.
the {x} was {Z}, but i {loved} the {y}.
it was {Z} at first, but (then|later|in the end) it was {A}.
(although|though|even though|while) the {x} was {Z}, the {y} was {int} {A} and i was {felt}.
(although|though|even though|while) the {x} was {Z}, i {int2} {loved} it.
(despite|in spite of) the {Z} {x}, (we|i) {loved} it.
(i|we) expected (a|something) {Z}, but (it|the {x}) was {A}.
(i|we) thought it would be {Z}, but it (was|turned out) {A}.
(people|critics|my friends) say it is {Z}, but i (find|found) it {A}.
it used to be {Z}, (now|today) it is {A}.
the {x} looked {Z} in the photos, but it was {int} {A}.
(not|far from|it was not) {Z}, but {A}.
the {x} was not {Z}, it was {A}.
i would not say {Z}, i would say {A}.
if you like {A} {x}s, this is the place.
""".strip().splitlines()

# Phrases with a fixed polarity.
IDIOMS = (
    """
the {x} was (far |way |much |a bit |)too {excessive}.
too {excessive}.
it is (just |far |)too {excessive} (for me|for that price|for what you get).
the {x} could be better.
the {x} could have been (better|nicer|faster|cleaner|friendlier).
the {x} left a lot to be desired.
(do not|don't|please don't|never) (waste your (time|money)|bother|go there|buy (it|this)|stay here|order the {x}|watch it).
(not|it is not|it's not|it was not) worth (it|the money|the price|your time|the wait|a visit|watching).
(a|it was a|it is a|what a) (complete |total |)waste of (time|money).
(i|we) (will|would) (never|not) (come back|return|go there again|buy it again|recommend it|order again|recommend this {x}|stay here again).
(i|we) (won't|wouldn't) (come back|return|go there again|buy it again|recommend it|recommend the {x} to anyone).
(never again|avoid|stay away|avoid this place|avoid at all costs|save your money|one star|zero stars|thumbs down).
(i|we) (want|wanted|asked for|demand) (my|our) money back.
(i|we) (cannot|can't|could not|couldn't) recommend (it|this {x}|the {x}).
(i|we) regret (buying|ordering|booking|watching|choosing) (it|this|the {x}).
(i|we) (fell asleep|walked out|left) (halfway|before the end|after ten minutes|early).
the {x} (broke|stopped working|died|fell apart|cracked) after (two days|a week|one use|a month).
the {x} (does not work|doesn't work|never worked|did not work|keeps crashing|would not start|failed|is broken).
(nobody|no one) (answered|helped us|cared|came|replied to my email|apologised).
the {x} (overheats|freezes|leaks|crashes|hangs|fails|dies|breaks|squeaks|rattles|sticks|flickers|shuts down|drains) (all the time|every day|after an hour|every time i use it|when i open it|).
the {x} (overheats|freezes|leaks|crashes|hangs|fails|dies|breaks|shuts down) and the {y} (overheats|freezes|leaks|crashes|hangs|fails|dies|breaks).
the {x} (smelled|stank|reeked) of (smoke|mould|sweat|old fish|garbage).
the (walls|doors|windows|pillows|seats|towels) were (thin|broken|hard|stained|torn|old) and the {x} was too {excessive}.
the {x} was (rude|mean|unfriendly|nasty) to (us|my mother|my wife|the guests).
(i|we) want a refund (for the {x}|).
(i|we) (asked for|demanded|still wait for) a refund.
(they|the {x}) (kept me on hold|hung up on me|made us wait|charged us twice|cancelled my order|sent the wrong {y}).
the {x} (makes|made) no sense.
(nobody|no one) (did anything|cared|helped|listened) (about it|).
the {x} (ignored us|was ignored|yelled at us|lied to us|overcharged us|lost our order|never called back|gave me a headache).
(we|i) (waited|had to wait) (over |more than |)(an hour|two hours|forty minutes|three weeks) (for the {x}|for nothing|).
the {x} (never arrived|arrived broken|came late|was missing|was late|arrived damaged|smelled bad|made me sick).
(there was|we found|i found) (a hair|an insect|mould|dirt) in (my|the|our) {x}.
the {x} (did not|didn't|failed to) (meet my expectations|impress me|live up to the hype|impress).
the {x} (lacks|lacked|has no|had no|is without) (any |) {things_good}.
(no|zero|not much) {things_good} (at all|here|).
there is no {things_good} in this {x}.
(i|we) (expected|hoped for) (better|more|much more).
i wish i had (stayed elsewhere|bought another one|gone somewhere else|saved my money).
i wish i had not (bought|ordered|watched|booked) (it|this|the {x}).
(what|where) (is|was) the (point|manager)? (terrible|awful).
it is a shame about the {x}.
the {x} is falling apart.
i am returning (it|the {x}).
the {x} (went|is going) (downhill|from bad to worse).
i expected a good {x}, but i was let down.
you get what you pay for, and this is cheap.
the {x} put me to sleep.
(i|we) had high hopes, but (it|the {x}) (let us down|was a letdown|disappointed me).
the {x} ruined (our evening|my day|the trip|everything).
the {x} (disappoints|disappointed|bored me|annoyed me|upset us|let us down).
""".strip().splitlines(),
    """
the {x} was not too {excessive}.
(it is|it was) not (too|that) {excessive} (at all|).
the {x} (could not|couldn't) (be|have been) better.
(do not|don't) (miss it|miss this {x}|hesitate|change a thing|think twice|let the {x} scare you).
you (must|should|have to) (try|see|visit|go|buy) (it|this {x}|the {x}).
(worth|it was worth|it is worth|well worth|totally worth) (it|every penny|the money|the price|the wait|a visit|every minute).
(i|we) (will|would|will definitely|would gladly|will certainly) (come back|return|go there again|buy it again|recommend it|stay here again|be back).
(i|we) (can't|cannot|could not) (wait to come back|wait to return|wait for the next one|recommend it enough|praise it enough|stop smiling|get enough of it).
(highly|strongly|warmly|definitely) recommended.
(i|we) (highly|strongly|definitely|would|can only) recommend (it|this {x}|the {x}).
(five stars|ten out of ten|thumbs up|two thumbs up|well done|bravo|keep it up|10/10|full marks).
(i|we) (would not|wouldn't) (change a thing|hesitate to return|hesitate to buy it again|want another one).
(i|we) (do not|don't|did not|never) regret (it|buying it|coming here|booking it|a minute).
(no|without|zero|without any|not a single one of the) {things_bad} (at all|so far|here|).
the {x} (works|worked|arrived) without (any |) {things_bad}.
there (were|are) no {things_bad} with the {x}.
(nothing|there is nothing|we had nothing|i have nothing) to complain about.
(i|we) (can't|cannot|could not) (complain|fault the {x}|find a fault|ask for more|ask for better|imagine a better {x}).
the {x} (never|did not|didn't|does not) (disappoint|disappoints|disappoint us|let us down|disappointed).
the {x} (exceeded|surpassed|beat) (my|our|all) expectations.
the {x} (won me over|made my day|made us smile|made us feel at home|blew me away|put a smile on my face|impressed us).
the {x} (still works|works like new|lasts all day|lasts for days|runs smoothly|is going strong) after (a year|two years|months).
the {x} (arrived|came) (on time|early|quickly|the next day|ahead of schedule).
the {x} (answered|replied|responded|reacted) (within minutes|at once|right away|quickly|the same day) and (solved|fixed) (my|our|the) problem.
the {x} (solved|fixed) (my|our|every) (problem|issue) (in minutes|quickly|for free|).
(simple|easy|a joy|a pleasure) to (use|read|set up|watch|wear|drive).
(so|really|very) well (made|done|written|played|organised).
(i|we|my kids) (smile|smiled|laugh|laughed) (every time|at the {x}|a lot).
the {x} (is|was) worth (it|every penny|the wait|the money|the trip|seeing).
you (won't|will not|would not) regret (it|buying it|the {x}|going there|your visit).
(i|we) never had (a problem|any problems|an issue|any trouble) with (it|the {x}).
the {x} (kept|held) (me|us) (interested|glued to the seat|entertained|hooked) (until the end|).
(i|we) (ate|slept|felt) (so |really |very |)well.
the {x} (went out of their way|did everything) to help (us|me).
(they|the {x}) (helped|welcomed) us (with a smile|right away|at once).
(i|we) (laughed|smiled|had fun) (all night|the whole time|from start to finish|all evening).
(i|we) had a (great|wonderful|lovely) time.
(so|very|really) glad (i|we) (bought|booked|found|tried|chose) (it|this {x}|the {x}).
(kudos|thanks|thank you|hats off|compliments) to the {x}.
the {x} is (a must|second to none|hard to beat|just what i needed|exactly as described|my new favourite|worth it).
(i|we) (want|hope) to come back (soon|again|next year).
(i|we) (could not|couldn't) put (it|the {x}) down.
best {x} (ever|in town|of my life).
it is hard to find a better {x}.
i feared the worst, but i was (won over|happily surprised).
(i|we) look forward to the next (visit|one|{x}).
the {x} solved all my problems.
my {family} (loves|adores) (it|the {x}).
the {x} saved (our evening|my day|the trip).
the {x} (delights|impresses|shines|works|delivered).
""".strip().splitlines(),
)

# Written by hand after the frames, in a customer's style. They measure words and phrases that are
# never drawn.
HAND_WRITTEN = (
    """
We waited forty minutes for a table and the fish was still raw in the middle.
I would rather sleep in my car than stay in this hotel again.
The remote stopped working after a week.
Two hours of my life I will never get back.
The receptionist shouted at us in front of the other guests.
It is not as good as the old version.
Cheap plastic, it fell apart in my hands.
I was not impressed by the special effects.
The lid does not close, so everything leaked into my bag.
They charged me twice and refuse to give the money back.
The singer was off key and the sound was terrible.
My steak was dry and the chips were cold.
Not recommended.
The heating was broken and nobody came to fix it.
This vacuum cleaner is loud, heavy and useless.
I hoped for a funny evening, but the comedian was boring.
The guide hardly spoke English and knew nothing.
Never buying from this shop again.
The ending was so stupid that we laughed at it.
There was dust everywhere and the sheets were stained.
""".strip().splitlines(),
    """
The best haircut I have had in years.
The waiter was patient with our kids and the pasta was excellent.
It has never let me down in five years.
I read the whole novel in one night.
Fast delivery, friendly driver, no problems.
You will not find a better bakery in this town.
I was afraid it would be noisy, but we slept very well.
The photos came out sharp and bright.
Our daughter cannot stop playing with it.
Great acting and a clever story.
The soup was simple but really tasty.
I have recommended this dentist to all my friends.
The lobby smelled of fresh flowers and the staff were lovely.
Nothing was too much trouble for them.
It does exactly what it promises.
The tour was not cheap, but it was worth every cent.
Setting it up was easy and it works perfectly.
I laughed from the first minute to the last.
The new update fixed everything, thank you.
We were very pleased with the room and the view.
""".strip().splitlines(),
)

_WORDS: dict[str, Slot] = {
    "x": ASPECTS,
    "y": ASPECTS,
    "excessive": EXCESSIVE,
    "things_good": THINGS[POSITIVE],
    "things_bad": THINGS[NEGATIVE],
    "family": words("wife husband mother father son daughter family dog cat sister brother"),
    "work": words("work function run fit"),
    "int": (
        *words("very really so extremely absolutely quite truly incredibly totally simply pretty"),
        "",
        "",
    ),
    "int2": ("really", "absolutely", "truly", "totally", "", "", ""),
    "int3": ("complete", "total", "real", "true", "", "", ""),
    "int4": ("very", "really", "so", "that", "particularly", "exactly", "all that", "even", "too"),
}
_LEANING = {
    "A": ADJECTIVES,
    "loved": LOVED,
    "love": LOVE,
    "felt": FELT,
    "things": THINGS,
    "quality": QUALITY,
    "badly": BADLY,
    "worse": WORSE,
    "worst": WORST,
}
_TURNED = {
    "Z": ADJECTIVES,
    "lovez": LOVE,
    "lovedz": LOVED,
    "feltz": FELT,
    "qualityz": QUALITY,
    "badlyz": BADLY,
}


class Review(NamedTuple):
    """An opinion with its label, `NEGATIVE` or `POSITIVE`."""

    text: str
    label: int


class Reviews:
    """Draws reviews. The two splits share no combination of a frame and its opinion words."""

    def __init__(self, *, held_out: bool) -> None:
        self._held_out = held_out

    def draw(self, rng: Random) -> Review:
        """Returns one to three sentences of the same polarity, sometimes with a neutral one."""
        label = rng.choice((NEGATIVE, POSITIVE))
        sentences = [self._sentence(rng, label) for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3)))]
        if rng.random() < 0.15:
            sentences.insert(rng.randint(0, 1), expand(rng.choice(NEUTRAL), rng, _WORDS))
        text = rng.choice((" ", " ", " and ")).join(sentences)
        text = text.replace(". and ", " and ")
        if rng.random() < 0.2:
            text = text[:-1] + rng.choice(("", "!", "!!"))
        return Review(text, label)

    def _sentence(self, rng: Random, label: int) -> str:
        while True:
            frame = rng.choice(FRAMES if rng.random() < 0.7 else IDIOMS[label])
            used: list[str] = [frame]
            text = expand(frame, rng, self._slots(label, used))
            # Uses a stable hash, because Python salts `hash` differently in each process.
            reserved = zlib.crc32(" ".join(sorted(used)).encode()) % 8 == 0
            if len(used) == 1 or reserved == self._held_out:
                return text

    def _slots(self, label: int, used: list[str]) -> dict[str, Slot]:
        def leaning(words: Sequence[str]) -> Slot:
            def choose(rng: Random) -> str:
                used.append(rng.choice(words))
                return used[-1]

            return choose

        return {
            **_WORDS,
            "x": lambda rng: syllables(rng, 2) if rng.random() < 0.03 else rng.choice(ASPECTS),
            **{slot: leaning(words[label]) for slot, words in _LEANING.items()},
            **{slot: leaning(words[1 - label]) for slot, words in _TURNED.items()},
        }
