# ruff: noqa: E501 - each way to say something stays on one line
"""Paraphrases for the sentence encoder: several wordings for each intent of each topic."""

from typing import NamedTuple

from tools.demo_models.grammar import entries, words

# `#` starts a topic, a blank line ends an intent, and each line is one wording.
_PARAPHRASES = """
# weather
(will|is) it (going to rain|rain|be rainy) {time}?
do i need an umbrella {time}?
is there (any|a chance of) rain {time}?
(should i take|do i have to bring) a raincoat {time}?
are showers expected {time}?

what (is|will) the weather (like|be like) in {city} {time}?
(tell me|show me|give me) the weather forecast for {city} {time}.
how is the weather in {city} {time}?
weather forecast {city} {time}
(is it sunny or cloudy|sun or clouds) in {city} {time}?

how (hot|warm) will it (be|get) in {city} {time}?
what is the temperature in {city} {time}?
(how many degrees|what temperature) can we expect in {city} {time}?
(will it be|is it) very hot in {city} {time}?

a (storm|hurricane|thunderstorm) is (coming|moving) towards {city}.
(heavy winds|strong winds and thunder) will hit {city} soon.
people in {city} (prepare for|are warned of) a (big|violent) storm.
bad weather with lightning is on its way to {city}.

it is snowing (heavily |)in {city}.
{city} is covered in (white |)snow.
snow is falling (over|on the streets of) {city}.
(a blizzard|a snowstorm) has reached {city}.

# cooking
how do i (cook|make|prepare) {dish}?
what is (a|the) (good |best |)recipe for {dish}?
(i want|i would like|i need) to learn to (cook|make) {dish}.
(show me|give me) the steps to prepare {dish}.
(which|what) ingredients do i need for {dish}?

how long (should|must|do) i (boil|bake|cook) {dish}?
what is the cooking time for {dish}?
how many minutes does {dish} (take|need) in the (oven|pot)?
when is {dish} (done|ready) in the kitchen?

the (chef|cook) is (chopping|slicing|cutting) (vegetables|onions|carrots).
someone is cutting (vegetables|onions|carrots) in the kitchen.
a person (slices|chops) (vegetables|onions|carrots) with a knife.

this {dish} is too salty.
there is too much salt in the {dish}.
the cook put far too much salt into the {dish}.
i can only taste salt in this {dish}.

can i (replace|substitute) butter (with|by) oil in a cake?
is it possible to bake a cake with oil instead of butter?
what can i use in a cake if i have no butter?
is there an alternative to butter for baking?

# restaurants
(can i|i would like to|i want to) (book|reserve) a table for {number} (people |)(in|at) a restaurant {time}.
(please |)(make|do you take) a restaurant reservation for {number} {time}.
is there a free table for {number} {time}?
we are {number} and want to eat out {time}, do you have a table?

where can i (eat|find|get) good {dish} in {city}?
which restaurant in {city} (serves|has) the best {dish}?
recommend a place (to eat|that serves) {dish} in {city}.
i am looking for a restaurant with {dish} in {city}.

(can we have|please bring us|we would like) the bill(, please|).
we want to pay (for our meal|now), please.
how much do we owe for (dinner|the meal)?
waiter, the check please.

do you have (vegetarian|vegan|meatless) (dishes|food|meals)?
what can i eat here if i do not eat meat?
is there anything without meat on the menu?
which dishes (on the menu |)contain no meat?

# sports
{team} (won|has won) the (match|game) against {team2}.
{team} (beat|defeated) {team2}.
{team2} (lost to|was beaten by) {team}.
a (victory|win) for {team} over {team2}.

who won the (football|soccer) (match|game) {past}?
what was the (football|soccer) (score|result) {past}?
(tell me|show me) the (final |)score of the (football|soccer) game {past}.
which team won {past}?

a (man|guy|boy) is kicking a (ball|football).
someone (plays football|plays soccer|shoots a goal) on the (grass|field).
a (player|footballer) kicks the ball (towards the goal|into the net).

(i want|i plan) to (run|train for) a marathon.
how (should|do) i (prepare|train) for a long distance race?
what is a good training plan for (running|a marathon)?
i need a (coach|programme) to help me run forty kilometres.

the (tennis|basketball) (player|star) is injured and cannot play.
because of an injury, the (tennis|basketball) (player|star) will miss the game.
the (tennis|basketball) (player|star) hurt (his|her) knee and is out.

# banking
(how do i|how can i|i want to) (transfer|send|wire) (money|funds) to (another account|a friend|my landlord)?
make a (bank |)transfer of {amount}.
i need to (pay|send) {amount} from my account to (someone else|another person).
move {amount} to a different bank account.

what is (my|the) (account |)balance?
how much money (is|do i have) (in|left in) my (bank |)account?
(check|show me) my (bank |account |)balance.
how much (cash|money) do i have at the bank?

(i lost|someone stole|i cannot find) my (credit|debit|bank) card.
(please |)(block|cancel|freeze) my (credit|debit|bank) card.
my (credit|debit|bank) card (is gone|was stolen|has disappeared).
my wallet with the bank card was taken, lock the card.

(can i|how do i|i want to) (get|apply for|take out) a (loan|mortgage|credit)?
i need to borrow money from the bank to buy a (house|car).
what (interest rate|conditions) do you offer for a (loan|mortgage)?
the bank should lend me money for a (house|car).

(i want|how do i|i would like) to (open|create) a (bank|savings|new) account(?|.)
can you set up (a|an) (savings|bank) account for me?
what do i need to become a customer of this bank?
open a new account at the bank for me.

# shopping
where is my (order|package|parcel)?
when will my (order|package|parcel) (arrive|be delivered|come)?
(track|i want to track) my (order|package|parcel|delivery).
my (order|package|parcel) has not (arrived|come) yet.
how long does (delivery|shipping) take?

(i want to|can i|how do i) (return|send back) (this|these|the) {item}?
the {item} does not fit, i want (to give it back|my money back).
(can i get|i want) a refund for the {item}.
what is your return policy for {item}?

how much (is|does|are) the {item} (cost|)?
what is the price of the {item}?
(tell me|what is) the cost of the {item}(.|?)
is the {item} expensive or cheap?

do you have the {item} in (a smaller|a larger|another) size?
is the {item} available (in large|in small|in my size)?
i need a (bigger|smaller) {item}.
this {item} is too (tight|wide|big|small), is there another size?

is there a (discount|sale|special offer) on {item}?
(do you have|are there) any (coupons|reductions|offers) for {item}?
can i get the {item} at a lower price?

# travel
(book|i want to book|i need) a flight (from|out of) {city} to {city2}.
(find me|are there) (plane tickets|flights) from {city} to {city2}.
i want to fly from {city} to {city2}.
how do i get from {city} to {city2} by plane?

(book|find|i need|reserve) a hotel (room |)in {city} {time}.
where can i (stay|sleep|spend the night) in {city}?
i am looking for (accommodation|a place to stay) in {city}.
are there any rooms free in {city} {time}?

when does the (next |)train to {city} (leave|depart|go)?
what time is the (next |)train to {city}?
(show me|what is) the train (timetable|schedule) to {city}.
at which platform does the train to {city} depart?

what (can i|should i|to) (see|visit|do) in {city}?
what are the (best |main |)(sights|attractions) in {city}?
(recommend|tell me about) things to do in {city}.
which places should a tourist visit in {city}?

my (suitcase|luggage|bag) (is lost|did not arrive|was lost) at the airport.
the airline (lost|cannot find) my (luggage|suitcase|bags).
i landed, but my (bags|luggage|suitcase) are missing.

do i need a visa (for|to enter) {country}?
what (documents|papers) are required to travel to {country}?
can i enter {country} with (only |)a passport?
is a visa necessary for a trip to {country}?

# pets
a {animal} is (sleeping|lying|resting) on the (sofa|couch).
the (sofa|couch) is where the {animal} (naps|sleeps|rests).
the {animal} (has fallen asleep|takes a nap) on the (sofa|couch).

(what|how much) should i (feed|give) my {animal} (to eat|every day)?
what (food|diet) is good for a {animal}?
what does a {animal} eat?
which food is (healthy|best) for my {animal}?

my {animal} is (sick|ill) and (does not eat|needs a vet).
i must take my {animal} to the (vet|animal doctor).
the {animal} is not feeling well, call the (vet|animal doctor).

a dog is (running|playing|chasing a ball) in the (park|garden).
the (puppy|dog) (runs|plays) outside on the (grass|lawn).
in the (park|garden), a (puppy|dog) plays with a ball.

(i want|we want|we would like) to adopt a {animal}.
where can i (get|find|adopt) a {animal} from a shelter?
we are looking for a homeless {animal} to take home.

# programming
how do i (sort|order) a list in {language}?
what is the way to put a list in order with {language}?
{language}: sort an array
which function sorts (an array|a list) in {language}?

my {language} (program|code|script) (crashes|does not run|throws an exception).
i get an error (when i run|from) my {language} (program|code|script).
why does my {language} (program|code|script) fail?
(help me|i need to) (fix|debug) (a bug|an error) in {language}.

how (can|do) i (read|open|parse) a file in {language}?
load the contents of a file with {language}.
{language} code that reads a text file
what is the {language} function to open files?

how do i learn {language}?
what is the best (course|tutorial|book) for {language} (beginners|programming)?
i want to start (coding|programming) in {language}.
where can a beginner study {language} programming?

(developers|programmers|engineers) (fixed|repaired) the bug in the software.
the software (error|bug) was (solved|corrected) by the (developers|programmers).
a (patch|fix) for the faulty code was released.

# computers
my (computer|laptop|pc) (is|has become|is getting) very slow.
why does my (computer|laptop|pc) take so long to (start|do anything)?
how can i (speed up|make faster) my (computer|laptop|pc)?
the (computer|laptop|pc) needs ages to (start|open programs).

(i forgot|i cannot remember|i have lost) my password.
how (do|can) i (reset|change|recover) my password?
i cannot log in (to my account|because the password is wrong).
send me a link to (choose|set) a new password.

the (wifi|internet|network) (is not working|is down|does not work) (at home|).
i (cannot connect|have no connection) to the (wifi|internet|network).
why (is there no|do i have no) internet (connection|access)?
my router lost the connection.

the printer (does not print|is not printing|is jammed).
i cannot print (my document|anything|this page).
paper is stuck in the printer.
how do i get the printer to work?

how do i (install|download|set up) (the|this|a) (program|app|software)?
where can i download (the|this) (program|app|software)?
what are the steps to install (the|this) (program|app|software)?

# phones
the battery of my (phone|smartphone|mobile) (dies|drains|runs out) (too |)quickly.
my (phone|smartphone|mobile) has to be charged all the time.
why does my (phone|smartphone|mobile) lose power so fast?
the battery life of my (phone|smartphone|mobile) is (bad|too short).

the (screen|display|glass) of my (phone|smartphone|mobile) is (broken|cracked).
i dropped my (phone|smartphone|mobile) and the (screen|display) broke.
can you (repair|replace) the cracked (screen|display) of my (phone|smartphone|mobile)?

(call|phone|ring) {person} (for me|now|).
i want to (talk to|speak with) {person} on the (phone|telephone).
(please |)dial the number of {person}.

(send|write) a (text|message|text message) to {person}.
text {person} that i am (late|on my way).
tell {person} in a message that i will be late.

# health
i have a (headache|terrible headache|bad headache).
my head (hurts|aches|is pounding).
what (can i take|helps) against (a headache|pain in my head)?
there is a pain in my head.

(i need|can i make|i would like) an appointment with (the|a) doctor {time}.
when can the doctor see me {time}?
is the doctor free {time}?
schedule a visit to the doctor {time}.

i have a (fever|high temperature) and a (cough|sore throat).
i am (coughing|sneezing) and my temperature is high.
(i think|it seems) i caught (a cold|the flu).
these look like symptoms of the flu.

where is the (nearest|closest|next) (pharmacy|drugstore)?
where can i buy (medicine|pills|aspirin)?
is there a (pharmacy|drugstore) (near here|nearby|close by)?

how can i (lose weight|get slim|lose some kilos)?
what (diet|exercise) helps to lose weight?
i am too (fat|heavy) and want to get thinner.
tips for (burning fat|slimming)

i cannot sleep at night.
what helps against (insomnia|sleepless nights)?
(i lie awake|i am awake) (all night|for hours) in bed.
how do i fall asleep faster?

# music
a (man|guy|person) is playing (a|the) {instrument}.
someone (plays|is playing|performs on) (a|the) {instrument}.
a musician plays (a|the) {instrument}.
music is coming from (a|the) {instrument}.

(play|put on) (some|a bit of) {genre} (music|songs|).
i want to (hear|listen to) {genre} (music|songs).
start a {genre} playlist.
let me hear something with {genre} in it.

(turn|make) the (music|volume) (louder|up).
increase the volume.
i (cannot|can hardly) hear the (music|song), it is too quiet.
the sound should be louder.

(turn|make) the (music|volume) (down|quieter|softer).
lower the volume.
the (music|song|sound) is too loud.

(i want|how do i|i would like) to learn (to play |)the {instrument}?
(are there|where do i find) {instrument} lessons?
i am looking for a {instrument} teacher.

who (sings|wrote|performs) this song?
what is the name of (this song|the singer)?
which (band|artist) is singing (this|that)?

# films
what (film|movie) should (i|we) (watch|see) tonight?
(recommend|suggest) a good (film|movie).
which (films|movies) are worth (watching|seeing)?
i am looking for a (film|movie) for this evening.

who (directed|made) this (film|movie)?
what is the name of the (director|maker) of this (film|movie)?
which director made this (picture|film|movie)?

(two|buy two|i want two) tickets for the (cinema|movie theatre) {time}.
reserve seats in the (cinema|movie theatre) {time}.
what is (on|showing) at the (cinema|movie theatre) {time}?

the (film|movie) was (boring|dull|too long).
i (almost fell asleep|was bored) during the (film|movie).
that (film|movie) put me to sleep.

# alarm
(set|i need) an alarm (for|at) {clock}.
wake me (up |)at {clock}.
i have to get up at {clock}.
(ring|make a noise) at {clock} so that i wake up.

(remind me|do not let me forget) to {chore} {time}.
(set|create) a reminder to {chore} {time}.
i must not forget to {chore} {time}.

what time is it (now |)in {city}?
(tell me|what is) the (current |local |)time in {city}.
how late is it (now |)in {city}?

start a timer for {number} minutes.
count down {number} minutes.
tell me when {number} minutes are over.

# calendar
(schedule|plan|set up) a meeting with {person} {time}.
i want to meet {person} {time}, put it in my calendar.
add an appointment with {person} to my calendar {time}.
{person} and i should have a meeting {time}.

(cancel|delete|remove) (my|the) (meeting|appointment) with {person}.
i (cannot|can't) come to the (meeting|appointment) with {person}.
the (meeting|appointment) with {person} (is off|will not take place).

what (is|do i have) (on|in) my (calendar|schedule) {time}?
(do i have|are there) any (meetings|appointments) {time}?
am i (busy|free) {time}?

# home
(turn|switch) (on|off) the (light|lights|lamp) in the {room}.
the (light|lights|lamp) in the {room} (please|should be switched).
i want to change the light in the {room}.

it is too (cold|chilly) in the {room}.
(turn up|switch on|raise) the heating in the {room}.
make the {room} warmer.
i am freezing in the {room}.

(clean|vacuum|hoover) the (floor|carpet|dust) (in the {room}|).
the floor is (dirty|dusty) and must be (cleaned|swept).
there is dust everywhere, please sweep.

the (tap|pipe|sink) (is leaking|drips|leaks) (in the {room}|).
water is coming out of the (pipe|sink|wall) (in the {room}|).
i need a plumber to repair the (pipe|tap|sink).

(i am looking|we are looking) for (a flat|an apartment|a house) to rent in {city}.
(are there|show me) (flats|apartments|houses) for rent in {city}.
i want to rent (a flat|an apartment|a house) in {city}.
how high are the rents for (a flat|an apartment) in {city}?

# cars
my car (does not start|will not start|won't start).
the engine of my car is (dead|not running).
i turn the key, but the car (does nothing|stays silent).
(the car battery is empty|my car broke down), i need (a mechanic|help).

where can i (park|leave) my car?
is there a (car park|parking lot|parking space) (near here|nearby|in the centre)?
i am looking for a place to park.

where is the (nearest|next|closest) (petrol|gas) station?
i need (petrol|gas|fuel), my tank is (empty|almost empty).
where can i fill up my car?

(i have|my car has|there is) a flat tyre.
one of my tyres (lost its air|is punctured).
how do i change a (tyre|wheel)?

a (man|woman) is driving a (red|blue|black|white) car.
somebody drives a (red|blue|black|white) car (on|along) the road.
a (red|blue|black|white) car is moving on the (road|street).

# traffic
there (is|was) (a|an) (accident|crash|collision) on the (motorway|highway|road).
two cars (crashed|collided) on the (motorway|highway|road).
a (car crash|collision) blocked the (motorway|highway|road).

the traffic (is terrible|is very bad|is heavy) in {city}.
(cars are stuck|we are stuck) in a traffic jam in {city}.
there is a long traffic jam on the way to {city}.

how do i get to the {place}?
(show me|what is) the way to the {place}(.|?)
(where is|i cannot find) the {place}(?|.)
give me directions to the {place}.

how far is it (from here |)to {city}?
what is the distance (from here |)to {city}?
how many kilometres are there to {city}?
how long does the drive to {city} take?

# work
(i am looking|i look) for a (new |)job as a {job}.
are there (any |)(vacancies|open positions) for a {job}?
(who is hiring|does anyone need) a {job}?
i would like to (apply|work) as a {job}.

how (much|well) does a {job} (earn|make|get paid)?
what is the salary of a {job}?
what (wage|income) can a {job} expect?

i want to (quit|leave|resign from) my job.
how do i tell my boss that i am leaving (the company|)?
i am going to hand in my notice (to my boss|).

(i need|may i take|i would like) (some|a few) days of (holiday|vacation|leave).
how many (holidays|vacation days|days off) do i have left?
i want to take (some |)time off (from |)work.

the company (fired|laid off|dismissed) {number} hundred (workers|employees).
{number} hundred (workers|employees) lost their jobs.
{number} hundred people were made unemployed by the company.

# school
(the|our) (exam|test) in {subject} is (hard|difficult).
i am (afraid of|nervous about) the {subject} (exam|test).
i (must|have to) (study|learn) for my {subject} (exam|test).

(can you|who can) help me with my {subject} homework?
i do not understand (the|my) {subject} (homework|exercise).
explain the {subject} (homework|exercise) to me.

the teacher (explains|teaches) {subject} to the (pupils|students|class).
(pupils|students|children) (listen to|are in) a {subject} lesson.
a {subject} class is taught at school.

how do i (apply to|enrol at|get into) (a|the) university?
what are the (requirements|deadlines) for studying at (a|the) university?
i want to study at (a|the) university, what (do i have to do|is needed)?

# languages
how do you say {word} in {tongue}?
what is the {tongue} word for {word}?
translate {word} (into|to) {tongue}.
what does {word} mean in {tongue}?

(i want|i would like|how do i) to learn {tongue}.
where can i take {tongue} (lessons|classes|courses)?
what is the best way to study {tongue}?

do you speak {tongue}?
can you (talk|understand|communicate) in {tongue}?
is there anyone here who knows {tongue}?

# family
my (sister|daughter|wife) (had|gave birth to|is expecting) a baby.
a baby was born in our family.
there is a new baby in our (family|house).

we are getting married {time}.
the (wedding|marriage) (is|takes place) {time}.
(the bride and groom|they) say yes to each other {time}.

(happy|all the best for your) birthday!
(i wish you|have) a (wonderful|happy) birthday.
(many |)congratulations on your birthday.

a (woman|mother) is holding a (baby|child|little girl).
a (baby|child|little girl) is (carried by|in the arms of) its mother.
a mother carries her (baby|child).

(children|kids|boys and girls) are playing (outside|in the yard|on the playground).
a group of (children|kids) plays (outside|in the yard|on the playground).
some kids have fun (outside|in the yard|on the playground).

# garden
how often (should|must|do) i water my {plant}?
how much water (do|does) my {plant} need?
when do i have to give water to the {plant}?

when (should|can) i plant {plant}?
what is the best (time|month) to (plant|sow) {plant}?
in which season do you sow {plant}?

the leaves of my {plant} are turning (yellow|brown).
why does my {plant} (die|look sick|lose its leaves)?
what is wrong with my {plant}?

a (man|woman|person) is mowing the (lawn|grass).
somebody cuts the (lawn|grass) with a machine.
the (lawn|grass) is being cut.

# politics
the {politician} (won|has won) the (election|vote).
(voters|the people) (elected|chose) a new {politician}.
a new {politician} was elected.

the (parliament|government) passed a new (law|tax).
a new (law|tax) was (approved|decided) by the (parliament|government).
politicians voted for a new (law|tax).

(thousands|many people|crowds) (protested|demonstrated) against the government in {city}.
there was a (protest|demonstration) against the government in {city}.
in {city}, people went to the streets to protest.

the {politician} (resigned|stepped down) {past}.
{past}, the {politician} left office.
the {politician} gave up the post {past}.

# economy
the (prices|costs) of (food|energy|oil) are (rising|going up|climbing).
(food|energy|oil) is getting more expensive.
inflation makes (food|energy|oil) dearer.

the (stock market|shares) (fell|dropped|crashed) {past}.
investors lost money on the stock market {past}.
stocks went down {past}.

the company (made|reported) a (record |)profit {past}.
(profits|earnings) of the firm (rose|grew) {past}.
the business earned a lot of money {past}.

# science
(scientists|researchers) (discovered|found) a new (planet|star|galaxy).
a new (planet|star|galaxy) was discovered by (scientists|astronomers).
astronomers saw a (planet|star|galaxy) nobody knew.

the rocket (was launched|took off) (into space|to the moon) {past}.
a (rocket|spacecraft) (left earth|flew to the moon) {past}.
{past}, astronauts started their flight into space.

why is the sky blue?
what makes the sky look blue?
where does the blue colour of the sky come from?

how (far|distant) is the (moon|sun|mars) from the earth?
what is the distance between the earth and the (moon|sun|mars)?
how many kilometres is it to the (moon|sun|mars)?

a new (vaccine|medicine|drug) (against|for) (cancer|malaria|the virus) was (tested|developed).
(doctors|researchers) developed a (vaccine|medicine|drug) against (cancer|malaria|the virus).
there is hope for patients with (cancer|malaria|the virus), thanks to a new drug.

# crime
(someone|a thief|burglars) (broke into|robbed) (the|a|my) (house|shop|bank).
the (house|shop|bank) was (robbed|burgled).
a (burglary|robbery) happened in the (house|shop|bank).

the police (arrested|caught|captured) (the|a) (thief|suspect|criminal).
the (thief|suspect|criminal) is now in prison.
officers put handcuffs on the (thief|suspect|criminal).

(my bicycle|my bike) (was stolen|is gone|has been stolen).
somebody took my (bicycle|bike).
i want to report the theft of my (bicycle|bike).

# fire
the (house|building|forest) is (on fire|burning).
(flames|a fire) (destroyed|destroys) the (house|building|forest).
firefighters try to save the burning (house|building|forest).

call (an ambulance|the emergency services)!
we need a doctor here (quickly|at once), someone is (hurt|unconscious).
there is an emergency, a person is (hurt|unconscious).

# art
a (woman|man|girl|boy) is (painting|drawing) a picture.
an artist (paints|draws) (a portrait|a landscape|on canvas).
someone makes a (painting|drawing) with colours and a brush.

when does the museum (open|close)?
what are the opening hours of the museum?
is the museum open {time}?
how long can visitors stay in the museum?

who painted this (picture|portrait)?
what is the name of the painter of this (picture|portrait)?
which artist made this (picture|portrait)?

# books
(recommend|suggest) a good (book|novel).
what (book|novel) should i read (next|)?
i am looking for something (good|exciting) to read.

(a|the) (woman|girl|man|boy) is reading a (book|novel|newspaper).
someone sits in a chair and reads a (book|novel|newspaper).
a person is reading (pages of |)a (book|novel|newspaper).

(i want to|can i|how do i) (borrow|take out) a book from the library(?|.)
how long may i keep library books?
where is the library and how do i get a card?

who (wrote|is the author of) this (book|novel)?
what is the name of the writer of this (book|novel)?
which author wrote this (book|novel)?

# water
a (man|woman|boy|girl) is swimming in the (pool|sea|lake).
someone swims (through|in) the water.
a swimmer is in the (pool|sea|lake).

(people|surfers|men) are (surfing|riding waves) at the beach.
(a surfer|someone) rides a (big |)wave.
on the beach, surfers wait for waves.

a (boat|ship) is sailing on the (sea|lake|ocean).
a (boat|ship) moves across the water.
sailors steer a (boat|ship) over the (sea|lake|ocean).

# farm
a (farmer|man|woman) is (feeding|milking) the (cows|sheep|goats).
the (cows|sheep|goats) on the farm get their food.
on a farm, someone looks after the (cows|sheep|goats).

a (woman|man|girl) is riding a horse.
a rider sits on a horse.
somebody on horseback (gallops|rides) (across the field|along the beach).

farmers (harvest|bring in|cut) the (wheat|corn|potatoes).
the (wheat|corn|potatoes) harvest is under way.
it is time to bring the (wheat|corn|potatoes) in from the fields.

# clothes
what should i wear (to|at) (a wedding|an interview|the party)?
which clothes are right for (a wedding|an interview|the party)?
i do not know how to dress for (a wedding|an interview|the party).

how do i (wash|clean) a wool (sweater|jumper)?
can i put a wool (sweater|jumper) in the washing machine?
at what temperature should wool be washed?

how do i (remove|get out) a (wine|coffee|ink) stain from (my|a) shirt?
there is (wine|coffee|ink) on my shirt, how do i clean it?
my shirt has a (wine|coffee|ink) spot that will not go away.

# chat
(hello|hi|good morning|good evening)( there| everybody|).
(nice|good|pleased) to (meet|see) you.
hey, how are you (doing|today|)?

(thank you|thanks) (very much|so much|a lot|for your help).
i am (very |)(grateful|thankful) for your help.
that was kind of you, thanks.

(goodbye|bye|see you later|see you soon).
(i have to|i must) go now, see you.
have a nice day, bye.

(i am|we are) (sorry|very sorry) (for being late|for the mistake|).
please (excuse|forgive) (me|us|the mistake).
i (apologise|want to apologise) (for being late|for the mistake|).

i am (hungry|starving).
i (want|need|would like) something to eat.
is there any food (here|left)?
my stomach is empty.

i am (tired|sleepy|exhausted).
i (want|need|would like) to go to bed.
i can hardly keep my eyes open.
"""

SLOTS = {
    name: entries(choices)
    for name, choices in {
        "time": "today, tomorrow, tonight, on monday, on friday, this weekend, next week, on sunday, this evening",
        "past": "yesterday, last night, last week, on saturday, last month",
        "city": "london, paris, berlin, madrid, rome, tokyo, boston, chicago, vienna, oslo, sydney, munich, lisbon, new york",
        "city2": "dublin, prague, athens, cairo, toronto, zurich, seoul, milan, warsaw, mumbai",
        "country": "china, india, canada, brazil, egypt, russia, japan, australia, turkey, kenya",
        "dish": "pasta, soup, rice, pizza, chicken, fish, curry, potatoes, pancakes, lasagne, stew, sushi, beans, bread",
        "number": "two, three, four, five, six, ten, twelve, twenty",
        "team": "the tigers, the eagles, united, the lions, real madrid, the giants",
        "team2": "the bears, the hawks, city, the sharks, liverpool, the kings",
        "amount": "fifty euros, one hundred dollars, two hundred pounds, a thousand euros, twenty dollars",
        "item": "shoes, jacket, dress, shirt, coat, jeans, sweater, boots, hat, watch, headphones, sofa",
        "animal": "cat, dog, rabbit, hamster, kitten, puppy, parrot",
        "language": "python, java, rust, javascript, ruby, go",
        "person": "anna, john, my mother, my boss, peter, maria, my brother, the dentist",
        "instrument": "guitar, piano, violin, flute, trumpet, drums, cello",
        "genre": "jazz, rock, classical, pop, folk, techno",
        "clock": "six, seven, half past six, eight in the morning, five, nine",
        "chore": "buy milk, call my mother, pay the rent, water the plants, feed the cat, take out the rubbish",
        "room": "kitchen, bedroom, living room, bathroom, office",
        "place": "station, hospital, airport, stadium, post office, supermarket, museum, hotel, university",
        "job": "nurse, teacher, driver, cook, programmer, waiter, plumber, accountant",
        "subject": "history, maths, physics, chemistry, biology, geography, english",
        "tongue": "french, german, spanish, italian, japanese, arabic",
        "word": "house, thank you, good morning, water, friend, train",
        "plant": "roses, tomatoes, tulips, orchids, cucumbers, herbs",
        "politician": "president, prime minister, mayor, chancellor, minister",
    }.items()
}

# Words of each topic. Random combinations connect words that share no intent.
TOPIC_WORDS: dict[str, tuple[str, ...]] = {
    topic: words(listed)
    for topic, listed in {
        "weather": "rain snow sun wind storm cloud fog temperature forecast umbrella thunder lightning hail frost heat sunny windy cloudy rainy degrees climate shower flood drizzle",
        "cooking": "recipe oven kitchen bake boil fry cook chef ingredients salt pepper butter flour sugar onion garlic pan pot dish meal spice roast sauce delicious dough",
        "restaurants": "restaurant table waiter menu bill tip lunch dinner reservation dessert wine vegetarian order starter cafe serve eat meal",
        "sports": "football match goal team player coach tennis race marathon score win lose stadium referee league basketball training champion cup swim runner athlete",
        "banking": "bank account money loan card credit transfer balance interest mortgage savings pay cash deposit debit euro dollar invoice debt",
        "shopping": "order parcel delivery refund shop price size discount buy return store customer cheap expensive sale shipping package receipt",
        "travel": "flight hotel airport train ticket passport visa luggage suitcase trip holiday tourist plane booking journey beach vacation airline",
        "pets": "dog cat puppy kitten vet rabbit hamster feed leash fur bark paw animal parrot cage walk tail",
        "programming": "code program function variable bug error python java compile debug software developer loop list array library script exception",
        "computers": "computer laptop screen keyboard mouse printer internet wifi password login file download install router virus browser slow network",
        "phones": "phone battery charger call text message screen smartphone mobile app ring dial camera signal",
        "health": "doctor hospital pain fever cough medicine pill nurse patient sick ill headache flu appointment pharmacy symptom disease blood",
        "music": "music song guitar piano violin band singer concert album melody drum rhythm listen playlist volume orchestra jazz",
        "films": "film movie cinema actor director scene ticket popcorn watch trailer screen comedy thriller actress sequel",
        "alarm": "alarm wake timer reminder clock minutes morning remind snooze ring hour",
        "calendar": "meeting appointment calendar schedule agenda conference invite date cancel plan busy",
        "home": "kitchen bedroom lamp light heating floor roof door window furniture rent apartment sofa carpet pipe plumber clean",
        "cars": "car engine tyre petrol garage mechanic brake wheel drive fuel parking motor licence steering vehicle",
        "traffic": "road street traffic highway accident crash jam bridge route directions distance signal lane",
        "work": "job salary boss office colleague career interview company contract employee hire fire wage vacancy resign",
        "school": "school teacher pupil student exam homework lesson class university study grade textbook maths history degree",
        "languages": "french german spanish translate word grammar vocabulary speak language dictionary pronunciation sentence",
        "family": "mother father sister brother baby wedding birthday child parents grandmother marriage aunt cousin family",
        "garden": "garden plant flower rose tree water soil seed lawn leaf grow tomato tulip spade fertiliser bloom",
        "politics": "election president government vote parliament minister law party protest mayor senator democracy campaign treaty",
        "economy": "inflation prices market stock shares profit trade investor economy tax growth export crisis business",
        "science": "scientist planet star space rocket moon experiment laboratory atom research telescope astronaut galaxy theory vaccine",
        "crime": "police thief robbery prison arrest stolen burglar crime murder judge court suspect weapon jail",
        "fire": "fire flames smoke firefighter burning emergency ambulance rescue alarm danger",
        "art": "painting museum artist gallery picture sculpture brush canvas portrait exhibition draw colour",
        "books": "book novel author library read chapter story poem writer publisher page shelf literature",
        "water": "sea swim beach boat ship wave lake ocean sail surf pool river harbour diving",
        "farm": "farm cow sheep horse wheat harvest tractor farmer milk field goat barn hay pig",
        "clothes": "shirt dress coat jacket shoes trousers wear wool wash stain skirt fashion sweater socks hat",
    }.items()
}

TOPIC_FRAMES = (
    "{a} and {b}",
    "i have a question about {a} and {b}.",
    "tell me about the {a} and the {b}.",
    "the {a} has to do with the {b}.",
    "{a}, {b}, {c}",
    "this text is about {a}, {b} and {c}.",
    "we talked about {a} and {c}.",
    "is this {a} or {b}?",
    "my {a} needs a {b}.",
    "the {a} with the {b} and the {c}",
)


# Written by hand after the paraphrases: (sentence, related, unrelated).
HAND_WRITTEN: tuple[tuple[str, str, str], ...] = tuple(
    (left.strip(), related.strip(), unrelated.strip())
    for left, related, unrelated in (
        line.split("=")
        for line in """
We need an umbrella, it is raining. = The forecast says showers all day. = My bank account is empty.
How do you make tomato soup? = Give me a recipe for soup with tomatoes. = The train to Vienna is late.
I would like a table for four tonight. = Is the restaurant free this evening for four of us? = The printer is out of paper.
The keeper could not stop the ball. = They scored a goal in the match. = She is reading a novel.
Please send money to my landlord. = I want to transfer the rent from my account. = The dog is asleep.
My package is late. = The parcel still has not been delivered. = I have a sore throat.
We are flying to Lisbon next week. = I booked plane tickets to Lisbon. = Switch off the lamp.
Our cat refuses her food. = The kitten does not want to eat. = The election is on Sunday.
The function returns the wrong value. = There is an error in my program. = The bride wore white.
My laptop freezes all the time. = The computer is slow and hangs. = Farmers cut the wheat.
Can you text my sister? = Send a message to my sister. = The museum is closed.
I caught the flu. = I am ill and have a fever. = The shares went up.
She practises the violin every day. = A musician plays the violin. = The road is blocked.
Which movie is on at the cinema? = What films can we watch tonight? = The pipe is leaking.
Do not let me sleep past six. = Wake me up at six. = This jacket is too big.
Put lunch with Peter in my calendar. = Plan a meeting with Peter. = The rocket flew to the moon.
It is freezing in the bedroom. = Turn on the heating in the bedroom. = How do you say hello in French?
The motor will not start. = My car broke down. = The singer has a new album.
Cars are queueing on the motorway. = We are stuck in a traffic jam. = Feed the rabbit.
I am applying for a position as a nurse. = Are you hiring nurses for your hospital? = It snowed all night.
The pupils have a maths test. = There is an exam at school tomorrow. = The sofa is on sale.
Could you translate this into German? = What is the German word for this? = The thief escaped.
Our cousin is getting married. = The wedding of our cousin is in May. = Install the program again.
The roses need more water. = When should I water the flowers? = Block my credit card.
The senate voted for the law. = Parliament passed a new law. = The swimmer crossed the lake.
Energy is getting more expensive. = The price of oil is rising. = The baby is crying.
Researchers saw an unknown star. = Astronomers discovered a new planet. = Can I return these shoes?
Burglars broke into the shop. = The store was robbed at night. = I enjoy jazz.
Smoke came out of the building. = The house is on fire. = What time is it?
The painter showed her portraits. = There is an exhibition of pictures in the gallery. = My tyre is flat.
""".strip().splitlines()
    )
)


class Intent(NamedTuple):
    """Wordings of the same thing. All wordings may use the same slots."""

    topic: str
    forms: tuple[str, ...]


def intents() -> list[Intent]:
    """Returns all intents in the order of the text above."""
    collected: list[Intent] = []
    topic = ""
    for paragraph in _PARAPHRASES.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if lines[0].startswith("#"):
            topic = lines.pop(0).removeprefix("# ")
        collected.append(Intent(topic, tuple(lines)))
    return collected
