"""Pools that rows draw their names from. All made up or common; none holds a quote, so that SQL stays plain."""

from itertools import product

FIRST_NAMES = (
    "Ada Akira Alma Amos Anna Arlo Bela Boris Carla Cyril Dana Diego Edda Elif Emil Esra Fadi Farah Felix Gina Goran Greta "
    "Hana Hugo Ida Igor Ines Ivan Jana Jonas Juno Kaja Karim Lars Leila Lena Luca Lydia Maja Marco Mina Mira Nadia Nils Nora "
    "Olga Omar Otto Paula Petra Pia Ravi Rosa Rudi Sami Selma Simon Sofia Tara Theo Tilda Tom Uma Vera Viktor Wanda Yara Yuri Zoe"
).split()
LAST_NAMES = (
    "Abel Adler Alves Bauer Berg Blanc Bose Braun Castro Costa Cruz Dahl Diaz Dorn Duval Eklund Faber Falk Ferro Fonseca Frank "
    "Garcia Gomez Grant Haas Haugen Holm Ito Jansen Kaya Keller Khan Klein Kovac Kumar Lang Larsen Leroy Lind Lopez Luz Mann "
    "Marin Meyer Mori Moser Nagy Novak Nunes Olsen Park Patel Petit Popov Reyes Ricci Rossi Roth Salem Sato Silva Singh Sosa "
    "Stein Tanaka Torres Urban Vega Virtanen Vogel Weber Wolf Yilmaz Zeman"
).split()
PEOPLE = tuple(f"{first} {last}" for first, last in product(FIRST_NAMES, LAST_NAMES))

CITIES = (
    "Aarhus Bergen Bilbao Bordeaux Bremen Brno Cadiz Cork Dover Dresden Faro Gdansk Genoa Ghent Graz Izmir Kiel Kosice Leeds Liege "
    "Lyon Malmo Nantes Oporto Parma Pecs Riga Split Tartu Turin Turku Varna Vigo York Zadar"
).split()

BOOKS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Silent Broken Golden Hidden Last Paper Winter Burning Distant Glass".split(),
        "River Garden Letters Harbor Mirror Orchard Road Island Tower Summer".split(),
    )
)
FILMS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Blue Cold Double Empty Midnight Northern Red Second Slow Velvet".split(),
        "Horizon Signal Winter Witness Dance Stranger Train Harvest Motel Tide".split(),
    )
)
ARTWORKS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Woman Boy Still Evening Two Study Storm Market Bridge Sleeping".split(),
        "with Lute|in Green|at Dawn|near Arles|by Candlelight|in Snow|on Stage|at Sea".split("|"),
    )
)
WINES = tuple(
    f"{first} {last}"
    for first, last in product(
        "Alba Bella Clos Dolce Fleur Grand Luna Mont Notre Vieux".split(),
        "Noir Soleil Mare Vista Roche Reserva Rose Cuvee".split(),
    )
)
ESTATES = tuple(
    f"{first} {last}"
    for first, last in product(
        "Casa Chateau Domaine Quinta Tenuta".split(), "Amaro Belmonte Cervo Dorado Elvas Falco".split()
    )
)
CAKES = tuple(
    f"{first} {last}"
    for first, last in product(
        "Almond Apple Cherry Cocoa Honey Lemon Plum Poppy Walnut".split(),
        "Tart Roll Bun Slice Loaf Cake Crescent".split(),
    )
)
SHIPS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Arctic Baltic Coral Eastern Iron Nordic Royal Southern".split(), "Star Pearl Queen Trader Wave Spirit".split()
    )
)
HOTELS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Alpine City Grand Lake Old Park Royal Sunny".split(), "Inn Palace House Lodge Garden".split()
    )
)
TRAINS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Alpine Blue Coast Dawn Eagle Forest Royal Silver".split(), "Arrow Express Flyer Runner Comet".split()
    )
)
COMPANIES = (
    "Nordrail",
    "Transvia",
    "Railion",
    "Citylink",
    "Altaro",
    "Velotren",
    "Expreso",
    "Linea Sur",
    "Baltrans",
    "Rapido",
)
DEPOTS = tuple(
    f"{place} {kind}"
    for place, kind in product("North South East West Port Airport Hill River".split(), "Hub Yard Depot".split())
)
TEAMS = tuple(
    f"{kind} {place}"
    for kind, place in product("Athletic Racing Sporting United".split(), "Alva Borden Carno Drava Estel Fermo".split())
)
UNIVERSITIES = tuple(
    f"{place} {kind}"
    for place, kind in product(
        "Alder Birch Coastal Delta Elm Grove Hill Lake".split(), "College Institute University".split()
    )
)
SHOPS = tuple(
    f"{first} {last}"
    for first, last in product("Corner Golden Mill Old Station Sunny".split(), "Oven Crust Bakery Grain".split())
)
PORTS = (
    "Almeria",
    "Bergen",
    "Cadiz",
    "Dover",
    "Esbjerg",
    "Faro",
    "Gdynia",
    "Haifa",
    "Izmir",
    "Kiel",
    "Lulea",
    "Malmo",
    "Nantes",
    "Oulu",
)
ROOMS = tuple(
    f"{word} Room"
    for word in "Amber Atlas Blue Cedar Garden Ivory Long Marble North Oval Pearl Round Silk Tower".split()
)
TOPICS = tuple(
    f"{first} {last}"
    for first, last in product(
        "Arctic Deep Fair Green Neural Ocean Quantum Rural Safe Urban".split(),
        "Health Ice Light Memory Soil Traffic Water Energy".split(),
    )
)
