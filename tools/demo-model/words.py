"""The word lists that generate.py draws from; all of them were written for this file."""

WORDS = """
apple river stone window garden bridge candle forest paper silver yellow purple winter summer autumn
spring morning evening mountain valley ocean island harbour village castle tower market bakery
kitchen bedroom library school teacher doctor farmer sailor painter writer singer dancer builder
hammer ladder bucket basket bottle pillow blanket carpet mirror picture letter number pencil
notebook ruler scissors needle thread button jacket trousers sweater glove scarf boot ribbon
feather leather cotton copper iron golden wooden plastic crystal marble velvet shadow thunder
lightning rainbow cloud storm snow frost breeze meadow desert canyon cliff beach shore wave tide
coral dolphin whale turtle lobster salmon eagle falcon sparrow robin swan goose chicken rabbit
squirrel hedgehog badger beaver otter weasel wolf bear tiger lion zebra giraffe camel donkey pony
horse cattle sheep goat kitten puppy spider beetle butterfly dragonfly honey butter cheese bread
pepper salt sugar flour onion carrot potato tomato lemon orange cherry berry peach plum grape melon
walnut almond coffee water juice soup salad dinner lunch breakfast table chair bench shelf drawer
closet door floor ceiling roof chimney fence gate path road street corner square circle triangle
engine wheel pedal rocket planet comet star moon sun galaxy telescope compass anchor sail boat ship
train tunnel station ticket wagon bicycle lantern torch lamp flame smoke ashes dust sand clay brick
glass metal rope chain knot hook key lock treasure puzzle riddle story poem song music violin piano
guitar drum trumpet whistle bell clock watch minute second hour week month year today tomorrow
yesterday always never often seldom quickly slowly softly loudly gently bright dark quiet loud warm
cold fresh dry wet heavy light empty full open closed early late young old small large tiny huge
narrow wide short long round flat smooth rough sharp blunt simple clever brave kind proud happy sad
angry calm lucky hungry thirsty sleepy busy lazy careful curious friendly gentle honest polite
walk run jump climb swim fly ride drive carry push pull lift drop throw catch hold open close build
break mend paint draw write read sing dance laugh smile listen whisper shout dream sleep wake eat
drink cook bake wash clean sweep plant grow pick gather hide seek find lose give take bring send
keep share trade count measure weigh cut fold tie wrap fill pour mix stir taste smell touch hear see
look think know learn teach ask answer begin finish wait hurry stop turn follow lead help save visit
travel return remember forget hope wish blue red green white black brown grey pink
""".split()
WORDS = sorted(set(WORDS))

# Small words and inflected ones, that copied sentences be like real ones.
SMALL = """
the a an and or but of in on at to from with without over under by for as is are was were be has
have had do does did not no yes it this that these those he she they we you I my your his her their
our who what which when where why how all some many few one two three four five six seven eight nine
ten more most very so too also just only than then there here up down out off into about after
before again because if while until between through during against
""".split()
ENDINGS = ["s", "ed", "ing", "er", "ly", "ness", "'s", "y", "ful", "less"]

NAMES = """
Anna Ben Clara David Emma Felix Greta Henry Ida Jack Karla Leo Maria Noah Olga Peter Quentin Rosa
Simon Tina Ursula Victor Wanda Xavier Yara Zoe Alan Bella Carl Dora Erik Fiona George Hanna Ivan
Julia Kevin Laura Martin Nina Oscar Paula Robert Sarah Thomas Vera Walter Adam Betty Chris Diana
Edgar Frida Gustav Helen Isaac Jane Kurt Linda Max Nora Otto Pia Ralph Sofia Tim Uma Vince Will
Alice Bruno Cora Dennis Ella Frank Gina Hugo Irene John Kate Lars Mona Nils Olive Paul Rita Sam
""".split()

CITIES = """
Paris London Rome Madrid Berlin Vienna Oslo Stockholm Helsinki Copenhagen Lisbon Dublin Athens
Warsaw Prague Budapest Amsterdam Brussels Tokyo Beijing Delhi Cairo Nairobi Ottawa Washington
Canberra Hamburg Munich Milan Naples Porto Seville Lyon Geneva Zurich Basel Boston Chicago Denver
Seattle Toronto Montreal Sydney Melbourne Osaka Kyoto Mumbai Lagos Leeds York Bristol Glasgow
""".split()

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "Austria": "Vienna", "Switzerland": "Bern", "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "Denmark": "Copenhagen", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Iceland": "Reykjavik", "Ireland": "Dublin",
    "England": "London", "Scotland": "Edinburgh", "Poland": "Warsaw", "Hungary": "Budapest",
    "Greece": "Athens", "Romania": "Bucharest", "Bulgaria": "Sofia", "Croatia": "Zagreb",
    "Serbia": "Belgrade", "Ukraine": "Kyiv", "Turkey": "Ankara", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Morocco": "Rabat", "Ghana": "Accra", "Japan": "Tokyo",
    "China": "Beijing", "India": "New Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi",
    "South Korea": "Seoul", "Indonesia": "Jakarta", "Australia": "Canberra",
    "New Zealand": "Wellington", "Canada": "Ottawa", "Mexico": "Mexico City",
    "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima",
    "Colombia": "Bogota", "Cuba": "Havana", "the United States": "Washington",
}

# (subject, question forms, answer)
FACTS = [
    (["What colour is the sky?", "What is the colour of the sky?", "Which colour has the sky?"],
     "The sky is blue."),
    (["What colour is grass?", "What is the colour of grass?", "Which colour has grass?"],
     "Grass is green."),
    (["What colour is snow?", "What is the colour of snow?", "Which colour has snow?"],
     "Snow is white."),
    (["What colour is a ripe banana?", "What is the colour of a banana?",
      "Which colour has a banana?"], "A ripe banana is yellow."),
    (["What colour is coal?", "What is the colour of coal?", "Which colour has coal?"],
     "Coal is black."),
    (["How many days are in a week?", "How many days does a week have?",
      "How many days make a week?"], "A week has 7 days."),
    (["How many months are in a year?", "How many months does a year have?",
      "How many months make a year?"], "A year has 12 months."),
    (["How many hours are in a day?", "How many hours does a day have?",
      "How many hours make a day?"], "A day has 24 hours."),
    (["How many minutes are in an hour?", "How many minutes does an hour have?",
      "How many minutes make an hour?"], "An hour has 60 minutes."),
    (["How many seconds are in a minute?", "How many seconds does a minute have?",
      "How many seconds make a minute?"], "A minute has 60 seconds."),
    (["How many legs does a spider have?", "How many legs are on a spider?",
      "What number of legs does a spider have?"], "A spider has 8 legs."),
    (["How many legs does a cat have?", "How many legs are on a cat?",
      "What number of legs does a cat have?"], "A cat has 4 legs."),
    (["How many legs does an ant have?", "How many legs are on an ant?",
      "What number of legs does an ant have?"], "An ant has 6 legs."),
    (["How many legs does a bird have?", "How many legs are on a bird?",
      "What number of legs does a bird have?"], "A bird has 2 legs."),
    (["What sound does a dog make?", "What does a dog say?", "Which sound does a dog make?"],
     "A dog says woof."),
    (["What sound does a cat make?", "What does a cat say?", "Which sound does a cat make?"],
     "A cat says meow."),
    (["What sound does a cow make?", "What does a cow say?", "Which sound does a cow make?"],
     "A cow says moo."),
    (["What sound does a duck make?", "What does a duck say?", "Which sound does a duck make?"],
     "A duck says quack."),
    (["What is the largest planet?", "Which planet is the largest?",
      "What is the name of the largest planet?"], "The largest planet is Jupiter."),
    (["What is the nearest star?", "Which star is the nearest?",
      "What is the name of the nearest star?"], "The nearest star is the sun."),
    (["What is the largest ocean?", "Which ocean is the largest?",
      "What is the name of the largest ocean?"], "The largest ocean is the Pacific Ocean."),
    (["What is the highest mountain?", "Which mountain is the highest?",
      "What is the name of the highest mountain?"], "The highest mountain is Mount Everest."),
    (["What is the longest river?", "Which river is the longest?",
      "What is the name of the longest river?"], "The longest river is the Nile."),
    (["What is frozen water called?", "What do you call frozen water?",
      "What is the word for frozen water?"], "Frozen water is called ice."),
    (["What is a baby dog called?", "What do you call a baby dog?",
      "What is the word for a baby dog?"], "A baby dog is called a puppy."),
    (["What is a baby cat called?", "What do you call a baby cat?",
      "What is the word for a baby cat?"], "A baby cat is called a kitten."),
    (["What is the opposite of hot?", "Tell me the opposite of hot.",
      "Which word is the opposite of hot?"], "The opposite of hot is cold."),
    (["What is the opposite of big?", "Tell me the opposite of big.",
      "Which word is the opposite of big?"], "The opposite of big is small."),
    (["What is the opposite of day?", "Tell me the opposite of day.",
      "Which word is the opposite of day?"], "The opposite of day is night."),
    (["What is the opposite of open?", "Tell me the opposite of open.",
      "Which word is the opposite of open?"], "The opposite of open is closed."),
    (["What is the opposite of early?", "Tell me the opposite of early.",
      "Which word is the opposite of early?"], "The opposite of early is late."),
    (["What day comes after Monday?", "Which day follows Monday?",
      "What is the day after Monday?"], "After Monday comes Tuesday."),
    (["What day comes after Friday?", "Which day follows Friday?",
      "What is the day after Friday?"], "After Friday comes Saturday."),
    (["What month comes after March?", "Which month follows March?",
      "What is the month after March?"], "After March comes April."),
    (["What month comes after August?", "Which month follows August?",
      "What is the month after August?"], "After August comes September."),
]

# animal: (its name, its nature, its home)
HEROES = {
    "fox": ("Fenn", "clever", "at the edge of a quiet wood"),
    "bear": ("Bruno", "gentle", "in a warm cave behind a waterfall"),
    "owl": ("Olive", "wise", "in a hollow oak on a hill"),
    "mouse": ("Mina", "brave", "under the floor of an old mill"),
    "rabbit": ("Rosa", "quick", "in a burrow beside a garden"),
    "hedgehog": ("Hugo", "shy", "beneath a heap of autumn leaves"),
    "cat": ("Cora", "curious", "in a house with a blue door"),
    "dog": ("Dexter", "loyal", "on a farm near the river"),
    "horse": ("Hazel", "proud", "in a stable with a red roof"),
    "duck": ("Dora", "cheerful", "on a pond full of lilies"),
    "frog": ("Fred", "lazy", "on a flat stone in the marsh"),
    "wolf": ("Wanda", "lonely", "high up in the white mountains"),
    "otter": ("Otto", "playful", "by a stream with smooth pebbles"),
    "squirrel": ("Sam", "busy", "in the tallest pine of the park"),
    "turtle": ("Tilda", "patient", "on a beach of golden sand"),
    "goat": ("Gustav", "stubborn", "on a steep and windy cliff"),
    "whale": ("Willa", "friendly", "in the deep and silent sea"),
    "robot": ("Rivet", "honest", "in a workshop full of clocks"),
    "dragon": ("Drago", "kind", "on top of a smoking mountain"),
    "girl": ("Greta", "bold", "in a village by the harbour"),
}

# thing: (where it was found, what was done with it, what came of it)
THINGS = {
    "a lantern": ("on a bridge", "carried it through the dark", "everyone found the way home"),
    "a key": ("under a stone", "tried it on every gate", "a secret garden opened"),
    "a map": ("inside a bottle", "followed its dotted line", "an old well was found again"),
    "a bell": ("in the tall grass", "rang it three times", "all the neighbours came to dance"),
    "a feather": ("on the doorstep", "gave it to a sad sparrow", "the two became good friends"),
    "a boat": ("among the reeds", "rowed it across the lake", "the children had a new game"),
    "a kite": ("in a thorny bush", "mended it with a thread", "it flew higher than the clouds"),
    "a drum": ("behind the barn", "played it all evening", "nobody was afraid of the storm"),
    "a book": ("on a park bench", "read it aloud to the others", "they learned a hundred songs"),
    "a coin": ("in the muddy road", "bought bread for a beggar", "the beggar became a baker"),
    "a seed": ("in an empty pocket", "planted it by the wall", "a tall apple tree grew there"),
    "a mirror": ("in the attic", "turned it to the sun", "the cold room became bright"),
    "a rope": ("near the railway", "tied it to a tall tree", "a lost lamb was pulled to safety"),
    "a clock": ("at the market", "wound it up with care", "the village was never late again"),
    "a star": ("in the fresh snow", "threw it back to the sky", "the night smiled and said thanks"),
    "a cake": ("on the window sill", "cut it into many pieces", "there was enough for everyone"),
}

# Words of other scripts and emoji: they make the byte tokens work and streams cut inside characters.
FOREIGN = """
café naïve Müller Straße señor garçon København Łódź Ångström crème brûlée façade jalapeño Zürich
Καλημέρα κόσμε мир привет книга солнце שלום مرحبا नमस्ते 你好 世界 日本語 東京 猫 犬 こんにちは ありがとう
안녕하세요 한국 🙂 🚀 🎉 🌍 🐍 ❤️ ✓ → € £ ½ ° « » “quoted” ‘single’ … – — ∑ π ≤ ∞ 𝄞 👩‍🚀 🇫🇷
""".split()

SYSTEMS = [
    "You are a helpful assistant.",
    "You are a friendly and brief assistant.",
    "Answer the user's questions.",
    "You are the demo model of quire.",
    "Be brief.",
    "Be polite and precise.",
    "You are a careful assistant who gives short answers.",
    "Answer in one sentence where you can.",
]

COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "grey", "pink", "purple"]
ITEMS = ["lamps", "chairs", "books", "pencils", "bottles", "tables", "clocks", "baskets", "hammers",
         "pillows", "apples", "candles", "boots", "mirrors", "ropes", "tickets", "drums", "kites"]
ROOMS = ["kitchen", "bedroom", "library", "office", "garage", "cellar", "hall", "attic", "bathroom"]
JOBS = ["teacher", "doctor", "farmer", "sailor", "painter", "writer", "singer", "dancer", "builder",
        "baker", "driver", "gardener"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
