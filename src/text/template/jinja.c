/* SPDX-License-Identifier: Apache-2.0
 *
 * The public functions of jinja.h: compile a template, collect the variables of a render, render.
 *
 *     source -> tokens (jinja_lex.c) -> tree (jinja_parse.c) -> text (jinja_eval.c)
 *
 * A compiled template does not change, so threads may render it at the same time; everything that a
 * render makes is in the arena of its caller. */
#include "text/template/jinja_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"

/* A variable given to a render, latest first. */
struct jinja_var {
    struct jinja_var *next;
    const char *name;
    struct jval value;
};

void jinja_vars_init(struct jinja_vars *vars, struct arena *arena)
{
    must(arena != NULL);
    *vars = (struct jinja_vars){.arena = arena};
}

/* Failure to allocate is recorded and reported by jinja_render(), so callers need not check each
 * variable. */
static void jinja_vars_add(struct jinja_vars *vars, const char *name, struct jval value)
{
    struct jinja_var *var = arena_alloc(vars->arena, sizeof *var);

    if (var == NULL) {
        vars->failed = true;
        return;
    }
    *var = (struct jinja_var){.next = vars->first, .name = name, .value = value};
    vars->first = var;
}

void jinja_vars_json(struct jinja_vars *vars, const char *name, const struct json *node)
{
    must(name != NULL);
    jinja_vars_add(vars, name, jv_from_json(vars->arena, node, &vars->failed));
}

void jinja_vars_text(struct jinja_vars *vars, const char *name, const char *text, size_t len)
{
    must(name != NULL && (text != NULL || len == 0));
    jinja_vars_add(vars, name, jv_own(text, len));
}

/* Origins are marked in place: the values were made by jinja_vars_json() for this render alone. */
void jinja_vars_trust(struct jinja_vars *vars, const char *name, const char *member,
                      const char *const *words)
{
    const struct jinja_var *var = vars->first;

    must(name != NULL && member != NULL && words != NULL);
    while (var != NULL && strcmp(var->name, name) != 0)
        var = var->next;
    if (var == NULL || var->value.kind != JV_LIST)
        return;
    for (size_t i = 0; i < var->value.list->n; i++) {
        struct jval item = var->value.list->items[i];
        struct jval *text = NULL;

        if (item.kind == JV_DICT)
            text = jdict_get_text(item.dict, member, strlen(member));
        /* Only the given words: any other text of this member came from a request. */
        for (size_t w = 0; text != NULL && words[w] != NULL; w++)
            if (jv_is(*text, words[w]))
                text->origin = &jorigin_own;
    }
}

void jinja_vars_bool(struct jinja_vars *vars, const char *name, bool flag)
{
    must(name != NULL);
    jinja_vars_add(vars, name, jv_bool(flag));
}

/* The given variables are the outermost scope; the template's own {% set %} goes to a scope inside,
 * so that it can hide but not change them. */
int jinja_render(const struct jinja *jinja, const struct jinja_vars *vars, struct arena *arena,
                 struct buf *out, char *why, size_t why_cap)
{
    struct jbuf text = {.text = *out};
    struct jrender render = {.arena = arena, .out = &text, .steps = JINJA_STEPS_MAX};
    struct jscope given = {0};
    struct jscope top = {.parent = &given};
    const struct jinja_var *var;

    must(jinja->body != NULL && arena != NULL);
    render.now_unix_s = vars->now_unix_s;
    if (vars->failed)
        (void)jinja_no_memory(&render);
    /* The list is in reverse order of addition. The first variable found under a name is therefore
     * the latest, and earlier ones of the same name are skipped. */
    for (var = vars->first; var != NULL && render.fault.rc == ERR_OK; var = var->next)
        if (jinja_scope_find(&given, var->name, strlen(var->name), true) == NULL)
            (void)jinja_scope_set(&render, &given, var->name, strlen(var->name), var->value);
    if (render.fault.rc == ERR_OK)
        (void)jinja_run_body(&render, jinja->body, &top);
    *out = text.text;
    if (render.fault.rc == ERR_OK && out->failed)
        (void)jinja_no_memory(&render);
    if (vars->own != NULL)
        *vars->own = text.own;
    if (render.fault.rc != ERR_OK && why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "%s", render.fault.text);
    return render.fault.rc;
}

int jinja_compile(struct jinja **out, const char *source, size_t len, char *why, size_t why_cap)
{
    struct jinja *jinja = mem_zalloc(sizeof *jinja);
    struct jfault fault = {0};
    struct jtoken *tokens;

    must(out != NULL);
    must(source != NULL || len == 0);
    if (jinja == NULL)
        return ERR_NO_MEMORY;
    /* The tokens point into the template's arena, as do the nodes, so both are freed with the
     * template. */
    tokens = jinja_lex(&jinja->arena, source, len, &fault);
    if (tokens != NULL)
        jinja->body = jinja_parse(jinja, tokens, &fault);
    if (jinja->body != NULL) {
        *out = jinja;
        return ERR_OK;
    }
    jinja_close(jinja);
    if (why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "%s", fault.text);
    return fault.rc;
}

void jinja_close(struct jinja *jinja)
{
    if (jinja == NULL)
        return;
    arena_reset(&jinja->arena);
    mem_free(jinja);
}
