"""The words that evaluation's tasks are made of. Data alone."""

from typing import Final

NOUNS: Final = tuple(
    """
    anchor apple apron arrow axe bag ball banana barn barrel basket bath beach bean bed bee bell
    belt bench berry bike bird blanket boat bone book boot bottle bowl box branch bread brick
    bridge broom brush bucket bus bush butter button cabin cake camel camp candle cap car card
    carpet carrot cart castle cat cave chain chair chalk cheese cherry chest chicken church city
    clay clock cloth cloud coal coast coat coin comb cook copper corn cotton cousin cow crab crane
    cream creek crow crown cup curtain deer desk dog doll door dove dragon drawer dress drum duck
    dust eagle ear egg elbow engine eye farm father feather fence field finger fire fish flag
    flame flour flower flute fog fork forest fox frog fruit garden gate ghost gift giraffe glass
    glove goat gold goose grape grass guitar hammer hand harbor hat hawk hay heart hen hill hive
    honey hook horn horse hotel house ice ink iron island jacket jar jewel juice kettle key king
    kitchen kite knee knife knot ladder lake lamb lamp leaf leg lemon letter library lid light
    lily lion lizard lock log maid mail map marble market mask meadow medal melon milk mill mirror
    mitten monkey moon moss moth mother mountain mouse mouth mud mule museum nail neck needle nest
    net night nose nut oak oar oat ocean office oil onion orange otter oven owl ox page pail paint
    palace pan paper park parrot path peach pear pearl pen pencil pepper piano picture pie pig
    pillow pilot pin pine pipe plane plate plow plum pocket pond pony pot potato prince pump
    purse queen quilt rabbit radio rail rain raven ribbon rice ring river road robe robin rock
    roof room root rope rose rug sail salad salt sand saw scarf school sea seal seed shadow sheep
    shelf shell ship shirt shoe shop shovel silk silver sink sister sky sled slipper smoke snail
    snake snow soap sock soldier song soup spade spider spoon spring squirrel stair stamp star
    station statue steam stem stone store storm stove straw stream street string sugar suit sun
    swan sword table tail tailor tent thread throne thunder ticket tiger toad toe tomato tongue
    tooth tower town toy track train tray tree trumpet trunk tub tulip tunnel turkey turtle valley
    van vase vest village violin wagon wall walnut watch water wave wax well whale wheat wheel
    whip whistle wind window wine wing wolf wood wool worm yard zebra
    """.split()
)

ADJECTIVES: Final = tuple(
    """
    amber big black blue brave bright brown calm clean clever cold dark dry empty fast flat gentle
    golden gray green grumpy happy heavy hidden hollow hungry kind lazy little lonely long loud
    low narrow new noisy old pale pink plain polite proud purple quick quiet red rich rough round
    sad sharp shiny short shy silent silver sleepy slow small smooth soft sour square steep
    strong sweet tall thin tiny tired warm wet white wide wild wise wooden yellow young
    """.split()
)

NAMES: Final = tuple(
    """
    Ada Alba Alma Amir Anna Anton Aron Bela Ben Bruno Cara Carl Clara Cora Dana David Dora Edda
    Elena Elias Ella Emil Emma Erik Eva Fatima Felix Finn Flora Frida Greta Hanna Hugo Ida Igor
    Ines Iris Ivan Jan Jonas Julia Karim Kira Lara Lena Leo Lin Lucas Luna Mara Marco Maria Max
    Maya Mia Milo Mina Nadia Nico Nina Noah Nora Olga Oscar Otto Paul Petra Rita Rosa Ruth Sami
    Sara Selma Simon Sofia Tara Theo Tina Tom Uma Vera Victor Wanda Yara Yusuf Zoe
    """.split()
)

CITIES: Final = tuple(
    """
    Accra Athens Bergen Berlin Bern Bonn Boston Cairo Chicago Cork Dakar Delhi Dublin Geneva Ghent
    Graz Hanoi Helsinki Istanbul Kyiv Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid Malmo
    Manila Milan Moscow Munich Nairobi Naples Oslo Osaka Paris Porto Prague Quito Riga Rome Seoul
    Seville Sofia Split Sydney Tallinn Tampa Tokyo Toronto Tunis Turin Vienna Vilnius Warsaw York
    Zagreb Zurich
    """.split()
)

COLOURS: Final = ("red", "green", "blue", "white", "black", "yellow")

# Made-up words: a beginning, a vowel, and so on. Over a million, so that no list of them is known.
ONSETS: Final = tuple("b d f g h k l m n p r s t v w z br dr fl gr kr pl st tr".split())
VOWELS: Final = tuple("a e i o u".split())
CODAS: Final = ("", "", "", "n", "l", "r", "s", "m", "k")

# Names of tools: what they do, and with what.
VERBS: Final = tuple(
    """
    add book buy cancel change check close count delete find fix get list lock make move open
    order plan play print read rent save search sell send show start stop
    """.split()
)
THINGS: Final = tuple(
    """
    account alarm bike bill boat camera car contact door event file flight game group hotel
    invoice job lamp lesson letter map meal meeting message movie note package photo price report
    room seat shop song stock table task taxi ticket train visit weather
    """.split()
)
