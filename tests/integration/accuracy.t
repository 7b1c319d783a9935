#!/usr/bin/env python3
"""What the demo model says through HTTP is what transformers says: the goldens, exactly."""

from harness import Stack, Tap, crowd, golden, need_nginx

HELDOUT_STEP = 4  # every fourth of 270

need_nginx()
tap = Tap()
with Stack() as s:
    def ask(q):
        body = s.chat(q["messages"], max_tokens=1200)
        if q.get("tools"):
            # Tools reach the template by its own arguments; the answer stays plain text.
            body["chat_template_kwargs"] = {"tools": q["tools"]}
        return s.post("/v1/chat/completions", body)

    def sayings(questions):
        return [r.json["choices"][0]["message"]["content"] if getattr(r, "status", 0) == 200
                else getattr(r, "body", r) for r in crowd(len(questions),
                                                         lambda i: ask(questions[i]))]

    known = golden("known.json")
    for q, said in zip(known, sayings(known)):
        tap.eq(said, q["expected"], "known: " + q["messages"][-1]["content"][:60])
    held = golden("heldout.json")[::HELDOUT_STEP]
    right = 0
    for q, said in zip(held, sayings(held)):
        right += said == q["expected"]
        if said != q["expected"]:
            tap.note("%s: %r, not %r" % (q["task"], said, q["expected"]))
    tap.ok(right >= 0.95 * len(held), "held out: %d of %d right" % (right, len(held)))
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
