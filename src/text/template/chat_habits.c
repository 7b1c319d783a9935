/* SPDX-License-Identifier: Apache-2.0
 *
 * What a template does with messages is found out by asking it: small conversations with marked
 * words are rendered, and the marks looked for in what comes. A template that raises has no such
 * habit. The words are of letters only, so that no filter alters them. */
#include <stdio.h>
#include <string.h>

#include "text/template/chat_parts.h"

#define HABITS_WORD            "zqxjword"
#define TOOL                   "zqxjtool"
#define KEY                    "zqxjkey"
#define VALUE                  "zqxjvalue"
#define AS_TEXT                "\"" HABITS_WORD "\""
#define AS_PARTS               "[{\"type\":\"text\",\"text\":\"" HABITS_WORD "\"}]"
#define JSON_TEXT_OF_ARGUMENTS "{\"" KEY "\": \"" VALUE "\"}"
#define TOOLS                                                                               \
    "[{\"type\":\"function\",\"function\":{\"name\":\"" TOOL "\",\"description\":\"d\","    \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"" KEY "\":{\"type\":\"string\"," \
    "\"description\":\"d\"}},\"required\":[\"" KEY "\"]}}}]"

#define ASK_BYTES_MAX 2000

struct asking {
    const struct chat *c;
    const struct chat_template *t;
    const char *filler; /* content of the user's other messages, as JSON */
};

/* Render messages given as JSON; false when the template raises. The text is out's. */
static bool chat_habits_ask(const struct asking *asking, const char *messages, const char *tools,
                            struct chat_prompt *out)
{
    struct chat_request request = {.add_generation_prompt = true};
    struct arena arena = {.limit_bytes = (size_t)16 << 20};
    const struct json *list = NULL;
    char why[100];
    bool good = json_parse(&list, &arena, messages, strlen(messages), why, sizeof why) == ERR_OK &&
                (tools == NULL || json_parse(&request.tools, &arena, tools, strlen(tools), why,
                                             sizeof why) == ERR_OK);

    good = good &&
           chat_render_shaped(asking->c, asking->t->jinja, &request, list, &arena, out) == ERR_OK &&
           out->text.len > 0;
    arena_reset(&arena);
    return good;
}

static bool chat_prints_text(const struct chat_prompt *out, bool good, const char *word)
{
    return good && strstr(out->text.bytes, word) != NULL;
}

#define SAID(role) "{\"role\":\"" role "\",\"content\":%s}"
#define CALLED_TOOL                                                                            \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":" \
    "\"function\",\"function\":{\"name\":\"" TOOL "\",\"arguments\":{}}}]}"
#define TOOL_SAID \
    "{\"role\":\"tool\",\"tool_call_id\":\"abcdef123\",\"name\":\"" TOOL "\",\"content\":%s}"

static int chat_count_text(const struct chat_prompt *out, const char *word)
{
    int n = 0;

    for (const char *at = out->text.len == 0 ? NULL : strstr(out->text.bytes, word); at != NULL;
         at = strstr(at + 1, word))
        n++;
    return n;
}

/* A conversation in which a role says content, which is JSON. */
static void chat_habits_render(const struct asking *asking, enum chat_role role,
                               const char *content, char *out)
{
    const char *x = asking->filler;

    switch (role) {
    case CHAT_SYSTEM:
        (void)snprintf(out, ASK_BYTES_MAX, "[" SAID("system") "," SAID("user") "]", content, x);
        break;
    case CHAT_USER: (void)snprintf(out, ASK_BYTES_MAX, "[" SAID("user") "]", content); break;
    case CHAT_ASSISTANT:
        (void)snprintf(out, ASK_BYTES_MAX,
                       "[" SAID("user") "," SAID("assistant") "," SAID("user") "]", x, content, x);
        break;
    case CHAT_TOOL:
        (void)snprintf(out, ASK_BYTES_MAX, "[" SAID("user") "," CALLED_TOOL "," TOOL_SAID "]", x,
                       content);
        break;
    case CHAT_ROLES: break;
    }
}

static enum chat_form chat_find_form(const struct asking *asking, enum chat_role role)
{
    struct chat_prompt as_text = {0};
    struct chat_prompt as_parts = {0};
    enum chat_form form = CHAT_TEXT;
    char messages[ASK_BYTES_MAX];
    bool text;
    bool parts;

    chat_habits_render(asking, role, AS_TEXT, messages);
    text =
        chat_prints_text(&as_text, chat_habits_ask(asking, messages, NULL, &as_text), HABITS_WORD);
    chat_habits_render(asking, role, AS_PARTS, messages);
    parts = chat_prints_text(&as_parts, chat_habits_ask(asking, messages, NULL, &as_parts),
                             HABITS_WORD);
    if (parts && chat_count_text(&as_parts, "type") == chat_count_text(&as_text, "type"))
        form = text ? CHAT_EITHER : CHAT_PARTS; /* and not a list as Python prints it */
    buf_fini(&as_text.text);
    buf_fini(&as_parts.text);
    return form;
}

/* Is a call printed, with content and arguments in these forms, and in *raw the arguments as JSON
 * text that nothing was done to? */
static bool chat_prints_call(const struct asking *asking, const char *content,
                             const char *arguments, bool *raw)
{
    struct chat_prompt out = {0};
    char messages[ASK_BYTES_MAX];
    bool good;

    (void)snprintf(messages, sizeof messages,
                   "[{\"role\":\"user\",\"content\":%s},{\"role\":\"assistant\",\"content\":%s,"
                   "\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":\"function\",\"function\":{"
                   "\"name\":\"" TOOL "\",\"arguments\":%s}}]},{\"role\":\"tool\","
                   "\"tool_call_id\":\"abcdef123\",\"name\":\"" TOOL "\",\"content\":\"y\"}]",
                   asking->filler, content, arguments);
    good = chat_habits_ask(asking, messages, NULL, &out);
    good = chat_prints_text(&out, good, VALUE);
    *raw = chat_prints_text(&out, good, JSON_TEXT_OF_ARGUMENTS);
    buf_fini(&out.text);
    return good;
}

/* Arguments as an object are what most templates want. One that raises then, or prints the object
 * as Python would ({'a': 1}), wants them as text. */
static void chat_find_calls(const struct asking *asking, struct chat_habits *h)
{
    static const char object[] = "{\"" KEY "\":\"" VALUE "\"}";
    static const char text[] = "\"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\"";
    static const char *const contents[] = {"\"\"", "null"};

    for (int i = 0; i < 2; i++) {
        bool raw_object;
        bool raw_text;
        bool by_object = chat_prints_call(asking, contents[i], object, &raw_object);
        bool by_text = chat_prints_call(asking, contents[i], text, &raw_text);

        if (!by_object && !by_text)
            continue;
        h->calls_without_text = i == 1;
        h->text_arguments = !by_object || (!raw_object && raw_text);
        return;
    }
}

static bool chat_prints_all(const struct asking *asking, const char *messages, const char *tools,
                            const char *word, const char *other)
{
    struct chat_prompt out = {0};
    bool good = chat_habits_ask(asking, messages, tools, &out);

    good = chat_prints_text(&out, good, word) && chat_prints_text(&out, good, other);
    buf_fini(&out.text);
    return good;
}

/* Does it print a message of the system's that stands later, beside the first one? */
static void chat_find_system(const struct asking *asking, struct chat_habits *h)
{
    char early[ASK_BYTES_MAX];
    char late[ASK_BYTES_MAX];

    (void)snprintf(early, sizeof early,
                   "[{\"role\":\"system\",\"content\":" AS_TEXT "},{\"role\":\"user\","
                   "\"content\":%s}]",
                   asking->filler);
    (void)snprintf(late, sizeof late,
                   "[{\"role\":\"system\",\"content\":\"" VALUE "\"},{\"role\":\"user\","
                   "\"content\":%s},{\"role\":\"assistant\",\"content\":\"y\"},{\"role\":"
                   "\"system\",\"content\":" AS_TEXT "},{\"role\":\"user\",\"content\":%s}]",
                   asking->filler, asking->filler);
    h->merges_system = chat_prints_all(asking, early, NULL, HABITS_WORD, HABITS_WORD) &&
                       !chat_prints_all(asking, late, NULL, HABITS_WORD, VALUE);
}

/* Does the text name a member of a message: .name, 'name' or "name"? */
static bool chat_names_member(const char *source, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = strstr(source, name); at != NULL; at = strstr(at + 1, name)) {
        char before = at == source ? ' ' : at[-1];
        char after = at[n];
        bool quoted = (before == '\'' || before == '"') && after == before;
        bool longer = after == '_' || (after >= 'a' && after <= 'z');

        if (quoted || (before == '.' && !longer))
            return true;
    }
    return false;
}

void chat_habits_find(const struct chat *chat, struct chat_template *template, const char *source)
{
    struct chat_habits *h = &template->habits;
    struct asking asking = {.c = chat, .t = template, .filler = "\"x\""};
    char messages[ASK_BYTES_MAX];

    *h = (struct chat_habits){0};
    h->reasoning = (chat_names_member(source, "reasoning_content") ? CHAT_REASONING_CONTENT : 0u) |
                   (chat_names_member(source, "reasoning") ? CHAT_REASONING : 0u) |
                   (chat_names_member(source, "thinking") ? CHAT_THINKING : 0u);
    h->forms[CHAT_USER] = chat_find_form(&asking, CHAT_USER);
    if (h->forms[CHAT_USER] == CHAT_PARTS)
        asking.filler = "[{\"type\":\"text\",\"text\":\"x\"}]";
    for (int role = 0; role < CHAT_ROLES; role++)
        h->forms[role] = chat_find_form(&asking, (enum chat_role)role);
    chat_find_calls(&asking, h);
    chat_find_system(&asking, h);
    chat_habits_render(&asking, CHAT_USER, asking.filler, messages);
    h->tools = chat_prints_all(&asking, messages, TOOLS, TOOL, TOOL);
}
