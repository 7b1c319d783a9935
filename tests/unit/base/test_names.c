/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: what names.h promises. Method: lists and what they read as. */
#include "base/names.h"

#include <string.h>

#include "tests/tap.h"

static const struct {
    const char *list;
    const char *names[4]; /* up to a NULL */
    bool any;
} read_as[] = {
    {"", {"Llama-3"}, false},
    {"one", {"one"}, false},
    {"one,two", {"one", "two"}, false},
    {" one , two\tthree ,", {"one", "two", "three"}, false},
    {"one,one,two", {"one", "two"}, false},
    {"org/one:8b", {"org/one:8b"}, false},
    {"*", {"Llama-3"}, true},
    {"one,*", {"one"}, true},
};

static void test_lists(void)
{
    for (size_t i = 0; i < sizeof read_as / sizeof read_as[0]; i++) {
        struct names n;
        int count = 0;

        if (!ok(names_read(&n, read_as[i].list, "/srv/models/Llama-3") == ERR_OK, "\"%s\" is read",
                read_as[i].list))
            continue;
        for (; count < 4 && read_as[i].names[count] != NULL; count++) {
            const char *want = read_as[i].names[count];

            ok(count < n.n && strcmp(n.at[count], want) == 0, "\"%s\": %s", read_as[i].list, want);
            ok(names_have(&n, want, strlen(want)), "and it is a name");
        }
        is_int(n.n, count, "\"%s\": nothing more", read_as[i].list);
        ok(names_have(&n, "gpt-4", 5) == read_as[i].any, "another name");
        ok(names_have(&n, "on", 2) == read_as[i].any, "a part of a name");
    }
}

static void test_bounds(void)
{
    char many[NAMES_BYTES * 2];
    struct names n;
    size_t len = 0;

    for (int i = 0; i <= NAMES_MAX; i++)
        len += (size_t)snprintf(many + len, sizeof many - len, "n%d ", i);
    ok(names_read(&n, many, "m") == ERR_INVALID, "%d names are too many", NAMES_MAX + 1);
    memset(many, 'x', NAMES_BYTES);
    many[NAMES_BYTES] = '\0';
    ok(names_read(&n, many, "m") == ERR_INVALID, "%d bytes are too many", NAMES_BYTES);
    ok(names_read(&n, "", "plain") == ERR_OK && strcmp(n.at[0], "plain") == 0, "a folder alone");
}

int main(void)
{
    test_lists();
    test_bounds();
    return tap_done();
}
