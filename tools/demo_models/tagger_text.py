# ruff: noqa: E501 - each template stays on one line
"""Sentences with marked persons, places and organisations.

A name is marked as `<PER Maria Schmidt>`. `tagger.parse` removes the markup.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tools.demo_models import names
from tools.demo_models.grammar import Slot, capitalise, entries, expand, words
from tools.demo_models.names import Inventor, capitals, syllables

TEMPLATES = """
{P} (works|worked|is working|used to work|has worked) (for|at|with) {O} in {L}.
{P} (works|worked|works part-time|works nights|still works) (for|at) {O}.
{P} (lives|stays|teaches|was hired) in {L} (and|but) (works|worked|studies|interned) (at|for) {O}.
{P} (lives|lived|grew up|stayed|settled|was born|died|was raised|retired) in {L}.
{P} was born in {L} (in {year}|on {day}|on {month} {num}|and raised in {L}|and grew up in {L}|).
{P} (moved|flew|travelled|went|drove|sailed|returned|came back|walked|hurried) (from {L} to {L}|to {L}) {when}.
{P} (moved|flew|travelled|went|drove|returned|emigrated) to {L} (with {P}|to work for {O}|to join {O}|to study|to visit {P}|).
{P} (met|saw|called|married|interviewed|phoned|greeted|kissed|hugged|taught) {P} (in {L}|at {O}|in {L} {when}|{when}|).
{P} and {P} (met|married|live|work|studied|argued|had dinner|were seen|opened a {onoun}) in {L} {when}.
{P} and {P} (founded|started|joined|run|own|lead) {O} (in {L}|in {year}|{when}|).
{P}, {P} and {P} (travelled to|flew to|arrived in|are in|come from|live in) {L} (together|{when}|).
{P} (founded|started|created|runs|leads|owns|chairs|heads|joined|quit|manages|advises|resigned from) {O} (in {year}|in {L}|{when}|).
{P} (is|was|became|is now|was named|was appointed) (the|a|an {adj}|the {adj}|the new|) {crole} (of|at|for|with) {O} (in {L}|).
{P}, (the|a|an|the {adj}|the former) {crole} (of|at|from) {O}, (said|resigned|spoke|arrived in {L}|flew to {L}|met {P}) {when}.
{P}, who (works|worked) (at|for) {O}, (lives in {L}|was born in {L}|is {padj}).
{P}, (a|an {adj}) {role} from {L}, (won|lost|wrote|bought|sold|found|broke|praised) the {pnoun} {when}.
{P} (said|says|told reporters|added|announced|explained) (that|) {O} (would|will|may|might|could) (open|close|build|sell|move) (a|its|the) {onoun} in {L}.
{P} (said|says|wrote|believes|thinks) (that|) the {noun} was {adj}.
{P} (told|asked|reminded|promised) {P} (that|) the {noun} was {adj}.
{P}'s {pnoun} (is|was) (in {L}|{adj}|made by {O}|from {L}).
{P}'s {family} (is|was|looks) (in {L}|{padj}|from {L}|a {role}).
{P}'s {family}, {P}, (lives in|comes from|moved to|works in) {L}.
{P} and (his|her) {family} (rent|bought|sold|share|own|clean) a {pnoun} (in {L}|{when}).
{P} (loves|misses|enjoys|prefers) (living in|the food in|travelling to|the weather in|walking through) {L} (very much|{when}|).
{P} (wrote to|complained to|applied to|bought shares in|sold shares in|invested in|got a job at|has an interview at) {O} ({when}|).
{P} (bought|sold|ordered|got|rented|returned) (a|an|the|two|some) {adj} {pnoun} (from|at) {O} {when}.
{P} (bought|sold|found|lost|left|broke|painted) (a|the|his|her|their) {pnoun} in {L} {when}.
{P} (plays|played|scored|signed|coached) for {O} (against {O}|in {L}|{when}|).
{P} (studied|studies|teaches|taught|lectures on) {subject} at {O} (in {L}|{when}|).
{P} (got|earned|received) (a|her|his) degree (in {subject} |)from {O} (in {year}|).
{P} (won|received|was awarded|lost) the {pnoun} (in {L}|for {adj} work at {O}|{when}).
{P} (will|would|must|can|should|wants to|hopes to|plans to|has to) (meet|call|see|phone|marry|talk to) {P} (in {L}|{when}|).
{P} (will|would|must|wants to|hopes to|plans to|has to) (fly to|travel to|move to|go to|return to|stay in) {L} (with {P}|{when}|).
{P} (will|would|must|wants to|hopes to|plans to|is going to) (join|work for|resign from|invest in) {O} ({when}|in {L}|).
{P} (sent|gave|showed|offered|lent|sold|wrote) {P} (a|an|the) {adj} {pnoun} (from {L}|{when}|).
{P} is (a|an) {nat} {role} (from {L}|living in {L}|who works for {O}|born in {L}).
{P} (is|was|looks|seems|became) {padj} (and {padj}|{when}|).
{P} is (married to {P}|older than {P}|the son of {P}|the daughter of {P}|from {L}|in {L}).
{P} speaks {nat} and {nat} (and lives in {L}|and works at {O}|).
{P} {pverb} (the|a|his|her) {adj} {pnoun} (in {L}|{when}|with {P}|).
{P} {pverb} (the|a|two|some) {pnoun}s (in {L}|for {O}|{when}|at {O}|near {L}).
{P} (often|never|always|still|just|quickly|quietly|also) {pverb} the {pnoun} {when}.
{P} {pverb} {pnoun}s (every morning|every day|{when}|for a living|at home).
{P} (laughed|cried|smiled|slept|danced|sang|waited|walked|cooked|left|arrived|ran|fell|apologised|is asleep) {when}.
{P} (laughed|danced|sang|waited|walked|left|arrived|ran|ate) (and|then) (cried|smiled|slept|danced|waited|left|arrived) {when}.
{P} and {P} (are getting married|were married|got married|first met|grew up|are on holiday) in {L} {when}.
{P} (served as|worked as|is known as|is remembered as|became) {crole} of {O} (for {num} years|in {year}|{when}).
{P} (served as|was elected|is remembered as|became) {srole} of {L} (for {num} years|in {year}|{when}).
{P} (missed|caught|took|waited for) (the|a|her|his) (train|bus|plane|flight|ferry) to {L} {when}.
{P} (opened|runs|owns|closed) a {shop} in {L}.
{P} (was arrested|was injured|was found|was seen|was buried|was elected|gave a speech|got lost) in {L} {when}.
(I|We|They|You|He|She) (met|saw|know|called|thanked|asked|remember|admire|invited|married|miss) {P} (in {L}|at {O}|{when}|).
(I|We|They|You|He|She) (live|lived|work|stay|were born|was born|stayed|grew up|met|arrived|settled) in {L} (with {P}|{when}|).
(I|We|They|He|She) (work|worked|interned|have worked) (for|at|with) {O} (in {L}|{when}|).
(I|We|They|He|She) (joined|left|quit) {O} in {year} (and|but) (now|) (lives|live|work) in {L}.
(I|We|They|He|She) (went|flew|drove|travelled|moved|walked|came|returned) (from {L} |)to {L} (with {P}|{when}|to see {P}).
(I|We|They|He|She) (bought|ordered|sold|rented|returned|love|like) (a|the|this|that|these) {adj} {pnoun}(s|) (from|at) {O} (in {L}|{when}|when I was in {L}).
(I|We|They) (want|would like|hope|plan|need) to (see|go to|move to|fly to|travel to) {L} (and {L}|{when}|with {P}).
(I|We|They) (want|would like|hope|plan|need) to (meet|thank|call|speak to|talk to|hear from) {P} (in {L}|{when}|from {O}).
(I|We|They|He|She) (spent|enjoyed|planned) (our|their|a|the) (holiday|honeymoon|weekend|summer|winter) in {L} {when}.
My name is {P} (and I|. I) (live in|am from|come from) {L} (and work for {O}|).
My name is {P}.
(My|Our|Their|His|Her) {family} {P} (lives in|comes from|moved to|is from|{pverb} a {pnoun} in) {L}.
(My|Our|Their|His|Her) {family} {P} (works|worked) (at|for) {O}.
(My|Our|Their|His|Her) {family}, {P}, {pverb} (the {pnoun}|a {pnoun} in {L}|{when}).
(Hello|Hi|Dear|Thanks|Sorry|Goodbye|Congratulations), {P1}.
(Please|Kindly|Just|) (call|ask|email|meet|contact|thank|tell) {P} (at {O}|in {L}|about the {noun}|{when}|).
(Please|Kindly|) (send|forward|give|show) (the {pnoun}|this|it) to {P} (at {O}|in {L}|{when}|before {day}|).
(Have|Did) you (seen|met|meet|see|call) {P} (in {L}|at {O}|{when}|)?
(Did|Does|Will|Can) {P} (live in|go to|move to|stay in|travel to) {L} (with {P}|{when}|)?
(Did|Does|Will|Can) {P} (work for|work at|study at) {O} (in {L}|{when}|)?
(Is|Was) {P} (in {L}|the {crole} of {O}|from {L}|married to {P}|{padj})?
(Is|Was) {P} (still|already|now|really) (working for {O}|at {O}|in {L})?
(Can|Could|Will|Would) you (ask|tell|call|remind|help) {P} (to {adv} send me the {pnoun}|about the {noun}|{when})?
(Where|When|Why|How) did {P} (meet {P}|join {O}|move to {L}|find the {pnoun}) {when}?
Why (is|was) {L} (so|) {ladj}?
Who (is|was) the {crole} of {O}?
Who (is|was) the {srole} of {L}?
Who is {P}?
(Is|Was) {L} (bigger|colder|warmer|older|cheaper|hotter) than {L}?
Have you ever been to {L} (or {L}|)?
The {crole} of {O}, {P}, (lives in|visited|spoke in|flew to|left) {L} {when}.
The {srole} of {L}, {P}, (spoke|resigned|was elected|met {P}|opened the {lnoun}) {when}.
The {srole} of {L} (thanked|met|praised|greeted|spoke to) {P} (for his help|for her help|for the {noun}|{when}).
The {crole} of {O} (thanked|met|praised|hired|spoke to) {P} (for his help|for her help|{when}).
The (new|former|{adj}|{nat}|) {role} {P} (visited|spoke in|arrived in|won in|toured|flew to) {L} {when}.
The {nat} {role} {P} (joined|founded|resigned from|works for) {O} {when}.
The {nat} {company} {O} (opened|closed|bought|sold|built) (a|its|the) {onoun} in {L} {when}.
The {lnoun} (in|near|of) {L} (is|was|looks|became|closed) ({ladj}|{adj}|{when}).
The {lnoun}s of {L} (are|were) ({ladj}|{adj}).
The {onoun}(s|) (of|owned by) {O} (is|was|looks|became) {adj}.
The {product}s (of|from|by) {O} (are|were) {adj}.
The {art} (of|by|about) {P} (is|was|looks|became) {adj}.
The {art} was (written|made|painted|found|composed|designed) by {P} (in {L}|for {O}|in {year}|{when}).
The {noun} was (stolen|found|sold|seen|lost|shown) in {L} {when}.
The {product} was (made|built|sold|designed|delivered|cancelled) by {O} (in {L}|in {year}|{when}).
The (train|bus|flight|road|ferry|plane|ship|journey|trip) (from {L} to {L}|to {L}|from {L}) (is|was|takes|left|arrives) (late|{num} hours|{when}|{adj}).
The (weather|food|traffic|air|sea|beach|museum|airport|harbour|castle|river|people) in {L} (is|was|are|can be) {adj} (in {month}|{when}|).
The (capital|largest city|north|south|west|east|coast|centre|history|people) of {L} (is|was|are) {ladj}.
The capital of {L} is {L}.
The (city|town|village|island|region|country|state|port) of {L} (is|was) (famous for its {lnoun}|{ladj}|near {L}|in {L}).
The (river|road|train|path|border|storm|flood) (flows|runs|goes|leads|moved|spread) (through|past|between|from) {L} (and|to) {L}.
The (headquarters|head office|factory|main office|laboratory|warehouse) of {O} (is|are|was) in {L}.
The (factory|office|plant|shop|warehouse) (in|near|outside) {L} (makes|builds|sells|ships) {product}s for {O}.
The (shares|profits|sales|employees|workers|managers|products|customers|engineers) of {O} (rose|fell|met in {L}|were {adj}|are {adj}) {when}.
The (talks|meeting|merger|deal|contract|dispute|agreement) (between {O} and {O}|with {O}) (took place|was held|began|ended|failed) in {L} {when}.
The (wedding|fight|debate|conversation|quarrel) between {P} and {P} (took place|was held|began|ended) in {L} {when}.
The (war|border|distance|ferry|treaty|road|match) between {L} and {L} (is {adj}|ended|began|closed) {when}.
The (book|film|song|novel|play|letter|article|report|speech) by {P} (is about {L}|is about {P}|is {adj}|was published by {O}).
The (lawsuit|case|complaint|claim|evidence) against {O} was (filed|heard|dropped|opened) in {L} {when}.
{O} (opened|closed|built|bought|sold|will open|plans|has) (a|an|its|the) (new|{adj}|) {onoun} in {L} {when}.
{O} (hired|fired|named|appointed|promoted|employed|dismissed) {P} (as {crole}|in {L}|{when}|).
{O} (awarded|gave|paid|offered) {P} (a|an) {adj} (prize|degree|contract|bonus|job|salary) {when}.
{O} (bought|acquired|sued|beat|merged with|competes with|supplies|invested in|took over) {O} (for {num} million dollars|in {L}|{when}|).
{O} (is|was) (a|an) ({adj}|{nat}|) {company} (in|from|based in|founded in) {L}.
{O} (is|was) (based|founded|headquartered) in {L} (in {year}|by {P}|since {year}|and led by {P}|).
{O} (announced|reported|confirmed|denied|warned) (that {P} would resign|that it would leave {L}|a loss|a profit|that {P} is the new {crole}) {when}.
{O}, (based|founded|headquartered) in {L}, (makes|sells|builds|designs|rents) {adj} {product}s.
{O}'s {crole}, {P}, (said|resigned|left|spoke|lives in {L}) {when}.
{O}'s (shares|profits|products|customers|employees|workers|sales|headquarters|factories|new {product}) (in {L} |)(are|were|is|was) {adj}.
{O} (employs|hired|fired|will hire|laid off) {num} (people|workers|engineers) (in {L}|{when}|).
{O}, {O} and {O} (opened|closed|have|built) (offices|shops|factories|plants) in {L}.
{O} (shares|stock|sales|profits) (rose|fell|climbed|dropped) {num} percent (in {L}|{when}|after {P} left).
{O} and {O} (signed|announced|agreed on|cancelled|rejected|will share) a (deal|merger|contract|partnership|{product}) (in {L}|{when}|).
{O} (launched|unveiled|introduced|recalled|cancelled|delayed|stopped|tested|released) (its|all|the|thousands of) {adj} {product}s (in {L}|to {L}|sold in {L}|at an event in {L}|{when}).
{O} (will film|films|makes|produces|sells) its (next|latest|best) (series|film|car|phone|{product}) in {L}.
{O} lent money to {L} (for {adj} roads|{when}|).
{O} cancelled (all|its) flights (to|from) {L} {when}.
(Shares|Sales|Engineers|Workers|Employees|Managers|Researchers|Scientists|Lawyers|Officials) (of|at|from) {O} (in {L}|) (rose|fell|protested|met|said nothing|agreed|{pverb} the {noun}) {when}.
(Researchers|Scientists|Students|Doctors|Engineers) (at|from) {O} (in {L}|) (found|built|tested|discovered) a {adj} {noun} (that {pverb} {noun}s|).
(Nobody|Everyone|Somebody|Everybody|Someone|Most people|Few people) at {O} {pverb} (the {noun}|{when}).
(Nobody|Everyone|Somebody|Everybody|Someone|Most people|Few people) in {L} {pverb} (the {noun}|{when}).
{L} (is|was) (a|an) ({adj}|{ladj}) {place} (in {L}|near {L}|north of {L}|).
{L} (is|was) ({ladj}|the capital of {L}|far from {L}|bigger than {L}|close to {L}|in {L}|north of {L}).
{L} (has|needs|wants|built|opened) (a|an) {adj} {lnoun}.
{L} is (known|famous|loved) for its {lnoun} and its {lnoun}.
{L} and {L} (are|were) ({ladj}|far apart|at war|neighbours|partners|neighbouring {place}s).
{L}, {L} and {L} (are|were) (hit by the flood|hit by the storm|part of the region|neighbours|popular with tourists).
{L}'s (government|economy|climate|population|coast|airport|streets|beaches|{srole}|{lnoun}) (is|was|are|became) {adj}.
{L}'s {srole}, {P}, (visited|left|flew to|spoke in) {L} {when}.
{L} (won|lost|drew|played) (the|a) (match|game|final|cup|war) (against|with) {L} {when}.
{L} (signed|rejected|left) (the|a) (treaty|agreement|ceasefire) (with {L}|{when}).
{L} (sits|stands|stretches) (on the coast|on the river|on the border|along the sea|in the north) (of {L}|near {L}|).
{L} borders {L} (and {L}|).
{L} (became|gained|declared) (independent|its independence) {when}.
{L} attracts {adj} tourists {when}.
{L} (exports|imports|grows|produces) {product}s (and {product}s|) {when}.
The {onoun} (that|which) {O} {verb} (in|near) {L} (is|was) {adj}.
The {pnoun} (that|which) {P} {verb} (is|was) {adj}.
(Without|With|Thanks to|Because of|Like|Unlike) {P}, the {noun} (was|is|became) {adj}.
(He|She|They|I|We) (told|asked|reminded|warned) {P} (that|when|where) {O} (hired|fired|promoted|dismissed) {P}.
(He|She|They|I|We) (wondered|heard|knew) (why|when|that) {P} (joined|left|sued) {O}.
(Either|Neither|Even|Only|Also|Just|Not even) {P} (and|or|nor) {P} {pverb} (the {pnoun}|in {L}|at {O}|{when}).
(Only|Even|Just|Perhaps|Maybe) {P} (works|studied|worked) (at|for) {O}.
{O} (sold|bought|closed|moved|split) its {noun} (business|division|unit|arm) (to {O}|to a group of {noun}s|for {num} million|{when}|).
{O} and {O} (compete|fight|bid|apply) for the same ({noun}|customers|{noun}s) ({when}|in {L}|).
{O} (won|lost|drew|lead) (again|the cup|the league|the title|at home|the final|{when}).
{O} (beat|play|face|lost to|drew with|meet) {O} (at home|in the final|{when}|in {L}).
{P} (scored|played well|was injured|missed a penalty) as {O} (won|lost) ({when}|again|in {L}|).
{P} (asked|begged|thanked|sued|paid|told) {O} for (an explanation|help|a refund|money|the {noun}|more time).
{P} (won|got|lost) a (scholarship|place|contract|grant|seat) (to|at|from|with) {O} ({when}|).
{O} (protested|campaigned|warned|spoke out) against the (new|) {noun} (in {L}|near {L}|{when}|).
{O} (sent|delivered|shipped|donated) {noun}s to {L} (after the {noun}|{when}|).
(When|After|Because|Before) {P} (retired|left|resigned|married), {O} gave (him|her|them) (a|the) {pnoun}.
(When|After|Because|Before) {P} (retired|left|arrived|died), {P} {pverb} (the|a) {pnoun}.
(When|After|Because|Before) {O} (closed|opened|sold|bought) (its|the) {onoun}, {P} (moved to {L}|resigned|{verb} the {pnoun}).
{O} (makes|builds|repairs|sells) (most|all|some|half) of its {product}s in {L} (and {L}|).
(A|The) (spokesman|spokeswoman|lawyer|manager|source) (for|at|of) {O} (declined to comment|said nothing|denied it|{pverb} the {noun}).
{O} (was|is) (fined|sued|founded|praised|closed|criticised) (by {O}|in {L}|in {year}|{when}).
The {O} (sent|{verb}|announced|published|asked for) (the|a|some) {noun}s (to {L}|in {L}|{when}|).
(I|We|They|He|She) (applied to|complained to|wrote to|called|trust|sued|bank with|fly with) {O} ({when}|because the {noun} was {adj}|).
(He|She|They|We|I) (bought|drives|sold|rented|has) (a|an) (second-hand|new|{adj}|old) {O} (from a {role} in {L}|{when}|).
Most of the {noun}s at {O} (come from {L}|are {adj}|{verb} {when}).
{P}, (a|an) {adj} {role} at {O}, {pverb} the {noun} (in {L}|{when}).
{City}, {Land} (is|was|looks) {ladj}.
{P} (lives|works|stayed|was born|studied|died) in {City}, {Land} (and {City}, {Land}|).
{P} (flew|drove|moved) from {City}, {Land} to {City}, {Land}.
In {L}, {P} (met|saw|called|married) {P}.
In {L}, {P} (worked for|joined|works for) {O}.
In {L}, the {noun} (is|was) {adj}.
In {year}, {P} (moved to|travelled to|settled in|returned to) {L}.
In {year}, {P} (joined|resigned from|founded|worked for) {O} (in {L}|).
In {month}, {O} (opened|closed|built) a {onoun} in {L}.
On {day}, {P} (flew to|arrived in|went to) {L} (with {P}|).
On {day}, {O} (hired|fired|appointed) {P}.
(Yesterday|Today|Tomorrow|Later|Earlier|Recently|Then|Finally|Afterwards|Meanwhile|Once), {P} (flew to|is in|arrived in|went to) {L}.
(Yesterday|Today|Tomorrow|Later|Recently|Then|Finally|Meanwhile), {O} (hired|fired|appointed) {P}.
(After|Before) (the {noun}|lunch|school|dinner|the war|work), {P} (went to|moved to|{pverb} the {pnoun} in) {L} (with {P}|).
(After|Before) (the {noun}|lunch|school|dinner|the war|work), {P} {pverb} (a|the|some) {pnoun}.
(After|Before) (joining|founding|working for) {O}, {P} (moved to|lived in|travelled to) {L}.
(After|Before) (moving to|flying to|living in) {L}, {P} (joined|worked for|resigned from) {O}.
(When|While|Because|Although|If|Since) {P} (was in|flew to|lived in) {L}, {P} (worked for|joined) {O}.
According to {P}, {O} (is|was) (profitable|bankrupt|losing money|a {adj} {company}).
According to {O}, {P} (is|was) (in {L}|{padj}|the {crole}).
According to {P} (of|from) {O}, the {noun} in {L} is {adj}.
"(I|We) (love|miss|moved to|live in) {L}," (said|says|added) {P} (of {O}|).
"(The {noun} (is|was)|The {noun}s are|It is|That is) {adj}," (said|says|told us|added) {P} (of {O}|, a {role} at {O}|, a {role} from {L}).
There (is|was|are) (a|no|an) {adj} {lnoun} (in|near) {L}.
There (is|was) (a|no|an) {adj} {product} from {O}.
There are {num} {lnoun}s (in|between|near) {L} (and {L}|).
It (is|was|rained|snowed|was cold) {ladj} in {L} {when}.
It (rained|snowed|froze) (all day|) in {L} {when}.
It (is|was) {P} who (called|met|married) {P}.
This (letter|{pnoun}) (is|was) (from|for) {P} (in {L}|at {O}|).
This {product} (is|was) (made|sold|built) by {O} (in {L}|).
(Customers|Tourists|Visitors|Students|People|Soldiers|Farmers|Fans) (from {L} |)(travel to|protested in|arrived in|left for) {L} {when}.
({num}|Two|Three|Several|Many|Some) (tourists|people|students|sailors|workers|climbers) from {L} were (rescued|found|injured|arrested) (near|in) {L} {when}.
(Police|Officials|Doctors|Witnesses|Prosecutors) in {L} (arrested|questioned|treated|found) {P} {when}.
A {adj} {lnoun} (was found|opened|closed|was built|was sold) (in|near) {L} {when}.
A {role} at {O} (said nothing|resigned|met {P}|flew to {L}) {when}.
A {role} from {L} (won|lost|met {P}|joined {O}|was arrested) {when}.
(An|The|A) (earthquake|storm|flood|fire|strike|hurricane|heatwave) (hit|shook|reached|closed schools in|destroyed homes in) {L} {when}.
(Heavy|Light|Fresh|Cold) (snow|rain|wind|fog) (closed|delayed|stopped|hit) the {lnoun} in {L} {when}.
(Tickets|Flights|Trains|Hotels|Houses|Roads|Rents|Prices) (for the {noun}|) (in|to|near|between|from) {L} (and {L}|) (are|were|sold out|closed) ({adj}|) {when}.
{num} people (from {L}|in {L}) (were injured|were hired|met {P}|protested) {when}.
{Title} {Last} (lives in|spoke in|flew to|moved to) {L} {when}.
{Title} {Last} (works|worked|spoke) (at|for) {O} (in {L}|).
{Title} {Last} (met|thanked|called|examined|saw) ({Title} {Last}|{P}) {when}.
Thank you, {Title} {Last}.
{Role} {P} (visited|arrived in|spoke in|flew to) {L} {when}.
{Role} {P} {pverb} (the {noun}|{pnoun}s in {L}|{when}).
{Role} {Last} (met|called|praised|criticised) ({Role} {Last}|{P}) in {L}.
{nat} {role} {P} (won|lost|joined {O}|moved to {L}|died in {L}) {when}.
{nat} {company} {O} (opened|closed) a {onoun} in {L} {when}.
{P}, {num}, {crole} at {O}
{L}, {month} {num}.
{L} - {P} (met {P} in|arrived in|flew to) {L} {when}.
{P} - {O}
The {noun} {verb} (in|near|through|across) {L} (and {L}|{when}|).
The {noun} {verb} {pnoun}s (made|sold|designed) by {O}.
{noun}s (for the {noun}|and {noun}s|) (in|near) {L} (are|were|{verb}) ({adj}|) {when}.
{adj} {noun}s {verb} (in|near|to) {L} {when}.
(He|She|They|We|I) {verb} (the|a|two) {noun} (in|near|outside) {L} {when}.
(He|She|They|We|I) {verb} (the|a|two) {noun} (at|for) {O} {when}.
""".strip().splitlines()

PLAIN = """
The {adj} {noun} (is|was|became|looks) {adj} {when}.
(I|We|They|You|He|She) (bought|saw|found|lost|made|need|want|like) (a|the|this) {adj} {noun} {when}.
(Yesterday|Today|Tomorrow|Later|Then), the {role} (saw|made|sold|found) a {noun}.
(Please|Kindly|) (bring|open|close|clean|check|send) the {noun} {when}.
(Can|Could|Will|Would) (you|we|they) (see|find|clean|open|bring) the {adj} {noun}?
(What|Where|When|Why|How) (is|was) the {noun}?
(My|Our|Their|His|Her|Your) {noun} (is|was) {adj} (and {adj}|).
(Every|Each|Another|This|That) {role} (needs|has|wants|likes) (a|the) {noun}.
(Good|Great|Bad|Fresh|Cold|Hot|Old) (news|food|weather|{noun}s) (is|are) {adj}.
(Three|Two|Four|Ten|Many|Some|Few|Most|All) {noun}s (are|were) {adj} {when}.
{noun}s (and {noun}s|) (are|were) {adj}.
(On|Last|Next) {day} (the {noun}|it|everything) was {adj}.
In {month} the {noun} is {adj}.
(The|A) {nat} {role} (speaks|likes|sold|opened) ({nat}|the {noun}|a {noun}).
It (is|was|will be) {adj} (and {adj}|) {when}.
There (is|was) (a|no) {noun} (here|there|at home|outside|in the {noun}).
The {noun} {verb} (at|near|with) the {role}.
{noun}s {verb} the {noun} {when}.
({noun}|Dinner|Lunch|Breakfast|Music|Winter|Snow|Money|Work) (is|was) {adj}.
(All|None|Most|Some|Few|Part|Each|One|Several|Neither|Any|Both|Half|Much) of the {noun}s (is|are|were) {adj}.
(Both|These|Those|Such|Direct|Cheap|Daily|Weekly|Modern|Early) {noun}s (are|were|{verb}) {adj} {when}.
(Is|Was|Are|Were|Does|Do|Has|Have|Should|Must|May) the {noun} {adj}?
(Neither|Either|Such|Same|Other|Several|Certain|Enough) {noun}s (are|were) {adj}.
{adj} {noun}s {verb} {when}.
(It|He|She|They|Nobody|Everyone|Somebody) {verb} (all day|{when}|the {noun}|).
(Nothing|Everything|Something) {verb} (the {noun}|{when}).
""".strip().splitlines()

# Never trained on. They measure whether the model understands a new sentence frame.
HELD_OUT_TEMPLATES = """
{P} has been the {crole} at {O} since {year}.
{P} got an offer from {O} shortly after moving to {L}.
Next {day} {P} will travel from {L} to {L}.
{P} spent {num} years in {L} before joining {O}.
Everyone who lives in {L} knows {P}.
{O} moved its {onoun} from {L} to {L}.
We had dinner with {P} in {L} last {day}.
The {product} that {P} bought from {O} is {adj}.
{P} introduced {P} to the {crole} of {O}.
Direct flights between {L} and {L} are {adj}.
A letter from {P} arrived in {L} {when}.
I think {P} still works for {O}.
{P} lost the {pnoun} somewhere in {L}.
{O} has offices in {L}, {L} and {L}.
Both {P} and {P} studied {subject} at {O}.
Half of the {product}s sold in {L} are assembled by {O}.
{P} never forgot the {pnoun} that {P} gave her in {L}.
The {onoun} that {O} built near {L} employs {num} people.
Without {P}, the {noun} would have been {adj}.
{L} lies between {L} and {L}.
She asked {P} why {O} had hired {P}.
""".strip().splitlines()

# Clauses before or after a whole sentence. None contains a name.
OPENINGS = """
Last {unit}
Next {day}
Last {day}
This {unit}
Every {unit}
I (think|know|hope|heard|believe|guess|suppose|doubt) (that|)
(We|They|You) (think|know|hope|heard|believe|say) (that|)
(Everyone|Nobody|Everybody|Somebody|Someone) (says|knows|thinks|hopes|believes) (that|)
(Maybe|Perhaps|Surely|Certainly|Probably|Apparently|Luckily|Sadly|Fortunately|Suddenly|Usually)
(However|Moreover|Therefore|Still|Instead|Indeed|Besides|Nevertheless|Otherwise|Anyway),
(Before|After|During|Despite) the {adj} {noun},
(For|In) {num} {unit}s,
(As|Although|Because|While) the {noun} {verb} (the {noun}|),
(Did you know that|It is true that|It seems that|Remember that|Note that|Rumour has it that)
(And|But|So|Or|Yet)
(In the|Early in the|Late in the) (morning|afternoon|evening|spring|summer|autumn|winter),
(At|Around) (noon|midnight|{num} o'clock|dawn),
(Two|Three|Four|Many|A few|Several) {unit}s ago,
With a {adj} {noun},
(All|None|Most|Some|Few|Part|Each|One|Two|Several|Neither|Any|Both|Half|Much) of the {noun}s {verb} (the {noun}|{when}) and
(Although|Since|Unless|Until|Once|Whenever|If|When|Even if) the {noun} (is|was) {adj},
(Not only that|That is why|What matters is that|Given the {noun}|Thanks to the {noun}|Because of the {noun}),
(Dinner|Lunch|Breakfast|Music|Winter|Summer|Snow|Rain|Money|Work|Art|History|News|Time) (is|was) {adj} and
""".strip().splitlines()

ENDINGS = """
after the {adj} {noun}
before the {noun} {verb}
because the {noun} was {adj}
and the {noun} {verb} {when}
but the {noun} was {adj}
while the {noun}s {verb}
to {bare} the {noun}
for the first time
within {num} {unit}s
without the {noun}
during the {noun}
with a {adj} {noun}
as {adj} as the {noun}
so that everyone could {bare} the {noun}
and now {verb} its {noun}
which {verb} the {noun}
for {num} {unit}s
despite the {noun}
""".strip().splitlines()

# Written by hand after the templates, in other words, as a user might type them.
HAND_WRITTEN = """
<PER Rebecca Stone> runs a small hotel on the coast of <LOC Wales>.
Workers at <ORG Boeing> voted to strike on Friday.
The train from <LOC Milan> arrived twenty minutes late.
<PER Ibrahim> has been teaching chemistry since 2004.
Shares in <ORG Vodafone> jumped after the announcement.
We drove across <LOC Texas> in an old van.
<PER Olivia Martin> wrote her first song at the age of nine.
<ORG Pfizer> will invest two billion dollars in <LOC Ireland>.
Do you remember <PER Thomas>?
The embassy in <LOC Ankara> was closed on Monday.
<PER Hans Keller> left <ORG Bayer> to start his own company in <LOC Basel>.
It is hard to find a good dentist in <LOC Brighton>.
A fire destroyed the old theatre in <LOC Valencia>.
<ORG Ikea> opened its first shop in <LOC India> in 2018.
Her grandmother was born in <LOC Ukraine>.
<PER Lucas Moreau> lost his passport somewhere between <LOC Lyon> and <LOC Geneva>.
The book was published by <ORG Penguin Books>.
<PER Sofia> borrowed my umbrella and never returned it.
The minister accused <ORG Shell> of hiding the report.
Many people in <LOC Japan> live to be a hundred.
<PER Grace Okafor> argued that the law was unfair.
<ORG Toyota>, <ORG Honda> and <ORG Nissan> raised their prices.
They spent the winter in <LOC Morocco>.
<PER Daniel> and his wife adopted a child from <LOC Ethiopia>.
The chairman of <ORG Credit Suisse> apologised to customers.
<PER Yuki Tanaka> skated for <LOC Japan> at the games.
<ORG Google> has an office near <LOC Hyde Park>.
Could you pick up <PER Emma> from school today?
Police in <LOC Manchester> are looking for two men.
The statue of <PER Simon Bolivar> stands in the main square.
<PER Paul Weber> told <ORG Reuters> that the deal was dead.
Coffee from <LOC Colombia> tastes best.
The meeting lasted all afternoon and nothing was decided.
<ORG Lufthansa> flies to <LOC Nairobi> twice a week.
<PER Carmen> is the youngest of six children.
<LOC Australia> beat <LOC England> by three points.
Nobody answered when I called <ORG Wells Fargo>.
<PER Ahmed Saleh> studied medicine at <ORG Cairo University>.
Thousands of fans welcomed <ORG Liverpool FC> at the airport.
The weather in <LOC Scotland> changes every hour.
""".strip().splitlines()

NOUNS = words("""
book car house phone bridge letter contract factory office shop garden window table chair camera
ticket painting computer report hotel restaurant museum school hospital station airport market
library church tower river harbour beach road train ship plane truck bicycle engine machine robot
server program website product service project plan meeting agreement deal prize award medal
record song film novel story picture map coat shirt watch ring bag box bottle cup lamp door wall
roof kitchen room apartment farm field forest mountain island storm festival concert match game
race team player coach match goal speech article photo dress piano guitar cake soup bread cheese
wine coffee garden dog cat horse bird tree flower stone statue castle palace park square street
village stadium theatre cinema gallery studio laboratory warehouse store plant mine well dam canal
tunnel vaccine medicine drug test study paper law tax rule budget loan account payment bill price
order parcel message call answer question problem accident fire flood strike crisis war election
vote debate scandal battery chip screen keyboard printer tablet app network satellite rocket
turbine
""")

ADJECTIVES = words("""
new old big small large tiny great good bad beautiful ugly famous popular expensive cheap modern
ancient quiet noisy busy crowded empty warm cold hot cool sunny rainy dangerous safe strange
important serious early late long short tall heavy light dark bright red green blue white black
yellow clean dirty rich poor happy sad angry tired hungry young fast slow strong weak broken lost
ready open closed free full fresh dry wet soft hard difficult easy simple popular lovely wonderful
terrible awful excellent fine nice local foreign public private national successful profitable
huge narrow wide deep high low green friendly polite rude careful talented brilliant clever
retired brave rare common wooden digital electric secret final
""")

VERBS = words("""
visited left bought sold opened closed found lost made built saw wanted needed liked praised
cleaned painted repaired wrote read designed showed brought carried drove moved pushed pulled
watched heard noticed missed kept ate cooked served shared stole hid broke fixed changed tested
measured counted planned cancelled delayed started finished stopped won played sang danced slept
waited walked ran climbed travelled arrived worked studied taught learned spoke laughed cried
smiled shouted complained protested agreed argued crashed exploded burned melted fell rose grew
flows bakes sells makes builds owns rents reads writes drives cooks cleans repairs sings works
runs lives teaches carries collects paints studies speaks
""")

BARE_VERBS = words("""
see buy sell find make build clean paint repair write read bring carry drive move push pull watch
hear keep eat cook serve share hide fix change test measure count plan cancel start finish stop
win play wait interview apply learn
""")

UNITS = words("day week month year hour minute night decade weekend season century")

PERSONAL_THINGS = words("""
book car phone letter coat shirt watch ring bag bottle cup lamp bicycle piano guitar cake soup
bread photo dress ticket parcel dog cat horse song story speech prize award medal match race
question house flat kitchen garden sandwich meal contract poem picture boat camera chair door
window game drink umbrella hat shoe
""")

BUILDINGS = words("""
factory office plant shop warehouse laboratory branch store showroom headquarters outlet depot
campus data-centre hotel restaurant studio refinery mine
""")

SIGHTS = words("""
museum river harbour castle station airport market bridge beach church cathedral park square
library tower theatre stadium hospital university coast lake forest mountain port street festival
palace garden wall canal temple mosque
""")

PRODUCTS = words("""
phone car laptop battery engine plane truck camera drug vaccine medicine robot chip app printer
television watch bicycle shoe drink tyre turbine satellite service program screen tablet machine
toy game train ship
""")

ARTS = words("book novel film song play painting statue poem portrait symphony biography")

FAMILY = words("""
mother father brother sister wife husband son daughter boss friend cousin uncle aunt nephew niece
grandmother grandfather neighbour colleague teacher guide driver doctor lawyer partner assistant
""")

SHOPS = words("bakery restaurant bookshop cafe bar school clinic hotel pharmacy shop gallery")

COMPANY_WORDS = words("""
company bank firm group university charity agency newspaper airline startup organisation club team
carmaker retailer giant manufacturer insurer publisher brewery
""")

PLACE_WORDS = words("city town country place port region island village capital state province")

PERSON_ADJECTIVES = words("""
tired hungry tall polite rude happy sad angry clever retired brave talented ill asleep nervous shy
late busy married young kind lazy proud worried left-handed honest patient bored
""")

PLACE_ADJECTIVES = words("""
sunny mountainous crowded rainy hot cold humid polluted beautiful flooded remote densely-populated
quiet warm foggy green dry coastal snowy expensive windy divided
""")

COMPANY_ROLES = entries("""
CEO, CFO, CTO, chairman, chairwoman, director, manager, founder, president, owner, engineer,
editor, spokesman, spokeswoman, accountant, lawyer, analyst, programmer, designer, researcher,
professor, consultant, secretary, coach, captain, chief executive, vice president, head of
research, managing director
""")

STATE_ROLES = entries("""
mayor, president, king, queen, governor, chancellor, prince, senator, ambassador, emperor, prime
minister, foreign minister, finance minister
""")

ADVERBS = words("quickly quietly kindly please simply then soon also first")

ROLES = entries("""
president, director, manager, engineer, mayor, minister, chairman, chairwoman, founder, owner,
teacher, doctor, lawyer, professor, scientist, writer, author, singer, actor, actress, painter,
player, captain, coach, driver, pilot, farmer, nurse, judge, journalist, reporter, spokesman,
spokeswoman, secretary, chancellor, senator, governor, ambassador, king, queen, prince, princess,
general, soldier, officer, detective, architect, designer, programmer, analyst, banker, investor,
economist, accountant, historian, biologist, chemist, physicist, mathematician, poet, philosopher,
musician, composer, conductor, chef, baker, butcher, carpenter, plumber, electrician, mechanic,
CEO, CFO, CTO, editor, photographer, student, researcher, consultant, goalkeeper, striker,
champion, swimmer, cyclist, runner, boxer, librarian, dentist, chief executive, head of research,
head of sales, vice president, prime minister, managing director, foreign minister, finance
minister, chief engineer, software engineer, data scientist, tennis player, board member
""")

NATIONALITIES = words("""
American Australian Austrian Belgian Brazilian British Canadian Chilean Chinese Colombian Croatian
Czech Danish Dutch Egyptian English Ethiopian Finnish French German Ghanaian Greek Hungarian
Icelandic Indian Indonesian Iranian Irish Israeli Italian Japanese Kenyan Korean Mexican Moroccan
Nigerian Norwegian Pakistani Peruvian Polish Portuguese Romanian Russian Scottish Serbian Spanish
Swedish Swiss Thai Turkish Ukrainian Vietnamese Welsh European African Asian
""")

SUBJECTS = words("""
history physics chemistry biology mathematics law medicine music economics philosophy engineering
literature art geography psychology computer-science statistics architecture
""")

DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("""
January February March April May June July August September October November December
""")
TITLES = words("Mr. Mrs. Ms. Dr. Mr Mrs Ms Dr Professor Sir Lady Judge Captain")
ROLE_TITLES = words("""
President Mayor Senator Minister Chancellor Professor Doctor Judge General Captain Governor Queen
King Prince Princess Inspector Coach Ambassador Director
""")

_WHEN = """
yesterday|today|tomorrow|last week|next week|this morning|last night|in {month}|on {day}|in {year}|last {day}
|next {day}|every {day}|two years ago|a week ago|on {month} {num}|again|soon|at noon|last summer|in the spring
|for {num} days|this year|last year|every summer|at the weekend|
""".replace("\n", "")


_WORDS: dict[str, Slot] = {
    "noun": NOUNS,
    "verb": VERBS,
    "pverb": VERBS,
    "bare": BARE_VERBS,
    "adv": ADVERBS,
    "adj": ADJECTIVES,
    "unit": UNITS,
    "pnoun": PERSONAL_THINGS,
    "onoun": BUILDINGS,
    "lnoun": SIGHTS,
    "product": PRODUCTS,
    "art": ARTS,
    "family": FAMILY,
    "shop": SHOPS,
    "company": COMPANY_WORDS,
    "place": PLACE_WORDS,
    "padj": PERSON_ADJECTIVES,
    "ladj": PLACE_ADJECTIVES,
    "role": ROLES,
    "crole": COMPANY_ROLES,
    "srole": STATE_ROLES,
    "nat": NATIONALITIES,
    "subject": SUBJECTS,
    "day": DAYS,
    "month": MONTHS,
    "Title": TITLES,
    "Role": ROLE_TITLES,
}


@dataclass(frozen=True)
class Names:
    """Names that one part of the data may use."""

    first: Sequence[str]
    last: Sequence[str]
    cities: Sequence[str]
    countries: Sequence[str]
    places: Sequence[str]
    companies: Sequence[str]
    organisations: Sequence[str]

    @staticmethod
    def known() -> "Names":
        """Returns the training names."""
        return Names(
            names.FIRST_NAMES,
            names.LAST_NAMES,
            names.CITIES,
            names.COUNTRIES,
            (*names.LONG_PLACES, *names.FEATURES),
            (*names.COMPANIES, *names.ACRONYMS),
            names.LONG_ORGANISATIONS,
        )

    @staticmethod
    def unseen() -> "Names":
        """Returns the test names."""
        return Names(
            names.HELD_OUT_FIRST_NAMES,
            names.HELD_OUT_LAST_NAMES,
            names.HELD_OUT_CITIES,
            names.HELD_OUT_COUNTRIES,
            names.HELD_OUT_PLACES,
            names.HELD_OUT_COMPANIES,
            names.HELD_OUT_ORGANISATIONS,
        )


class Sentences:
    """Draws marked sentences. `invented` is the share of invented names.

    Half of the invented names are modelled on names of their own kind. The others are modelled on
    all kinds, are random syllables, or are plain words as in Apple, Shell, Young and Price. Only
    the sentence reveals their kind.
    """

    def __init__(self, known: Names, *, invented: float) -> None:
        self._known = known
        self._invented = invented
        kinds = {
            "person": [*known.first, *known.last],
            "place": [*known.cities, *known.countries],
            "company": known.companies,
        }
        self._inventors = {kind: Inventor(examples) for kind, examples in kinds.items()}
        self._any_kind = Inventor([name for examples in kinds.values() for name in examples])
        self._slots: dict[str, Slot] = {
            "P": self._person,
            "P1": lambda rng: f"<PER {self._first(rng)}>",
            "Last": lambda rng: f"<PER {self._last(rng)}>",
            "L": self._place,
            "City": lambda rng: f"<LOC {self._city(rng)}>",
            "Land": lambda rng: f"<LOC {self._name(rng, known.countries, 'place')}>",
            "O": self._organisation,
            "when": (f"({_WHEN})",),
            "year": lambda rng: str(rng.randint(1850, 2030)),
            "num": lambda rng: str(rng.randint(2, 31) * rng.choice((1, 1, 1, 10, 100))),
            **_WORDS,
        }

    def draw(self, rng: Random, templates: Sequence[str]) -> str:
        """Returns one sentence of one of the templates, with its names marked."""
        return capitalise(expand(rng.choice(templates), rng, self._slots))

    def draw_longer(self, rng: Random, templates: Sequence[str]) -> str:
        """Returns a sentence as `draw` does, sometimes with a clause before or after it, or
        both.
        """
        template = rng.choice(templates)
        if rng.random() < 0.15:
            template = f"{rng.choice(OPENINGS)} {_lowered(template)}"
        if rng.random() < 0.2:
            template = f"{template.rstrip('.?')} {rng.choice(ENDINGS)}."
        return capitalise(expand(template, rng, self._slots))

    def _name(self, rng: Random, known: Sequence[str], kind: str) -> str:
        if rng.random() >= self._invented:
            return rng.choice(known)
        source = rng.random()
        if source < 0.15:
            return rng.choice(rng.choice((NOUNS, ADJECTIVES))).capitalize()
        if source < 0.3:
            return syllables(rng, rng.choice((1, 2, 2, 3))).capitalize()
        return (self._inventors[kind] if source < 0.75 else self._any_kind)(rng)

    def _first(self, rng: Random) -> str:
        name = self._name(rng, self._known.first, "person")
        return f"{name}-{rng.choice(self._known.first)}" if rng.random() < 0.03 else name

    def _last(self, rng: Random) -> str:
        name = self._name(rng, self._known.last, "person")
        return rng.choice(_FAMILY_PREFIXES) + name if rng.random() < 0.06 else name

    def _city(self, rng: Random) -> str:
        return self._name(rng, self._known.cities, "place")

    def _person(self, rng: Random) -> str:
        first, last, shape = self._first(rng), self._last(rng), rng.random()
        initial = rng.choice("ABCDEFGHJKLMNPRSTVW")
        for limit, text in (
            (0.30, f"<PER {first}>"),
            (0.34, f"<PER {last}>"),
            (0.37, f"<PER {initial}. {last}>"),
            (0.40, f"<PER {first} {initial}. {last}>"),
            (0.45, f"{rng.choice(TITLES)} <PER {first} {last}>"),
        ):
            if shape < limit:
                return text
        return f"<PER {first} {last}>"

    def _place(self, rng: Random) -> str:
        city, shape = self._city(rng), rng.random()
        for limit, text in (
            (0.18, rng.choice(self._known.places)),
            (0.25, f"{rng.choice(_PLACE_PREFIXES)} {city}"),
            (0.30, f"{rng.choice((city, self._last(rng)))} {rng.choice(_PLACE_SUFFIXES)}"),
            (0.50, self._name(rng, self._known.countries, "place")),
        ):
            if shape < limit:
                return f"<LOC {text}>"
        return f"<LOC {city}>"

    def _organisation(self, rng: Random) -> str:
        company = self._name(rng, self._known.companies, "company")
        base = rng.choice((company, company, self._last(rng), self._city(rng)))
        partner = rng.choice((self._last(rng), "Sons", "Co", "Partners"))
        shape = rng.random()
        for limit, text in (
            (0.50, company),
            (0.54, capitals(rng) if self._invented else company),
            (0.66, rng.choice(self._known.organisations)),
            (0.72, f"{rng.choice(rng.choice((ADJECTIVES, NOUNS)))} {rng.choice(NOUNS)}".title()),
            (0.85, f"{base} {rng.choice(_COMPANY_KINDS)}"),
            (0.88, f"{self._last(rng)} & {partner}"),
        ):
            if shape < limit:
                return f"<ORG {text}>"
        return f"<ORG {rng.choice(_PLACE_FRAMES).format(self._city(rng))}>"


def _lowered(template: str) -> str:
    """Returns the template for use inside a sentence: `The mayor` becomes `the mayor`."""
    return _OPENING_WORD.sub(lambda match: match[0].lower(), template)


_OPENING_WORD = re.compile(
    r"^(\((?!I[|)])[^(){}]*\)|(The|A|An|In|On|It|There|This|My|According|After|Before)\b)"
)

_FAMILY_PREFIXES = ("O'", "Mc", "Mac", "Al-", "van ", "van der ", "de ", "de la ", "von ")
_PLACE_PREFIXES = words("""
New San Santa North South East West Port Lake Mount Saint St. Los Fort Upper Great Old Cape
""")
_PLACE_SUFFIXES = words("""
Street River Island Islands Valley County Bay Park Beach Square City Hills Avenue Road Bridge
Falls
""")
_COMPANY_KINDS = words("""
Inc Inc. Corp Corp. Ltd Ltd. Group Bank Airlines Motors Energy Systems Labs Industries
Technologies Software Holdings Foods Media Foundation Institute Records Books Press Pharma
Robotics Insurance Partners Electronics Solutions Steel Logistics Studios Capital Analytics
Networks Consulting University College Hospital Museum Times Herald Post GmbH AG Company
Corporation Associates Brothers Airways Telecom Oil Bakery Hotels Society Council
""")

_PLACE_FRAMES = entries("""
University of {}, Bank of {}, {} University, {} Airport, {} United, {} City Council, FC {}, {}
Hospital, Technical University of {}, Museum of {}, {} School of Economics, {} Police, {} FC,
Royal Bank of {}, {} Stock Exchange, {} Institute of Technology, Port of {} Authority, {} Rovers,
Air {}, {} Opera
""")
