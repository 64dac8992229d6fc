"""Pools that rows draw their names from. All made up or common; none holds a quote, so that SQL stays plain."""

from itertools import product


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(firsts: str, seconds: str) -> tuple[str, ...]:
    """Every first word with every second part; second parts are separated by blanks, or by | if they hold some."""
    parts = seconds.split("|") if "|" in seconds else seconds.split()
    return tuple(f"{first} {second}" for first, second in product(firsts.split(), parts))


PEOPLE = _pairs(
    "Ada Akira Alma Amos Anna Arlo Bela Boris Carla Cyril Dana Diego Edda Elif Emil Esra Fadi Farah Felix Gina Goran "
    "Greta Hana Hugo Ida Igor Ines Ivan Jana Jonas Juno Kaja Karim Lars Leila Lena Luca Lydia Maja Marco Mina Mira "
    "Nadia Nils Nora Olga Omar Otto Paula Petra Pia Ravi Rosa Rudi Sami Selma Simon Sofia Tara Theo Tilda Tom Uma Vera "
    "Viktor Wanda Yara Yuri Zoe",
    "Abel Adler Alves Bauer Berg Blanc Bose Braun Castro Costa Cruz Dahl Diaz Dorn Duval Eklund Faber Falk Ferro "
    "Fonseca Frank Garcia Gomez Grant Haas Haugen Holm Ito Jansen Kaya Keller Khan Klein Kovac Kumar Lang Larsen Leroy "
    "Lind Lopez Luz Mann Marin Meyer Mori Moser Nagy Novak Nunes Olsen Park Patel Petit Popov Reyes Ricci Rossi Roth "
    "Salem Sato Silva Singh Sosa Stein Tanaka Torres Urban Vega Virtanen Vogel Weber Wolf Yilmaz Zeman",
)
BOOKS = _pairs(
    "Silent Broken Golden Hidden Last Paper Winter Burning Distant Glass",
    "River Garden Letters Harbor Mirror Orchard Road Island Tower Summer",
)
FILMS = _pairs(
    "Blue Cold Double Empty Midnight Northern Red Second Slow Velvet",
    "Horizon Signal Winter Witness Dance Stranger Train Harvest Motel Tide",
)
ARTWORKS = _pairs(
    "Woman Boy Still Evening Two Study Storm Market Bridge Sleeping",
    "with Lute|in Green|at Dawn|near Arles|by Candlelight|in Snow|on Stage|at Sea",
)
WINES = _pairs(
    "Alba Bella Clos Dolce Fleur Grand Luna Mont Notre Vieux", "Noir Soleil Mare Vista Roche Reserva Rose Cuvee"
)
ESTATES = _pairs("Casa Chateau Domaine Quinta Tenuta", "Amaro Belmonte Cervo Dorado Elvas Falco")
CAKES = _pairs("Almond Apple Cherry Cocoa Honey Lemon Plum Poppy Walnut", "Tart Roll Bun Slice Loaf Cake Crescent")
SHOPS = _pairs("Corner Golden Mill Old Station Sunny", "Oven Crust Bakery Grain")
SHIPS = _pairs("Arctic Baltic Coral Eastern Iron Nordic Royal Southern", "Star Pearl Queen Trader Wave Spirit")
PORTS = _words("Almeria Bergen Cadiz Dover Esbjerg Faro Gdynia Haifa Izmir Kiel Lulea Malmo Nantes Oulu")
HOTELS = _pairs("Alpine City Grand Lake Old Park Royal Sunny", "Inn Palace House Lodge Garden")
TRAINS = _pairs("Alpine Blue Coast Dawn Eagle Forest Royal Silver", "Arrow Express Flyer Runner Comet")
COMPANIES = _words("Nordrail Transvia Railion Citylink Altaro Velotren Expreso Lineasur Baltrans Rapido")
DEPOTS = _pairs("North South East West Port Airport Hill River", "Hub Yard Depot")
TEAMS = _pairs("Athletic Racing Sporting United", "Alva Borden Carno Drava Estel Fermo")
UNIVERSITIES = _pairs("Alder Birch Coastal Delta Elm Grove Hill Lake", "College Institute University")
ROOMS = _pairs("Amber Atlas Blue Cedar Garden Ivory Long Marble North Oval Pearl Round Silk Tower", "Room")
TOPICS = _pairs(
    "Arctic Deep Fair Green Neural Ocean Quantum Rural Safe Urban", "Health Ice Light Memory Soil Traffic Water Energy"
)
