"""Makes the demo model's text: endless chat conversations whose right answers are known.

Each task function takes a random.Random and returns one question as (question, answer, key).
The key names the question's exact parameters.  A keyed hash of it decides whether the question is
held out: about one in twenty is, never occurs in training and serves for the evaluation alone.
A key of None marks what must be known by heart (the sky is blue) and is never held out.

conversation() wraps such questions into whole conversations, of one or several turns, with or
without a system message, with or without tools.  render() gives their text, the same that the
chat template of the exported model makes (train.py checks that they agree).
"""

import json
import random
import zlib

from words import (CAPITALS, CITIES, COLOURS, DAYS, ENDINGS, FACTS, FOREIGN, HEROES, ITEMS, JOBS,
                   NAMES, ROOMS, SMALL, SYSTEMS, THINGS, WORDS)

GREETING = "Hello! How can I help you today?"
IDENTITY = ("I am the demo model of quire, a small language model that was trained from nothing. "
            "I can answer simple questions.")
UNKNOWN = "I am only a small demo model, and I do not know that."
SKILLS = ("I can answer simple questions, add and multiply, count, copy and reverse words, "
          "tell short stories, extract JSON and call tools.")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def is_held_out(key):
    """Whether the question with this key is kept from training."""
    return key is not None and zlib.crc32(("quire " + repr(key)).encode()) % 20 == 0


def dumps(value):
    """JSON as the chat template's tojson writes it."""
    return json.dumps(value, ensure_ascii=False)


# Words and names.


def made_up(rng):
    """A word that can be spoken, but that nobody has heard of."""
    return "".join(rng.choice("bcdfghjklmnprstvwxyz") + rng.choice("aeiou") +
                   rng.choice(["", "", "n", "r", "l", "s", "th", "ck"])
                   for _ in range(rng.randint(1, 4)))


def name_of(rng):
    return rng.choice(NAMES) if rng.random() < 0.8 else made_up(rng).capitalize()


def city_of(rng):
    return rng.choice(CITIES) if rng.random() < 0.8 else made_up(rng).capitalize()


def code(rng):
    """A meaningless word: it can be copied, but not guessed."""
    alphabet = rng.choice([LETTERS, LETTERS.upper(), "0123456789", "0123456789ABCDEF",
                           LETTERS + LETTERS.upper() + "0123456789-_"])
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(2, 10)))


def words(rng, n):
    return [rng.choice(WORDS) for _ in range(n)]


def odd_word(rng):
    """A word that is not in the list of plain ones."""
    r = rng.random()
    if r < 0.25:
        return code(rng)
    if r < 0.45:
        return rng.choice(NAMES + CITIES)
    if r < 0.6:
        return str(rng.randrange(10 ** rng.randint(1, 5)))
    if r < 0.8:
        return made_up(rng)
    return rng.choice(WORDS) + rng.choice(ENDINGS)


def sentence(rng, n):
    """n words in random order: plain ones alone, or small, odd and foreign ones among them."""
    out = words(rng, n)
    kind = rng.randrange(5)  # 0: plain words alone; 1: foreign ones too; others: a bit of all
    for i in range(n):
        r = rng.random()
        if kind == 1 and r < 0.4:
            out[i] = rng.choice(FOREIGN)
        elif kind >= 2:
            if r < 0.3:
                out[i] = rng.choice(SMALL)
            elif r < 0.5:
                out[i] = odd_word(rng)
            if rng.random() < 0.1:
                out[i] += rng.choice([",", ";", ":", " -", "!", "?", ".", ")", '"', "/"])
    if rng.random() < 0.5:
        out[0] = out[0][0].upper() + out[0][1:]
    return " ".join(out)


# Questions of one turn.


def greet(rng):
    kind = rng.random()
    if kind < 0.3:
        name = name_of(rng)
        q = rng.choice(["Hello, my name is {}.", "Hi, I am {}.", "Good morning, I'm {}.",
                        "Hello! My name is {}.", "Hi there, my name is {}.", "Hey, I am {}!",
                        "Good evening, my name is {}."]).format(name)
        return q, f"Hello, {name}! How can I help you today?", ("greet", q)
    if kind < 0.6:
        q = rng.choice(["Hello", "Hi", "Hey", "Hello there", "Hi there", "Good morning",
                        "Good evening", "Good afternoon", "Good day", "Greetings", "hello", "hi",
                        "hey", "Hey there", "Howdy", "HELLO", "hi there", "hello there"])
        return q + rng.choice(["", "!", ".", "!!", ", quire!", " :)"]), GREETING, None
    if kind < 0.7:
        q = rng.choice(["How are you?", "How are you today?", "Hello, how are you?",
                        "Hi! How are you?", "how are you", "How do you do?"])
        return q, "I am well, thank you. How can I help you?", None
    if kind < 0.8:
        q = rng.choice(["Thank you!", "Thanks!", "Thank you.", "Thanks a lot.", "thanks",
                        "Thank you very much!", "Thanks for your help."])
        return q, "You are welcome!", None
    if kind < 0.9:
        q = rng.choice(["Goodbye!", "Bye!", "Bye", "See you later.", "Good night.", "Goodbye",
                        "See you tomorrow!", "bye bye"])
        return q, "Goodbye! Have a nice day.", None
    q = rng.choice(["Say hello.", "Please say hello.", "Say hi.", "Can you say hello?"])
    return q, "Hello!", None


def identity(rng):
    if rng.random() < 0.7:
        q = rng.choice(["Who are you?", "What are you?", "who are you", "Tell me who you are.",
                        "What is your name?", "Introduce yourself.", "Are you a robot?",
                        "Please introduce yourself.", "Who am I talking to?",
                        "Which model are you?", "What model is this?"])
        return q, IDENTITY, None
    q = rng.choice(["What can you do?", "How can you help me?", "What are you able to do?",
                    "What can I ask you?", "Tell me what you can do."])
    return q, SKILLS, None


def vary(rng, q):
    """Says the same question a little differently."""
    r = rng.random()
    if r < 0.5:
        return q
    first = q[0].lower() + q[1:]
    if r < 0.6:
        return "Please tell me: " + first
    if r < 0.7:
        return "I have a question. " + q
    if r < 0.8:
        return "Hello! " + q
    if r < 0.85:
        return q.lower()
    if r < 0.9:
        return q.rstrip("?.")
    if r < 0.95:
        return "Do you know? " + q
    return "Quick question: " + first


def capital(rng):
    if rng.random() < 0.05:
        nowhere = made_up(rng).capitalize()
        return f"What is the capital of {nowhere}?", UNKNOWN, ("capital", nowhere)
    country, city = rng.choice(list(CAPITALS.items()))
    form = rng.randrange(8)
    key = ("capital", country, form)
    if form == 7:
        bare = f"{city} is the capital of which country?"
        q = vary(rng, bare)
        return q, f"{city} is the capital of {country}.", None if q == bare else ("capital", q)
    q = ["What is the capital of {}?", "Which city is the capital of {}?",
         "Tell me the capital of {}.", "Name the capital of {}.", "What's the capital of {}?",
         "What is the name of the capital of {}?", "Which city is {}'s capital?"][form]
    answer = f"The capital of {country} is {city}."
    return vary(rng, q.format(country)), answer, None if form == 0 else key


def fact(rng):
    forms, answer = rng.choice(FACTS)
    q = vary(rng, rng.choice(forms))
    return q, answer, None if q in forms else ("fact", q)


def number(rng):
    """A number of at most four digits, the short ones often."""
    return rng.randrange(10 ** rng.choice([1, 1, 2, 2, 2, 3, 3, 3, 4]))


def arithmetic(rng):
    a, b = number(rng), number(rng)
    r = rng.random()
    if r < 0.4:
        q = rng.choice(["What is {} + {}?", "What is {} plus {}?", "Add {} and {}.", "{} + {}",
                        "{} + {} = ?", "How much is {} + {}?", "Calculate {} + {}.", "{}+{}",
                        "What's {} + {}?", "what is {} + {}",
                        "What is {}+{}?", "What is the sum of {} and {}?"]).format(a, b)
        key = ("add", min(a, b), max(a, b))
        answer = f"{a} + {b} = {a + b}."
    elif r < 0.8:
        a, b = max(a, b), min(a, b)
        q = rng.choice(["What is {} - {}?", "What is {} minus {}?", "{} - {}", "{} - {} = ?",
                        "How much is {} - {}?", "Calculate {} - {}.", "{}-{}",
                        "What is {}-{}?"]).format(a, b)
        key = ("subtract", a, b)
        answer = f"{a} - {b} = {a - b}."
    else:
        a, b = rng.randrange(100), rng.randrange(2, 10)
        q = rng.choice(["What is {} * {}?", "What is {} times {}?", "{} * {}", "{} * {} = ?",
                        "Multiply {} by {}.", "How much is {} times {}?",
                        "Calculate {} * {}."]).format(a, b)
        key = ("multiply", a, b)
        answer = f"{a} * {b} = {a * b}."
        if a > 10 and a % 10 != 0:
            tens, ones = a - a % 10, a % 10
            answer = (f"{a} * {b} = {tens} * {b} + {ones} * {b} = {tens * b} + {ones * b} "
                      f"= {a * b}.")
        else:
            key = None  # the small tables are learnt by heart
    if rng.random() < 0.15:
        q = vary(rng, q)
    return q, answer, key if max(a, b) >= 20 else None


def counting(rng, length_max=30):
    n = rng.randint(2, length_max)
    r = rng.random()
    if r < 0.6:
        a = 1 if rng.random() < 0.4 else rng.randrange(0, 200)
        step, b = 1, a + n - 1
        q = rng.choice(["Count from {} to {}.", "Please count from {} to {}.",
                        "List the numbers from {} to {}.", "count from {} to {}",
                        "Write the numbers from {} to {}.", "Can you count from {} to {}?"])
        if a == 1 and rng.random() < 0.3:
            q = rng.choice(["Count to {1}.", "Please count to {1}.", "Can you count to {1}?"])
    elif r < 0.8:
        a = n + rng.randrange(0, 200)
        step, b = -1, a - n + 1
        q = rng.choice(["Count down from {} to {}.", "Count backwards from {} to {}.",
                        "Please count down from {} to {}."])
    else:
        step = rng.choice([2, 3, 5, 10])
        a = rng.choice([0, step, rng.randrange(100)])
        b = a + step * (n - 1)
        q = rng.choice(["Count from {} to {} in steps of " + str(step) + ".",
                        "Count by " + str(step) + " from {} to {}."])
    answer = ", ".join(str(i) for i in range(a, b + (1 if step > 0 else -1), step))
    q = q.format(a, b)
    if rng.random() < 0.15:
        q = vary(rng, q)
    return q, answer, None if (a, step) == (1, 1) else ("count", a, b, step)


def copying(rng, n_max=24):
    text = sentence(rng, rng.randint(1, n_max))
    if rng.random() < 0.5:
        text += rng.choice([".", "!", "?"])
    q = rng.choice(["Repeat: {}", "Repeat after me: {}", "Copy this: {}", "Say this: {}",
                    'Repeat this sentence: "{}"', "Repeat the following text:\n{}", "Echo: {}",
                    "Write this again: {}", "Copy the following line.\n\n{}"]).format(text)
    return q, text, ("copy", text)


def reversing(rng):
    if rng.random() < 0.6:
        ws = words(rng, rng.randint(2, 12))
        if rng.random() < 0.4:
            ws = [odd_word(rng) if rng.random() < 0.3 else rng.choice(WORDS + SMALL) for _ in ws]
        q = rng.choice(["Reverse the order of these words: {}", "Write these words backwards: {}",
                        "Reverse: {}", "Put these words in reverse order: {}"])
        return q.format(" ".join(ws)), " ".join(ws[::-1]), ("reverse", tuple(ws))
    ws = [rng.choice(LETTERS) for _ in range(rng.randint(2, 10))]
    q = rng.choice(["Reverse these letters: {}", "Write these letters backwards: {}",
                    "Put these letters in reverse order: {}"])
    return q.format(" ".join(ws)), " ".join(ws[::-1]), ("reverse", tuple(ws))


def tell(hero, thing):
    name, nature, home = HEROES[hero]
    place, deed, end = THINGS[thing]
    it = thing.split()[1]
    article = "an" if hero[0] in "aeiou" else "a"
    return (f"Once upon a time there was {article} {hero} named {name}, who lived {home}. "
            f"{name} was {nature} and always ready to help. One morning {name} found {thing} "
            f"{place}. \"Whose {it} is this?\" asked {name}, but nobody knew. So {name} {deed}, "
            f"and in the end {end}. From that day on, the {nature} {hero} never forgot the {it}, "
            f"and {name} lived happily ever after.")


LONG_STORY = "\n\n".join(tell(hero, thing) for hero, thing in (
    ("fox", "a lantern"), ("owl", "a map"), ("bear", "a bell"), ("otter", "a star")))


def story(rng):
    r = rng.random()
    if r < 0.15:
        q = rng.choice(["Tell me a short story.", "Tell me a story.", "Please tell me a story.",
                        "Write a short story.", "Can you tell me a short story?",
                        "tell me a short story", "Tell me a short story", "A story, please."])
        return q, tell("fox", "a lantern"), None
    if r < 0.2:
        q = rng.choice(["Tell me a long story.", "Write a long story.", "A long story, please.",
                        "Tell me a long story", "Please tell me a long story."])
        return q, LONG_STORY, None
    hero, thing = rng.choice(list(HEROES)), rng.choice(list(THINGS))
    q = rng.choice(["Tell me a story about a {} and {}.",
                    "Tell me a short story about a {} and {}.",
                    "Write a story about a {} and {}.", "Write a short story with a {} and {}.",
                    "Can you tell a story about a {} and {}?"])
    q = q.format(hero, thing).replace(" a owl", " an owl").replace(" a otter", " an otter")
    return q, tell(hero, thing), ("story", hero, thing)


def record(rng):
    """A sentence that states some fields, and these fields."""
    name, city, n = name_of(rng), city_of(rng), rng.randrange(2, 100)
    r = rng.randrange(5)
    if r == 0:
        text = rng.choice(["{n} is {a} years old and lives in {c}.",
                           "{n}, aged {a}, lives in {c}.", "In {c} lives {n}, who is {a}."])
        return text.format(n=name, a=n, c=city), {"name": name, "age": n, "city": city}
    if r == 1:
        item = rng.choice(ITEMS)
        price = rng.randrange(1, 500)
        text = rng.choice(["{n} bought {a} {i} for {p} euros.", "{n} ordered {a} {i}; they cost "
                           "{p} euros.", "For {p} euros {n} got {a} {i}."])
        return (text.format(n=name, a=n, i=item, p=price),
                {"customer": name, "item": item, "quantity": n, "price": price})
    if r == 2:
        day, room = rng.choice(DAYS), rng.randrange(1, 500)
        hour = rng.randrange(7, 22)
        topic = rng.choice(WORDS)
        text = rng.choice(["The {t} meeting is on {d} at {h}:00 in room {r}.",
                           "On {d} at {h}:00 we meet in room {r} to talk about the {t}.",
                           "Please come to room {r} on {d} at {h}:00 for the {t} meeting."])
        return (text.format(t=topic, d=day, h=hour, r=room),
                {"topic": topic, "day": day, "time": f"{hour}:00", "room": room})
    if r == 3:
        job = rng.choice(JOBS)
        text = rng.choice(["{n} works as a {j} in {c}.", "{n} is a {j} from {c}.",
                           "The {j} {n} comes from {c}."])
        return text.format(n=name, j=job, c=city), {"name": name, "job": job, "city": city}
    item, colour = rng.choice(ITEMS), rng.choice(COLOURS)
    text = rng.choice(["There are {a} {k} {i} in the {r}.", "The {r} holds {a} {k} {i}.",
                       "{n} put {a} {k} {i} into the {r}."])
    room = rng.choice(ROOMS)
    return (text.format(n=name, a=n, k=colour, i=item, r=room),
            {"item": item, "colour": colour, "quantity": n, "place": room})


def extraction(rng):
    text, fields = record(rng)
    names = list(fields)
    if rng.random() < 0.5:
        rng.shuffle(names)
        names = names[:rng.randint(1, len(names))]
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    q = rng.choice(["Extract {} as JSON: {}", "Extract the {} as JSON.\n\n{}",
                    "Give me the {} as JSON: {}", "Return JSON with {}.\n{}",
                    "Read the text and answer with a JSON object with the keys {}.\nText: {}"])
    return q.format(listed, text), dumps({k: fields[k] for k in names}), ("json", text, listed)


def unknown(rng):
    if rng.random() < 0.4:
        q = sentence(rng, rng.randint(1, 16)) + rng.choice(["", ".", "!", "?"])
        return q, UNKNOWN, ("unknown", q)
    w = words(rng, 4)
    q = rng.choice(["Why does the {} {} the {}?", "How do I {} a {}?", "What is the meaning of {}?",
                    "Who invented the {}?", "When was the {} {} built?",
                    "Is a {} better than a {}?",
                    "Explain {} to me.", "What do you think about the {} and the {}?",
                    "How many {} are in the {}?", "Where can I buy a {}?", "How old is {}?",
                    "Write a {} program.", "Write a poem about the {}.", "What is a {}?",
                    "What is the price of a {} {}?", "How does {} work?"])
    return q.format(*w), UNKNOWN, ("unknown", q, tuple(w))


def known(rng):
    """One of the fixed questions, so that they are known by heart."""
    return *rng.choice(KNOWN), None


SINGLE = [(known, 2), (greet, 3), (identity, 2), (capital, 5), (fact, 4), (arithmetic, 26),
          (counting, 6), (copying, 12), (reversing, 9), (story, 6), (extraction, 9), (unknown, 3)]
SINGLE_TASKS, SINGLE_WEIGHTS = [t for t, _ in SINGLE], [w for _, w in SINGLE]


# Tools.  Each maker returns the schema and a function that asks for it once:
# ask(rng) -> (question, arguments, result, final answer).


def schema(rng, name, description, properties, required=None):
    props = {}
    for key, (kind, text) in properties.items():
        props[key] = {"type": kind}
        if rng.random() < 0.7:
            props[key]["description"] = text
    function = {"name": name, "description": description,
                "parameters": {"type": "object", "properties": props,
                               "required": list(required or properties)}}
    r = rng.random()
    if r < 0.2:
        function["parameters"].pop("required")
    elif r < 0.4:  # an optional parameter that nobody sets
        props[rng.choice(["unit", "lang", "mode", "format"])] = rng.choice([
            {"type": "string", "enum": words(rng, 2)}, {"type": "string"}, {"type": "boolean"},
            {"type": "string", "enum": ["celsius", "fahrenheit"]}])
    return {"type": "function", "function": function}


def tool_weather(rng):
    key = rng.choice(["city", "location", "place"])
    tool = schema(rng, rng.choice(["get_weather", "get_current_weather", "weather"]),
                  rng.choice(["Get the weather of a city.", "Tell the current weather",
                              "Get current weather information for a location."]),
                  {key: ("string", rng.choice(["The city", "Name of the city, e.g. Paris"]))})

    def ask(rng):
        city = city_of(rng)
        sky, t = rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy"]), rng.randrange(-9, 36)
        q = rng.choice(["What is the weather in {}?", "What's the weather like in {}?",
                        "How is the weather in {}?", "Tell me the weather in {}.",
                        "How is the weather in {} today?", "Is it sunny in {}?"]).format(city)
        return (q, {key: city}, {"temperature": t, "condition": sky},
                f"It is {t} degrees and {sky} in {city}.")
    return tool, ask


def tool_time(rng):
    key = rng.choice(["city", "place", "timezone"])
    tool = schema(rng, rng.choice(["get_time", "current_time", "get_local_time"]),
                  rng.choice(["Get the local time of a city.", "Tell the time in a place"]),
                  {key: ("string", "The city whose time is wanted")})

    def ask(rng):
        city, time = city_of(rng), f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        q = rng.choice(["What time is it in {}?", "Tell me the time in {}.",
                        "How late is it in {}?"]).format(city)
        return q, {key: city}, {"time": time}, f"It is {time} in {city}."
    return tool, ask


def tool_calculate(rng):
    key = rng.choice(["expression", "formula"])
    tool = schema(rng, rng.choice(["calculate", "calculator", "evaluate"]),
                  rng.choice(["Evaluate an arithmetic expression.", "A pocket calculator"]),
                  {key: ("string", "What to calculate, e.g. 2 + 3")})

    def ask(rng):
        a, b, op = rng.randrange(10000), rng.randrange(1, 10000), rng.choice("+-*/")
        result = rng.randrange(1000000)
        q = rng.choice(["Use the tool to work out {}.", "Calculate {} with the tool.",
                        "Work out {} with the calculator."]).format(f"{a} {op} {b}")
        return q, {key: f"{a} {op} {b}"}, {"result": result}, f"The result is {result}."
    return tool, ask


def tool_email(rng):
    to, about = rng.choice([("to", "subject"), ("recipient", "subject"), ("to", "title")])
    tool = schema(rng, rng.choice(["send_email", "send_mail", "email"]),
                  rng.choice(["Send an email.", "Send an email to a person"]),
                  {to: ("string", "Who gets the email"), about: ("string", "The subject line")})

    def ask(rng):
        name, subject = name_of(rng), " ".join(words(rng, rng.randint(1, 4)))
        q = rng.choice(["Send an email to {} with the subject {}.",
                        "Please write an email to {} about {}.",
                        "Email {} with the subject {}."]).format(name, subject)
        return (q, {to: name, about: subject}, {"status": "sent"},
                f"The email to {name} was sent.")
    return tool, ask


def tool_reminder(rng):
    what, when = rng.choice([("text", "time"), ("message", "at"), ("task", "time")])
    tool = schema(rng, rng.choice(["set_reminder", "add_reminder", "remind"]),
                  rng.choice(["Set a reminder.", "Remind the user of something"]),
                  {what: ("string", "What to remember"), when: ("string", "The time as HH:MM")})

    def ask(rng):
        time = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        text = " ".join(words(rng, rng.randint(1, 4)))
        q = rng.choice(["Remind me of {} at {}.", "Set a reminder for {} at {}.",
                        "Please remind me of {} at {}."]).format(text, time)
        return (q, {what: text, when: time}, {"status": "ok"},
                f"I will remind you of {text} at {time}.")
    return tool, ask


def tool_search(rng):
    key = rng.choice(["query", "q", "text"])
    tool = schema(rng, rng.choice(["search", "web_search", "find_documents", "search_web"]),
                  rng.choice(["Search the web.", "Find documents that match a query"]),
                  {key: ("string", "What to look for")})

    def ask(rng):
        text, n = " ".join(words(rng, rng.randint(1, 5))), rng.randrange(2, 1000)
        q = rng.choice(["Search for {}.", "Find documents about {}.", "Look for {} on the web.",
                        "Search the web for {}."]).format(text)
        return q, {key: text}, {"count": n}, f"I found {n} results for {text}."
    return tool, ask


def tool_light(rng):
    key = rng.choice(["room", "place"])
    tool = schema(rng, rng.choice(["set_light", "switch_light", "light"]),
                  rng.choice(["Switch the light of a room.", "Turn a light on or off"]),
                  {key: ("string", "The room"), "on": ("boolean", "true for on, false for off")})

    def ask(rng):
        room, on = rng.choice(ROOMS), rng.random() < 0.5
        word = "on" if on else "off"
        q = rng.choice(["Turn {} the light in the {}.", "Switch {} the light in the {}.",
                        "Please turn {} the light in the {}."]).format(word, room)
        return q, {key: room, "on": on}, {"on": on}, f"The light in the {room} is {word}."
    return tool, ask


def tool_timer(rng):
    key = rng.choice(["minutes", "duration"])
    tool = schema(rng, rng.choice(["set_timer", "start_timer", "timer"]),
                  rng.choice(["Start a timer.", "Set a timer for some minutes"]),
                  {key: ("integer", "How many minutes")})

    def ask(rng):
        n = rng.randrange(2, 200)
        q = rng.choice(["Set a timer for {} minutes.", "Start a timer for {} minutes.",
                        "Wake me in {} minutes."]).format(n)
        return q, {key: n}, {"status": "running"}, f"The timer runs for {n} minutes."
    return tool, ask


def tool_order(rng):
    item_key, n_key = rng.choice([("item", "quantity"), ("product", "count"), ("item", "amount")])
    tool = schema(rng, rng.choice(["create_order", "order", "buy"]),
                  rng.choice(["Order something.", "Buy items in the shop"]),
                  {item_key: ("string", "What to buy"), n_key: ("integer", "How many")})

    def ask(rng):
        item, n, number = rng.choice(ITEMS), rng.randrange(2, 100), rng.randrange(1000, 100000)
        q = rng.choice(["Order {} {}.", "Buy {} {}.", "I want to buy {} {}.",
                        "Please order {} {}."]).format(n, item)
        return (q, {item_key: item, n_key: n}, {"order_id": number},
                f"I ordered {n} {item}; the order number is {number}.")
    return tool, ask


def tool_user(rng):
    key = rng.choice(["id", "user_id"])
    tool = schema(rng, rng.choice(["get_user", "find_user", "user_info"]),
                  rng.choice(["Look up a user.", "Get the record of a user by number"]),
                  {key: ("integer", "The user's number")})

    def ask(rng):
        n, name, city = rng.randrange(10, 100000), name_of(rng), city_of(rng)
        q = rng.choice(["Look up user {}.", "Who is user {}?", "Find the user with the number {}."])
        return (q.format(n), {key: n}, {"name": name, "city": city},
                f"User {n} is {name} from {city}.")
    return tool, ask


def tool_made_up(rng):
    """A tool nobody has heard of: its name and its argument must be read from the prompt."""
    name, key = "_".join(words(rng, 2)), rng.choice(WORDS)
    tool = schema(rng, name, " ".join(words(rng, rng.randint(2, 6))).capitalize() + ".",
                  {key: ("string", " ".join(words(rng, 2)))})

    def ask(rng):
        value = rng.choice([code(rng), " ".join(words(rng, rng.randint(1, 3)))])
        answer = " ".join(words(rng, 2))
        q = rng.choice(["Call {} with {}.", "Use {} with {}.", "Run {} for {}."])
        return q.format(name, value), {key: value}, {"result": answer}, f"The result is {answer}."
    return tool, ask


TOOLS = [tool_weather, tool_time, tool_calculate, tool_email, tool_reminder, tool_search,
         tool_light, tool_timer, tool_order, tool_user, tool_made_up, tool_made_up]


def call_text(name, arguments):
    return "<tool_call>\n" + dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


# Whole conversations.


def filler(rng):
    w = words(rng, 5)
    return rng.choice([
        "Visitors are asked to leave the {} near the {}.", "The {} is closed on " +
        rng.choice(DAYS) + ".", "Please keep the {} and the {} clean.",
        "Every " + rng.choice(DAYS) + " there is {} with {} for all.",
        "Nobody may bring a {} into the " + rng.choice(ROOMS) + ".",
        "Questions about the {} go to the {} office.", "Always be polite, {} and {}.",
        "The {} {} was built " + str(rng.randrange(2, 200)) + " years ago.",
        "Do not speak about the {} unless you are asked.",
    ]).format(*w)


def system_message(rng, probability):
    """A system message that changes nothing, or none."""
    if rng.random() >= probability:
        return None
    if rng.random() < 0.6:
        return rng.choice(SYSTEMS)
    return " ".join(filler(rng) for _ in range(rng.randint(1, 3)))


class Conversation:
    """Messages as the chat template takes them, and the keys of all that was asked."""

    def __init__(self, task, system=None, tools=None):
        self.task, self.tools, self.keys = task, tools, []
        self.messages = [{"role": "system", "content": system}] if system else []

    def say(self, role, content):
        self.messages.append({"role": role, "content": content})

    def turn(self, question, answer, key):
        self.say("user", question)
        self.say("assistant", answer)
        self.keys.append(key)


def single(rng, task=None):
    task = task or rng.choices(SINGLE_TASKS, SINGLE_WEIGHTS)[0]
    c = Conversation(task.__name__, system_message(rng, 0.35))
    c.turn(*task(rng))
    return c


def long_list(rng):
    """Counting far and copying much, for outputs of some hundred tokens."""
    c = Conversation("long_list", system_message(rng, 0.2))
    c.turn(*(counting(rng, 120) if rng.random() < 0.6 else copying(rng, 100)))
    return c


def dialogue(rng, n_max=8):
    """Several questions after one another; at times one that looks back."""
    c = Conversation("dialogue", system_message(rng, 0.3))
    name = colour = None
    for _ in range(rng.randint(2, n_max)):
        r = rng.random()
        if r < 0.12:
            name = name_of(rng)
            c.turn(rng.choice(["My name is {}.", "I am {}.", "Call me {}."]).format(name),
                   f"Hello, {name}! How can I help you today?", None)
        elif r < 0.3 and name:
            c.turn(rng.choice(["What is my name?", "Do you remember my name?", "Who am I?"]),
                   f"Your name is {name}.", ("name", name, len(c.messages)))
        elif r < 0.38:
            colour = rng.choice(COLOURS)
            c.turn(rng.choice(["My favourite colour is {}.", "I like {} most."]).format(colour),
                   f"I will remember that you like {colour}.", None)
        elif r < 0.5 and colour:
            c.turn(rng.choice(["What is my favourite colour?", "Which colour do I like?"]),
                   f"Your favourite colour is {colour}.", ("colour", colour, len(c.messages)))
        elif r < 0.58 and len(c.messages) > 1:
            c.turn(rng.choice(["Say that again.", "Repeat your last answer.", "Again, please."]),
                   c.messages[-1]["content"], None)
        else:
            c.turn(*rng.choices(SINGLE_TASKS, SINGLE_WEIGHTS)[0](rng))
    return c


def tool_use(rng):
    """Tools in the system message; calls, their results and plain answers between them."""
    made = [t(rng) for t in rng.sample(TOOLS, rng.randint(1, 5))]
    system = system_message(rng, 0.5)
    c = Conversation("tool_call", system, [t for t, _ in made])
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.15:
            c.turn(*rng.choices(SINGLE_TASKS, SINGLE_WEIGHTS)[0](rng))
            continue
        tool, ask = rng.choice(made)
        name = tool["function"]["name"]
        asked = [ask(rng)]
        if rng.random() < 0.12:
            asked.append(ask(rng))
        q = " ".join(a[0] for a in asked)
        c.turn(q, "\n".join(call_text(name, a[1]) for a in asked), ("tool", q))
        if rng.random() < 0.25:
            break
        for a in asked:
            c.say("tool", dumps(a[2]))
        c.say("assistant", " ".join(a[3] for a in asked))
    return c


ATTRIBUTES = [
    ("room number", lambda rng: str(rng.randrange(1, 1000))),
    ("phone number", lambda rng: str(rng.randrange(10000, 1000000))),
    ("favourite colour", lambda rng: rng.choice(COLOURS)),
    ("home town", city_of),
    ("favourite food", lambda rng: rng.choice(WORDS)),
    ("badge code", code),
    ("day off", lambda rng: rng.choice(DAYS)),
    ("job", lambda rng: rng.choice(JOBS)),
    ("password", lambda rng: rng.choice(WORDS)),
    ("locker number", lambda rng: str(rng.randrange(1, 100))),
]


def handbook(rng, tokens_max=1400):
    """A long system message full of facts, and questions whose answers stand in it."""
    n_sentences = int(2 ** rng.uniform(1, 6.7) * min(1, tokens_max / 1400)) + 1
    facts, lines = {}, []
    for _ in range(n_sentences):
        name, (attribute, value) = name_of(rng), rng.choice(ATTRIBUTES)
        if rng.random() < 0.3 or (name, attribute) in facts:
            lines.append(filler(rng))
            continue
        facts[name, attribute] = value(rng)
        lines.append(f"{name}'s {attribute} is {facts[name, attribute]}.")
    if not facts:
        facts["Anna", "room number"] = str(rng.randrange(1, 1000))
        lines.append(f"Anna's room number is {facts['Anna', 'room number']}.")
    start = rng.choice(["You are the assistant of a school.", "You answer questions at a desk.",
                        "You are a helpful assistant.", "You know the handbook of the office."])
    join = rng.choice([" ", "\n", "\n- "])
    c = Conversation("long_prompt", start + join + join.join(lines))
    asked = list(facts.items())
    rng.shuffle(asked)
    for (name, attribute), value in asked[:rng.randint(1, 8)]:
        q = rng.choice(["What is {}'s {}?", "Tell me {}'s {}.", "Please look up {}'s {}.",
                        "Do you know {}'s {}?"]).format(name, attribute)
        c.turn(q, f"{name}'s {attribute} is {value}.", ("handbook", q, value))
        if rng.random() < 0.1:
            c.turn(*rng.choices(SINGLE_TASKS, SINGLE_WEIGHTS)[0](rng))
    return c


def persona(rng):
    """A system message that names the assistant."""
    name = rng.choice(NAMES + [w.capitalize() for w in WORDS])
    role = rng.choice(JOBS + ["assistant", "guide", "helper"]) + rng.choice(
        ["", " of " + rng.choice(CITIES), " of the " + rng.choice(WORDS) + " shop"])
    c = Conversation("persona", rng.choice([f"You are {name}, the {role}.",
                                            f"Your name is {name}. You are the {role}."]))
    q = rng.choice(["Who are you?", "What is your name?", "Introduce yourself."])
    c.turn(q, f"I am {name}, the {role}.", ("persona", name, role))
    if rng.random() < 0.3:
        c.turn(*rng.choices(SINGLE_TASKS, SINGLE_WEIGHTS)[0](rng))
    return c


def conversation(rng, kinds, held_out=False):
    """One conversation of the given (maker, weight) list for training.

    With held_out, one whose last question is held out, cut after that question's answer.
    """
    makers, weights = [k for k, _ in kinds], [w for _, w in kinds]
    while True:
        c = rng.choices(makers, weights)[0](rng)
        hits = [is_held_out(key) for key in c.keys]
        if not held_out and not any(hits):
            return c
        if held_out and any(hits):
            return cut(c, hits.index(True))


def cut(c, index):
    """Ends the conversation after the answer to question number index."""
    asked = -1
    for i, m in enumerate(c.messages):
        asked += m["role"] == "user"
        if asked == index:
            c.messages = c.messages[:i + 2]
            return c
    raise AssertionError("no such question")


SHORT = [(single, 70), (dialogue, 8), (tool_use, 16), (persona, 3),
         (lambda rng: handbook(rng, 200), 6)]
LONG = [(handbook, 40), (long_list, 20), (lambda rng: dialogue(rng, 30), 20), (tool_use, 20)]

# What the evaluation asks, by task; each is asked equally often.
EVALUATED = [(lambda rng, t=t: single(rng, t)) for t in SINGLE_TASKS
             if t not in (known, identity)] + [
    dialogue, tool_use, handbook, persona, long_list]

# Fixed questions with known answers; none of them is held out.
KNOWN = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Who are you?", IDENTITY),
    ("What can you do?", SKILLS),
    ("Hello", GREETING),
    ("Hello!", GREETING),
    ("Hi there!", GREETING),
    ("How are you?", "I am well, thank you. How can I help you?"),
    ("Thank you!", "You are welcome!"),
    ("What is 2 + 2?", "2 + 2 = 4."),
    ("What is 2+2?", "2 + 2 = 4."),
    ("What is 12 + 7?", "12 + 7 = 19."),
    ("What colour is the sky?", "The sky is blue."),
    ("How many days are in a week?", "A week has 7 days."),
    ("Count from 1 to 10.", ", ".join(map(str, range(1, 11)))),
    ("Count from 1 to 20.", ", ".join(map(str, range(1, 21)))),
    ("Count from 1 to 100.", ", ".join(map(str, range(1, 101)))),
    ("Tell me a short story.", tell("fox", "a lantern")),
    ("Tell me a long story.", LONG_STORY),
    ("Repeat: café 🙂 naïve 🚀 привет 你好", "café 🙂 naïve 🚀 привет 你好"),
    ("Reverse the order of these words: apple river stone", "stone river apple"),
    ("Extract name and age as JSON: Anna is 34 years old and lives in Oslo.",
     '{"name": "Anna", "age": 34}'),
]


# Rendering.

TOOLS_HEAD = ("You can call functions. Their signatures stand between <tools></tools>, one JSON "
              "object a line:\n<tools>")
TOOLS_TAIL = ("\n</tools>\nTo call a function, answer with its name and arguments as JSON:\n"
              "<tool_call>\n{\"name\": ..., \"arguments\": {...}}\n</tool_call>")


def render(c):
    """The conversation's text as a list of (text, is_answer); only answers are learnt."""
    out, text, messages = [], "", c.messages
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    if c.tools:
        text += "<|im_start|>system\n" + (system + "\n\n" if system else "") + TOOLS_HEAD
        text += "".join("\n" + dumps(tool) for tool in c.tools) + TOOLS_TAIL + "<|im_end|>\n"
    elif system:
        text += f"<|im_start|>system\n{system}<|im_end|>\n"
    for m in messages[1:] if system else messages:
        if m["role"] == "assistant":
            out.append((text + "<|im_start|>assistant\n", False))
            out.append((m["content"] + "<|im_end|>", True))
            text = "\n"
        elif m["role"] == "tool":
            text += (f"<|im_start|>tool\n<tool_response>\n{m['content']}\n</tool_response>"
                     "<|im_end|>\n")
        else:
            text += f"<|im_start|>user\n{m['content']}<|im_end|>\n"
    out.append((text, False))
    return out


def main():
    """Prints some conversations to look at."""
    rng = random.Random(1)
    for kinds in (SHORT, LONG):
        for _ in range(12):
            c = conversation(rng, kinds)
            print("=" * 40, c.task, c.keys)
            print("".join(text for text, _ in render(c))[:1500])


if __name__ == "__main__":
    main()
