"""Names of persons, places and organisations for the tagger, and a generator of invented names."""

import string
from collections.abc import Sequence
from random import Random

from tools.demo_models.grammar import entries, words

FIRST_NAMES = words("""
Aaron Abdul Abigail Adam Ahmed Aisha Akira Alan Alejandro Alex Alexander Alice Alicia Amanda Amir
Amy Ana Anders Andrea Andrew Angela Anita Anna Anne Anthony Antonio Anya Arjun Arthur Ayumi
Barbara Beatrice Ben Benjamin Bianca Bjorn Boris Brian Bruno Carla Carlos Carmen Caroline
Catherine Cecilia Chen Chiara Chloe Chris Christine Christopher Claire Clara Claudia Daniel
Daniela Dario David Deborah Diana Diego Dmitri Dominic Donald Edith Eduardo Edward Elena Eleanor
Elias Elif Elisa Elizabeth Ella Emil Emily Emma Eric Erik Esther Eva Fatima Felix Fernando Fiona
Francesca Francis Frank Frida Gabriel George Georgia Gianni Giovanni Giulia Grace Greta Gustav
Hannah Hans Harold Harry Hassan Heidi Helen Helena Henrik Henry Hiroshi Hugo Ian Ibrahim Igor Ines
Ingrid Irene Isaac Isabel Isabella Ivan Jack Jacob James Jan Jane Janet Jasmine Jason Javier Jean
Jennifer Jessica Jin Joan Johan John Jonas Jonathan Jorge Jose Joseph Joshua Juan Julia Julian
Julie Karen Karim Karl Katarina Kate Katherine Keiko Kenji Kevin Khalid Kim Klaus Kofi Kwame Lara
Lars Laura Lea Leila Leo Leon Liam Lidia Lin Linda Lisa Lorenzo Louis Louise Luca Lucas Lucia Lucy
Luis Luka Lukas Magnus Malik Marco Margaret Maria Mariam Marie Marina Mario Mark Marta Martha
Martin Mary Mateo Matthew Maya Mehmet Mei Michael Michelle Miguel Mikhail Milan Mina Mohamed
Monica Nadia Naomi Natalia Natasha Nathan Nicholas Nicole Nikolai Nina Noah Nora Oleg Olga Oliver
Olivia Omar Oscar Pablo Patricia Patrick Paul Paula Pedro Peter Petra Philip Pierre Priya Rachel
Rafael Raj Ravi Rebecca Ricardo Richard Rita Robert Roberto Rosa Ruth Ryan Sabine Said Sam Samira
Samuel Sandra Sanjay Sara Sarah Sebastian Sergei Simon Sofia Sonia Sophie Stefan Stella Stephen
Steven Sunita Susan Sven Tanya Tara Tariq Teresa Theo Theresa Thomas Tim Tomas Tom Tony Ulrike Uma
Ursula Valentina Vanessa Vera Victor Victoria Vikram Vincent Violet Vladimir Walter Wei William
Xavier Yasmin Yoko Yuki Yusuf Zoe Zainab Lena Mila Otto Edgar Agnes Amelia Charlotte Mia Ethan
Logan Mason Ava Harper Evelyn Owen Caleb Wyatt Stuart Graham Nigel Gareth Rhys Siobhan Niamh
Adrian Agatha Albert Aldo Alberto Alena Alessandro Alfred Alina Alison Alma Amal Amadou Anastasia
Angus Anil Annika Antoine Ariana Armando Arnold Astrid Audrey Augusto Aurora Axel Barry Beatriz
Bernard Bertha Bettina Birgit Brenda Bridget Bruce Camila Camille Carol Casey Cesar Charles
Charlie Chidi Christian Christina Cindy Clarence Claude Colin Connor Cora Craig Cristina Cynthia
Damian Darren Dean Denise Dennis Derek Dieter Dina Dolores Doris Dorothy Douglas Duncan Dylan
Edwin Eileen Elsa Emanuel Emilia Enrique Ernest Ernesto Eugene Evan Fabian Faith Felicia Ferdinand
Florian Frederick Friedrich Gary Gemma Gerald Gerard Gilbert Gina Giorgio Gloria Gordon Gregory
Guido Gunther Hanna Hamza Harriet Haruki Hector Heather Heinrich Hilda Holly Howard Ida Ignacio
Imran Irina Iris Ismail Ivana Ivy Jamal Jamie Janine Jared Jay Jeffrey Jeremy Jerome Jill Joanna
Joel Jorg Joyce Juana Judith Julius Justin Kamal Kareem Kathleen Katrin Keith Kelly Kenneth
Kirsten Kurt Kyle Larry Lauren Laurent Lawrence Leonard Leonardo Leslie Lewis Lorena Lorna Luana
Ludwig Lydia Lynn Mabel Madeleine Manuel Marcel Marcus Margot Marianne Marlene Mathias Matilda
Maurice Max Megan Melanie Melissa Mercedes Miriam Mohammed Molly Morgan Murat Mustafa Nancy
Natalie Neil Nelson Nils Noel Norman Oksana Olaf Oleksandr Olu Pamela Pascal Pavel Penelope Percy
Phoebe Quentin Rahul Ralph Ramon Rania Raymond Regina Renata Rene Rex Rhea Robin Rocco Roger
Roland Ron Ronald Rose Roy Rudolf Rupert Russell Sabrina Salma Salvador Sally Samantha Santiago
Sasha Scott Sean Shirley Silvia Simone Solomon Soren Stanley Stephanie Sylvia Takeshi Tamara
Tatiana Ted Terry Thea Tilda Timothy Tobias Tracy Travis Trevor Umberto Valeria Vincenzo Viola
Virginia Vivian Wanda Warren Wendy Werner Wilhelm Winston Wolfgang Yara Yves Zachary Zara Zeynep
""")

LAST_NAMES = words("""
Adams Ahmed Ali Allen Almeida Alvarez Andersen Anderson Bailey Baker Barbieri Barnes Bauer Becker
Bell Bennett Berg Bernard Bianchi Bianco Blanc Brooks Brown Bruno Burke Butler Campbell Carlsson
Carter Castillo Castro Chan Chang Chatterjee Chen Choi Clark Clarke Cohen Cole Collins Conti Cook
Cooper Costa Cox Cruz Cunningham Davies Davis Diaz Dubois Dupont Edwards Eriksson Evans Farah
Fernandez Ferrari Ferreira Fischer Fisher Flores Foster Fournier Fuchs Fujita Garcia Garnier
Gibson Girard Gomez Gonzalez Gordon Graham Gray Green Greco Griffin Gruber Gupta Haas Hall
Hamilton Hansen Harris Hartmann Hassan Hayashi Hayes Henderson Hernandez Herrera Hill Hoffmann
Holm Horvat Howard Huang Hughes Hussein Ibrahim Ito Ivanov Jackson Jain Jansen Janssen Jenkins
Jensen Jimenez Johansson Johnson Jones Kaiser Kaplan Kapoor Kato Kaya Keller Kelly Kennedy Khan
Kim King Klein Kobayashi Koch Koroma Kovacs Kowalski Kruger Kumar Lambert Lang Larsen Laurent Lee
Lefebvre Leroy Levy Lewis Li Lindberg Liu Lopez Lund Madsen Maier Mancini Marino Marshall Martin
Martinelli Martinez Mason Mehta Mendes Mendoza Meyer Miller Mitchell Moore Morales Moreau Moreno
Morgan Morris Moser Muller Murphy Murray Nagy Nakamura Nelson Nguyen Nielsen Nikolaidis Novak
Nowak Okafor Okonkwo Olsen Olsson Ortega Ortiz Osman Owens Pappas Park Parker Patel Pavlov Pereira
Perez Perry Petersen Peterson Petrov Phillips Popescu Popov Powell Price Quinn Ramirez Ramos Rao
Reed Reyes Ribeiro Ricci Richards Richter Rivera Roberts Robinson Rodriguez Rogers Romano Rossi
Roux Ruiz Russo Ryan Saito Sanchez Sanders Santos Sato Sawyer Schmidt Schmitt Schneider Schroeder
Schulz Schwarz Scott Sharma Shaw Silva Simmons Simpson Singh Smirnov Smith Sokolov Stein Stewart
Sullivan Suzuki Svensson Takahashi Tanaka Taylor Thomas Thompson Torres Turner Vargas Vasquez
Virtanen Vogel Volkov Wagner Walker Walsh Wang Ward Watanabe Watson Weber Weiss Wilson Winkler
Wolf Wong Wood Wright Wu Yamamoto Yang Yilmaz Young Zhang Zhao Zimmermann Adeyemi Bose Desai Iyer
Nair Reddy Haddad Mansour Nasser Saleh Lindqvist Nyberg Bakker Visser Maes Peeters Fraser Sinclair
Whitfield Ashworth Hargreaves Pemberton Thornton Blackwood Lockhart Beaumont Abbott Acosta Aguilar
Alexander Andrews Armstrong Arnold Atkinson Austin Ballard Barker Barrett Barton Bates Beck Berger
Bergman Berry Bishop Black Blake Bond Bowen Bradley Brandt Braun Brennan Briggs Bryant Bush Byrne
Caldwell Carlson Carr Carroll Castle Chambers Chandler Chapman Coleman Cortez Craig Crawford Cross
Curtis Dalton Daniels Dawson Dean Delgado Dixon Doyle Drake Duncan Dunn Ellis Engel Espinoza Falk
Ferguson Fernando Fields Finch Fletcher Ford Fowler Fox Franco Frank Franklin Freeman French
Friedman Frost Fuller Gallagher Gardner Garrett George Gilbert Glover Goldberg Goodman Grant
Graves Greene Gross Guerrero Gunther Hahn Hale Hammond Harper Harrison Hart Harvey Hawkins Heller
Henry Hess Hicks Hoffman Holland Holmes Holt Hopkins Horton Howell Hudson Hunt Hunter Hurst Jacobs
James Jefferson Jennings Jordan Joseph Joyce Kane Kaufman Kemp Kent Knight Knox Kraft Kramer
Krause Lane Lawrence Lawson Lehmann Lincoln Lindgren Little Livingston Lloyd Logan Long Lowe Lucas
Lynch Mack Malone Mann Manning Marks Marsh Mathews Maxwell Mayer McCarthy Medina Mendez Merkel
Mills Monroe Montgomery Morrison Morton Moss Mueller Myers Nash Neumann Newman Newton Nichols
Nixon Norris Norton Obama Oliver Orlov Osborne Page Palmer Parsons Patterson Payne Pearson Peck
Pena Perkins Peters Pierce Pierre Porter Potter Powers Pratt Putin Ramsey Randall Reagan Reeves
Reynolds Rhodes Rice Riley Rivers Robertson Roman Roosevelt Rose Ross Roth Rowe Russell Salazar
Samson Santana Saunders Schaefer Schultz Schumacher Sharp Shelton Shepherd Sherman Snow Snyder
Soto Spencer Stark Steele Stephens Stevens Stevenson Stone Strauss Strong Summers Swanson Swift
Tate Todd Trump Tucker Turing Tyler Underwood Valdez Vance Vaughn Vega Vincent Wade Wallace
Walters Walton Warner Warren Washington Waters Watts Weaver Webb Webster Wells West Wheeler White
Wilder Wilkins Williams Willis Winter Wise Woods Woodward Yates York Zeller Ziegler
""")

CITIES = words("""
Aberdeen Accra Adelaide Algiers Amman Amsterdam Ankara Antwerp Athens Atlanta Auckland Austin
Baghdad Baku Baltimore Bangalore Bangkok Barcelona Basel Beijing Beirut Belfast Belgrade Bergen
Berlin Bern Bilbao Birmingham Bogota Bologna Bonn Bordeaux Boston Brasilia Bratislava Bremen
Brighton Brisbane Bristol Brno Brussels Bucharest Budapest Cairo Calgary Cambridge Canberra
Caracas Cardiff Casablanca Charlotte Chennai Chicago Cleveland Cologne Colombo Copenhagen Cork
Dakar Dallas Damascus Delhi Denver Detroit Dhaka Doha Dortmund Dresden Dubai Dublin Durban
Dusseldorf Edinburgh Eindhoven Florence Frankfurt Gdansk Geneva Genoa Ghent Glasgow Gothenburg
Granada Graz Grenoble Guadalajara Hamburg Hanoi Hanover Harare Havana Heidelberg Helsinki
Hiroshima Houston Hyderabad Innsbruck Islamabad Istanbul Jakarta Jerusalem Johannesburg Kabul
Kampala Karachi Kathmandu Khartoum Kigali Kingston Kolkata Krakow Kyiv Kyoto Lagos Lahore Leeds
Leicester Leipzig Lille Lima Lisbon Liverpool Ljubljana London Luanda Lusaka Lyon Madrid Malaga
Malmo Manchester Manila Marrakesh Marseille Medellin Melbourne Memphis Miami Milan Milwaukee
Minneapolis Minsk Mogadishu Mombasa Monterrey Montevideo Montreal Moscow Mumbai Munich Nagoya
Nairobi Nantes Naples Nashville Newcastle Nice Nottingham Nuremberg Odessa Orlando Osaka Oslo
Ottawa Oxford Palermo Paris Perth Philadelphia Phoenix Pisa Pittsburgh Plymouth Porto Portland
Prague Pretoria Pune Quito Rabat Ravenna Reykjavik Riga Riyadh Rome Rotterdam Salzburg Santiago
Sapporo Sarajevo Seattle Seoul Seville Shanghai Sheffield Shenzhen Singapore Skopje Sofia
Southampton Stockholm Strasbourg Stuttgart Sydney Taipei Tallinn Tampere Tashkent Tbilisi Tehran
Tirana Tokyo Toronto Toulouse Trieste Tripoli Trondheim Tunis Turin Uppsala Utrecht Valencia
Vancouver Venice Verona Vienna Vilnius Warsaw Washington Wellington Winnipeg Wroclaw Yerevan York
Yokohama Zagreb Zurich Aachen Adana Agra Aleppo Alexandria Alicante Almaty Arles Arnhem Asheville
Astana Augsburg Avignon Bari Basra Bath Bergamo Bethlehem Bhopal Bialystok Boise Boulder
Bournemouth Breda Brescia Bruges Buffalo Bursa Cadiz Cali Cannes Canterbury Cartagena Catania
Chengdu Cincinnati Coimbra Columbus Cordoba Coventry Cusco Daegu Dalian Dayton Delft Derby Donetsk
Dover Dundee Durham Elche Erfurt Essen Exeter Faro Ferrara Flint Foshan Freiburg Fresno Fukuoka
Galway Ghana Giza Goa Groningen Haifa Halifax Hamilton Harbin Hartford Heraklion Homs Honolulu
Hull Incheon Indianapolis Ipswich Izmir Jaipur Jeddah Jena Kanpur Kansas Kaunas Kazan Kiel Kobe
Kochi Kosice Kunming Lausanne Lecce Leiden Lincoln Linz Livorno Lodz Lublin Lucerne Lucknow Lugano
Luxor Lviv Maastricht Mainz Managua Mannheim Maputo Maribor Mecca Medina Mexico Modena Mobile
Montpellier Mosul Nagasaki Nancy Nanjing Nara Norwich Omaha Oran Orleans Osijek Ostrava Padua
Parma Patna Perugia Peshawar Plovdiv Poznan Preston Puebla Qingdao Reading Regensburg Reims Rennes
Reno Richmond Rimini Rosario Rostock Rostov Rouen Sacramento Salamanca Salford Salvador Samarkand
Sendai Siena Split Stavanger Suez Swansea Szeged Tampa Taranto Tartu Tangier Tijuana Tilburg
Toledo Trento Tucson Tulsa Turku Ulm Varanasi Varna Vigo Volgograd Weimar Worcester Wuhan Xian
Yangon Zaragoza Zanzibar
""")

COUNTRIES = words("""
Afghanistan Albania Algeria Angola Argentina Armenia Australia Austria Azerbaijan Bahrain
Bangladesh Belarus Belgium Benin Bolivia Botswana Brazil Bulgaria Cambodia Cameroon Canada Chad
Chile China Colombia Croatia Cuba Cyprus Denmark Ecuador Egypt England Estonia Ethiopia Fiji
Finland France Gabon Georgia Germany Ghana Greece Guatemala Guinea Haiti Honduras Hungary Iceland
India Indonesia Iran Iraq Ireland Israel Italy Jamaica Japan Jordan Kazakhstan Kenya Kuwait Laos
Latvia Lebanon Liberia Libya Lithuania Luxembourg Madagascar Malaysia Mali Malta Mexico Moldova
Mongolia Montenegro Morocco Mozambique Myanmar Namibia Nepal Nicaragua Niger Nigeria Norway Oman
Pakistan Panama Paraguay Peru Poland Portugal Qatar Romania Russia Rwanda Scotland Senegal Serbia
Slovakia Slovenia Somalia Spain Sudan Sweden Switzerland Syria Taiwan Tanzania Thailand Togo
Tunisia Turkey Uganda Ukraine Uruguay Venezuela Vietnam Wales Yemen Zambia Zimbabwe Europe Asia
Africa Antarctica Scandinavia California Texas Florida Ohio Bavaria Catalonia Tuscany Provence
Normandy Sicily Andalusia Quebec Ontario Alaska Hawaii Oregon Virginia Nevada Arizona Kerala
Punjab Queensland Tasmania Crete Sardinia Brittany Cornwall Yorkshire Kent Siberia Patagonia
Manhattan Brooklyn Soho
""")

LONG_PLACES = entries("""
New York, New Delhi, New Zealand, New Mexico, New Jersey, New Orleans, New Hampshire, Los Angeles,
Los Alamos, Las Vegas, San Francisco, San Diego, San Jose, San Antonio, Santa Fe, Santa Barbara,
Santa Cruz, Sao Paulo, Rio de Janeiro, Buenos Aires, Mexico City, Kansas City, Salt Lake City,
Quebec City, Panama City, Ho Chi Minh City, Hong Kong, Kuala Lumpur, Tel Aviv, Abu Dhabi, Cape
Town, Addis Ababa, Saint Petersburg, St. Louis, Port Louis, South Africa, South Korea, North
Korea, Sri Lanka, Saudi Arabia, Costa Rica, El Salvador, Puerto Rico, Sierra Leone, Ivory Coast,
Burkina Faso, Papua New Guinea, United States, United Kingdom, Czech Republic, Dominican Republic,
North America, South America, Latin America, Central Asia, Eastern Europe, Western Australia,
North Carolina, South Dakota, West Virginia, British Columbia, Nova Scotia, Northern Ireland, Lake
Victoria, Lake Geneva, Lake Michigan, Mount Kenya, Mount Everest, Mount Fuji, Black Sea, Baltic
Sea, North Sea, Pacific Ocean, Atlantic Ocean, Gulf of Mexico, Bay of Bengal, Silicon Valley,
Central Park, Hyde Park, Times Square, Wall Street, Fifth Avenue, Baker Street, Oxford Street,
West Coast, Middle East, Isle of Man, Fort Worth
""")

FEATURES = words("""
Alps Andes Pyrenees Himalayas Rockies Sahara Amazon Danube Rhine Thames Nile Volga Seine
Mississippi Ganges Mekong Balkans Carpathians Caribbean Mediterranean Netherlands Philippines
Bahamas Maldives
""")

COMPANIES = words("""
Accenture Adidas Adobe Airbus Alibaba Allianz Amazon Apple Asus AstraZeneca Audi Barclays Bayer
Boeing Bosch Bridgestone Canon Carrefour Caterpillar Chevron Cisco Citigroup Continental Danone
Dell Deloitte Disney Ducati Electrolux Ericsson Expedia Facebook Ferrari Fiat Ford Fujitsu Gazprom
Glencore Goodyear Google Heineken Hitachi Honda Huawei Hyundai Ikea Infineon Infosys Intel
Kawasaki Kellogg Kodak Lenovo Lidl Lufthansa Maersk Mastercard Mattel Mazda Michelin Microsoft
Mitsubishi Monsanto Motorola Nestle Netflix Nikon Nintendo Nissan Nokia Novartis Nvidia Oracle
Panasonic PayPal Pepsi Petrobras Pfizer Philips Pirelli Porsche Puma Qantas Qualcomm Reebok
Renault Reuters Roche Rolex Ryanair Samsung Sanofi Santander Schindler Shell Siemens Skype Sony
Spotify Starbucks Subaru Swatch Symantec Telefonica Tencent Tesco Tesla Texaco Toshiba Toyota
Twitter Uber Unilever Verizon Visa Vodafone Volkswagen Volvo Walmart Wipro Xerox Xiaomi Yahoo
Yamaha Zara Zalando Airbnb Dropbox Shopify Stripe Slack Twilio Snowflake Databricks Palantir
Salesforce Atlassian Autodesk Lyft Pinterest Reddit GitHub LinkedIn YouTube OpenTable Greenpeace
Interpol Unesco Unicef Oxfam Nato Opec Amnesty Eurostat Bloomberg Bertelsmann Thyssen Vattenfall
Equinor Repsol Iberdrola Lukoil Rosneft Aeroflot Finnair Iberia Alitalia Emirates Etihad Juventus
Arsenal Chelsea Benfica Ajax Celtic Barilla Ferrero Lavazza Campari Danske Nordea Klarna Zendesk
Kickstarter Acer Akamai Alcatel Amgen Anthem Aramco Avis Avon Bentley BlackRock Bombardier Braun
Bugatti Cadbury Cargill Carlsberg Casio Chanel Chrysler Citroen Colgate Corning Costco Daimler
Danfoss Duolingo Dyson eBay Epson Equifax Fanta FedEx Fidelity Fitbit Foxconn Fuji Garmin Gillette
Grundig Gucci Guinness Hasbro Henkel Hermes Hertz Hilton Hyatt Intuit Instagram Jaguar Kia
Kingfisher Konica Kraft Lacoste Lego Lexus Logitech Mars Marriott Maserati McKinsey Medtronic
Merck Mercedes Miele Mozilla NetEase Nike Nivea Nutella OpenAI Opel Otis Pandora Patagonia Peugeot
Polaroid Prada Primark Purina Quora Ralph Randstad Raytheon Revolut Ricoh Rossmann Saab SAIC
Scania Seat Sharp Skoda Snapchat Sodexo Sotheby Splunk Staples Suzuki Swarovski Swisscom Sysco
Target Telstra TikTok Timberland Toblerone Tripadvisor Twitch Tyson Umbro Unicredit Vans Viacom
Vimeo Virgin Wayfair WhatsApp Wikipedia Wise Workday Yelp Zeiss Zoom Generali
""")

LONG_ORGANISATIONS = entries("""
General Electric, General Motors, Goldman Sachs, Morgan Stanley, Wells Fargo, Deutsche Bank,
Credit Suisse, Rolls Royce, Land Rover, Aston Martin, British Airways, Air France, Air Canada,
Singapore Airlines, Delta Air Lines, American Express, Coca Cola, Procter & Gamble, Johnson &
Johnson, Ernst & Young, Marks & Spencer, Tiffany & Co, Red Cross, European Union, United Nations,
World Bank, World Health Organization, World Trade Organization, European Central Bank, European
Commission, European Parliament, International Monetary Fund, Amnesty International, Doctors
Without Borders, Supreme Court, Federal Reserve, Ministry of Health, Ministry of Defence, Ministry
of Finance, Ministry of Education, Department of Justice, Department of Energy, House of Commons,
Labour Party, Green Party, Republican Party, Democratic Party, Liberal Party, Royal Society,
National Gallery, British Museum, Royal Opera House, New York Times, Washington Post, Financial
Times, Wall Street Journal, Daily Mail, Associated Press, Fox News, Sky News, Manchester United,
Real Madrid, Bayern Munich, Inter Milan, Boston Celtics, Chicago Bulls, Los Angeles Lakers, Dallas
Cowboys, Harvard University, Stanford University, Oxford University, Yale University, Imperial
College, King's College, Max Planck Institute, Massachusetts Institute of Technology, Standard
Chartered, Ocean Spray, Sun Microsystems, Texas Instruments, Warner Brothers, Universal Music,
Virgin Atlantic, Burger King, Pizza Hut, Home Depot, Best Buy, Whole Foods, Electronic Arts, Royal
Navy, Air Force, Space Agency, Olympic Committee, Chamber of Commerce
""")

ACRONYMS = words("""
IBM BBC CNN NASA NATO UN EU FBI CIA WHO IMF BMW SAP HSBC UBS BP ABB AMD HP LG MIT UCLA KLM AT&T
DHL UPS FIFA UEFA NBA NHL CERN ESA OECD OPEC UNESCO UNICEF ING BASF AIG AOL ABC NBC CBS IKEA FDA
EPA KPMG PwC TSMC AXA BNP ETH EPFL KFC H&M
""")

# Never trained on. Real names, less common than those above, that measure unseen names.
HELD_OUT_FIRST_NAMES = words("""
Alvaro Anneliese Ayodele Benedikt Branko Callum Delphine Dorian Edmund Estelle Farid Freya Giselle
Hadley Ingmar Isolde Jelena Joaquin Kerstin Kiran Lachlan Leonor Lorelei Malcolm Marguerite Mirela
Nikhil Odette Osvaldo Pilar Ragnar Rosalind Saskia Sergio Tamsin Thaddeus Ulrich Veronica Wesley
Yolanda
""")
HELD_OUT_LAST_NAMES = words("""
Abernathy Achterberg Bergstrom Bonetti Calloway Chowdhury Dahlberg Delacroix Eriksen Fairbanks
Galloway Goldstein Halvorsen Hashimoto Jankowski Kerrigan Kristensen Lacroix Lombardi Macdonald
Mbeki Montero Nakagawa Nordstrom Oconnell Papadakis Quintero Rasmussen Rosenberg Salvatore Sorensen
Tremblay Uchida Vandenberg Villanueva Westbrook Wickham Yildiz Zielinski Zamora
""")
HELD_OUT_CITIES = words("""
Albany Ancona Bamberg Bregenz Caceres Charleston Colchester Debrecen Dijon Edmonton Fremantle
Gaziantep Gloucester Halle Hobart Huddersfield Jodhpur Karlsruhe Kingsport Knoxville Kumasi Lugo
Magdeburg Mandalay Murcia Nagpur Olomouc Paderborn Pamplona Pescara Potsdam Rovaniemi Saskatoon
Sunderland Surabaya Tacoma Tromso Wiesbaden Windhoek Zadar
""")
HELD_OUT_COUNTRIES = words("""
Andorra Bhutan Burundi Djibouti Eritrea Guyana Lesotho Malawi Mauritius Suriname Tajikistan
Turkmenistan Umbria Saxony Flanders Nebraska
""")
HELD_OUT_PLACES = entries("""
New Haven, San Marino, Santa Monica, Los Gatos, East Timor, North Macedonia, Lake Como, Mount Etna,
Port Moresby, Fort Lauderdale, Saint Lucia, Upper Austria, Abbey Road, Regent Street, Hudson River
""")
HELD_OUT_COMPANIES = words("""
Agfa Aldi Allstate Asda Astellas Babcock Bechtel Blizzard Bosal Burberry Clarins Comcast Dunlop
Dolby Essilor Fendi Fujifilm Geely Grohe Haribo Iveco Kawai Komatsu Leica Lyondell Novotel Olivetti
Pernod Playtex Prosus Rakuten Rheinmetall Rosetta Sandvik Sennheiser Sodastream Stellantis
Tupperware Vodacom Wrigley
""")
HELD_OUT_ORGANISATIONS = entries("""
Cornell University, Duke University, Bank of Scotland, General Mills, Turkish Airlines, Alaska
Airlines, Liberty Mutual, Ministry of Justice, Department of Agriculture, National Theatre, Royal
Mail, West Ham United, Chicago Tribune, Lloyds Bank, Pacific Gas & Electric
""")

_ONSETS = words("""
b br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sc sh sl sm sp
st str t th tr v w y z
""")
_VOWELS = words("a e i o u a e i o u ai au ea ee ei ia ie io oa ou")
_CODAS = words(
    """b c ck d f g k l ld ll lm ln m n nd ng nk nt p r rd rk rm rn rt s sh ss st t th x z"""
)


def syllables(rng: Random, count: int) -> str:
    """Returns a meaningless lower-case word of `count` invented syllables."""
    parts: list[str] = []
    for _ in range(count):
        parts += [rng.choice(_ONSETS), rng.choice(_VOWELS)]
        if count == 1 or rng.random() < 0.4:
            parts.append(rng.choice(_CODAS))
    return "".join(parts)


class Inventor:
    """Invents names letter by letter. Each letter follows the previous three as in the examples.

    A second-order Markov chain over letters would lose the endings that distinguish a town from a
    family.
    """

    def __init__(self, examples: Sequence[str]) -> None:
        self._follows: dict[str, list[str]] = {}
        for name in examples:
            for word in name.split():
                padded = f"^^^{word}$"
                for at in range(3, len(padded)):
                    self._follows.setdefault(padded[at - 3 : at], []).append(padded[at])

    def __call__(self, rng: Random) -> str:
        """Returns a name of 3 to 12 letters."""
        while True:
            name = "^^^"
            while not name.endswith("$") and len(name) < 16:
                name += rng.choice(self._follows[name[-3:]])
            if name.endswith("$") and 3 <= len(name) - 4 <= 12:
                return name[3:-1].replace(".", "")


def capitals(rng: Random) -> str:
    """Returns an invented abbreviation such as `QRT`."""
    return "".join(rng.choice(string.ascii_uppercase) for _ in range(rng.choice((2, 3, 3, 4))))
