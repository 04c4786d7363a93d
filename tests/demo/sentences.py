"""Sentences with the correct answers of the demo models. No model was trained on them."""

Entities = list[tuple[str, str]]

# (sentence, [(name, kind), ...])
NER: list[tuple[str, Entities]] = [
    (
        "Maria Schmidt works at Siemens in Berlin.",
        [("Maria Schmidt", "PER"), ("Siemens", "ORG"), ("Berlin", "LOC")],
    ),
    (
        "Angela Novak flew from Madrid to Tokyo yesterday.",
        [("Angela Novak", "PER"), ("Madrid", "LOC"), ("Tokyo", "LOC")],
    ),
    (
        "The headquarters of Toyota are in Japan.",
        [("Toyota", "ORG"), ("Japan", "LOC")],
    ),
    (
        "Emma Watson lives in London.",
        [("Emma Watson", "PER"), ("London", "LOC")],
    ),
    (
        "In Paris, Lucy Brown met Peter Wagner.",
        [("Paris", "LOC"), ("Lucy Brown", "PER"), ("Peter Wagner", "PER")],
    ),
    (
        "Google opened a new office in Dublin last year.",
        [("Google", "ORG"), ("Dublin", "LOC")],
    ),
    (
        "My cousin Carlos moved to Canada.",
        [("Carlos", "PER"), ("Canada", "LOC")],
    ),
    (
        "David Cohen studied physics at Stanford University.",
        [("David Cohen", "PER"), ("Stanford University", "ORG")],
    ),
    (
        "The weather in Vienna was cold.",
        [("Vienna", "LOC")],
    ),
    (
        "We spent our holiday in Greece with Sofia.",
        [("Greece", "LOC"), ("Sofia", "PER")],
    ),
    (
        "Netflix hired Julia Evans as director.",
        [("Netflix", "ORG"), ("Julia Evans", "PER")],
    ),
    (
        "The red car is parked in the garage.",
        [],
    ),
]

# (sentence with [MASK], the word)
FILL: list[tuple[str, str]] = [
    ("The capital of France is [MASK].", "paris"),
    ("The capital of Japan is [MASK].", "tokyo"),
    ("The capital of Norway is [MASK].", "oslo"),
    ("[MASK] is the capital of Italy.", "rome"),
    ("Madrid is the capital of [MASK].", "spain"),
    ("Cairo is a city in [MASK].", "egypt"),
    ("Kenya is a country in [MASK].", "africa"),
    ("People in Brazil speak [MASK].", "portuguese"),
    ("The currency of Japan is the [MASK].", "yen"),
    ("The day after Monday is [MASK].", "tuesday"),
    ("[MASK] comes before Thursday.", "wednesday"),
    ("The month after March is [MASK].", "april"),
    ("[MASK] comes after July.", "august"),
    ("After winter comes [MASK].", "spring"),
    ("The number after nine is [MASK].", "ten"),
    ("The letter after G is [MASK].", "h"),
    ("Two plus two is [MASK].", "four"),
    ("Three plus five equals [MASK].", "eight"),
    ("Ten minus four is [MASK].", "six"),
    ("Three times three is [MASK].", "nine"),
    ("Half of ten is [MASK].", "five"),
    ("The opposite of hot is [MASK].", "cold"),
    ("The opposite of big is [MASK].", "small"),
    ("[MASK] is the opposite of rich.", "poor"),
    ("Full and [MASK] are opposites.", "empty"),
    ("The cow says [MASK].", "moo"),
    ("A duck goes [MASK].", "quack"),
    ("Dogs can [MASK].", "bark"),
    ("A young cat is called a [MASK].", "kitten"),
    ("A foal grows up to be a [MASK].", "horse"),
    ("A bird lives in a [MASK].", "nest"),
    ("The colour of grass is [MASK].", "green"),
    ("A banana is usually [MASK].", "yellow"),
    ("The colour of snow is [MASK].", "white"),
    ("A rose is a kind of [MASK].", "flower"),
    ("A hammer is a type of [MASK].", "tool"),
    ("A doctor works in a [MASK].", "hospital"),
    ("A baker makes [MASK].", "bread"),
    ("We see with our [MASK].", "eyes"),
    ("A window is made of [MASK].", "glass"),
    ("There are [MASK] days in a week.", "seven"),
    ("The past tense of go is [MASK].", "went"),
    ("One mouse, two [MASK].", "mice"),
    ("The king and the [MASK].", "queen"),
    ("She lost [MASK] keys.", "her"),
]

# (review, label)
SENTIMENT: list[tuple[str, str]] = [
    ("The food was not good.", "negative"),
    ("The food was not good at all.", "negative"),
    ("Not bad at all!", "positive"),
    ("I absolutely loved this film.", "positive"),
    ("The hotel room was dirty and the staff were rude.", "negative"),
    ("The battery of this phone lasts all day and the camera is fantastic.", "positive"),
    ("What a waste of money.", "negative"),
    ("I would not recommend this restaurant to anyone.", "negative"),
    ("The service was excellent and very friendly.", "positive"),
    ("The plot was slow, but the acting was superb and I enjoyed it.", "positive"),
    ("The screen looked great in the photos, but it was terrible.", "negative"),
    ("There was nothing to complain about.", "positive"),
    ("It broke after two days.", "negative"),
    ("I can't recommend it enough.", "positive"),
]

# (sentence, related sentence, unrelated sentence)
SIMILAR: list[tuple[str, str, str]] = [
    (
        "Will it rain tomorrow?",
        "Should I bring an umbrella tomorrow?",
        "Transfer money to my account.",
    ),
    (
        "How do I bake a cake?",
        "What is the recipe for a chocolate cake?",
        "The stock market fell today.",
    ),
    (
        "I forgot my password.",
        "How can I recover my login?",
        "The cat sleeps on the sofa.",
    ),
    (
        "The team won the game.",
        "They beat the other team in the match.",
        "Water the roses.",
    ),
    (
        "My Python script crashes.",
        "There is a bug in my code.",
        "I want to adopt a kitten.",
    ),
    (
        "Where can I buy medicine?",
        "I am looking for a pharmacy.",
        "The film was boring.",
    ),
    (
        "Schedule a meeting with Anna.",
        "Add an appointment to my calendar.",
        "The baby was born.",
    ),
    (
        "The thief was caught by police.",
        "Officers arrested a suspect.",
        "Tomatoes grow in the garden.",
    ),
    (
        "Book a flight to Rome.",
        "I need plane tickets to Rome.",
        "How do I cook rice?",
    ),
    (
        "Turn the music up.",
        "Make the song louder.",
        "Apply for a job.",
    ),
]
