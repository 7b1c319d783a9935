/* SPDX-License-Identifier: Apache-2.0
 *
 * Determines how a template treats messages by experiment: small conversations that contain marker
 * words are rendered, and the output is searched for the words. If a template raises, it does not
 * have the habit in question. The words are of letters only, so that no filter changes them. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "text/template/chat_parts.h"

#define HABITS_WORD              "zqxjword"
#define TOOL                     "zqxjtool"
#define KEY                      "zqxjkey"
#define VALUE                    "zqxjvalue"
#define AS_TEXT                  "\"" HABITS_WORD "\""
#define AS_PARTS                 "[{\"type\":\"text\",\"text\":\"" HABITS_WORD "\"}]"
#define JSON_TEXT_OF_ARGUMENTS   "{\"" KEY "\": \"" VALUE "\"}"
#define PYTHON_TEXT_OF_ARGUMENTS "{'" KEY "': '" VALUE "'}"
#define TOOLS                                                                               \
    "[{\"type\":\"function\",\"function\":{\"name\":\"" TOOL "\",\"description\":\"d\","    \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"" KEY "\":{\"type\":\"string\"," \
    "\"description\":\"d\"}},\"required\":[\"" KEY "\"]}}}]"

#define ASK_BYTES_MAX 2000

/* The template that is examined. */
struct asking {
    const struct chat *c;
    const struct chat_template *t;
    const char *filler; /* content of the other user messages, as JSON */
};

/* Render messages given as JSON. False when the template raises or prints nothing. out->text is the
 * caller's to free. */
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

    /* A template that raises for this conversation is not an error but the answer: it does not
     * support the form that was asked about. */
    good = good &&
           chat_render_shaped(asking->c, asking->t->jinja, &request, list, &arena, out) == ERR_OK &&
           out->text.len > 0;
    arena_reset(&arena);
    return good;
}

/* Does the output of a successful render contain a word? */
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

/* Write a conversation as JSON in which `role` has this content (also JSON). */
static void chat_habits_render(const struct asking *asking, enum chat_role role,
                               const char *content, char *out)
{
    const char *filler = asking->filler;

    /* Templates often demand that roles alternate and that a user is first, so a conversation
     * has such messages around the one in question. */
    switch (role) {
    case CHAT_SYSTEM:
        (void)snprintf(out, ASK_BYTES_MAX, "[" SAID("system") "," SAID("user") "]", content,
                       filler);
        break;
    case CHAT_USER: (void)snprintf(out, ASK_BYTES_MAX, "[" SAID("user") "]", content); break;
    case CHAT_ASSISTANT:
        (void)snprintf(out, ASK_BYTES_MAX,
                       "[" SAID("user") "," SAID("assistant") "," SAID("user") "]", filler, content,
                       filler);
        break;
    case CHAT_TOOL:
        (void)snprintf(out, ASK_BYTES_MAX, "[" SAID("user") "," CALLED_TOOL "," TOOL_SAID "]",
                       filler, content);
        break;
    case CHAT_ROLES: break;
    }
}

/* Determine the form of content for a role: does the marker appear when content is a text, and when
 * it is a list of parts? A template that does not know lists prints one as Python would, with the
 * word "type" in it; therefore the number of these words must not differ. */
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
    /* A template that knows lists prints the marker alone. */
    if (parts && chat_count_text(&as_parts, "type") == chat_count_text(&as_text, "type")) {
        if (text)
            form = CHAT_EITHER;
        else
            form = CHAT_PARTS;
    }
    buf_fini(&as_text.text);
    buf_fini(&as_parts.text);
    return form;
}

/* Does the template print a call with content and arguments in these forms? bare: name and
 * arguments are members of the call, not of its function. *raw reports whether the output contains
 * the arguments as raw_text, exactly. */
static bool chat_prints_call(const struct asking *asking, const char *content,
                             const char *arguments, bool bare, const char *raw_text, bool *raw)
{
    const char *open = bare ? "" : "\"function\":{";
    struct chat_prompt out = {0};
    char messages[ASK_BYTES_MAX];
    bool good;

    (void)snprintf(messages, sizeof messages,
                   "[{\"role\":\"user\",\"content\":%s},{\"role\":\"assistant\",\"content\":%s,"
                   "\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":\"function\",%s"
                   "\"name\":\"" TOOL "\",\"arguments\":%s%s}]},{\"role\":\"tool\","
                   "\"tool_call_id\":\"abcdef123\",\"name\":\"" TOOL "\",\"content\":\"y\"}]",
                   asking->filler, content, open, arguments, bare ? "" : "}");
    /* Both marks must be in the output: a template that ignores tool calls renders without an
     * error as well. */
    good = chat_habits_ask(asking, messages, NULL, &out);
    good = chat_prints_text(&out, good, VALUE);
    *raw = chat_prints_text(&out, good, raw_text);
    buf_fini(&out.text);
    return good;
}

/* Determine the form of arguments. Most templates expect an object. One that raises for an object,
 * or prints it as Python would ({'a': 1}), expects JSON text. That it prints a text as it is does
 * not count alone: Gemma 4's does, and has a form of its own for objects. */
static void chat_find_calls(const struct asking *asking, struct chat_habits *habits)
{
    static const char object[] = "{\"" KEY "\":\"" VALUE "\"}";
    static const char text[] = "\"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\"";
    static const char *const contents[] = {"\"\"", "null"};

    /* Some templates print calls only if content is null, so both contents are tried; then both
     * again for those that, as gpt-oss's first one, know no "function" in a call. */
    for (int i = 0; i < 4; i++) {
        const char *content = contents[i % 2];
        bool bare = i >= 2;
        bool as_python;
        bool as_json;
        bool by_object =
            chat_prints_call(asking, content, object, bare, PYTHON_TEXT_OF_ARGUMENTS, &as_python);
        bool by_text =
            chat_prints_call(asking, content, text, bare, JSON_TEXT_OF_ARGUMENTS, &as_json);

        if (!by_object && !by_text)
            continue;
        habits->bare_calls = bare;
        habits->calls_without_text = i % 2 == 1;
        habits->text_arguments = !by_object || (as_python && as_json);
        return;
    }
}

/* Does rendering these messages print both words? */
static bool chat_prints_all(const struct asking *asking, const char *messages, const char *tools,
                            const char *word, const char *other)
{
    struct chat_prompt out = {0};
    bool good = chat_habits_ask(asking, messages, tools, &out);

    good = chat_prints_text(&out, good, word) && chat_prints_text(&out, good, other);
    buf_fini(&out.text);
    return good;
}

/* Does the template print a later system message in addition to the first one? */
static void chat_find_system(const struct asking *asking, struct chat_habits *habits)
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
    /* Some templates print only the first message and take every later system message for
     * something else. Such messages have to be merged into the first by the server. */
    habits->merges_system = chat_prints_all(asking, early, NULL, HABITS_WORD, HABITS_WORD) &&
                            !chat_prints_all(asking, late, NULL, HABITS_WORD, VALUE);
}

/* Does the source mention a member of a message: .name, 'name' or "name"? */
static bool chat_names_member(const char *source, const char *name)
{
    size_t n = strlen(name);

    /* A name in a longer word does not count: "content" is also in "reasoning_content". */
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
    struct chat_habits *habits = &template->habits;
    struct asking asking = {.c = chat, .t = template, .filler = "\"x\""};
    char messages[ASK_BYTES_MAX];

    must(template->jinja != NULL && source != NULL);
    *habits = (struct chat_habits){0};
    /* Names are searched for in the source, because an experiment cannot show which of several
     * names a template prefers. */
    habits->reasoning =
        (chat_names_member(source, "reasoning_content") ? CHAT_REASONING_CONTENT : 0u) |
        (chat_names_member(source, "reasoning") ? CHAT_REASONING : 0u) |
        (chat_names_member(source, "thinking") ? CHAT_THINKING : 0u);
    /* The user's form comes first. Other experiments contain a user message, which must have the
     * right form or the template would raise for the wrong reason. */
    habits->forms[CHAT_USER] = chat_find_form(&asking, CHAT_USER);
    if (habits->forms[CHAT_USER] == CHAT_PARTS)
        asking.filler = "[{\"type\":\"text\",\"text\":\"x\"}]";
    for (int role = 0; role < CHAT_ROLES; role++)
        habits->forms[role] = chat_find_form(&asking, (enum chat_role)role);
    chat_find_calls(&asking, habits);
    chat_find_system(&asking, habits);
    chat_habits_render(&asking, CHAT_USER, asking.filler, messages);
    habits->tools = chat_prints_all(&asking, messages, TOOLS, TOOL, TOOL);
}
